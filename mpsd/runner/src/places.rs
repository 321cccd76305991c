//! Where a command runs: its GPU, under the job's MPS or without it.

use batch::Lookup;
use ctl::{Caller, NO_JOB};
use mpsd_core::bind::{Bind, DeviceNames};
use mpsd_core::environment::{
    Change, JOB, LOG_DIRECTORY, MEMORY, PIPE_DIRECTORY, THREADS, Task, VISIBLE_DEVICES,
    task_environment,
};
use mpsd_core::limits::Percent;
use mpsd_core::ranks::Rank;
use mpsd_core::record::Record;
use mpsd_core::text::count;
use mpsd_core::{Failure, GpuUuid, Refusal};
use std::path::PathBuf;

/// The nodes of the step that started this process; `None`: no step of srun did. In a batch script
/// the job's variables name several nodes too, but this is the only process. Fails if a node has
/// several tasks: each would do what `each` says.
pub fn nodes_of_step(env: Lookup<'_>, verb: &str, each: &str) -> Result<Option<u64>, Refusal> {
    let number = |name: &str| env(name)?.trim().parse::<u64>().ok();
    let nodes = number("SLURM_STEP_NUM_NODES");
    let Some((nodes, tasks)) = nodes.zip(number("SLURM_STEP_NUM_TASKS")) else {
        return Ok(None);
    };
    if tasks > nodes {
        let on = count(nodes, "node");
        let why = format!("this step has {tasks} tasks on {on}, and each would {each}");
        // Slurm ignores --ntasks-per-node beside the job's own number of tasks.
        let allowed = format!("one task on each node: srun -N{nodes} -n{nodes}");
        return Err(Refusal::new(verb, why, allowed));
    }
    Ok(Some(nodes))
}

#[derive(Debug)]
pub struct Places {
    with_mps: Option<(Record, Task)>,
    /// The job's GPUs that this process sees: by UUID under MPS, else by the scheduler's names.
    pub gpus: Vec<String>,
    /// Only root can make it, and never does: a client that looks there finds no MPS.
    nowhere: PathBuf,
    /// Removes what another job's MPS left in the environment.
    inherited: Vec<Change>,
}

impl Places {
    pub fn of(caller: &Caller<'_>, verb: &str) -> Result<Self, Failure> {
        let no_job = || Refusal::new(verb, NO_JOB, "a job with GPUs");
        let job = caller.job().ok_or_else(no_job)?;
        let with_mps = caller.job_with_mps()?;
        if caller.uid == 0 && with_mps.as_ref().is_some_and(|(record, _)| record.uid != 0) {
            let why = "its MPS is a user's, and its programs would be root's";
            return Err(Refusal::new(verb, why, "to be run by the job's user").into());
        }
        let gpus = match &with_mps {
            Some(with_mps) => visible_gpus(with_mps)?,
            None => {
                let list = (caller.env)(VISIBLE_DEVICES).unwrap_or_default();
                let names = list.split(',').map(str::trim);
                let names = names.filter(|name| !name.is_empty());
                names.map(str::to_owned).collect()
            }
        };
        Ok(Self {
            with_mps,
            gpus,
            nowhere: caller.settings().0.paths.jobs().join("none"),
            inherited: caller.stripped(&job),
        })
    }

    pub fn has_mps(&self) -> bool {
        self.with_mps.is_some()
    }

    /// MPS clients that each GPU takes; `None`: the job has no MPS, or does not say.
    pub fn most_clients(&self) -> Option<u32> {
        self.with_mps.as_ref()?.0.clients
    }

    /// Nothing runs on exclusive GPUs without the job's MPS.
    pub fn is_exclusive(&self) -> bool {
        let with_mps = self.with_mps.as_ref();
        with_mps.is_some_and(|(record, _)| record.exclusive)
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.gpus.len()).unwrap_or(1).max(1)
    }

    /// The most of `clients` that are on one GPU.
    pub fn on_a_gpu(&self, clients: u32) -> u32 {
        clients.div_ceil(self.count())
    }

    /// If the job's MPS limits its clients' share, a client can only lower it: all figures would be
    /// wrong.
    pub fn must_be_unlimited(&self) -> Result<(), Refusal> {
        let Some((record, _)) = &self.with_mps else {
            return Ok(());
        };
        let of_daemon = record.daemons.iter().filter_map(|daemon| daemon.threads);
        let lowest = of_daemon.chain(record.rank_threads.iter().copied()).min();
        let Some(percent) = lowest else { return Ok(()) };
        let gives = format!("its MPS gives each client {percent} % of the threads");
        let why = format!("{gives}, and a client can only lower that");
        let allowed = "a job with --mps (MPS=true) and no share of its own";
        Err(Refusal::new(format!("job {}", record.job), why, allowed))
    }

    /// What attaches a command on the GPU of this number to the job's MPS, if it has one.
    pub fn under(
        &self,
        gpu: u32,
        threads: Option<Percent>,
        memory_mib: Option<u64>,
    ) -> Result<Vec<Change>, Refusal> {
        let Some(with_mps) = &self.with_mps else {
            return self.without(gpu);
        };
        let mut changes = bound(with_mps, gpu, None)?;
        let uuid = self.gpu(gpu).and_then(|uuid| GpuUuid::parse(uuid).ok());
        let memory = |(uuid, mib): (GpuUuid, u64)| format!("{}={mib}M", uuid.in_limits());
        let memory = uuid.zip(memory_mib).map(memory);
        let threads = threads.map(|percent| percent.to_string());
        for (name, value) in [(THREADS, threads), (MEMORY, memory)] {
            if value.is_some() {
                changes.retain(|change| change.name != name);
                changes.push(Change { name, value });
            }
        }
        Ok(changes)
    }

    fn gpu(&self, copy: u32) -> Option<&String> {
        self.gpus.get(copy as usize % self.gpus.len().max(1))
    }

    /// What a command outside the job's MPS needs, on the GPU of this number.
    pub fn without(&self, copy: u32) -> Result<Vec<Change>, Refusal> {
        let mut changes = self.inherited.clone();
        changes.extend([THREADS, MEMORY, LOG_DIRECTORY, JOB].map(Change::unset));
        changes.push(Change::set(
            PIPE_DIRECTORY,
            self.nowhere.display().to_string(),
        ));
        let visible = self.name_without(copy)?;
        changes.extend(visible.map(|gpu| Change::set(VISIBLE_DEVICES, gpu)));
        Ok(changes)
    }

    /// The name of the copy's GPU for a program without MPS; `None`: the scheduler's list stays.
    fn name_without(&self, copy: u32) -> Result<Option<String>, Refusal> {
        let gpu = self.gpu(copy);
        let Some(with_mps @ (record, task)) = &self.with_mps else {
            return Ok(gpu.cloned());
        };
        Ok(match record.names() {
            // Numbers only if they name the same GPU without the daemon.
            DeviceNames::Auto => value(&bound(with_mps, copy, None)?, VISIBLE_DEVICES),
            DeviceNames::Uuid => gpu.cloned(),
            DeviceNames::Ordinal => {
                let is_it = |one: &GpuUuid| gpu.is_some_and(|gpu| gpu == one.as_str());
                let place = task.counted.as_ref();
                let place = place.and_then(|counted| counted.iter().position(is_it));
                place.map(|place| place.to_string()).or(gpu.cloned())
            }
        })
    }
}

/// As the plugin or `mpsctl exec` would attach the task of that rank, bound to one GPU in turn.
fn bound(
    (record, task): &(Record, Task),
    copy: u32,
    names: Option<DeviceNames>,
) -> Result<Vec<Change>, Refusal> {
    let record = Record {
        bind: Some(Bind::Cyclic),
        names: names.or(record.names),
        ..record.clone()
    };
    let (local, of) = (copy, None);
    let task = Task {
        rank: Some(Rank { local, of }),
        bound: false,
        ..task.clone()
    };
    task_environment(&record, &task)
}

fn visible_gpus(with_mps: &(Record, Task)) -> Result<Vec<String>, Refusal> {
    let mut gpus: Vec<String> = Vec::new();
    let most = with_mps.0.gpus.len();
    for copy in 0..u32::try_from(most).unwrap_or(1).max(1) {
        let bound = bound(with_mps, copy, Some(DeviceNames::Uuid))?;
        let gpu = value(&bound, VISIBLE_DEVICES).unwrap_or_default();
        if !gpus.contains(&gpu) {
            gpus.push(gpu);
        }
    }
    Ok(gpus)
}

fn value(changes: &[Change], name: &str) -> Option<String> {
    let mut changes = changes.iter();
    changes.find(|change| change.name == name)?.value.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::record::{Daemon, RecordGpu};
    use mpsd_core::testing::{self, device, record_gpu, uuid};

    fn places(names: DeviceNames, gpus: usize) -> Places {
        let mut record = testing::record(&[]);
        let all: Vec<GpuUuid> = (1..=gpus).map(uuid).collect();
        record.names = Some(names);
        let gpu = |(index, uuid): (u32, &GpuUuid)| RecordGpu {
            uuid: uuid.clone(),
            ..record_gpu(index)
        };
        record.gpus = (2..).zip(&all).map(gpu).collect();
        // The node has another GPU before the job's.
        record.devices = (0..=gpus).map(|n| device(n, "/dev/null")).collect();
        record.daemons = vec![Daemon {
            gpus: all.clone(),
            ..Daemon::default()
        }];
        let task = Task {
            counted: Some((0..=gpus).map(uuid).collect()),
            ..Task::default()
        };
        Places {
            with_mps: Some((record, task)),
            gpus: all.iter().map(ToString::to_string).collect(),
            nowhere: "/run/mpsd/jobs/none".into(),
            inherited: Vec::new(),
        }
    }

    fn visible(places: &Places, clients: u32, mps: bool) -> Vec<String> {
        let of = |gpu| {
            let changes = match mps {
                true => places.under(gpu, None, None),
                false => places.without(gpu),
            };
            value(&changes.unwrap(), VISIBLE_DEVICES).unwrap_or_default()
        };
        (0..clients).map(of).collect()
    }

    #[test]
    fn copies_are_bound_in_turn_with_mps_and_without() {
        let places = places(DeviceNames::Uuid, 2);
        let (one, two) = ("GPU-00000001", "GPU-00000002");
        assert_eq!(visible(&places, 3, true), [one, two, one]);
        assert_eq!(visible(&places, 3, false), [one, two, one]);
        let limits = places.under(1, Percent::from_tenths(125), Some(4096));
        let limits = limits.unwrap();
        assert_eq!(value(&limits, THREADS).as_deref(), Some("12.5"));
        let memory = value(&limits, MEMORY);
        assert_eq!(memory.as_deref(), Some("GPU-00000002=4096M"));
        // A daemon of the site's is not met either.
        let pipe = value(&places.without(0).unwrap(), PIPE_DIRECTORY);
        assert_eq!(pipe.as_deref(), Some("/run/mpsd/jobs/none"));
    }

    #[test]
    fn a_program_that_reads_numbers_gets_numbers_without_mps_too() {
        let places = places(DeviceNames::Ordinal, 2);
        assert_eq!(visible(&places, 2, true), ["0", "1"], "the daemon's own");
        assert_eq!(visible(&places, 2, false), ["1", "2"], "as CUDA counts");
    }
}
