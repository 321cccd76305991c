//! Torque: `prologue` and `epilogue` on the mother superior, their `.parallel` forms on the
//! sisters, and `$job_starter`.
//!
//! Recorded on 6.1.3: 8 arguments to a prologue (7 before 5.x, 9 to a presetup one), 11 to an
//! epilogue (10 before 5.x). The account is argument 7 of a prologue and 9 of an epilogue, ""
//! without `-A`, verbatim otherwise.

pub mod starter;

use super::batch_system::{BatchSystem, ExitPolicy, Located, Offer, SystemFacts, Unattached};
use super::call::{Input, Location, Lookup, Program, Submission, UserRef};
use super::devices::{Devices, Exclusive, GpuName, GpuSource};
use super::host::{Host, ThisHost};
use super::pbs::control::{LONGEST_REASON, offline_for};
use super::pbs::trial::QSUB_OF_TORQUE;
use super::pbs::{Installation, MOST_CONF, Product, attribute, same_node};
use mpsd_core::failure::{Failure, Undetermined};
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::request::Syntax;
use mpsd_core::text::one_line;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MOST_GPU_FILE: usize = 1 << 20;
const MOST_NODE_FILE: usize = 16 << 20;
/// `qstat -f` answered within 7 ms; a server under load gets this.
const QSTAT_DEADLINE: Duration = Duration::from_secs(4);
const SHARED_MODES: [&str; 2] = ["shared", "default"];

#[derive(Debug, Clone, Copy)]
pub struct Torque;

/// The configuration of Torque's mom here, if the mom may run its starter as root: in doubt, or if
/// it cannot be read.
pub fn may_run_as_root(location: &Location, host: &dyn Host) -> Option<PathBuf> {
    starter::may_run_as_root(&installation(location, host), host)
}

static FACTS: SystemFacts = SystemFacts {
    scheduler: Scheduler::Torque,
    title: PRODUCT.title,
    vectors: [
        "JOB USER GROUP NAME RESOURCES QUEUE ACCOUNT [SCRIPT [HOSTS]]",
        "JOB USER GROUP NAME SESSION RESOURCES USED QUEUE ACCOUNT CODE [SCRIPT]",
    ],
    syntax: Syntax::Account,
    trial: &QSUB_OF_TORQUE,
    longest_reason: LONGEST_REASON,
    has_steps: false,
    // Four times a second, for ever (docs/facts/pbs.md#results-of-a-prologue).
    retries_at_once: true,
    // docs/facts/pbs.md#sister-nodes
    may_skip_epilogue: true,
    // docs/facts/pbs.md#environment-identity-and-descriptors
    shows_end: true,
};

impl BatchSystem for Torque {
    fn facts(&self) -> &'static SystemFacts {
        &FACTS
    }

    /// 7 to 9 arguments are a prologue, 11 an epilogue, and 10 an epilogue before Torque 5.
    fn calls(&self, arguments: usize, _: Lookup<'_>) -> bool {
        matches!(arguments, 7..=11)
    }

    fn read(&self, input: &Input<'_>, _: &dyn Host) -> Result<Submission, Failure> {
        let (known, account) = match input.program {
            Program::Prologue => (7..=9, 7),
            Program::Epilogue => (10..=11, 9),
        };
        if !known.contains(&input.arguments.len()) {
            return Err(FACTS.wrong_vector(input));
        }
        let is_first = matches!(input.number("PBS_NODENUM"), None | Some(0));
        let sister = input.given.sister || !is_first;
        let mother = (input.env)("PBS_MSHOST").filter(|host| !host.is_empty() && !sister);
        Ok(Submission {
            scheduler: self.scheduler(),
            sister,
            job: JobId::parse(&input.text(1, "job id")?)?,
            user: UserRef::Name(input.text(2, "user")?),
            account: input.account(Some(account)),
            resource: None,
            queue: input.given.queue.clone(),
            node: input.location.node.clone().or(mother),
            interactive: input.terminal,
            script: false,
            step: false,
            sluid: None,
        })
    }

    fn devices(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices {
        let wanted = resources(input);
        let here = submission.node.clone().unwrap_or_else(|| host.name());
        let unasked = "the job did not ask Torque for GPUs (-l nodes=1:gpus=1)";
        let gpus = match node_file(input) {
            _ if !asks_for_gpus(&wanted) => GpuSource::Unknown(unasked.to_owned()),
            // The environment has no PBS_GPUFILE, but the file exists already (recorded).
            Some(nodes) if !submission.sister => {
                from_file(Path::new(&format!("{nodes}gpu")), &here, host)
            }
            _ => from_qstat(submission, input, &here, host),
        };
        let exclusive = match &gpus {
            GpuSource::Listed(_) if shares_gpus(&wanted) => Exclusive::Shared(None),
            GpuSource::Listed(_) => Exclusive::GpusAlone,
            _ => Exclusive::Unknown,
        };
        let lower = wanted.to_ascii_lowercase();
        let mut alone = ["naccesspolicy=singlejob", "naccesspolicy:singlejob"].into_iter();
        // The request proves nothing: 'qrun -H' disregards it.
        let has_no_other =
            || installation(&input.location, host).other_job(&submission.job, host) == Ok(None);
        Devices {
            gpus,
            exclusive,
            whole_node: alone.any(|word| lower.contains(word)) && has_no_other(),
            tasks_on_node: tasks_here(&here, input, host),
            uneven: false,
        }
    }

    /// The mom gives the numbers of the GPU file. `qsub -V` carries another job's name of it. A
    /// sister has neither (docs/facts/pbs.md#gpus-of-a-job).
    fn scheduled_devices(
        &self,
        job: &JobId,
        env: Lookup<'_>,
        location: &Location,
        host: &dyn Host,
    ) -> Option<String> {
        let path = env("PBS_GPUFILE").filter(|path| path.ends_with(&format!("/{job}gpu")))?;
        let here = location.node.clone().unwrap_or_else(|| host.name());
        let GpuSource::Listed(gpus) = from_file(Path::new(&path), &here, host) else {
            return None;
        };
        let number = |gpu: &GpuName| match gpu {
            GpuName::Index(number) => number.to_string(),
            GpuName::Uuid(uuid) => uuid.clone(),
        };
        Some(gpus.iter().map(number).collect::<Vec<_>>().join(","))
    }

    /// Finds a sister that its own prologue drained for this job, and exited 0: Torque takes a
    /// sister with a failed prologue down, and pbs_sched then deletes the job
    /// (docs/facts/pbs.md#results-of-a-prologue).
    fn elsewhere(
        &self,
        submission: &Submission,
        input: &Input<'_>,
        host: &dyn Host,
    ) -> Result<(), Failure> {
        if submission.sister || input.program == Program::Epilogue {
            return Ok(());
        }
        let here = submission.node.clone().unwrap_or_else(|| host.name());
        let tasks = nodes_of_tasks(input, host);
        let mut names: Vec<&str> = tasks.iter().map(String::as_str).collect();
        names.retain(|name| !same_node(name, &here));
        names.sort_unstable();
        names.dedup();
        let pbs = installation(&input.location, host);
        match offline_for(&pbs, &names, &format!("job {}: ", submission.job), host) {
            Some((node, note)) => Err(Undetermined::new(format!("node '{node}'"), note).into()),
            None => Ok(()),
        }
    }

    fn script(&self, submission: &Submission, input: &Input<'_>) -> Option<String> {
        installation(&input.location, &ThisHost).script(submission)
    }

    fn unattached(&self, _: &Submission, input: &Input<'_>, host: &dyn Host) -> Option<Unattached> {
        starter::unattached(&installation(&input.location, host), host)
    }

    /// A failing prologue.parallel takes its node down, and Torque requeues the job forever
    /// (docs/facts/pbs.md#sister-nodes). No user may cause that, so a sister exits 0. The mother
    /// superior makes the same refusal, and hears of a sister's fault from the server.
    fn exit_policy(&self, submission: &Submission) -> ExitPolicy {
        ExitPolicy {
            left_to_tasks: submission.sister,
            ..ExitPolicy::default()
        }
    }

    /// Torque never delivers what a refusing prologue writes
    /// (docs/facts/pbs.md#results-of-a-prologue). Our starter tells the user, if it is in force.
    fn tells_refusals(
        &self,
        submission: &Submission,
        location: &Location,
        host: &dyn Host,
    ) -> bool {
        let pbs = installation(location, host);
        let batch = !submission.sister && !submission.interactive;
        batch && pbs.is_here() && starter::unattached(&pbs, host).is_none()
    }

    fn time_limit(&self, _: &Input<'_>, _: bool, location: &Location) -> Option<Duration> {
        Some(time_limit(&installation(location, &ThisHost), &ThisHost))
    }

    fn at(&self, location: &Location) -> Box<dyn Located> {
        Box::new(installation(location, &ThisHost))
    }

    /// Torque's own scheduler counts no generic resource of a node; Maui and Moab do.
    fn shares(&self, node: &str, _: &[Offer<'_>], total: u32) -> String {
        format!(
            "# mom_priv/config of this node, for Moab, which hears it from the mom; then restart the mom\n\
             mps_shares {total}\n\
             # maui.cfg, for Maui\n\
             NODECFG[{node}] GRES=mps_shares:{total}\n\
             # a job asks: -W x=GRES:mps_shares@1 -A MPS=on,MPS_THREADS=P\n\
             # the scheduler counts these shares and does not say on which GPU one lies: see gpus_unknown in mpsd.toml\n"
        )
    }
}

/// The node of each task of the job, from its node file; a sister has none. `PBS_NUM_NODES` is 0 if
/// the user named the nodes (docs/facts/pbs.md#environment-identity-and-descriptors).
fn nodes_of_tasks(input: &Input<'_>, host: &dyn Host) -> Vec<String> {
    let read = |path: String| host.text(Path::new(&path), MOST_NODE_FILE).ok()?;
    let text = node_file(input).and_then(read);
    let names = text.iter().flat_map(|text| text.lines()).map(str::trim);
    let names = names.filter(|name| !name.is_empty() && !name.starts_with('-'));
    names.map(str::to_owned).collect()
}

/// `PBS_NUM_PPN` is the first number of a request, and 1 if the user named the nodes.
fn tasks_here(here: &str, input: &Input<'_>, host: &dyn Host) -> Option<u32> {
    let tasks = nodes_of_tasks(input, host);
    let here = tasks.iter().filter(|name| same_node(name, here)).count();
    let counted = u32::try_from(here).ok().filter(|tasks| *tasks > 0);
    let positive = |name: &str| input.number(name).filter(|number| *number > 0);
    counted.or_else(|| positive("PBS_NUM_NODES").and(positive("PBS_NUM_PPN")))
}

/// The requested resources: argument 5 of a prologue, 6 of an epilogue. Their order varies.
fn resources(input: &Input<'_>) -> String {
    let number = match input.program {
        Program::Prologue => 5,
        Program::Epilogue => 6,
    };
    let argument = input.argument(number).cloned().unwrap_or_default();
    argument.to_string_lossy().into_owned()
}

/// `nodes=1:gpus=1`, `nodes=2:ppn=4:gpus=2:shared+…`, `gpus=1`; `gpus=0` asks for none.
fn asks_for_gpus(resources: &str) -> bool {
    let parts = resources.split([',', ':', '+']);
    let mut counts = parts.filter_map(|part| part.rsplit_once("gpus="));
    counts.any(|(_, count)| count.trim() != "0")
}

/// Whether a mode behind a number of GPUs lets other jobs use them: `nodes=1:gpus=1:shared`.
fn shares_gpus(resources: &str) -> bool {
    resources.split([',', '+']).any(|part| {
        let words = part.split(':').skip_while(|word| !word.contains("gpus="));
        words.skip(1).any(|mode| SHARED_MODES.contains(&mode))
    })
}

fn node_file(input: &Input<'_>) -> Option<String> {
    (input.env)("PBS_NODEFILE").filter(|path| path.starts_with('/'))
}

fn from_file(path: &Path, here: &str, host: &dyn Host) -> GpuSource {
    let shown = path.display();
    let found = || {
        let text = host.text(path, MOST_GPU_FILE)?;
        let text = text.ok_or_else(|| format!("no file '{shown}'"))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let none = || format!("'{shown}' names no GPU of '{here}'");
        listed(lines.map(|line| line.rsplit_once("-gpu")), here).ok_or_else(none)
    };
    found().unwrap_or_else(GpuSource::Unknown)
}

/// This node's part of `exec_gpus = vm-gpu/0+vm-gpu/1`.
fn from_qstat(
    submission: &Submission,
    input: &Input<'_>,
    here: &str,
    host: &dyn Host,
) -> GpuSource {
    let (pbs, job) = (installation(&input.location, host), submission.job.as_str());
    let found = || {
        let answer = pbs.run("qstat", &["-f", job], QSTAT_DEADLINE, host)?;
        let text = attribute(&answer.text, "exec_gpus");
        let text = text.ok_or_else(|| format!("'qstat -f {job}' shows no exec_gpus"))?;
        let pairs = text.split('+').map(|part| part.trim().rsplit_once("-gpu/"));
        let shown = one_line(&text, 80);
        let none = || format!("exec_gpus '{shown}' names no GPU of '{here}'");
        listed(pairs, here).ok_or_else(none)
    };
    found().unwrap_or_else(GpuSource::Unknown)
}

/// The GPUs of `(node, number)` pairs on `here`; `None`: there is none, or a pair cannot be read.
fn listed<'t>(
    pairs: impl Iterator<Item = Option<(&'t str, &'t str)>>,
    here: &str,
) -> Option<GpuSource> {
    let mut names = Vec::new();
    for pair in pairs {
        let (node, number) = pair?;
        let name = GpuName::Index(number.parse().ok()?);
        if same_node(node, here) && !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then_some(GpuSource::Listed(names))
}

pub static PRODUCT: Product = Product {
    scheduler: Scheduler::Torque,
    title: "Torque",
    homes: ["/var/spool/torque", "/var/lib/torque"],
    commands: &[
        "/usr/local/bin",
        "/usr/bin",
        "/opt/torque/bin",
        "/usr/local/sbin",
        "/usr/sbin",
    ],
    conf: None,
    note_option: "-N",
    no_note: "n",
    // `-r` would show a node down until the mom's next status; `-c` does not (recorded).
    online_option: "-c",
    comments: true,
};

pub fn installation(location: &Location, host: &dyn Host) -> Installation {
    Installation::find(&PRODUCT, location, host)
}

/// `$prologalarm` if the mom's configuration does not set it.
pub const ALARM_S: u64 = 300;
/// How much earlier the mom kills if the alarm is longer than this (recorded: 15 kills at 5 s, the
/// default of 300 at 290).
pub const EARLY_S: u64 = 10;

pub fn time_limit(pbs: &Installation, host: &dyn Host) -> Duration {
    let config = host.text(&pbs.mom_config(), MOST_CONF).ok().flatten();
    let alarm = config.and_then(|config| prolog_alarm(&config));
    let alarm = alarm.unwrap_or(ALARM_S);
    let early = if alarm > EARLY_S { EARLY_S } else { 0 };
    Duration::from_secs(alarm - early)
}

fn prolog_alarm(config: &str) -> Option<u64> {
    let values = starter::values(config, "$prologalarm");
    let seconds = values.filter_map(|value| value.split_whitespace().next()?.parse().ok());
    seconds.filter(|seconds| *seconds > 0).last()
}

#[cfg(test)]
mod tests;
