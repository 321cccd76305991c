//! The page, in Prometheus' text form (prometheus.io/docs/instrumenting/exposition_formats). A job's numbers go with
//! the job, so that no label grows without end.

use super::super::status::model::{ClientStatus, JobStatus};
use super::collect::{NodeStatus, phase};
use crate::job::tally::{CLASSES, Tally, Times};
use crate::node::reports::Counted;
use std::fmt::{Display, Write as _};

/// A sample of a family: what follows the family's name, labels in braces included, and the value.
type Sample = (String, String);

/// All numbers; without `counted`, those of now only.
pub fn page(status: &NodeStatus, counted: Option<&Counted>) -> String {
    let mut page = Page(String::new());
    let help = "The release of mpsd that wrote this.";
    page.gauge(
        "build_info",
        help,
        by("version", [(env!("CARGO_PKG_VERSION"), 1)]),
    );
    page.now(status);
    if !status.jobs.is_empty() {
        page.jobs(&status.jobs);
    }
    if let Some(counted) = counted {
        let help = "Drains of this node by mpsd that stand, by whether its scheduler has got them.";
        let drains = [("true", counted.drains), ("false", counted.waiting)];
        page.gauge("drains", help, by("delivered", drains));
        counted.tally.iter().for_each(|tally| page.since(tally));
    }
    page.0
}

struct Page(String);

impl Page {
    /// A family of numbers; `help` has neither a line's end nor a backslash.
    fn family(&mut self, kind: &str, name: &str, help: &str, samples: impl IntoIterator<Item = Sample>) {
        let _ = writeln!(self.0, "# HELP mpsd_{name} {help}\n# TYPE mpsd_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "mpsd_{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = Sample>) {
        self.family("gauge", name, help, samples);
    }

    fn counter(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = Sample>) {
        self.family("counter", name, help, samples);
    }

    fn now(&mut self, status: &NodeStatus) {
        let states = ["starting", "ready", "left"].map(|state| (state, status.count(state)));
        let help =
            "Jobs with MPS on this node, by state; left: taken down, and something of it is here still.";
        let unread = by("state", [("unreadable", status.unread)]);
        self.gauge("jobs", help, by("state", states).into_iter().chain(unread));
        let ready = status.jobs.iter().filter(|job| phase(job) == "ready");
        let clients = ready
            .flat_map(|job| &job.gpus)
            .filter_map(|gpu| gpu.clients.as_ref());
        let idle = clients.filter(|clients| clients.is_empty()).count();
        let help = "GPUs of ready jobs that no client of theirs uses now.";
        self.gauge("gpus_idle", help, one(idle));
        let help = "What hung in the driver and is to be looked at again; until then the node takes no job with MPS.";
        self.gauge("second_looks", help, one(status.suspicions));
        if let Some(up) = status.nvml {
            let help = "Whether NVML has told the clients of the jobs' GPUs.";
            self.gauge("nvml_up", help, one(u8::from(up)));
        }
    }

    fn jobs(&mut self, jobs: &[JobStatus]) {
        let id = |job: &JobStatus| labels(&[("jobid", job.job.as_str())]);
        let began = |job: &JobStatus| Some((id(job), job.began?.to_string()));
        let help = "When the job began on this node, in seconds since 1970.";
        self.gauge("job_began_timestamp_seconds", help, jobs.iter().filter_map(began));
        let lost = |job: &JobStatus| {
            let lost = job.daemons.iter().filter(|daemon| daemon.ended);
            (id(job), lost.count().to_string())
        };
        let ready = jobs.iter().filter(|job| phase(job) == "ready");
        let help = "Control daemons of a ready job that have ended: its clients fail, or run outside of MPS.";
        self.gauge("job_daemons_lost", help, ready.map(lost));
        let help = "MPS clients of the job on the GPU.";
        let count = |clients: &[ClientStatus]| clients.len() as u64;
        self.gauge("job_clients", help, by_gpu(jobs, count));
        let help = "Memory of the GPU that the job's MPS clients hold, as NVML counts.";
        let memory = |clients: &[ClientStatus]| {
            let held = clients.iter().filter_map(|client| client.memory);
            held.fold(0, u64::saturating_add)
        };
        self.gauge("job_memory_bytes", help, by_gpu(jobs, memory));
    }

    /// The sums since the first job.
    fn since(&mut self, tally: &Tally) {
        let help = "Jobs whose MPS became ready.";
        self.counter("jobs_begun_total", help, one(tally.begun));
        let kinds = [
            ("refusal", tally.refusals),
            ("fault", tally.faults),
            ("undetermined", tally.undetermined),
        ];
        let help = "Starts of a job's MPS that failed, by kind: refusals are the users', faults the node's, the rest proves nothing.";
        self.counter("starts_failed_total", help, by("kind", kinds));
        let as_before = tally.ended.saturating_sub(tally.left);
        let ended = by("as_before", [("true", as_before), ("false", tally.left)]);
        let help = "Jobs with MPS that have ended, by whether the node was as before then.";
        self.counter("jobs_ended_total", help, ended);
        let help = "Jobs with MPS for whose end the node was drained.";
        self.counter("jobs_drained_total", help, one(tally.drained));
        let troubles = [
            ("server_lost", tally.server_lost),
            ("daemon_lost", tally.daemon_lost),
            ("fatal_client", tally.fatal_client),
            ("refused_client", tally.refused_client),
            ("over_memory", tally.over_memory),
            ("idle_gpu", tally.idle_gpu),
        ];
        let help =
            "Jobs that have ended, by what went wrong in them; the word of a process of the job's user.";
        self.counter("jobs_troubled_total", help, by("trouble", troubles));
        let help = "Time to ready of jobs that have ended.";
        self.family("histogram", "job_ready_seconds", help, histogram(&tally.ready));
        let help = "Time that the ends of jobs took.";
        let times = histogram(&tally.teardown);
        self.family("histogram", "job_teardown_seconds", help, times);
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

/// One sample without labels.
fn one(value: impl Display) -> [Sample; 1] {
    [(String::new(), value.to_string())]
}

/// A sample for each value of one label.
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
    let bucket = |le: &str, count: u64| (format!("_bucket{}", labels(&[("le", le)])), count.to_string());
    let mut below = 0;
    let classes = CLASSES.iter().zip(times.within).map(|(end, within)| {
        below += within;
        bucket(&seconds(*end), below)
    });
    let mut samples: Vec<Sample> = classes.collect();
    samples.push(bucket("+Inf", times.count));
    samples.push(("_sum".to_owned(), seconds(times.sum_ms)));
    samples.push(("_count".to_owned(), times.count.to_string()));
    samples
}

/// Milliseconds as seconds, exactly.
fn seconds(ms: u64) -> String {
    match ms % 1000 {
        0 => (ms / 1000).to_string(),
        rest => format!("{}.{rest:03}", ms / 1000)
            .trim_end_matches('0')
            .to_owned(),
    }
}
