//! OpenPBS and PBS Professional: our hook gives everything by options, on every node (recorded on
//! 23.06.06).

use super::batch_system::{BatchSystem, ExitPolicy, Located, Offer, SystemFacts};
use super::call::{Input, Location, Lookup, Submission, UserRef};
use super::devices::{Devices, Exclusive, GpuName, GpuSource, Part};
use super::host::{Host, ThisHost};
use super::pbs::control::{LONGEST_REASON, PbsNode};
use super::pbs::trial::QSUB_OF_OPENPBS;
use super::pbs::{Installation, Product, same_node};
use mpsd_core::failure::Failure;
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::request::Syntax;
use std::path::PathBuf;
use std::time::Duration;

const MOST_ENV_FILE: usize = 64 << 10;
/// Our vnodes are named `HOST[GPU-UUID]`: this stands between the host and the rest of the UUID.
pub const VNODE: &str = "[GPU-";
const SHARES: &str = "mps_shares=";
const NGPUS: &str = "ngpus=";

#[derive(Debug, Clone, Copy)]
pub struct OpenPbs;

static FACTS: SystemFacts = SystemFacts {
    scheduler: Scheduler::OpenPbs,
    title: PRODUCT.title,
    vectors: ["JOB USER GROUP"; 2],
    syntax: Syntax::Account,
    trial: &QSUB_OF_OPENPBS,
    longest_reason: LONGEST_REASON,
    has_steps: false,
    // Once a second; after 21 tries it holds the job until an operator releases it
    // (docs/facts/pbs.md#results-of-a-prologue).
    retries_at_once: true,
    may_skip_epilogue: false,
    shows_end: false,
};

impl BatchSystem for OpenPbs {
    fn facts(&self) -> &'static SystemFacts {
        &FACTS
    }

    /// 3 arguments are our hook's.
    fn calls(&self, arguments: usize, _: Lookup<'_>) -> bool {
        arguments == 3
    }

    fn read(&self, input: &Input<'_>, _: &dyn Host) -> Result<Submission, Failure> {
        if input.arguments.len() != 3 {
            return Err(FACTS.wrong_vector(input));
        }
        Ok(Submission {
            scheduler: self.scheduler(),
            sister: input.given.sister,
            job: JobId::parse(&input.text(1, "job id")?)?,
            user: UserRef::Name(input.text(2, "user")?),
            account: input.account(None),
            resource: input.given.resource.clone().filter(|text| !text.is_empty()),
            queue: input.given.queue.clone(),
            node: input.location.node.clone(),
            interactive: input.terminal,
            script: false,
            step: false,
            sluid: None,
        })
    }

    /// From our vnodes, then the `aux/JOB.env` of pbs_cgroups, else a bare count. Only pbs_cgroups
    /// proves a GPU to be the job's alone: `qrun -H` brings another job to any vnode.
    fn devices(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices {
        let here = submission.node.clone().unwrap_or_else(|| host.name());
        let described = Described::of(input, &here);
        let of_vnodes = input.given.shares;
        let of_vnodes = of_vnodes.and_then(|all| described.of_vnodes(&here, all));
        let of_cgroups = || match from_cgroups(submission, input, host)? {
            listed @ GpuSource::Listed(_) => Some((listed, Exclusive::GpusAlone)),
            other => Some((other, Exclusive::Unknown)),
        };
        let (gpus, exclusive, whole_node) = match of_vnodes.or_else(of_cgroups) {
            Some((gpus, exclusive)) => (gpus, exclusive, false),
            None => {
                let counted = described.without_cgroups(&here);
                let (gpus, is_whole) = match described.whole_node(&here, submission, input, host) {
                    Ok(is_whole) => (counted, is_whole),
                    Err(why) => (counted.because(why), false),
                };
                (gpus, Exclusive::Unknown, is_whole)
            }
        };
        Devices {
            gpus,
            exclusive,
            whole_node,
            tasks_on_node: tasks(&described.select, &described.vnodes, &here),
            uneven: false,
        }
    }

    fn scheduled_devices(
        &self,
        job: &JobId,
        _: Lookup<'_>,
        location: &Location,
        host: &dyn Host,
    ) -> Option<String> {
        let (_, text) = file_of_cgroups(job, location, host);
        devices_of_cgroups(&text.ok()??)
    }

    /// The server sends it after the hooks on execjob_begin (docs/facts/pbs.md#hooks-of-openpbs).
    fn script(&self, submission: &Submission, input: &Input<'_>) -> Option<String> {
        let pbs = Installation::find(&PRODUCT, &input.location, &ThisHost);
        pbs.script(submission).filter(|_| input.given.scripted)
    }

    fn late_script(&self, job: &JobId, location: &Location) -> Option<String> {
        let pbs = Installation::find(&PRODUCT, location, &ThisHost);
        pbs.has_file_of(job).then(|| pbs.script_of(job))
    }

    /// OpenPBS holds the job after 21 tries; our hook may set the count
    /// (docs/facts/pbs.md#tries-of-a-job).
    fn exit_policy(&self, _: &Submission) -> ExitPolicy {
        ExitPolicy {
            tells_tries: true,
            ..ExitPolicy::default()
        }
    }

    /// 'mpsctl pbs install' sets the limit of our hook above our deadline.
    fn time_limit(&self, _: &Input<'_>, _: bool, _: &Location) -> Option<Duration> {
        None
    }

    fn at(&self, location: &Location) -> Box<dyn Located> {
        Box::new(Installation::find(&PRODUCT, location, &ThisHost))
    }

    /// All GPUs of a cluster have the same number.
    fn shares(&self, _: &str, offers: &[Offer<'_>], _: u32) -> String {
        let each = offers.iter().map(Offer::shares).max().unwrap_or(0);
        format!(
            "# once a cluster\n\
             mpsctl pbs install --shares {each}\n\
             # it makes a vnode of each GPU; a job asks: -l select=1:ncpus=1:mps_shares=N -A MPS=on\n"
        )
    }
}

/// The file of the hook pbs_cgroups, there from execjob_begin to execjob_end (pbs_cgroups.PY).
fn file_of_cgroups(
    job: &JobId,
    location: &Location,
    host: &dyn Host,
) -> (PathBuf, Result<Option<String>, String>) {
    let pbs = Installation::find(&PRODUCT, location, host);
    let path = pbs.home.join("aux").join(format!("{job}.env"));
    let text = host.text(&path, MOST_ENV_FILE);
    (path, text)
}

/// The value of its line `CUDA_VISIBLE_DEVICES=<UUID,…>`. The hook escapes commas.
fn devices_of_cgroups(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find_map(|line| line.strip_prefix("CUDA_VISIBLE_DEVICES="))?;
    Some(line.trim_matches(['"', '\'']).replace("\\,", ","))
}

fn from_cgroups(submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Option<GpuSource> {
    let (path, text) = file_of_cgroups(&submission.job, &input.location, host);
    let shown = path.display();
    let value = match text {
        Ok(text) => devices_of_cgroups(&text?)?,
        Err(why) => return Some(GpuSource::Unknown(why)),
    };
    Some(match GpuName::parse_list(&value) {
        // The hook confines tasks to their GPUs: a number may count the node's GPUs or the job's.
        Ok(names) if names.iter().any(|name| matches!(name, GpuName::Index(_))) => {
            GpuSource::Unknown(format!(
                "'{shown}' names GPUs by number, and UUIDs alone are certain"
            ))
        }
        Ok(names) => GpuSource::of(names),
        Err(why) => GpuSource::Unknown(format!("'{shown}': {why}")),
    })
}

#[derive(Debug, Default)]
struct Described {
    select: String,
    place: String,
    vnodes: String,
    /// Each GPU of a host is a vnode.
    shares: bool,
}

impl Described {
    fn of(input: &Input<'_>, here: &str) -> Self {
        let given = input.given.clone();
        let own = [given.select, given.place, given.vnodes, given.hosts];
        let [select, place, vnodes, hosts] = own.map(Option::unwrap_or_default);
        let is_named = members(&vnodes).any(|name| same_node(name, here));
        Self {
            select,
            place,
            shares: given.shares.is_some(),
            vnodes: by_hosts(&vnodes, &hosts)
                .filter(|_| !is_named)
                .unwrap_or(vnodes),
        }
    }

    fn here<'d>(&'d self, here: &str) -> impl Iterator<Item = &'d str> {
        let own = parts(&self.vnodes).filter(move |(host, _)| same_node(host, here));
        own.map(|(_, part)| part)
    }

    /// The job's GPUs by the vnodes that our hook made of them, `host[GPU-UUID]`, and its part of
    /// each. The smallest of its shares counts: an operator may place it on several.
    fn of_vnodes(&self, here: &str, all: u32) -> Option<(GpuSource, Exclusive)> {
        let mut shares: Vec<(GpuName, u32)> = Vec::new();
        for part in self.here(here) {
            let named = part.find(VNODE).map(|at| &part[at + 1..]);
            let name = named.and_then(|named| named.split(']').next());
            let own = count(SHARES, [part]);
            let is_its = |_: &GpuName| own > 0 || count(NGPUS, [part]) > 0;
            let Some(gpu) = name.and_then(GpuName::parse).filter(is_its) else {
                continue;
            };
            match shares.iter_mut().find(|(known, _)| *known == gpu) {
                Some((_, sum)) => *sum = sum.saturating_add(own),
                None => shares.push((gpu, own)),
            }
        }
        let exclusive = match shares.iter().map(|(_, own)| *own).min()? {
            0 => Exclusive::Unknown,
            own => Exclusive::Shared(Some(Part::of_shares(own, all))),
        };
        let names = shares.into_iter().map(|(gpu, _)| gpu).collect();
        Some((GpuSource::Listed(names), exclusive))
    }

    fn without_cgroups(&self, here: &str) -> GpuSource {
        let is_of_it = self.here(here).next().is_some();
        let unnamed = "PBS gives a number of GPUs and pbs_cgroups is not there to name them";
        let own = count(NGPUS, self.here(here));
        let is_elsewhere = count(NGPUS, [&*self.vnodes]) > own;
        let why = match (own, self.vnodes.as_str(), self.select.as_str()) {
            (0, "", "") => "no file of pbs_cgroups, and nothing says what the job asked for",
            (0, "", select) if count(NGPUS, [select]) > 0 => unnamed,
            (0, ..) => "the job did not ask PBS for GPUs here (-l select=1:ngpus=1)",
            _ => unnamed,
        };
        let why = why.to_owned();
        match own {
            0 if is_of_it && is_elsewhere => GpuSource::None,
            0 if is_elsewhere => GpuSource::Unknown(format!(
                "PBS gave the job GPUs on other nodes than '{here}'; if a vnode of this host has another name, set node under [pbs]"
            )),
            0 => GpuSource::Unknown(why),
            count => GpuSource::Counted { count, why },
        }
    }

    /// Whether the job has this whole host alone: its request or the server says so, and the mom
    /// has no other job, since `qrun -H` and `sharing=ignore_excl` disregard the request. `Err`:
    /// the mom has one, or cannot tell.
    fn whole_node(
        &self,
        here: &str,
        submission: &Submission,
        input: &Input<'_>,
        host: &dyn Host,
    ) -> Result<bool, String> {
        let pbs = Installation::find(&PRODUCT, &input.location, host);
        if !self.asks_alone(here) && !PbsNode::new(pbs.clone(), here, host).is_exclusive() {
            return Ok(false);
        }
        match pbs.other_job(&submission.job, host)? {
            None => Ok(true),
            Some(other) => Err(format!(
                "'place' asks for the node alone, and its mom has job {other} too"
            )),
        }
    }

    /// Whether the request asks for the whole host: `excl` only if it has one vnode.
    fn asks_alone(&self, here: &str) -> bool {
        let place = self.place.to_ascii_lowercase();
        let is_vnode_here = |(host, part): (&str, &str)| {
            same_node(host, here) && part[host.len()..].starts_with('[')
        };
        let several = || parts(&self.vnodes).any(is_vnode_here) || self.shares;
        place.split(':').any(|word| match word {
            "exclhost" => true,
            "excl" => !several(),
            _ => false,
        })
    }
}

fn count<'t>(resource: &str, parts: impl IntoIterator<Item = &'t str>) -> u32 {
    let parts = parts.into_iter();
    let words = parts.flat_map(|part| part.split([':', '+', '(', ')']));
    let counts = words.filter_map(|word| word.strip_prefix(resource)?.parse::<u32>().ok());
    counts.fold(0, u32::saturating_add)
}

/// The sum of `mpiprocs` of the chunks here. `None`: one has none, or PBS placed other chunks.
fn tasks(select: &str, vnodes: &str, here: &str) -> Option<u32> {
    let mut asked = Vec::new();
    for chunk in select.split('+').filter(|chunk| !chunk.is_empty()) {
        let mut words = chunk.split(':');
        let number = words.clone().next().and_then(|word| word.parse().ok());
        let count = words.find_map(|word| word.strip_prefix("mpiprocs="))?;
        let count = count.parse().ok().filter(|count: &u32| *count > 0)?;
        asked.push((number.unwrap_or(1_usize), count));
    }
    let placed = chunks(vnodes);
    let is_alike = asked.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let mut counts = vec![asked.first()?.1; placed.len()];
    if !is_alike {
        counts.clear();
        for (number, count) in asked {
            counts.extend(std::iter::repeat_n(count, number.min(placed.len() + 1)));
        }
    }
    if counts.len() != placed.len() {
        return None;
    }
    let is_here = |chunk: &str| members(chunk).any(|name| same_node(name, here));
    let here = placed
        .iter()
        .zip(counts)
        .filter(|(chunk, _)| is_here(chunk));
    let sum = here.fold(0, |sum: u32, (_, count)| sum.saturating_add(count));
    Some(sum).filter(|sum| *sum > 0)
}

/// The chunks of `(nodea:ncpus=1+nodeb:ncpus=1)+(nodea:ncpus=2)`, or of `nodea:ncpus=1`, which
/// `qrun -H` places. A chunk may span vnodes.
fn chunks(vnodes: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let is_between = |c: char| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        c == '+' && depth == 0
    };
    let chunks = vnodes.split(is_between);
    chunks.filter(|chunk| !chunk.is_empty()).collect()
}

/// `vnodes` with the host before each name that is not the host's own: `gpubox` of
/// `nodeb:15002/0*8` becomes `nodeb[gpubox]`. `None`: `hosts` has not one for each chunk.
fn by_hosts(vnodes: &str, hosts: &str) -> Option<String> {
    let (chunks, names): (_, Vec<&str>) = (chunks(vnodes), hosts.split('+').collect());
    if hosts.is_empty() || chunks.len() != names.len() {
        return None;
    }
    let renamed = |(chunk, host): (&&str, &&str)| {
        let host = host.split([':', '/']).next().unwrap_or_default();
        let part = |(name, part): (&str, &str)| match same_node(name, host) {
            true => part.to_owned(),
            false => {
                let (vnode, resources) = part.split_once(':').unwrap_or((part, ""));
                format!("{host}[{vnode}]:{resources}")
            }
        };
        format!("({})", parts(chunk).map(part).collect::<Vec<_>>().join("+"))
    };
    let renamed: Vec<String> = chunks.iter().zip(&names).map(renamed).collect();
    Some(renamed.join("+"))
}

/// The hosts of a list's parts; vnodes of one host are `host[0]`, `host[1]`.
fn members(vnodes: &str) -> impl Iterator<Item = &str> {
    parts(vnodes).map(|(host, _)| host)
}

fn parts(vnodes: &str) -> impl Iterator<Item = (&str, &str)> {
    let host = |part: &'_ str| part.find([':', '[', '/']).unwrap_or(part.len());
    let parts = vnodes.split(['+', '(', ')']);
    let parts = parts.map(move |part| (&part[..host(part)], part));
    parts.filter(|(name, _)| !name.is_empty())
}

pub static PRODUCT: Product = Product {
    scheduler: Scheduler::OpenPbs,
    title: "OpenPBS or PBS Professional",
    homes: ["/var/spool/pbs", "/var/spool/PBS"],
    commands: &["/opt/pbs/bin", "/usr/bin", "/opt/pbs/sbin"],
    conf: Some("/etc/pbs.conf"),
    note_option: "-C",
    no_note: "",
    online_option: "-r",
    comments: false,
};

#[cfg(test)]
mod tests;
