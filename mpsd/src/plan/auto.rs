//! `MPS=auto`: whether MPS helps the job on this node. It needs no NVML, so that a job without MPS
//! does not wait for it.

use super::draft::Draft;
use batch::{Devices, Exclusive, GpuSource};
use mpsd_core::config::Settings;
use mpsd_core::request::Mode;
use mpsd_core::{Refusal, Request};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Helps(String),
    /// The job runs as if it had not asked.
    Unneeded(String),
}

/// Whether the job may run if the node cannot give it MPS. A job with limits relies on them.
pub fn may_do_without(request: &Request) -> bool {
    *request == Request::new(Mode::Auto)
}

pub fn find(devices: &Devices, settings: &Settings) -> Finding {
    let gpus = match &devices.gpus {
        GpuSource::Listed(names) => names.len(),
        GpuSource::Numbered(numbers) => numbers.numbers.len(),
        GpuSource::Counted { count, .. } => *count as usize,
        GpuSource::None => return Finding::Unneeded("the job has no GPU on this node".to_owned()),
        GpuSource::Unknown(why) => {
            return Finding::Unneeded(format!("the job's GPUs on this node are not known: {why}"));
        }
    };
    if settings.shared_gpus || matches!(devices.exclusive, Exclusive::Shared(_)) {
        return Finding::Helps("other jobs may use its GPU too".to_owned());
    }
    let Some(tasks) = devices.tasks_of_each_node() else {
        let why = "the scheduler does not say how many tasks the job has here";
        return Finding::Unneeded(why.to_owned());
    };
    let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    match Mode::auto_helps(tasks, gpus) {
        true => Finding::Helps(Mode::counted(tasks, gpus)),
        false => Finding::Unneeded(Mode::counted(tasks, gpus)),
    }
}

/// A job that did not ask must not notice MPS by its GPUs or by its number of clients.
pub(super) fn expect_unnoticed(draft: &Draft<'_>, devices: &Devices) -> Result<(), Refusal> {
    let gpus = &draft.gpus;
    let alike = gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
    let tasks = draft.tasks.zip(draft.clients);
    let has_all = gpus.len() == draft.inventory.gpus.len();
    let too_many = tasks.filter(|(tasks, most)| tasks > most);
    let too_many = too_many.map(|(tasks, most)| format!("a GPU takes {most} of its {tasks} tasks"));
    let why = match &too_many {
        Some(why) => why,
        None if draft.filled.mode == Mode::PerGpu && gpus.len() > 1 => {
            "a daemon for each GPU would change CUDA_VISIBLE_DEVICES"
        }
        None if !alike => "its GPUs are not alike, and CUDA counts the fastest first",
        None if !has_all && !devices.are_confined() => {
            "its tasks may open other GPUs of the node, and the numbers of its own would change"
        }
        None => return Ok(()),
    };
    let what = "a job that did not ask";
    Err(Refusal::new(what, why, "a request of its user's"))
}

pub(super) fn found(request: &Request, devices: &Devices, settings: &Settings) -> Option<String> {
    let asked = request.mode == Mode::Auto;
    match asked.then(|| find(devices, settings))? {
        Finding::Helps(why) | Finding::Unneeded(why) => Some(format!("auto: MPS, because {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use batch::{GpuName, Part};

    /// Rows `GPUs tasks exclusive nodes settings -> finding`.
    const ROWS: &str = "
1 1 alone even   -> no MPS: 1 task on 1 GPU
1 2 alone even   -> MPS: 2 tasks on 1 GPU
2 2 alone even   -> no MPS: 2 tasks on 2 GPUs
2 3 alone even   -> MPS: 3 tasks on 2 GPUs
4 1 alone even   -> no MPS: 1 task on 4 GPUs
8 64 alone even  -> MPS: 64 tasks on 8 GPUs
1 2 alone uneven -> no MPS: 1 task on 1 GPU
1 3 alone uneven -> MPS: 2 tasks on 1 GPU
1 - alone even   -> no MPS: the scheduler does not say how many tasks the job has here
1 0 alone uneven -> no MPS: the scheduler does not say how many tasks the job has here
counted 4 unknown even -> MPS: 4 tasks on 2 GPUs
1 - part even    -> MPS: other jobs may use its GPU too
1 1 part even    -> MPS: other jobs may use its GPU too
1 - shared even  -> MPS: other jobs may use its GPU too
1 1 shared even  -> MPS: other jobs may use its GPU too
1 - unknown even shared_gpus = true -> MPS: other jobs may use its GPU too
1 1 unknown even shared_gpus = true -> MPS: other jobs may use its GPU too
1 - unknown even -> no MPS: the scheduler does not say how many tasks the job has here
1 1 unknown even -> no MPS: 1 task on 1 GPU
none 8 unknown even shared_gpus = true   -> no MPS: the job has no GPU on this node
no-file 8 unknown even shared_gpus = true -> no MPS: the job's GPUs on this node are not known: no file";

    /// Of three uneven tasks on two nodes this one may have one.
    #[test]
    fn mps_is_for_more_tasks_than_gpus_and_for_known_gpus_that_jobs_share() {
        for row in ROWS.trim().lines() {
            let (case, expected) = row.split_once("->").unwrap();
            let [gpus, tasks, exclusive, nodes, config] =
                case.splitn(5, ' ').collect::<Vec<_>>()[..]
            else {
                panic!("{row}");
            };
            let why = "no file".to_owned();
            let gpus = match gpus {
                "none" => GpuSource::None,
                "no-file" => GpuSource::Unknown(why),
                "counted" => GpuSource::Counted { count: 2, why },
                count => {
                    GpuSource::Listed((0..count.parse().unwrap()).map(GpuName::Index).collect())
                }
            };
            let (own, all, of_threads) = (1, 4, false);
            let devices = Devices {
                gpus,
                exclusive: match exclusive {
                    "alone" => Exclusive::GpusAlone,
                    "part" => Exclusive::Shared(Some(Part {
                        own,
                        all,
                        of_threads,
                    })),
                    "shared" => Exclusive::Shared(None),
                    _ => Exclusive::Unknown,
                },
                whole_node: false,
                tasks_on_node: tasks.parse().ok(),
                uneven: nodes == "uneven",
            };
            let found = match find(&devices, &Settings::parse(config, "n1").unwrap()) {
                Finding::Helps(why) => format!("MPS: {why}"),
                Finding::Unneeded(why) => format!("no MPS: {why}"),
            };
            assert_eq!(found, expected.trim(), "{row}");
        }
    }

    #[test]
    fn a_job_with_limits_does_not_do_without() {
        for (request, may) in [
            ("MPS=auto", true),
            ("MPS=auto,MPS_THREADS=25", false),
            ("MPS=auto,MPS_REPORT=on", false),
            ("MPS=on", false),
        ] {
            assert_eq!(may_do_without(&request.parse().unwrap()), may, "{request}");
        }
    }
}
