//! `qmgr`, the administrator's command of a PBS.

use super::installation::Installation;
use crate::scheduler::host::Host;
use mpsd_core::text::one_line;
use std::time::Duration;

/// qmgr talks to the server, which may be busy.
const DEADLINE: Duration = Duration::from_secs(10);

/// One command a call: of several `-c` only the last counts (recorded).
///
/// # Errors
/// What qmgr said, on one line.
pub(crate) fn qmgr(pbs: &Installation, command: &str, host: &dyn Host) -> Result<String, String> {
    let answer = pbs.run("qmgr", &["-c", command], DEADLINE, host)?;
    match answer.code {
        Some(0) => Ok(answer.text),
        _ => Err(one_line(answer.text.trim(), 120)),
    }
}
