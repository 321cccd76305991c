//! What `mpsctl pbs` does in Torque or OpenPBS.

use crate::verbs::{CheckLine, SetupContext, VerbReport};
use anyhow::Result;
use batch::pbs::{Installation, Product};
use clap::builder::BoolishValueParser;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct ProductOption {
    /// The product; found by itself where only one is installed
    #[arg(long, value_name = "torque|openpbs", value_parser = ["torque", "openpbs"], hide_possible_values = true)]
    pub scheduler: Option<String>,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub struct InstallOptions {
    #[command(flatten)]
    pub product: ProductOption,
    /// Torque: leave $job_starter as it is; tasks that TM starts then need 'mpsctl exec -- COMMAND'
    #[arg(long)]
    pub no_job_starter: bool,
    /// OpenPBS: the hook also refuses at qsub and moves our words out of the account. Kept when you
    /// run it again; --queuejob=off or uninstall takes it back
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
        default_missing_value = "on", value_parser = BoolishValueParser::new(),
        hide_possible_values = true)]
    pub queuejob: Option<bool>,
    /// OpenPBS: each GPU is a vnode with so many mps_shares, which jobs of several users may divide
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60))]
    pub shares: Option<u32>,
}

pub struct ProductVerbs {
    pub product: &'static Product,
    pub install:
        fn(&Installation, &InstallOptions, &SetupContext<'_>, &mut VerbReport) -> Result<()>,
    pub uninstall: fn(&Installation, &SetupContext<'_>, &mut VerbReport) -> Result<()>,
    pub check: fn(&Installation, &SetupContext<'_>, &mut Vec<CheckLine>),
}

pub fn node(ctx: &SetupContext<'_>) -> String {
    let named = ctx.settings.pbs.node.clone();
    named.unwrap_or_else(|| ctx.host.name())
}
