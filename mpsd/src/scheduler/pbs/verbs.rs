//! The verbs of `mpsctl pbs`, and what each product does of them in its own way.

use super::files::Script;
use super::installation::{Installation, Product};
use crate::scheduler::running::Running;
use crate::scheduler::setup::{CheckLine, SetupContext, VerbReport};
use mpsd_core::config::WarnOrRefuse;
use std::ffi::OsString;

/// The verbs of `mpsctl pbs`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Pbs {
    /// Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator can do
    Install(Install),
    /// Remove what install put there, once no job with MPS runs on this node
    Uninstall(Uninstall),
    /// Say what works, what could be better, and what is wrong, one line each
    Check(Where),
    /// Read a request as the queuejob hook does: print it and the account without it, as JSON
    Request(Asked),
}

/// Which PBS.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Where {
    /// The product; found by itself where only one is installed
    #[arg(long, value_name = "torque|openpbs", value_parser = ["torque", "openpbs"], hide_possible_values = true)]
    pub scheduler: Option<String>,
}

/// `mpsctl pbs install`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Install {
    /// Which PBS
    #[command(flatten)]
    pub place: Where,
    /// Torque: leave $job_starter as it is; tasks that TM starts then need 'mpsctl exec -- COMMAND'
    #[arg(long)]
    pub no_job_starter: bool,
    /// OpenPBS: the classic prologue and epilogue instead of the hook (first node of a job only)
    #[arg(long)]
    pub classic: bool,
    /// OpenPBS: the hook also refuses at qsub and moves our words out of the account
    #[arg(long)]
    pub queuejob: bool,
}

/// `mpsctl pbs uninstall`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Uninstall {
    /// Which PBS
    #[command(flatten)]
    pub place: Where,
    /// What becomes of the jobs that run
    #[command(flatten)]
    pub running: Running,
}

/// `mpsctl pbs request`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Asked {
    /// The job's account
    #[arg(long, default_value = "")]
    pub account: OsString,
    /// The job's resource `mps`
    #[arg(long, default_value = "")]
    pub resource: String,
}

/// What one product does in its own way.
pub(crate) trait OwnSteps: Sync {
    /// The product.
    fn product(&self) -> &'static Product;
    /// Our scripts in its `mom_priv`.
    fn scripts(&self) -> &'static [Script];
    /// Puts our files in place.
    ///
    /// # Errors
    /// One line.
    fn install(
        &self,
        pbs: &Installation,
        options: &Install,
        around: &SetupContext<'_>,
    ) -> Result<VerbReport, String>;
    /// Removes what [`OwnSteps::install`] put there, but for the scripts.
    ///
    /// # Errors
    /// One line.
    fn uninstall(&self, pbs: &Installation, around: &SetupContext<'_>) -> Result<VerbReport, String>;
    /// Looks at the hook that makes the scripts needless; whether it is there.
    fn check_hook(&self, _: &Installation, _: &SetupContext<'_>, _: &mut Vec<CheckLine>) -> bool {
        false
    }
    /// Whether tasks that TM starts are attached; `None`: the hook does that.
    fn check_tasks(&self, pbs: &Installation, hooked: bool, around: &SetupContext<'_>) -> Option<CheckLine>;
    /// A script that is not there, and no hook.
    fn check_absent(&self, shown: &str) -> CheckLine;
}

/// What is missing where tasks that TM starts are not attached, and what follows of it here.
pub(crate) fn unattached(missing: &str, remedy: &str, around: &SetupContext<'_>) -> CheckLine {
    let text = format!("{missing} ({remedy}): {}", consequence(around));
    match around.settings.pbs.unattached_tasks {
        WarnOrRefuse::Refuse => CheckLine::Fail(text),
        WarnOrRefuse::Warn => CheckLine::Warn(text),
    }
}

/// What a job is told where its TM tasks are not attached.
pub(crate) fn consequence(around: &SetupContext<'_>) -> &'static str {
    match around.settings.pbs.unattached_tasks {
        WarnOrRefuse::Refuse => {
            "every job that asks for MPS is refused, as unattached_tasks under [pbs] of mpsd.toml wants"
        }
        WarnOrRefuse::Warn => "tasks that TM starts run outside MPS unless they are 'mpsctl exec -- CMD'",
    }
}
