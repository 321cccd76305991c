//! `mpsctl plan`: what root would do here for a job, printed and not done.

use super::site::inventory;
use batch::{
    self, Devices, Exclusive, GpuName, GpuSource, Host, Location, Submission, ThisHost, UserRef,
};
use mpsd::cli::job_arguments::JobArguments;
use mpsd::node::real::find_user;
use mpsd::plan::auto::{self, Finding};
use mpsd::plan::{Case, decide, tasks};
use mpsd_core::config::Settings;
use mpsd_core::request::Mode;
use mpsd_core::{Failure, JobId, Refusal, Request};
use std::ffi::OsString;
use std::path::Path;

#[derive(Debug, Clone, Default, clap::Args)]
// A person types it: a word that begins like an option is a mistyped option.
#[command(mut_arg("positional", |arg| arg.allow_hyphen_values(false)))]
pub struct PlanVerb {
    /// The arguments of mps-prologue
    #[command(flatten)]
    pub arguments: JobArguments,
    /// The job's user, for a job without a scheduler
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
    /// `worker` is the program `mpsd`, which asks NVML.
    pub fn run(
        &self,
        config: &Path,
        worker: &Path,
        env: batch::Lookup<'_>,
        json: bool,
    ) -> Result<String, Failure> {
        let host = self.node.clone().unwrap_or_else(|| ThisHost.name());
        let settings = Settings::load(config, &host)?;
        let input = self.arguments.input(env, Location::of(&settings), false);
        let submission = match &self.user {
            Some(user) => self.submission(user)?,
            None => self.arguments.submission(&input, &ThisHost)?,
        };
        // Here the request may also be written in Slurm's flags, as on a command line.
        let mut arguments = self.arguments.clone();
        let flags = arguments.request.as_ref();
        let flags = flags.filter(|text| text.trim_start().starts_with("--"));
        if let Some(flags) = flags {
            arguments.request = Some(Request::from_flags(flags)?.to_string());
        }
        let of_node = || Some(settings.clone());
        let asked = arguments.request_of(&submission, &of_node)?;
        let Some(asked) = asked else {
            return Ok(match json {
                true => format!("{}\n", serde_json::json!({"asked": false})),
                false => "MPS was not asked for: nothing is done\n".to_owned(),
            });
        };
        let request = &asked.request;
        let without = |why: &str| {
            let line = Mode::auto_without(why);
            match json {
                true => format!("{}\n", serde_json::json!({"asked": true, "unneeded": line})),
                false => format!("{line}: the job runs as if it had not asked\n"),
            }
        };
        let may_do_without = auto::may_do_without(request);
        let devices = match &self.user {
            Some(_) => self.devices()?,
            None => batch::devices(&submission, &input, &ThisHost)?,
        };
        if request.mode == Mode::Auto
            && let Finding::Unneeded(why) = auto::find(&devices, &settings)
        {
            return Ok(without(&why));
        }
        let missing = self.user.is_none().then(|| {
            let system = batch::of(submission.scheduler);
            system.unattached(&submission, &input, &ThisHost)
        });
        let sister = submission.sister && !may_do_without;
        let note = match tasks::decide(missing.flatten(), sister, settings.pbs.unattached_tasks) {
            Err(Failure::Refusal(refusal)) if may_do_without => {
                return Ok(without(&refusal.to_string()));
            }
            told => told?,
        };
        let node = self.node.clone().or_else(|| submission.node.clone());
        let node = node.unwrap_or(host);
        let inventory = inventory(worker, &settings.nvml)?;
        let user = find_user(&submission.user)?;
        let decided = decide(&Case {
            settings: &Settings::load(config, &node)?,
            submission: &submission,
            asked: &asked,
            uid: user.uid,
            devices: &devices,
            inventory: &inventory,
        });
        let plan = match decided {
            Err(Failure::Refusal(refusal)) if may_do_without => {
                return Ok(without(&refusal.to_string()));
            }
            decided => decided?,
        };
        if json {
            let mut object = plan.json();
            object["asked"] = true.into();
            object["node"] = node.into();
            object["user"] = user.name.into();
            object["request"] = request.to_string().into();
            object["note"] = note.into();
            return Ok(format!("{object}\n"));
        }
        let note = note.map_or(String::new(), |note| format!("note: {note}\n"));
        Ok(format!(
            "node {node} user {} request {request}\n{plan}{note}",
            user.name
        ))
    }

    fn submission(&self, user: &str) -> Result<Submission, Failure> {
        let job = JobId::parse(self.job.as_deref().unwrap_or("0"))?;
        let by_name = |_| UserRef::Name(user.to_owned());
        let named = user.parse().map_or_else(by_name, UserRef::Uid);
        let account = |account: &OsString| account.as_encoded_bytes().to_vec();
        let scheduler = self.arguments.scheduler;
        let given = &self.arguments.given;
        let submission = Submission {
            scheduler: scheduler.unwrap_or(batch::ALL[0].scheduler()),
            sister: false,
            job,
            user: named,
            account: given.account.as_ref().map(account),
            resource: given.resource.clone(),
            queue: given.queue.clone(),
            node: None,
            interactive: false,
            script: false,
            step: false,
            sluid: None,
        };
        Ok(submission.of_step(self.arguments.step.as_deref())?)
    }

    fn devices(&self) -> Result<Devices, Failure> {
        let names = self.arguments.given.gpus.as_deref();
        let names = names.map(GpuName::parse_list);
        let allowed = "indexes or UUIDs with commas";
        let names = names.transpose();
        let names = names.map_err(|why| Refusal::new("--gpus", why, allowed))?;
        Ok(Devices {
            gpus: match names.filter(|names| !names.is_empty()) {
                Some(names) => GpuSource::Listed(names),
                None => GpuSource::Unknown("no --gpus".to_owned()),
            },
            exclusive: match self.exclusive {
                true => Exclusive::GpusAlone,
                false => Exclusive::Unknown,
            },
            whole_node: false,
            tasks_on_node: self.tasks,
            uneven: false,
        })
    }
}
