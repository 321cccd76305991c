//! `mpsctl plan`: what root would do here for a job, printed and not done.

use super::job_arguments::JobArguments;
use super::site::inventory;
use crate::node::real::find_user;
use crate::plan::{Case, decide, tasks};
use crate::scheduler::{
    self, Devices, Exclusive, GpuName, GpuSource, Host, Site, Submission, ThisHost, UserRef,
};
use mpsd_core::config::Config;
use mpsd_core::{Failure, JobId, Refusal, Request};
use std::path::Path;

/// The job's id where nobody gives one.
const NO_JOB: &str = "0";

/// `mpsctl plan`.
#[derive(Debug, Clone, Default, clap::Args)]
// A person types it: what looks like an option is one, mistyped.
#[command(mut_arg("positional", |arg| arg.allow_hyphen_values(false)))]
pub struct PlanVerb {
    /// What mps-prologue would be told
    #[command(flatten)]
    pub arguments: JobArguments,
    /// A job that no scheduler tells of: its user
    #[arg(long, value_name = "NAME", conflicts_with = "positional")]
    pub user: Option<String>,
    /// With --user: the job's id
    #[arg(long, value_name = "ID", requires = "user")]
    pub job: Option<String>,
    /// With --user: the job's tasks on this node
    #[arg(long, value_name = "N", requires = "user")]
    pub tasks: Option<u32>,
    /// With --user: the scheduler proves that this job alone holds its GPUs
    #[arg(long, requires = "user")]
    pub exclusive: bool,
    /// The node's name in the scheduler; this host's if it does not say
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

impl PlanVerb {
    /// The text to print; `worker` is the program `mpsd`, which asks NVML.
    ///
    /// # Errors
    /// What would keep mps-prologue from carrying the plan out, as far as can be told without touching anything.
    pub fn run(
        &self,
        config: &Path,
        worker: &Path,
        env: scheduler::Lookup<'_>,
        json: bool,
    ) -> Result<String, Failure> {
        let file = Config::load(config)?;
        let host = self.node.clone().unwrap_or_else(|| ThisHost.name());
        let settings = file.for_node(&host, &[])?;
        let input = self.arguments.input(env, Site::of(&settings), false);
        let submission = match &self.user {
            Some(user) => self.submission(user)?,
            None => self.arguments.submission(&input, &ThisHost)?,
        };
        // Told here, where it is tried out, and never in a job: it may be the site's own account.
        let almost = submission.account.as_ref().and_then(Request::almost_asked);
        // Here the request may also be written in Slurm's flags, as on a command line.
        let mut arguments = self.arguments.clone();
        let flags = arguments
            .request
            .filter(|text| text.trim_start().starts_with("--"));
        arguments.request = match flags {
            Some(flags) => Some(Request::from_flags(&flags)?.to_string()),
            None => self.arguments.request.clone(),
        };
        let Some((request, syntax)) = arguments.request_of(&submission)? else {
            if json {
                return Ok(format!(
                    "{}\n",
                    serde_json::json!({"asked": false, "note": almost})
                ));
            }
            let note = almost.map(|told| format!("note: {told}\n")).unwrap_or_default();
            return Ok(format!("MPS was not asked for: nothing is done\n{note}"));
        };
        let told = match &self.user {
            Some(_) => None,
            None => {
                let system = scheduler::of(submission.scheduler);
                let missing = system.unattached(&submission, &input, &ThisHost);
                tasks::decide(missing, submission.sister, settings.pbs.unattached_tasks)?
            }
        };
        let devices = match &self.user {
            Some(_) => self.devices()?,
            None => scheduler::devices(&submission, &input, &ThisHost)?,
        };
        let node = self.node.clone().or_else(|| submission.node.clone());
        let node = node.unwrap_or(host);
        let inventory = inventory(worker, &settings.nvml)?;
        let user = find_user(&submission.user)?;
        let (_, plan) = decide(&Case {
            config: &file,
            node: &node,
            submission: &submission,
            request: &request,
            syntax,
            uid: user.uid,
            devices: &devices,
            inventory: &inventory,
        })?;
        if json {
            let mut object = plan.json();
            object["asked"] = true.into();
            object["node"] = node.into();
            object["user"] = user.name.into();
            object["request"] = request.to_string().into();
            object["note"] = told.into();
            return Ok(format!("{object}\n"));
        }
        let told = told.map(|told| format!("note: {told}\n")).unwrap_or_default();
        Ok(format!(
            "node {node} user {} request {}\n{plan}{told}",
            user.name, request
        ))
    }

    fn submission(&self, user: &str) -> Result<Submission, Failure> {
        let job = JobId::parse(self.job.as_deref().unwrap_or(NO_JOB))?;
        let named = user
            .parse()
            .map_or_else(|_| UserRef::Name(user.to_owned()), UserRef::Uid);
        let submission = Submission {
            scheduler: self.arguments.scheduler.unwrap_or(scheduler::ALL[0].scheduler()),
            sister: false,
            job,
            user: named,
            account: self
                .arguments
                .given
                .account
                .as_ref()
                .map(|account| account.as_encoded_bytes().to_vec()),
            resource: self.arguments.given.resource.clone(),
            node: None,
            interactive: false,
            step: false,
        };
        Ok(submission.of_step(self.arguments.step.as_deref())?)
    }

    fn devices(&self) -> Result<Devices, Failure> {
        let gpus = match self
            .arguments
            .given
            .gpus
            .as_deref()
            .map(GpuName::parse_list)
            .transpose()
        {
            Ok(Some(names)) if !names.is_empty() => GpuSource::Listed(names),
            Ok(_) => GpuSource::Unknown("no --gpus".to_owned()),
            Err(why) => return Err(Refusal::new("--gpus", why, "indexes or UUIDs with commas").into()),
        };
        let exclusive = if self.exclusive {
            Exclusive::GpusAlone
        } else {
            Exclusive::Unknown
        };
        Ok(Devices {
            gpus,
            exclusive,
            whole_node: false,
            tasks_on_node: self.tasks,
        })
    }
}
