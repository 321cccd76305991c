//! A job that its site brought in did not ask for MPS, so it must run as on a node without us. If
//! it may handle MPS itself, or could notice ours, it is left out. Nothing here is a refusal: the
//! reason goes to the node's log and to `mpsctl status`.

use super::environment::{
    ALL_CONNECTIONS, CONNECTIONS, JOB, Lookup, MOST_CONNECTIONS, PIPE_DIRECTORY, USUAL_CONNECTIONS,
    is_of_job,
};
use super::gpu::GpuUuid;
pub use super::record::BySite;
use super::record::Record;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Longest script or program that is read. Bytes.
const LONGEST: u64 = 1 << 20;
/// Words of a script that starts, quits or limits an MPS of its own, or lets fewer clients in.
const OWN: [&str; 3] = ["nvidia-cuda-mps", "CUDA_MPS_", CONNECTIONS];
/// A script without one of these may start any number of programs.
const LAUNCHERS: [&str; 3] = ["mpirun", "mpiexec", "orterun"];

/// `None`: unreadable, or no text. Its writer may be the job's user: no link is followed, and
/// nothing is waited for.
pub fn text_of(path: &Path) -> Option<String> {
    // To open a FIFO would wake its writer.
    if !path.symlink_metadata().ok()?.is_file() {
        return None;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    (!bytes.contains(&0)).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

pub fn of_script(text: &str) -> Option<String> {
    by_words(text).or_else(|| without_ranks(text))
}

pub fn by_words(text: &str) -> Option<String> {
    let named = OWN.into_iter().find(|word| text.contains(word))?;
    Some(format!("its script names {named}"))
}

/// `None`: an MPI launcher starts its programs.
pub fn without_ranks(text: &str) -> Option<String> {
    let is_launched = LAUNCHERS.iter().any(|name| text.contains(name));
    let names = LAUNCHERS.join(", ");
    let why = "so it may start more programs than a server takes";
    (!is_launched).then(|| format!("its script names no {names}, {why}"))
}

/// Why a step or script with this environment is left out, before its GPUs are looked at.
pub fn by_environment(record: &Record, tasks: Option<u32>, lookup: Lookup<'_>) -> Option<String> {
    let by_site = record.by_site?;
    let is_ours = |own: &str| lookup(JOB).is_some_and(|job| is_of_job(own, &job));
    if lookup(PIPE_DIRECTORY).is_some_and(|own| !is_ours(&own)) {
        return Some(format!("its user has set {PIPE_DIRECTORY}"));
    }
    let tasks = tasks.unwrap_or(0).max(by_site.tasks);
    too_many(tasks, record.clients?, lookup)
}

/// Each task may open any of the GPUs, so all of them must fit on one.
fn too_many(tasks: u32, clients: u32, lookup: Lookup<'_>) -> Option<String> {
    let set = lookup(CONNECTIONS).and_then(|text| text.trim().parse::<u32>().ok());
    let each = set.unwrap_or(USUAL_CONNECTIONS).clamp(1, MOST_CONNECTIONS);
    let most = clients.min(ALL_CONNECTIONS / each);
    (tasks > most).then(|| match set {
        Some(set) => format!("with {CONNECTIONS}={set} a GPU takes {most} of its {tasks} tasks"),
        None => format!("a GPU takes {most} of its {tasks} tasks"),
    })
}

/// Why a number would name another GPU behind the daemon than without it. Both count from 0 in the
/// order of the bus: the daemon its own GPUs, a program without MPS those that it may open.
pub fn by_numbers(record: &Record, counted: Option<&[GpuUuid]>) -> Option<String> {
    let counted = counted?;
    let daemons = record.daemons.iter();
    let served: Vec<&GpuUuid> = daemons.flat_map(|daemon| &daemon.gpus).collect();
    let (open, gpus) = (counted.len(), record.gpus.len());
    let why =
        || format!("it may open {open} GPUs, and its job has {gpus}: their numbers would change");
    (!counted.iter().eq(served)).then(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Daemon;
    use crate::testing::{self, uuid};

    fn record(tasks: u32) -> Record {
        let mut record = testing::record(&[]);
        record.by_site = Some(BySite {
            tasks,
            if_tasks_meet: true,
        });
        record.clients = Some(48);
        record.daemons = vec![Daemon {
            gpus: [1, 2].map(uuid).to_vec(),
            ..Daemon::default()
        }];
        record
    }

    #[test]
    fn a_script_of_its_own_mps_is_left_out_and_one_without_a_launcher_starts_nothing_under_mps() {
        let connections = "export CUDA_DEVICE_MAX_CONNECTIONS=32\nmpiexec a";
        for (script, own, ranks) in [
            ("nvidia-cuda-mps-control -d\nmpirun -n 4 a", true, true),
            ("echo quit | nvidia-cuda-mps-control", true, false),
            ("export CUDA_MPS_PIPE_DIRECTORY=/tmp/x", true, false),
            (connections, true, true),
            ("mpirun -n 4 a", false, true),
            ("for i in $(seq 56); do a & done; wait", false, false),
        ] {
            assert_eq!(by_words(script).is_some(), own, "{script}");
            assert_eq!(without_ranks(script).is_none(), ranks, "{script}");
        }
    }

    #[test]
    fn tasks_that_a_server_does_not_take_and_a_users_own_directory_are_left_out() {
        let ours = "/run/mpsd/jobs/7/pipe";
        for (of_job, tasks, variables, left_out) in [
            (48, None, &[][..], false),
            (49, None, &[], true),
            (0, Some(49), &[], true),
            (15, Some(2), &[(CONNECTIONS, "8")], false),
            (16, Some(2), &[(CONNECTIONS, "8")], true),
            (48, None, &[(CONNECTIONS, "1")], false),
            // CUDA takes 32 at most.
            (3, None, &[(CONNECTIONS, "64")], false),
            (2, None, &[(PIPE_DIRECTORY, "/tmp/x")], true),
            (2, None, &[(PIPE_DIRECTORY, ours)], true),
            (2, None, &[(PIPE_DIRECTORY, ours), (JOB, "7")], false),
        ] {
            let lookup = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let why = by_environment(&record(of_job), tasks, &lookup);
            assert_eq!(why.is_some(), left_out, "{of_job} {tasks:?} {variables:?}");
        }
        let mut asked = record(49);
        asked.by_site = None;
        assert_eq!(by_environment(&asked, None, &|_| None), None);
    }

    #[test]
    fn numbers_stay_only_if_a_task_may_open_just_the_daemons_gpus() {
        for open in [&[1, 2][..], &[2, 1], &[1], &[1, 2, 3]] {
            let gpus: Vec<GpuUuid> = open.iter().copied().map(uuid).collect();
            let left_out = by_numbers(&record(2), Some(&gpus)).is_some();
            assert_eq!(left_out, open != [1, 2], "{open:?}");
        }
        assert_eq!(by_numbers(&record(2), None), None);
    }
}
