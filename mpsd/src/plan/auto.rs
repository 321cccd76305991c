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

/// Whether the job may run without MPS where this node cannot give it. A job with limits may not:
/// it relies on them.
pub fn may_do_without(request: &Request) -> bool {
    *request == Request::new(Mode::Auto)
}

/// What `auto` finds for a job with these devices.
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

/// Refuses MPS to a job that did not ask, if a program could notice it by its GPUs or by its number
/// of clients.
pub(super) fn expect_unnoticed(draft: &Draft<'_>, devices: &Devices) -> Result<(), Refusal> {
    let gpus = &draft.gpus;
    let refuse = |why: String| {
        let what = "a job that did not ask";
        Err(Refusal::new(what, why, "a request of its user's"))
    };
    let alike = gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
    let tasks = draft.tasks.zip(draft.clients);
    let tasks = tasks.filter(|(tasks, most)| tasks > most);
    let has_all = gpus.len() == draft.inventory.gpus.len();
    if let Some((tasks, most)) = tasks {
        refuse(format!("a GPU takes {most} of its {tasks} tasks"))
    } else if draft.filled.mode == Mode::PerGpu && gpus.len() > 1 {
        refuse("a daemon for each GPU would change CUDA_VISIBLE_DEVICES".to_owned())
    } else if !alike {
        refuse("its GPUs are not alike, and CUDA counts the fastest first".to_owned())
    } else if !has_all && !devices.are_confined() {
        refuse(
            "its tasks may open other GPUs of the node, and the numbers of its own would change"
                .to_owned(),
        )
    } else {
        Ok(())
    }
}

/// Why a job that says `auto` has MPS, in one line.
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

    /// `MPS: why` or `no MPS: why` for a job with so many tasks on these GPUs.
    fn found(
        gpus: GpuSource,
        tasks: Option<u32>,
        exclusive: Exclusive,
        uneven: bool,
        config: &str,
    ) -> String {
        let settings = Settings::parse(config, "n1").unwrap();
        let devices = Devices {
            gpus,
            exclusive,
            whole_node: false,
            tasks_on_node: tasks,
            uneven,
        };
        match find(&devices, &settings) {
            Finding::Helps(why) => format!("MPS: {why}"),
            Finding::Unneeded(why) => format!("no MPS: {why}"),
        }
    }

    fn listed(count: u32) -> GpuSource {
        GpuSource::Listed((0..count).map(GpuName::Index).collect())
    }

    #[test]
    fn mps_is_for_jobs_with_more_tasks_than_gpus() {
        let alone =
            |gpus, tasks, uneven| found(listed(gpus), tasks, Exclusive::GpusAlone, uneven, "");
        for (gpus, tasks, uneven, expected) in [
            (1, Some(1), false, "no MPS: 1 task on 1 GPU"),
            (1, Some(2), false, "MPS: 2 tasks on 1 GPU"),
            (2, Some(2), false, "no MPS: 2 tasks on 2 GPUs"),
            (2, Some(3), false, "MPS: 3 tasks on 2 GPUs"),
            (4, Some(1), false, "no MPS: 1 task on 4 GPUs"),
            (8, Some(64), false, "MPS: 64 tasks on 8 GPUs"),
            // Three tasks on two nodes: this one may have one.
            (1, Some(2), true, "no MPS: 1 task on 1 GPU"),
            (1, Some(3), true, "MPS: 2 tasks on 1 GPU"),
            (
                1,
                None,
                false,
                "no MPS: the scheduler does not say how many tasks the job has here",
            ),
            (
                1,
                Some(0),
                true,
                "no MPS: the scheduler does not say how many tasks the job has here",
            ),
        ] {
            assert_eq!(alone(gpus, tasks, uneven), expected, "{gpus} {tasks:?}");
        }
        let counted = |count| GpuSource::Counted {
            count,
            why: String::new(),
        };
        let unknown = || found(counted(2), Some(4), Exclusive::Unknown, false, "");
        assert_eq!(unknown(), "MPS: 4 tasks on 2 GPUs");
    }

    #[test]
    fn a_gpu_that_jobs_share_has_other_tasks_whatever_the_job_has() {
        let part = Exclusive::Shared(Some(Part {
            own: 1,
            all: 4,
            of_threads: false,
        }));
        for (exclusive, config, shared) in [
            (part, "", true),
            (Exclusive::Shared(None), "", true),
            (Exclusive::Unknown, "shared_gpus = true", true),
            (Exclusive::Unknown, "", false),
            (Exclusive::GpusAlone, "", false),
        ] {
            for tasks in [None, Some(1)] {
                let text = found(listed(1), tasks, exclusive, false, config);
                assert_eq!(
                    text == "MPS: other jobs may use its GPU too",
                    shared,
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_job_without_known_gpus_is_left_alone_even_where_they_are_shared() {
        for (gpus, why) in [
            (GpuSource::None, "the job has no GPU on this node"),
            (
                GpuSource::Unknown("no file".to_owned()),
                "the job's GPUs on this node are not known: no file",
            ),
        ] {
            let text = found(
                gpus,
                Some(8),
                Exclusive::Unknown,
                false,
                "shared_gpus = true",
            );
            assert_eq!(text, format!("no MPS: {why}"));
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
