//! Where each copy runs: its GPU, under the job's MPS or without it.

use super::configuration::Share;
use crate::cli::attach::{Caller, NO_JOB};
use mpsd_core::bind::{Bind, BindMode, DeviceNames};
use mpsd_core::environment::{
    Change, JOB, LOG_DIRECTORY, MEMORY, PIPE_DIRECTORY, THREADS, Task, VISIBLE_DEVICES, strip_inherited,
    task_environment,
};
use mpsd_core::ranks::Rank;
use mpsd_core::record::Record;
use mpsd_core::{Failure, GpuUuid, Refusal};
use std::path::PathBuf;

/// The job as the sweep finds it.
#[derive(Debug)]
pub struct Places {
    with_mps: Option<(Record, Task)>,
    /// The job's GPUs that this process sees: by UUID under MPS, else by the scheduler's names.
    pub gpus: Vec<String>,
    /// A directory that only root can make, and never makes: a client that looks there finds no MPS.
    nowhere: PathBuf,
    /// Removes what another job's MPS left in the environment.
    inherited: Vec<Change>,
}

impl Places {
    pub fn of(caller: &Caller<'_>) -> Result<Self, Failure> {
        let no_job = || Refusal::new("sweep", NO_JOB, "a job with GPUs");
        let job = caller.job().ok_or_else(no_job)?;
        let (settings, _) = caller.settings();
        let jobs = settings.paths.jobs();
        let with_mps = caller.job_with_mps()?;
        let mut places = Self {
            with_mps,
            gpus: Vec::new(),
            nowhere: jobs.join("none"),
            inherited: strip_inherited(Some(job.as_str()), caller.env),
        };
        places.gpus = match &places.with_mps {
            Some((record, _)) => {
                unlimited(record)?;
                places.visible_gpus(record.gpus.len())?
            }
            None => {
                let list = (caller.env)(VISIBLE_DEVICES).unwrap_or_default();
                let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
                names.map(str::to_owned).collect()
            }
        };
        Ok(places)
    }

    pub fn has_mps(&self) -> bool {
        self.with_mps.is_some()
    }

    /// MPS clients that each GPU takes, where the job has an MPS.
    pub fn most_clients(&self) -> Option<u32> {
        self.with_mps.as_ref()?.0.clients
    }

    /// Whether the job made its GPUs exclusive: then nothing runs on them without its MPS.
    pub fn is_exclusive(&self) -> bool {
        self.with_mps.as_ref().is_some_and(|(record, _)| record.exclusive)
    }

    pub fn environments(&self, clients: u32, share: Option<Share>) -> Result<Vec<Vec<Change>>, Refusal> {
        let one = |copy| match share {
            None => self.without(copy),
            Some(share) => self.under(copy, clients, share),
        };
        (0..clients).map(one).collect()
    }

    /// The most of `clients` that are on one GPU.
    pub fn on_a_gpu(&self, clients: u32) -> u32 {
        clients.div_ceil(u32::try_from(self.gpus.len()).unwrap_or(1).max(1))
    }

    fn under(&self, copy: u32, clients: u32, share: Share) -> Result<Vec<Change>, Refusal> {
        let mut changes = self.bound(copy, None)?;
        changes.retain(|change| change.name != THREADS);
        let percent = share.of(self.on_a_gpu(clients));
        let value = percent.map(|percent| percent.to_string());
        changes.push(Change { name: THREADS, value });
        Ok(changes)
    }

    /// As the plugin or `mpsctl exec` would attach the task of that rank, bound to one GPU in turn.
    fn bound(&self, copy: u32, names: Option<DeviceNames>) -> Result<Vec<Change>, Refusal> {
        let no_mps = || Refusal::new("sweep", "the job has no MPS", "");
        let (record, task) = self.with_mps.as_ref().ok_or_else(no_mps)?;
        let record = Record {
            bind: Some(Bind::of(BindMode::Cyclic)),
            names: names.or(record.names),
            ..record.clone()
        };
        let rank = Some(Rank {
            local: copy,
            of: None,
        });
        let task = Task {
            rank,
            bound: false,
            ..task.clone()
        };
        task_environment(&record, &task)
    }

    fn without(&self, copy: u32) -> Result<Vec<Change>, Refusal> {
        let mut changes = self.inherited.clone();
        changes.extend([THREADS, MEMORY, LOG_DIRECTORY, JOB].map(|name| Change { name, value: None }));
        let nowhere = Some(self.nowhere.display().to_string());
        changes.push(Change {
            name: PIPE_DIRECTORY,
            value: nowhere,
        });
        let value = self.name_without(copy)?;
        changes.extend(value.map(|name| Change {
            name: VISIBLE_DEVICES,
            value: Some(name),
        }));
        Ok(changes)
    }

    /// The copy's GPU as a program without MPS is told of it; `None`: as the scheduler said it.
    fn name_without(&self, copy: u32) -> Result<Option<String>, Refusal> {
        let gpu = self.gpus.get(copy as usize % self.gpus.len().max(1));
        let Some((record, task)) = &self.with_mps else {
            return Ok(gpu.cloned());
        };
        Ok(match record.names() {
            DeviceNames::Keep => None,
            // Numbers only where they name the same GPU without the daemon.
            DeviceNames::Auto => value(&self.bound(copy, None)?, VISIBLE_DEVICES),
            DeviceNames::Uuid => gpu.cloned(),
            DeviceNames::Ordinal => {
                let is_it = |one: &GpuUuid| gpu.is_some_and(|gpu| gpu == one.as_str());
                let place = task
                    .counted
                    .as_ref()
                    .and_then(|counted| counted.iter().position(is_it));
                place.map(|place| place.to_string()).or(gpu.cloned())
            }
        })
    }

    fn visible_gpus(&self, most: usize) -> Result<Vec<String>, Refusal> {
        let mut gpus: Vec<String> = Vec::new();
        for copy in 0..u32::try_from(most).unwrap_or(1).max(1) {
            let gpu = value(&self.bound(copy, Some(DeviceNames::Uuid))?, VISIBLE_DEVICES).unwrap_or_default();
            if !gpus.contains(&gpu) {
                gpus.push(gpu);
            }
        }
        Ok(gpus)
    }
}

fn value(changes: &[Change], name: &str) -> Option<String> {
    changes.iter().find(|change| change.name == name)?.value.clone()
}

/// A client can only lower its job's limits: all figures of a job with a share of its own would be wrong.
fn unlimited(record: &Record) -> Result<(), Refusal> {
    let of_daemon = record.daemons.iter().filter_map(|daemon| daemon.threads);
    let lowest = of_daemon.chain(record.rank_threads.iter().copied()).min();
    let partitions = record.daemons.iter().any(|daemon| !daemon.partitions.is_empty());
    let why = match lowest {
        _ if partitions => "its MPS gives each rank multiprocessors of its own".to_owned(),
        Some(percent) => {
            format!("its MPS gives each client {percent} % of the threads, and a client can only lower that")
        }
        None => return Ok(()),
    };
    let allowed = "a job with --mps (MPS=true) and no share of its own";
    Err(Refusal::new(format!("job {}", record.job), why, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::JobId;
    use mpsd_core::record::{Daemon, RecordDevice, RecordGpu, RecordState};

    fn places(names: DeviceNames, gpus: usize) -> Places {
        let uuid = |number: usize| GpuUuid::parse(&format!("GPU-0000000{number}")).unwrap();
        let mut record = Record::closed(
            JobId::parse("7").unwrap(),
            1000,
            RecordState::Ready,
            String::new(),
        );
        let all: Vec<GpuUuid> = (1..=gpus).map(uuid).collect();
        record.names = Some(names);
        record.gpus = (2..)
            .zip(&all)
            .map(|(index, uuid)| RecordGpu {
                index,
                uuid: uuid.clone(),
                cpus: None,
            })
            .collect();
        // The node has another GPU before the job's.
        record.devices = (0..=gpus)
            .map(|n| RecordDevice {
                uuid: uuid(n),
                file: "/dev/null".into(),
            })
            .collect();
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

    fn visible(places: &Places, clients: u32, share: Option<Share>) -> Vec<String> {
        let all = places.environments(clients, share).unwrap();
        all.iter()
            .map(|changes| value(changes, VISIBLE_DEVICES).unwrap_or_default())
            .collect()
    }

    #[test]
    fn copies_are_bound_in_turn_with_mps_and_without() {
        let places = places(DeviceNames::Uuid, 2);
        let (one, two) = ("GPU-00000001", "GPU-00000002");
        let auto = Some(Share::Auto);
        assert_eq!(visible(&places, 3, auto), [one, two, one]);
        assert_eq!(visible(&places, 3, None), [one, two, one]);
        let without = places.environments(1, None).unwrap().remove(0);
        let pipe = value(&without, PIPE_DIRECTORY);
        assert_eq!(
            pipe.as_deref(),
            Some("/run/mpsd/jobs/none"),
            "a daemon of the site's is not met either"
        );
    }

    #[test]
    fn a_program_that_reads_numbers_gets_numbers_without_mps_too() {
        let places = places(DeviceNames::Ordinal, 2);
        assert_eq!(
            visible(&places, 2, Some(Share::None)),
            ["0", "1"],
            "the daemon's own"
        );
        assert_eq!(visible(&places, 2, None), ["1", "2"], "as CUDA counts without it");
    }
}
