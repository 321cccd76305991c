//! Slurm: what the environment of a prolog, epilog or task, `squeue`, `sinfo` and `scontrol` say of
//! a job.
//!
//! A job's facts are in the environment of `slurmstepd spank prolog|epilog`, or of the step's task.
//! Recorded on 22.05.8: `SLURM_JOB_GPUS` and `CUDA_VISIBLE_DEVICES` are node-wide numbers under any
//! PrologFlags, and both absent if the job has no GPU. A step has `SLURM_STEP_GPUS`; its
//! `CUDA_VISIBLE_DEVICES` counts from 0 under ConstrainDevices: only its UUIDs count.

pub mod conf;
pub mod control;
pub mod gres;
pub mod installation;
pub mod jobs;
pub mod numbers;
pub mod slurmd;
mod trial;

use super::batch_system::{BatchSystem, ExitPolicy, Located, Offer, SystemFacts};
use super::call::{Input, Location, Lookup, Submission, UserRef};
use super::control::{Controller, KnownJobs};
use super::devices::{Devices, Exclusive, GpuName, GpuSource, Part};
use super::host::{Host, ThisHost};
use conf::Conf;
use gres::Gres;
use installation::Installation;
use mpsd_core::Gpu;
use mpsd_core::config::HostList;
use mpsd_core::environment::THREADS;
use mpsd_core::failure::{Failure, Undetermined};
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::request::Syntax;
use mpsd_core::text::{is_digits, is_word, one_line};
use numbers::{List, Number, Numbers};
use std::path::Path;
use std::time::Duration;
use trial::SRUN;

const OF_JOB: &str = "SLURM_JOB_GPUS";
/// From 25.11 on; the plugin sets it for a step.
const SLUID: &str = "SLURM_JOB_SLUID";
const DEADLINE: Duration = Duration::from_secs(3);
const MOST: u32 = 1024;

#[derive(Debug, Clone, Copy)]
pub struct Slurm;

static FACTS: SystemFacts = SystemFacts {
    scheduler: Scheduler::Slurm,
    title: "Slurm, through the plugin",
    vectors: ["none and Slurm's environment"; 2],
    syntax: Syntax::Flags,
    trial: &SRUN,
    // Slurm keeps reasons whole; this is enough for two paths and an error.
    longest_reason: 400,
    has_steps: true,
    retries_at_once: false,
    may_skip_epilogue: false,
    shows_end: false,
};

impl BatchSystem for Slurm {
    fn facts(&self) -> &'static SystemFacts {
        &FACTS
    }

    fn calls(&self, arguments: usize, env: Lookup<'_>) -> bool {
        arguments == 0 && env("SLURM_JOB_ID").is_some()
    }

    fn read(&self, input: &Input<'_>, _: &dyn Host) -> Result<Submission, Failure> {
        if !input.arguments.is_empty() {
            return Err(FACTS.wrong_vector(input));
        }
        let var = |name: &str| (input.env)(name).filter(|v| !v.is_empty());
        let needed = |name| {
            let why = "Slurm did not set it; run through the plugin's job_prolog and job_epilog";
            var(name).ok_or_else(|| Undetermined::new(name, why))
        };
        let (id, uid) = (needed("SLURM_JOB_ID")?, needed("SLURM_JOB_UID")?);
        let no_number = |_| Undetermined::new("SLURM_JOB_UID", "it is no user id");
        let uid: u32 = uid.parse().map_err(no_number)?;
        let account = input.given.account.as_ref();
        let submission = Submission {
            scheduler: self.scheduler(),
            sister: false,
            job: JobId::parse(&id)?,
            user: UserRef::Uid(uid),
            account: account.map(|account| account.as_encoded_bytes().to_vec()),
            resource: None,
            queue: None,
            node: var("SLURMD_NODENAME"),
            interactive: var("SPANK_MPS_SUBMIT").is_some_and(|by| by == "salloc"),
            script: var("SPANK_MPS_SUBMIT").is_some_and(|by| by == "sbatch"),
            step: false,
            sluid: var(SLUID).filter(|sluid| is_word(sluid, b"_")),
        };
        Ok(submission.of_step(step(input).as_deref())?)
    }

    fn devices(&self, _: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices {
        let is_step = step(input).is_some();
        let scope = if is_step { "SLURM_STEP_GPUS" } else { OF_JOB };
        let node = (input.env)("SLURMD_NODENAME").unwrap_or_else(|| host.name());
        let unsaid = "Slurm did not say where its configuration is (SLURM_CONF)";
        let conf = (input.env)("SLURM_CONF").ok_or(unsaid.to_owned());
        let conf = conf.and_then(|conf| Conf::find(Some(conf.as_ref()), host));
        let gres = conf.and_then(|conf| Gres::read(&conf, &node, host));
        let exclusive = exclusive(input, gres.as_ref().ok(), &node);
        let gpus = gpus(input, scope, gres, &node);
        let tasks = tasks(input);
        Devices {
            exclusive: match gpus {
                GpuSource::None => Exclusive::Unknown,
                _ => exclusive,
            },
            gpus,
            whole_node: false,
            tasks_on_node: tasks.map(|(total, nodes)| total.div_ceil(nodes)),
            uneven: tasks.is_some_and(|(total, nodes)| total % nodes != 0),
        }
    }

    /// Slurm drains a node with a failed prolog, and an undetermined failure proves nothing: the
    /// prolog succeeds, and we put a batch job back. Tasks of srun or salloc read the record.
    fn exit_policy(&self, submission: &Submission) -> ExitPolicy {
        ExitPolicy {
            requeue: !submission.step,
            ..ExitPolicy::default()
        }
    }

    /// slurmstepd starts and ends a step's own daemon, and Slurm waits for the end of slurmstepd.
    fn time_limit(&self, input: &Input<'_>, step: bool, location: &Location) -> Option<Duration> {
        let named = location.slurm_conf.as_deref().map(Path::new);
        let conf = Conf::find(named, &ThisHost);
        match step {
            true => Some(conf.map_or(conf::UNKILLABLE, |conf| conf.unkillable_step_timeout())),
            false => Some(conf.ok()?.timeout(input.program)?.1),
        }
    }

    fn was_put_back(&self, input: &Input<'_>) -> bool {
        let restarts = (input.env)("SLURM_JOB_RESTART_COUNT");
        restarts.is_some_and(|count| count.trim().parse::<u32>().is_ok_and(|count| count > 0))
    }

    fn at(&self, location: &Location) -> Box<dyn Located> {
        Box::new(Here(location.clone()))
    }

    /// `gres/shard` counts and does not limit. The device file says which GPU's shares they are.
    fn shares(&self, node: &str, offers: &[Offer<'_>], total: u32) -> String {
        let file = |gpu: &Gpu| format!("/dev/nvidia{}", gpu.minor.unwrap_or(gpu.index));
        let mut lines = String::new();
        for offer in offers {
            lines += &format!("NodeName={node} Name=gpu File={}\n", file(offer.gpu));
        }
        for offer in offers.iter().filter(|offer| offer.shares() > 0) {
            let (count, file) = (offer.shares(), file(offer.gpu));
            lines += &format!("NodeName={node} Name=shard Count={count} File={file}\n");
        }
        let count = offers.len();
        format!(
            "# slurm.conf: these words in the lines that are there\n\
             GresTypes=gpu,shard\n\
             NodeName={node} Gres=gpu:{count},shard:{total}\n\
             # gres.conf: leave the gpu lines out where AutoDetect or other lines describe the GPUs\n\
             {lines}\
             # then restart slurmctld, and slurmd on the nodes\n\
             # a job asks: --gres=shard:N --mps, and with --mps-mem=auto gets N shards of the memory;\n\
             # for every job: mem = \"auto\" below [defaults] in mpsd.toml\n"
        )
    }
}

struct Here(Location);

impl Located for Here {
    fn may_own(&self, job: &JobId) -> bool {
        job.is_number()
    }

    fn known_jobs(&self, node: &str) -> KnownJobs {
        jobs::known_jobs(Installation::find(&self.0, node), node)
    }

    fn controller(&self, node: &str) -> Box<dyn Controller> {
        Box::new(control::SlurmNode {
            slurm: Installation::find(&self.0, node),
            name: node.to_owned(),
        })
    }
}

/// `None`: this is the job's own prolog or epilog.
fn step(input: &Input<'_>) -> Option<String> {
    let context = (input.env)("SLURM_SCRIPT_CONTEXT").unwrap_or_default();
    if context.starts_with("prolog") || context.starts_with("epilog") {
        return None;
    }
    let id = (input.env)("SLURM_STEP_ID").or_else(|| (input.env)("SLURM_STEPID"))?;
    is_digits(&id).then_some(id)
}

fn gpus(input: &Input<'_>, scope: &str, gres: Result<Gres, String>, node: &str) -> GpuSource {
    let visible = (input.env)("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    // A MIG device has no number of its own in SLURM_JOB_GPUS; only here does Slurm give its name.
    let mig = visible.contains("MIG-");
    let listed = || (input.env)(scope).unwrap_or_default();
    let text = if mig { visible.clone() } else { listed() };
    let names = match GpuName::parse_list(&text).map(GpuSource::of) {
        Ok(GpuSource::Listed(names)) => names,
        Ok(none) => return none,
        Err(why) => return GpuSource::Unknown(format!("{scope}={}: {why}", one_line(&text, 80))),
    };
    let of_all_types = || {
        let told = GpuName::parse_list(&listed())?;
        all_of(&allocation(input, node)?, &told)
    };
    let several = scope == OF_JOB && gres.as_ref().is_ok_and(|gres| gres.several_types);
    // The variable is then the user's own, and could name another job's device.
    let is_users = scope != OF_JOB && gres.as_ref().is_ok_and(|gres| gres.unnamed);
    match (mig, several) {
        (true, _) if is_users => {
            let why = "gres.conf has Flags by which Slurm leaves CUDA_VISIBLE_DEVICES to the step's user, and nothing else names a MIG device";
            GpuSource::Unknown(why.to_owned())
        }
        (true, false) => GpuSource::Listed(names),
        (false, false) if is_users => GpuSource::Numbered(numbers(&names, "", gres)),
        (false, false) => GpuSource::Numbered(numbers(&names, &visible, gres)),
        // A prolog is told devices of one type only; whole GPUs and MIG devices are two types.
        (_, true) => match of_all_types() {
            Ok(all) if !mig => GpuSource::Numbered(numbers(&all, "", gres)),
            Ok(all) if all.len() == names.len() => GpuSource::Listed(names),
            Ok(all) => {
                let (all, told) = (all.len(), names.len());
                GpuSource::Unknown(format!(
                    "Slurm gives it {all} devices of several types, and names {told} of one type to the prolog"
                ))
            }
            Err(why) => {
                let one = format!("{OF_JOB} names devices of one type only");
                GpuSource::Unknown(format!("{one}, and the node has several: {why}"))
            }
        },
    }
}

/// The numbers with the UUIDs that the prolog of Slurm 25.11 and later has beside them under
/// AutoDetect=nvml.
fn numbers(names: &[GpuName], visible: &str, gres: Result<Gres, String>) -> Numbers {
    let uuid = |entry: &str| entry.starts_with("GPU-").then(|| entry.to_owned());
    let uuids = visible.split(',').map(uuid).chain(std::iter::repeat(None));
    let number = |(name, uuid): (&GpuName, _)| match *name {
        GpuName::Index(place) => Some(Number { place, uuid }),
        GpuName::Uuid(_) => None,
    };
    Numbers {
        numbers: names.iter().zip(uuids).filter_map(number).collect(),
        confined: gres.as_ref().ok().and_then(|gres| gres.confined),
        by_uuid: gres.as_ref().is_ok_and(|gres| gres.by_uuid),
        list: gres.map_or_else(List::Unknown, |gres| gres.list),
    }
}

/// gres/gpu gives a GPU to one job; gres/shard and gres/mps let jobs share it. A prolog is told no
/// shards (`gres_p_prep_set_env`, 22.05 to 26.05), so on a node that has some the controller is
/// asked. Untrusted: its answer has text of the user, who gains nothing by a GPU that is shared.
fn exclusive(input: &Input<'_>, gres: Option<&Gres>, node: &str) -> Exclusive {
    if gres.is_some_and(|gres| gres.unshared) {
        return Exclusive::GpusAlone;
    }
    // Untrusted: in a step each is the user's own word if the cluster does not have its gres.
    let of_slurm =
        |name, is_set: fn(&Gres) -> bool| input.number(name).filter(|_| gres.is_none_or(is_set));
    if let Some(own) = of_slurm(THREADS, |gres| gres.has_mps) {
        return Exclusive::Shared(Some(Part {
            own,
            all: 100,
            of_threads: true,
        }));
    }
    let part = |(own, all): (u32, Option<u32>)| {
        let all = all.or(gres?.shards_of_each)?;
        Some(Part::of_shares(own, all))
    };
    if let Some(shards) = of_slurm("SLURM_SHARDS_ON_NODE", |gres| gres.has_shards) {
        let gpus = (input.env)("SLURM_STEP_GPUS").and_then(|list| places(&list));
        let is_on_one = gpus.is_none_or(|gpus| gpus.len() <= 1);
        return Exclusive::Shared(part((shards, None)).filter(|_| is_on_one));
    }
    if gres.is_none_or(|gres| gres.shards == 0) || step(input).is_some() {
        return Exclusive::Unknown;
    }
    let shards = allocation(input, node).ok().as_deref().and_then(shards_of);
    shards.map_or(Exclusive::Unknown, |shards| {
        let parts: Option<Vec<Part>> = shards.into_iter().map(part).collect();
        // On several GPUs (MULTIPLE_SHARING_GRES_PJ) the smallest of its parts exceeds none.
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let by_size = |a: &Part, b: &Part| product(a.own, b.all).cmp(&product(b.own, a.all));
        Exclusive::Shared(parts.and_then(|parts| parts.into_iter().min_by(by_size)))
    })
}

/// The tasks of the job or step, and its nodes, which have an even share each.
fn tasks(input: &Input<'_>) -> Option<(u32, u32)> {
    let (total, nodes) = match step(input).is_some() {
        true => ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
        false => ("SLURM_JOB_NTASKS", "SLURM_JOB_NUM_NODES"),
    };
    let number = |name: &str, other: &str| {
        let found = input.number(name).or_else(|| input.number(other));
        found.filter(|number| *number > 0)
    };
    number(total, "SLURM_NTASKS").zip(number(nodes, "SLURM_NNODES"))
}

/// What slurmctld says the job has on `node`: `gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)`. Untrusted: the
/// answer holds text of the user, which could forge such a list. So it may name the node once.
fn allocation(input: &Input<'_>, node: &str) -> Result<String, String> {
    let id = (input.env)("SLURM_JOB_ID").filter(|id| !id.is_empty());
    let id = id.ok_or("Slurm did not set SLURM_JOB_ID")?;
    let slurm = Installation::find(&input.location, node);
    let ask = |program: &str, words: &[&str]| slurm.ask(program, words, DEADLINE);
    let show = |id: &str| ask("scontrol", &["--details", "--oneliner", "show", "job", id]);
    // The id of an array, or of a het job, is that of all its parts. squeue names each part,
    // without text of the user.
    of_node(&show(&id)?, node).or_else(|why| {
        let words = ["--noheader", "--jobs", &id, "--format", "%A %i"];
        let names = ask("squeue", &words)?;
        let mut lines = names.lines();
        let own = lines.find_map(|line| line.strip_prefix(&id)?.strip_prefix(' '));
        let own = own.map(str::trim).filter(|own| *own != id).ok_or(why)?;
        of_node(&show(own)?, node)
    })
}

/// `Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)`.
fn of_node(text: &str, node: &str) -> Result<String, String> {
    let mut found = Vec::new();
    let mut is_here = false;
    for word in text.split_whitespace() {
        if let Some(list) = word.strip_prefix("Nodes=") {
            is_here = HostList::has(list, node);
        } else if let (true, Some(gres)) = (is_here, word.strip_prefix("GRES=")) {
            found.push(gres);
        }
    }
    match found[..] {
        [gres] => Ok(gres.to_owned()),
        _ => {
            let count = found.len();
            Err(format!("scontrol shows {count} lists of them for this job"))
        }
    }
}

/// The parts of `gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)` with the gres `name`, and what is in brackets.
fn parts_of<'a>(gres: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let parts = gres.split(')').map(|part| part.trim_start_matches(','));
    let parts = parts.filter_map(|part| part.split_once('(').or(Some((part, ""))));
    parts.filter(move |(part, _)| part.split(':').next() == Some(name))
}

/// The job's shards of each GPU that it shares: `shard:2(IDX:0)`, from 23.11 with all of each
/// GPU's, as in `shard:6(4/4,2/4)` (docs/facts/slurm.md#gpus-of-a-job).
fn shards_of(gres: &str) -> Option<Vec<(u32, Option<u32>)>> {
    let mut shards = Vec::new();
    for (part, list) in parts_of(gres, "shard") {
        if let Some(list) = list.strip_prefix("IDX:") {
            let count = part.rsplit(':').next()?.parse().ok()?;
            shards.extend((places(list)?.len() == 1).then_some((count, None)));
            continue;
        }
        for gpu in list.split(',') {
            let (own, all) = gpu.split_once('/')?;
            shards.push((own.parse().ok()?, Some(all.parse().ok()?)));
        }
    }
    shards.retain(|(own, all)| *own > 0 && *all != Some(0));
    (!shards.is_empty()).then_some(shards)
}

/// `0,2-3`.
fn places(list: &str) -> Option<Vec<u32>> {
    let mut places = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = first.parse().ok().zip(last.parse().ok())?;
        places.extend(first..=last.min(first.saturating_add(MOST)));
    }
    Some(places)
}

/// The job's places in the list of GPUs, which must include those that the prolog was told.
fn all_of(gres: &str, told: &[GpuName]) -> Result<Vec<GpuName>, String> {
    let unclear = || format!("scontrol shows GRES={gres}");
    // A share of a GPU is of one type.
    if !gres.contains("gpu:") {
        return Ok(told.to_vec());
    }
    let mut all = Vec::new();
    for (_, list) in parts_of(gres, "gpu") {
        let list = list.strip_prefix("IDX:").and_then(places);
        let list = list.ok_or_else(unclear)?;
        all.extend(list.into_iter().map(GpuName::Index));
    }
    match told.iter().all(|one| all.contains(one)) {
        true => Ok(all),
        false => Err(unclear()),
    }
}

#[cfg(test)]
mod tests;
