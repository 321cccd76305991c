//! `mpsctl metrics`: numbers about MPS on this node for Prometheus, from root's journals, the
//! kernel and NVML. It asks no process of a user, which could delay the answer. What a job's mpsd
//! has written is marked as its word. The page is in Prometheus' text form
//! (prometheus.io/docs/instrumenting/exposition_formats). A job's numbers disappear with the job,
//! so that no label grows without end.

use super::status::model::{ClientStatus, JobStatus, NvmlLists, Phase};
use super::terminal::say;
use super::{NAME, complain};
use mpsd::job::Journal;
use mpsd::job::ledger::{self, Ledger};
use mpsd::job::node::{Gpus as _, Members as _, Role};
use mpsd::job::store::Store as _;
use mpsd::job::tally::{CLASSES, Tally, Times};
use mpsd::node::real::RealNode;
use mpsd::node::reports::{self, Counted};
use mpsd::node::site_directory;
use mpsd::node::tasks::{Task, tasks};
use mpsd_core::advice::RULES;
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use mpsd_core::file::Durability;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::{self, RecordGpu, memory_limit};
use mpsd_core::{Failure, GpuUuid, JobId, Paths};
use mpsd_sys::files::Dir;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the page says of each family before its samples, in its order.
const FAMILIES: &str = include_str!("metrics.prom");
const UTILIZATION: &str = "job_gpu_utilization_ratio";
const ENERGY: &str = "job_energy_joules_total";
const HELD: &str = "job_client_memory_max_bytes";
const LIMIT: &str = "job_client_memory_limit_bytes";
const JOB_LIMIT: &str = "job_memory_limit_bytes";
const FILE: &str = "mpsd.prom";
/// Longest time for writing the file: the directory may be on a slow file system.
const WRITE_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, clap::Args)]
pub struct Metrics {
    /// Write them into DIR/mpsd.prom instead, whole, for the textfile collector of node_exporter
    #[arg(long, value_name = "DIR")]
    textfile: Option<PathBuf>,
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

impl Metrics {
    /// `usable`: the configuration can be used. If not, `settings` has only its directories.
    pub fn run(&self, settings: &Settings, usable: bool) -> Result<u8, Failure> {
        let mut status = NodeStatus::collect(settings)?;
        let ready = status.count(Phase::Ready);
        let counted = reports::counted(&settings.paths, &settings.reports, ready);
        let counted = counted.map_err(|why| status.problems.push(format!("the counters: {why}")));
        let page = page(&status, counted.ok().as_ref(), usable);
        match &self.textfile {
            None => say(&page),
            Some(directory) => write(&settings.paths, directory, &page)?,
        }
        status.problems.iter().for_each(|line| complain(NAME, line));
        Ok(if status.problems.is_empty() {
            0
        } else {
            EXIT_NODE
        })
    }
}

fn write(paths: &Paths, directory: &Path, page: &str) -> Result<(), Failure> {
    let written = site_directory::change(paths, directory, WRITE_TIME, || {
        // node_exporter reads it as another user.
        let write = |dir: Dir| dir.write(FILE, page.as_bytes(), 0o644, Durability::Placed);
        Dir::open(directory)
            .and_then(write)
            .map_err(|error| error.to_string())
    });
    let what = format!("'{}'", directory.join(FILE).display());
    written.map_err(|why| Undetermined::new(what, why))?;
    Ok(())
}

#[derive(Debug, Default)]
struct NodeStatus {
    jobs: Vec<JobStatus>,
    figures: Vec<(&'static str, Sample)>,
    /// Jobs with an unreadable journal.
    unread: usize,
    suspicions: usize,
    /// NVML has answered; `None`: it was not asked, as no job has MPS.
    nvml: Option<bool>,
    /// What could not be read, a line each.
    problems: Vec<String>,
}

impl NodeStatus {
    fn collect(settings: &Settings) -> Result<Self, Failure> {
        let mut node = super::this_node(settings);
        let mut status = Self::default();
        let mut journals = Vec::new();
        for name in node.job_directories()? {
            let id = JobId::parse(&name).map_err(Failure::from);
            match id.and_then(|id| node.read_journal(&id)) {
                Ok(journal) => journals.extend(journal),
                Err(_) => status.unread += 1,
            }
        }
        status.suspicions = Ledger::read(&mut node).suspicions.len();
        let hung = ledger::hung_worker(&mut node).filter(|_| !journals.is_empty());
        let lists = match hung {
            Some(worker) => {
                status.nvml = Some(false);
                status.problems.push(format!(
                    "NVML is not asked: process {worker}, which asked it earlier, still hangs in it"
                ));
                NvmlLists::new()
            }
            None => status.ask_nvml(&mut node, &journals),
        };
        if let Some(silent) = node.silent_nvml() {
            ledger::remember_worker(&mut node, silent);
        }
        let by_sluid = |sluid: &str| {
            let mut journals = journals.iter();
            let its = journals.find(|journal| journal.record().sluid.as_deref() == Some(sluid));
            its.map(|journal| journal.job().whole())
        };
        let look = |uid, pids: &[i32]| tasks(uid, pids, &by_sluid);
        let tasks = tasks_of_several_jobs(&journals, &lists, look);
        for journal in &journals {
            let job = job(&mut node, journal, &tasks, &lists);
            status.jobs.push(job);
            status.figures.extend(figures(&mut node, journal));
        }
        Ok(status)
    }

    /// NVML's list of each GPU of a job, up to the first question without an answer.
    fn ask_nvml(&mut self, node: &mut RealNode, journals: &[Journal]) -> NvmlLists {
        let mut lists = NvmlLists::new();
        for journal in journals {
            node.use_nvml(&journal.nvml);
            for gpu in &journal.record().gpus {
                if lists.contains_key(&gpu.uuid) {
                    continue;
                }
                match node.gpu_processes(&gpu.uuid) {
                    Ok(list) => drop(lists.insert(gpu.uuid.clone(), list)),
                    Err(failure) => {
                        self.nvml = Some(false);
                        self.problems.push(failure.to_string());
                        return lists;
                    }
                }
                self.nvml = Some(true);
            }
        }
        lists
    }

    fn count(&self, phase: Phase) -> usize {
        self.jobs.iter().filter(|job| job.phase == phase).count()
    }
}

/// The tasks on each GPU where several jobs of a user have MPS.
type TasksByGpu<'a> = BTreeMap<(u32, &'a GpuUuid), Vec<Task>>;

/// Looks once for each user and GPU, not for each job: a user can make a look hang.
fn tasks_of_several_jobs<'a>(
    journals: &'a [Journal],
    lists: &NvmlLists,
    look: impl Fn(u32, &[i32]) -> Vec<Task>,
) -> TasksByGpu<'a> {
    let mut jobs: BTreeMap<(u32, &GpuUuid), usize> = BTreeMap::new();
    for journal in journals {
        for gpu in &journal.record().gpus {
            *jobs.entry((journal.uid(), &gpu.uuid)).or_default() += 1;
        }
    }
    let several = jobs.into_iter().filter(|(_, jobs)| *jobs > 1);
    let tasks = several.map(|((uid, gpu), _)| {
        let clients = lists.get(gpu).into_iter().flatten();
        let pids: Vec<i32> = clients.map(|process| process.pid).collect();
        ((uid, gpu), look(uid, &pids))
    });
    tasks.collect()
}

fn job(
    node: &mut RealNode,
    journal: &Journal,
    tasks: &TasksByGpu<'_>,
    lists: &NvmlLists,
) -> JobStatus {
    let mut job = JobStatus::of_journal(journal, None);
    if journal.ready_ms.is_some() && job.phase == Phase::Starting {
        job.phase = Phase::Ready;
    }
    // In a shared MPS, also those that root has proved for all its jobs.
    let mut own = node.known_members(journal);
    for gpu in journal.joined_gpus() {
        if let Ok(Some(shared)) = node.read_journal(&JobId::shared(journal.uid(), gpu)) {
            own.extend(node.known_members(&shared));
        }
    }
    own.retain(|member| member.role == Role::Control && !member.is_defunct());
    let ended = job.daemons.iter_mut().skip(own.len());
    ended.for_each(|daemon| daemon.ended = true);
    for gpu in &mut job.gpus {
        let list = lists.get(&gpu.uuid);
        gpu.clients = list.map(|list| clients(node, journal, tasks, &gpu.uuid, list));
    }
    job
}

/// The figures of the job's report so far, by family. A job in a shared MPS has the limit of its
/// clients together alone.
fn figures(node: &mut RealNode, journal: &Journal) -> Vec<(&'static str, Sample)> {
    let mut all = Vec::new();
    let seen = node.observations(journal.job());
    for RecordGpu { index, uuid, .. } in &journal.record().gpus {
        let (job, index) = (journal.job().as_str(), index.to_string());
        let of = [("jobid", job), ("gpu", &index), ("uuid", uuid.as_str())];
        let mut add = |family, more: &[(&str, &str)], value: Option<String>| {
            all.extend(value.map(|value| (family, (labels(&[&of, more].concat()), value))));
        };
        let bytes = |mib: u64| (u128::from(mib) << 20).to_string();
        let of_job = record::limit_on(&journal.record().job_memory, uuid);
        add(JOB_LIMIT, &[], of_job.map(bytes));
        let Some(seen) = &seen else { continue };
        let usage = seen.usage.as_ref().and_then(|usage| usage.of(uuid));
        let part = |percent: Option<u8>| percent.map(|n| (f64::from(n) / 100.0).to_string());
        for (what, percent) in [
            ("time", usage.and_then(|usage| usage.busy_percent)),
            ("multiprocessors", usage.and_then(|usage| usage.sm_percent)),
            ("bandwidth", usage.and_then(|usage| usage.bandwidth_percent)),
        ] {
            add(UTILIZATION, &[("of", what)], part(percent));
        }
        let energy = usage.and_then(|usage| usage.energy_mj);
        add(ENERGY, &[], energy.map(thousandths));
        let held = seen.gpus.iter().find(|known| known.uuid == *uuid);
        add(HELD, &[], held.map(|held| bytes(held.most_client_mib)));
        let limit = memory_limit(&journal.record().daemons, uuid);
        add(LIMIT, &[], limit.map(bytes));
    }
    all
}

/// The clients of the job's user on `gpu`. If several jobs of that user have MPS there: those that
/// root proves to be this job's, and without the scheduler's cgroups those that say so.
fn clients(
    node: &mut RealNode,
    journal: &Journal,
    tasks: &TasksByGpu<'_>,
    gpu: &GpuUuid,
    list: &[GpuProcess],
) -> Vec<ClientStatus> {
    let several = tasks.get(&(journal.uid(), gpu));
    let says_so = |pid: i32| {
        let mut tasks = several.into_iter().flatten().filter(|task| task.pid == pid);
        tasks.any(|task| task.job.as_deref() == Some(journal.job().as_str()))
    };
    let mut is_client = |process: &&GpuProcess| {
        process.mps_client
            && node
                .is_of_job(journal, process.pid)
                .is_some_and(|its| several.is_none() || its || says_so(process.pid))
    };
    let client = |process: &GpuProcess| ClientStatus {
        pid: process.pid,
        memory: process.memory,
        ..ClientStatus::default()
    };
    let clients = list.iter().filter(|process| is_client(process));
    clients.map(client).collect()
}

/// A sample of a family: what follows the family's name, labels in braces included, and the value.
type Sample = (String, String);

fn page(status: &NodeStatus, counted: Option<&Counted>, usable: bool) -> String {
    let mut page = Page::default();
    let version = by("version", [(env!("CARGO_PKG_VERSION"), 1)]);
    page.add("build_info", version);
    page.add("config_usable", one(u8::from(usable)));
    page.now(status);
    if !status.jobs.is_empty() {
        page.jobs(&status.jobs);
        for family in [UTILIZATION, ENERGY, HELD, LIMIT, JOB_LIMIT] {
            let its = status.figures.iter().filter(|(of, _)| *of == family);
            page.add(family, its.map(|(_, sample)| sample.clone()));
        }
    }
    if let Some(counted) = counted {
        let drains = [("true", counted.drains), ("false", counted.waiting)];
        page.add("drains", by("delivered", drains));
        counted.tally.iter().for_each(|tally| page.since(tally));
    }
    page.text()
}

/// The samples of the families by their names in [`FAMILIES`], less `mpsd_`.
#[derive(Debug, Default)]
struct Page(BTreeMap<&'static str, Vec<Sample>>);

impl Page {
    /// A family without a sample is on the page too.
    fn add(&mut self, family: &'static str, samples: impl IntoIterator<Item = Sample>) {
        self.0.insert(family, samples.into_iter().collect());
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for family in FAMILIES.split("# HELP mpsd_").skip(1) {
            let name = family.split(' ').next().unwrap_or_default();
            let Some(samples) = self.0.get(name) else {
                continue;
            };
            let _ = write!(text, "# HELP mpsd_{family}");
            for (labels, value) in samples {
                let _ = writeln!(text, "mpsd_{name}{labels} {value}");
            }
        }
        text
    }

    fn now(&mut self, status: &NodeStatus) {
        let states = [
            ("starting", status.count(Phase::Starting)),
            ("ready", status.count(Phase::Ready)),
            ("left", status.count(Phase::Left)),
            ("unreadable", status.unread),
        ];
        self.add("jobs", by("state", states));
        let ready = status.jobs.iter().filter(|job| job.phase == Phase::Ready);
        let gpus = ready.flat_map(|job| &job.gpus);
        let clients = gpus.filter_map(|gpu| gpu.clients.as_ref());
        let idle = clients.filter(|clients| clients.is_empty()).count();
        self.add("gpus_idle", one(idle));
        self.add("second_looks", one(status.suspicions));
        if let Some(up) = status.nvml {
            self.add("nvml_up", one(u8::from(up)));
        }
    }

    fn jobs(&mut self, jobs: &[JobStatus]) {
        let id = |job: &JobStatus| labels(&[("jobid", job.job.as_str())]);
        let began = |job: &JobStatus| Some((id(job), job.began?.to_string()));
        let began = jobs.iter().filter_map(began);
        self.add("job_began_timestamp_seconds", began);
        let lost = |job: &JobStatus| {
            let lost = job.daemons.iter().filter(|daemon| daemon.ended);
            (id(job), lost.count().to_string())
        };
        let ready = jobs.iter().filter(|job| job.phase == Phase::Ready);
        self.add("job_daemons_lost", ready.map(lost));
        let count = |clients: &[ClientStatus]| clients.len() as u64;
        self.add("job_clients", by_gpu(jobs, count));
        let memory = |clients: &[ClientStatus]| {
            let held = clients.iter().filter_map(|client| client.memory);
            held.fold(0, u64::saturating_add)
        };
        self.add("job_memory_bytes", by_gpu(jobs, memory));
    }

    fn since(&mut self, tally: &Tally) {
        self.add("jobs_begun_total", one(tally.had_mps));
        let kinds = [
            ("refusal", tally.refusals),
            ("fault", tally.faults),
            ("undetermined", tally.undetermined),
        ];
        self.add("starts_failed_total", by("kind", kinds));
        let as_before = tally.ended.saturating_sub(tally.not_as_before);
        let ended = [("true", as_before), ("false", tally.not_as_before)];
        self.add("jobs_ended_total", by("as_before", ended));
        self.add("jobs_drained_total", one(tally.drained));
        let troubles = [
            ("server_lost", tally.server_lost),
            ("daemon_lost", tally.daemon_lost),
            ("fatal_client", tally.fatal_client),
            ("refused_client", tally.refused_client),
            ("over_memory", tally.over_memory),
            ("idle_gpu", tally.idle_gpu),
        ];
        self.add("jobs_troubled_total", by("trouble", troubles));
        let jobs = |rule| tally.advised.get(rule).copied().unwrap_or(0);
        let advised = RULES.map(|rule| (rule.name, jobs(rule.name)));
        self.add("jobs_advised_total", by("rule", advised));
        self.add("job_ready_seconds", histogram(&tally.ready));
        self.add("job_teardown_seconds", histogram(&tally.teardown));
    }
}

fn labels(labels: &[(&str, &str)]) -> String {
    let label = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        format!("{name}=\"{}\"", value.replace('\n', "\\n"))
    };
    let all: Vec<String> = labels.iter().map(label).collect();
    format!("{{{}}}", all.join(","))
}

fn one(value: impl Display) -> [Sample; 1] {
    [(String::new(), value.to_string())]
}

fn by<N: Display, const COUNT: usize>(label: &str, values: [(&str, N); COUNT]) -> [Sample; COUNT] {
    values.map(|(value, number)| (labels(&[(label, value)]), number.to_string()))
}

fn by_gpu(jobs: &[JobStatus], value: fn(&[ClientStatus]) -> u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    for job in jobs {
        for gpu in &job.gpus {
            let (index, job) = (gpu.index.to_string(), job.job.as_str());
            let labels = labels(&[("jobid", job), ("gpu", &index), ("uuid", gpu.uuid.as_str())]);
            let value = gpu.clients.as_deref().map(value);
            samples.extend(value.map(|value| (labels, value.to_string())));
        }
    }
    samples
}

fn histogram(times: &Times) -> Vec<Sample> {
    let bucket = |le: &str, count: u64| {
        let labels = labels(&[("le", le)]);
        (format!("_bucket{labels}"), count.to_string())
    };
    let mut below = 0;
    let classes = CLASSES.iter().zip(times.within).map(|(end, within)| {
        below += within;
        bucket(&thousandths(*end), below)
    });
    let mut samples: Vec<Sample> = classes.collect();
    samples.push(bucket("+Inf", times.count));
    samples.push(("_sum".to_owned(), thousandths(times.sum_ms)));
    samples.push(("_count".to_owned(), times.count.to_string()));
    samples
}

fn thousandths(number: u64) -> String {
    match number % 1000 {
        0 => (number / 1000).to_string(),
        rest => {
            let all = format!("{}.{rest:03}", number / 1000);
            all.trim_end_matches('0').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_tasks_of_a_users_jobs_on_a_gpu_are_looked_at_once_for_all() {
        let recorded = include_str!("../../src/job/recorded/journal-1.json");
        let recorded: Journal = serde_json::from_str(recorded).unwrap();
        let of = |uid| {
            let mut journal = recorded.clone();
            journal.plan.record.uid = uid;
            journal
        };
        let gpu = &recorded.record().gpus[0].uuid;
        let client = GpuProcess {
            pid: 7,
            memory: None,
            mps_client: true,
        };
        let lists = NvmlLists::from([(gpu.clone(), vec![client])]);
        let looks = RefCell::new(Vec::new());
        let look = |uid, pids: &[i32]| {
            looks.borrow_mut().push((uid, pids.to_vec()));
            Vec::new()
        };
        let journals = [of(1), of(2), of(1), of(1)];
        let tasks = tasks_of_several_jobs(&journals, &lists, look);
        assert!(tasks.keys().all(|(uid, _)| *uid == 1));
        assert_eq!(tasks.len(), recorded.record().gpus.len());
        let looks = looks.into_inner();
        assert_eq!(looks.len(), tasks.len());
        assert!(looks.contains(&(1, vec![7])));
    }
}
