//! A job that asked: its node's settings, its user, its limits of time.

use crate::arguments::Arguments;
use mpsd::cli::asking::Asked;
use mpsd::node::clean::site;
use mpsd::node::real::Reach;
use mpsd::node::user::{User, find_user};
use mpsd::scheduler::pbs::Installation;
use mpsd::scheduler::{Host, Scheduler, Site, ThisHost};
use mpsd_core::Failure;
use mpsd_core::config::{Config, Settings};
use mpsd_core::failure::{Evidence, Fault};
use std::time::Duration;

/// The whole deadline where no configuration can be read.
const USUAL_LIMIT: Duration = Duration::from_secs(20);
/// What the mom's own limit must leave us: it kills without a word.
const MOM_MARGIN: Duration = Duration::from_secs(4);

/// A job that asked, with all that is known before its GPUs are looked at.
#[derive(Debug)]
pub struct Job {
    /// What it asked for.
    pub asked: Asked,
    /// The file with the settings.
    pub config: Config,
    /// What is in force on this node, whatever its GPUs are.
    pub settings: Settings,
    /// Its user.
    pub user: User,
    /// The node's name in the scheduler.
    pub node: String,
    /// `--record`.
    pub record: bool,
}

impl Job {
    /// The time for the whole prologue: the configured one, but below the mom's own, which ends with SIGKILL.
    pub fn limit(arguments: &Arguments, asked: &Asked) -> Duration {
        let settings = Config::load(&arguments.config)
            .ok()
            .and_then(|c| c.for_node(&node_name(asked), &[]).ok());
        let own = settings.as_ref().map_or(USUAL_LIMIT, |s| s.deadline);
        if asked.submission.scheduler == Scheduler::Slurm || arguments.record {
            return own;
        }
        let site = settings.as_ref().map(site).unwrap_or_default();
        let mom = Installation::find(asked.submission.scheduler, &site, &ThisHost).mom_limit(&ThisHost);
        own.min(mom.saturating_sub(MOM_MARGIN).max(Duration::from_secs(1)))
    }

    /// Reads the configuration and looks the user up.
    ///
    /// # Errors
    /// A fault for an unusable configuration; undetermined when the user is not known here.
    pub fn prepare(arguments: &Arguments, asked: Asked) -> Result<Self, Failure> {
        let broken = |e: mpsd_core::config::ConfigError| {
            Fault::new(Evidence::Configuration, "configuration", e.to_string())
        };
        let config = Config::load(&arguments.config).map_err(broken)?;
        let node = node_name(&asked);
        let settings = config.for_node(&node, &[]).map_err(broken)?;
        let user = find_user(&asked.submission.user)?;
        Ok(Self {
            asked,
            config,
            settings,
            user,
            node,
            record: arguments.record,
        })
    }

    /// How the node is reached for this job, which may take `limit` for all.
    pub fn reach(&self, limit: Duration) -> Reach {
        // A rollback must fit behind a start that took its whole time.
        Reach::of(crate::NAME, &self.settings, limit, limit / 3)
    }

    /// Where PBS lives.
    pub fn site(&self) -> Site {
        site(&self.settings)
    }
}

fn node_name(asked: &Asked) -> String {
    asked
        .submission
        .node
        .clone()
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| ThisHost.name())
}
