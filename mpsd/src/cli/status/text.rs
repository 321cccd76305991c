//! A job's MPS in words, no line longer than its reader's terminal.

use super::view::{ClientView, DaemonView, GpuView, View};
use super::whether::{Attached, Whether};
use mpsd_core::record::State;

/// What stands where something is not known.
const UNKNOWN: &str = "-";

/// The lines of `view`; `width`: of the terminal, columns; `None`: lines are as long as they are.
pub fn lines(view: &View, width: Option<usize>) -> Vec<String> {
    let user = view.user.clone().unwrap_or_else(|| format!("user {}", view.uid));
    let mut lines = vec![format!("job {} of {user}: {}", view.job, state(view))];
    for daemon in &view.daemons {
        lines.extend(of_daemon(daemon, view.daemons.len() > 1));
    }
    if view.is_up() {
        lines.push("  GPU     PID  RANK  MEMORY  COMMAND".to_owned());
        lines.extend(view.gpus.iter().flat_map(of_gpu));
        lines.extend(idle(view));
    }
    lines.into_iter().map(|line| cut(line, width)).collect()
}

/// Whether the calling task is under its job's MPS.
pub fn whether(whether: &Whether, width: Option<usize>) -> String {
    let word = match whether.attached {
        Attached::Yes => "yes",
        Attached::No => "no",
        Attached::Unknown => "unknown",
    };
    cut(format!("under MPS: {word}, because {}", whether.because), width)
}

fn state(view: &View) -> String {
    let reason = view.reason.as_deref().unwrap_or("no reason is recorded");
    match view.state {
        _ if view.left => "its MPS was taken down, and something of it is left".to_owned(),
        State::Ready => "MPS is up".to_owned(),
        State::Starting => "its MPS is being started".to_owned(),
        State::Refused => format!("its MPS was refused: {reason}"),
        State::Failed => format!("its MPS did not start: {reason}"),
    }
}

fn of_daemon(daemon: &DaemonView, several: bool) -> Vec<String> {
    let whose = match daemon.gpus.first() {
        Some(gpu) if several => format!("control daemon of {gpu}"),
        _ => "control daemon".to_owned(),
    };
    if let Some(why) = &daemon.silent {
        return vec![format!("  {whose}: {why}")];
    }
    let servers: Vec<String> = daemon
        .servers
        .iter()
        .map(|server| format!("server {} {}", server.pid, server.state))
        .collect();
    let servers = match servers.is_empty() {
        true => "no server: the next client starts one".to_owned(),
        false => servers.join(", "),
    };
    let mut lines = vec![format!("  {whose}: answers; {servers}")];
    lines.extend(daemon.limits.iter().map(|limit| {
        let said = limit.said.as_deref().unwrap_or("nothing");
        let asked = match &limit.asked {
            Some(asked) => format!("asked {asked}"),
            None => "not asked for".to_owned(),
        };
        let set = limit.set.as_ref().map(|set| format!(", set to {set} since"));
        let set = set.unwrap_or_default();
        let holds = if limit.holds { "" } else { ": NOT in force" };
        format!("  {}: {asked}{set}, the daemon says {said}{holds}", limit.limit)
    }));
    lines
}

fn of_gpu(gpu: &GpuView) -> Vec<String> {
    let index = gpu.index;
    match &gpu.clients {
        None => vec![format!(
            "{index:>5}  its clients are not known: its control daemon does not tell"
        )],
        Some(clients) if clients.is_empty() => vec![format!("{index:>5}  no client")],
        Some(clients) => clients.iter().map(|client| of_client(index, client)).collect(),
    }
}

fn of_client(index: u32, client: &ClientView) -> String {
    let rank = client.rank.map_or(UNKNOWN.to_owned(), |rank| rank.to_string());
    let memory = client
        .memory_mib
        .map_or(UNKNOWN.to_owned(), |mib| format!("{mib}M"));
    let command = client.command.as_deref().unwrap_or(UNKNOWN);
    format!("{index:>5} {:>7} {rank:>5} {memory:>7}  {command}", client.pid)
}

fn idle(view: &View) -> Option<String> {
    let idle = view.without_client.as_ref().filter(|gpus| !gpus.is_empty())?;
    let list: Vec<String> = view
        .gpus
        .iter()
        .filter(|gpu| idle.contains(&gpu.uuid))
        .map(|gpu| format!("{} ({})", gpu.index, gpu.uuid))
        .collect();
    Some(format!("  no client uses GPU {}", list.join(", ")))
}

/// `line` within `width` columns; what was cut off is marked.
fn cut(line: String, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            let mut short: String = line.chars().take(width.saturating_sub(1)).collect();
            short.push('>');
            short
        }
        _ => line,
    }
}

#[cfg(test)]
mod tests;
