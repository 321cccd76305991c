//! Programs of a job that use its GPUs outside its MPS: CUDA gives them no error, and they miss the
//! job's limits (docs/facts/mps-control.md#clients).

use super::observer::Observer;
use super::start::Running;
use crate::job::spec::Spec;
use crate::node::controls::LONGEST_NAME;
use crate::node::nvml::Nvml;
use crate::node::tasks::cgroup_name;
use mpsd_core::observations::keep;
use mpsd_core::script::CONTROL;
use mpsd_core::{GpuUuid, JobId, record};
use mpsd_sys::process::Process;
use std::time::{Duration, Instant};

/// Time to the first look, which then doubles.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(600);

/// Looks until the job's MPS has had a client.
#[derive(Debug)]
pub struct OutsideWatch {
    pause: Duration,
    next: Option<Instant>,
}

impl OutsideWatch {
    pub fn new(spec: &Spec) -> Self {
        Self {
            pause: FIRST,
            next: spec.outside.then(|| Instant::now() + FIRST),
        }
    }

    pub fn period(&self) -> Option<Duration> {
        Some(self.next?.saturating_duration_since(Instant::now()))
    }

    pub fn check(
        &mut self,
        spec: &Spec,
        nvml: impl FnOnce() -> Option<Nvml>,
        running: &[Running],
        observer: &mut Observer,
    ) {
        if observer.all.clients > 0 {
            self.next = None;
        }
        if self.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        self.pause = (2 * self.pause).min(LONGEST);
        self.next = Some(Instant::now() + self.pause);
        let ours: Vec<i32> = running.iter().map(|daemon| daemon.child.pid()).collect();
        let mut gpus = spec.gpus().into_iter();
        let found = nvml().and_then(|nvml| gpus.find_map(|gpu| one(spec, nvml, gpu, &ours)));
        if let Some((pid, gpu)) = found {
            self.next = None;
            keep(&mut observer.all.outside, pid);
            observer.say(&format!(
                "no program has reached the job's MPS, and process {pid} of its user computes on {gpu} outside it, without its \
                 limits: CUDA_MPS_PIPE_DIRECTORY was overwritten or lost there (by a module, a script, a container or 'env -i'); \
                 remove what sets it, or start the program by 'mpsctl exec --job {} -- PROGRAM'",
                spec.job
            ));
        }
    }
}

/// A process of the job on `gpu` that is neither a client nor a server of the control daemons
/// `ours`. Without a cgroup that names its job, its user decides.
fn one(spec: &Spec, nvml: Nvml, gpu: GpuUuid, ours: &[i32]) -> Option<(i32, GpuUuid)> {
    let (job, paths) = (&spec.job, spec.paths());
    let record = |job: &JobId| paths.job(job).record();
    let by_sluid = |sluid: &str| record::by_sluid(record, [job.clone(), job.whole()], sluid);
    let is_foreign = |process: &Process| {
        let uids = process.uids();
        let is_users = uids.is_some_and(|uids| uids.effective == spec.uid);
        let of = cgroup_name(process).map(|name| name.job(&by_sluid));
        let is_jobs = of.is_none_or(|of| of.is_some_and(|of| of == *job || job.belongs_to(&of)));
        let stat = process.stat();
        // Another MPS of the user's may have the GPU too.
        let is_server = stat
            .is_none_or(|stat| ours.contains(&stat.parent) || stat.name == CONTROL[..LONGEST_NAME]);
        is_users && is_jobs && !is_server
    };
    let listed = nvml.processes(&gpu).ok()?.into_iter();
    let mut plain = listed.filter(|process| !process.mps_client);
    let pid = plain
        .find(|listed| Process::find(listed.pid).is_some_and(|process| is_foreign(&process)))?
        .pid;
    Some((pid, gpu))
}
