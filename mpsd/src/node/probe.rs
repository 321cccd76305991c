//! `mps-probe` through a new daemon, before the job starts (`MPS_VERIFY`).

use super::real::{RealNode, groups_of};
use crate::job::Journal;
use crate::sys::Exit;
use crate::sys::deadline::Deadline;
use mpsd_core::environment::{JOB, LOG_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES};
use mpsd_core::failure::Undetermined;
use mpsd_core::partitions::{Partition, VARIABLE};
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;
use mpsd_core::{Failure, GpuUuid};

/// Most that is read of the probe's words, bytes.
const LONGEST: usize = 16 * 1024;

/// Runs `mps-probe` as the job's user through `daemon`; it must find itself under MPS.
///
/// # Errors
/// Undetermined: what the probe said.
pub fn probe(node: &RealNode, journal: &Journal, daemon: &Daemon, deadline: Deadline) -> Result<(), Failure> {
    let failed = |why: String| Failure::from(Undetermined::new("verification by mps-probe", why));
    let gpus: Vec<&str> = daemon.gpus.iter().map(GpuUuid::as_str).collect();
    let mut spawn = node.as_user(journal, "mps-probe", groups_of(journal))?;
    spawn.args = vec![
        "--require-mps".into(),
        "--deadline-s".into(),
        deadline.remaining().as_secs().max(1).to_string().into(),
    ];
    // A client without a partition gets no context where its daemon has them, and one with it reaches that GPU alone.
    let partition = daemon.partitions.first();
    let gpus = partition.map_or(gpus, |one| vec![one.gpu.as_str()]);
    spawn.env = vec![
        (PIPE_DIRECTORY.into(), daemon.pipe.clone().into()),
        (LOG_DIRECTORY.into(), daemon.log.clone().into()),
        (VISIBLE_DEVICES.into(), gpus.join(",").into()),
        (JOB.into(), journal.job.as_str().into()),
    ];
    let name = partition.and_then(Partition::name);
    spawn.env.extend(name.map(|name| (VARIABLE.into(), name.into())));
    let ended = spawn.run(deadline, LONGEST).map_err(|e| failed(e.to_string()))?;
    if ended.exit == Exit::Code(0) {
        return Ok(());
    }
    let text = ended.text();
    let last = text
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing");
    Err(failed(format!("{} ({})", one_line(last, 200), ended.exit)))
}
