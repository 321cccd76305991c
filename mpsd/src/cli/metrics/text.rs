//! The page: which numbers there are, under which names. A job's numbers are gone with the job, so that no label grows without end.

use super::look::{JobPhase, NodeSnapshot, SeenGpu, SeenJob};
use super::page::Kind::{Counter, Gauge, Histogram};
use super::page::{Kind, Labels, Page};
use crate::job::tally::{CLASSES, Tally, Times};
use crate::node::reports::Counted;
use std::fmt::Display;

/// All of it; without `counted`, what is there now.
pub fn page(seen: &NodeSnapshot, counted: Option<&Counted>) -> String {
    let mut page = Page::default();
    page.family("mpsd_build_info", Gauge, "The release of mpsd that wrote this.");
    page.sample("mpsd_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    now(&mut page, seen);
    of_jobs(&mut page, &seen.jobs);
    if let Some(counted) = counted {
        by_label(
            &mut page,
            "mpsd_drains",
            Gauge,
            "Drains of this node by mpsd that stand, by whether its scheduler has got them.",
            "delivered",
            [("true", counted.drains), ("false", counted.waiting)],
        );
        if let Some(tally) = &counted.tally {
            since(&mut page, tally);
        }
    }
    page.text()
}

fn now(page: &mut Page, seen: &NodeSnapshot) {
    let count = |state| seen.jobs.iter().filter(|job| job.state == state).count();
    by_label(
        page,
        "mpsd_jobs",
        Gauge,
        "Jobs with MPS on this node, by state; left: taken down, and something of it is here still.",
        "state",
        [
            ("starting", count(JobPhase::Starting)),
            ("ready", count(JobPhase::Ready)),
            ("left", count(JobPhase::Left)),
            ("unreadable", seen.unread),
        ],
    );
    page.single(
        "mpsd_gpus_idle",
        Gauge,
        "GPUs of ready jobs that no client of theirs uses now.",
        idle(seen),
    );
    page.single(
        "mpsd_second_looks",
        Gauge,
        "What hung in the driver and is to be looked at again; until then the node takes no job with MPS.",
        seen.suspicions,
    );
    if let Some(up) = seen.nvml {
        let help = "Whether NVML has told the clients of the jobs' GPUs.";
        page.single("mpsd_nvml_up", Gauge, help, u8::from(up));
    }
}

fn idle(seen: &NodeSnapshot) -> usize {
    let ready = seen.jobs.iter().filter(|job| job.state == JobPhase::Ready);
    let clients = ready.flat_map(|job| &job.gpus).filter_map(|gpu| gpu.clients);
    clients.filter(|(clients, _)| *clients == 0).count()
}

fn of_jobs(page: &mut Page, jobs: &[SeenJob]) {
    if jobs.is_empty() {
        return;
    }
    let help = "When the job began on this node, in seconds since 1970.";
    page.family("mpsd_job_began_timestamp_seconds", Gauge, help);
    for job in jobs {
        page.sample(
            "mpsd_job_began_timestamp_seconds",
            &[("jobid", job.job.as_str())],
            job.began,
        );
    }
    let help = "Control daemons of a ready job that have ended: its clients fail, or run outside of MPS.";
    page.family("mpsd_job_daemons_lost", Gauge, help);
    for job in jobs.iter().filter(|job| job.state == JobPhase::Ready) {
        page.sample(
            "mpsd_job_daemons_lost",
            &[("jobid", job.job.as_str())],
            job.daemons_lost,
        );
    }
    let help = "MPS clients of the job on the GPU.";
    by_gpu(page, "mpsd_job_clients", help, jobs, |(clients, _)| {
        u64::try_from(clients).unwrap_or(u64::MAX)
    });
    let help = "Memory of the GPU that the job's MPS clients hold, as NVML counts.";
    by_gpu(page, "mpsd_job_memory_bytes", help, jobs, |(_, held)| held);
}

fn by_gpu(page: &mut Page, name: &str, help: &str, jobs: &[SeenJob], value: fn((usize, u64)) -> u64) {
    page.family(name, Gauge, help);
    for job in jobs {
        for SeenGpu { index, uuid, clients } in &job.gpus {
            let index = index.to_string();
            let labels = [
                ("jobid", job.job.as_str()),
                ("gpu", &index),
                ("uuid", uuid.as_str()),
            ];
            if let Some(known) = clients {
                page.sample(name, &labels, value(*known));
            }
        }
    }
}

/// What was counted.
fn since(page: &mut Page, tally: &Tally) {
    page.single(
        "mpsd_jobs_begun_total",
        Counter,
        "Jobs whose MPS became ready.",
        tally.begun,
    );
    by_label(
        page,
        "mpsd_starts_failed_total",
        Counter,
        "Starts of a job's MPS that failed, by kind: refusals are the users', faults the node's, the rest proves nothing.",
        "kind",
        [
            ("refusal", tally.refusals),
            ("fault", tally.faults),
            ("undetermined", tally.undetermined),
        ],
    );
    by_label(
        page,
        "mpsd_jobs_ended_total",
        Counter,
        "Jobs with MPS that have ended, by whether the node was as before then.",
        "as_before",
        [
            ("true", tally.ended.saturating_sub(tally.left)),
            ("false", tally.left),
        ],
    );
    let help = "Jobs with MPS for whose end the node was drained.";
    page.single("mpsd_jobs_drained_total", Counter, help, tally.drained);
    by_label(
        page,
        "mpsd_jobs_troubled_total",
        Counter,
        "Jobs that have ended, by what went wrong in them; the word of a process of the job's user.",
        "trouble",
        [
            ("server_lost", tally.server_lost),
            ("daemon_lost", tally.daemon_lost),
            ("fatal_client", tally.fatal_client),
            ("refused_client", tally.refused_client),
            ("over_memory", tally.over_memory),
            ("idle_gpu", tally.idle_gpu),
        ],
    );
    histogram(
        page,
        "mpsd_job_ready_seconds",
        "Time to ready of jobs that have ended.",
        &tally.ready,
    );
    histogram(
        page,
        "mpsd_job_teardown_seconds",
        "Time that the ends of jobs took.",
        &tally.teardown,
    );
}

/// A family of numbers that one label tells apart.
fn by_label<N: Display, const COUNT: usize>(
    page: &mut Page,
    name: &str,
    kind: Kind,
    help: &str,
    label: &str,
    values: [(&str, N); COUNT],
) {
    page.family(name, kind, help);
    for (value, number) in values {
        page.sample(name, &[(label, value)], number);
    }
}

fn histogram(page: &mut Page, name: &str, help: &str, times: &Times) {
    page.family(name, Histogram, help);
    let bucket = format!("{name}_bucket");
    let mut upto = 0;
    for (end, within) in CLASSES.iter().zip(times.within) {
        upto += within;
        let le: &Labels<'_> = &[("le", &seconds(*end))];
        page.sample(&bucket, le, upto);
    }
    page.sample(&bucket, &[("le", "+Inf")], times.count);
    page.sample(&format!("{name}_sum"), &[], seconds(times.sum_ms));
    page.sample(&format!("{name}_count"), &[], times.count);
}

/// Milliseconds as seconds, to the digit.
fn seconds(ms: u64) -> String {
    match ms % 1000 {
        0 => (ms / 1000).to_string(),
        rest => format!("{}.{rest:03}", ms / 1000)
            .trim_end_matches('0')
            .to_owned(),
    }
}
