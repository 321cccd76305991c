//! A job's MPS in words, no line longer than its reader's terminal.

use super::view::{ClientView, DaemonView, GpuView, View};
use super::whether::{Attached, Whether};
use mpsd_core::record::RecordState;

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
        RecordState::Ready => "MPS is up".to_owned(),
        RecordState::Starting => "its MPS is being started".to_owned(),
        RecordState::Refused => format!("its MPS was refused: {reason}"),
        RecordState::Failed => format!("its MPS did not start: {reason}"),
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
mod tests {
    //! The words, and the width.

    use super::*;
    use crate::cli::status::view::ClientView;
    use crate::daemon::dialogue::InForce;
    use crate::daemon::inquiry::Server;
    use mpsd_core::{GpuUuid, JobId};

    fn example() -> View {
        let gpu = |n: usize| GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap();
        let client = ClientView {
            pid: 4711,
            rank: Some(3),
            command: Some("./a-program with-a-long-name".to_owned()),
            memory_mib: Some(512),
            server: 691,
        };
        View {
            job: JobId::parse("7").unwrap(),
            uid: 1000,
            user: Some("alice".to_owned()),
            began: None,
            state: RecordState::Ready,
            left: false,
            reason: None,
            daemons: vec![DaemonView {
                gpus: vec![gpu(0), gpu(1)],
                servers: vec![Server {
                    pid: 691,
                    state: "ACTIVE".to_owned(),
                }],
                limits: vec![InForce {
                    limit: "active thread percentage".to_owned(),
                    asked: Some("25".to_owned()),
                    set: None,
                    said: Some("100.0".to_owned()),
                    holds: false,
                }],
                silent: None,
                ended: false,
            }],
            gpus: vec![
                GpuView {
                    index: 0,
                    uuid: gpu(0),
                    clients: Some(vec![client]),
                },
                GpuView {
                    index: 1,
                    uuid: gpu(1),
                    clients: Some(Vec::new()),
                },
            ],
            without_client: Some(vec![gpu(1)]),
        }
    }

    #[test]
    fn a_job_is_told_in_lines_that_fit() {
        let text = lines(&example(), None).join("\n");
        assert_eq!(
            text,
            "\
job 7 of alice: MPS is up
  control daemon: answers; server 691 ACTIVE
  active thread percentage: asked 25, the daemon says 100.0: NOT in force
  GPU     PID  RANK  MEMORY  COMMAND
    0    4711     3    512M  ./a-program with-a-long-name
    1  no client
  no client uses GPU 1 (GPU-00000001)"
        );
        for width in [1, 10, 40, 80] {
            let lines = lines(&example(), Some(width));
            assert!(
                lines.iter().all(|line| line.chars().count() <= width),
                "{lines:?}"
            );
        }
        assert!(lines(&example(), Some(40)).iter().any(|line| line.ends_with('>')));
    }

    #[test]
    fn a_daemon_that_says_nothing_is_told_with_why() {
        let mut view = example();
        view.daemons[0].silent = Some("it has ended".to_owned());
        view.gpus[0].clients = None;
        view.without_client = None;
        let text = lines(&view, None).join("\n");
        assert!(text.contains("control daemon: it has ended"), "{text}");
        assert!(text.contains("0  its clients are not known"), "{text}");
        assert!(!text.contains("no client uses"), "{text}");
    }

    #[test]
    fn a_job_without_mps_is_told_with_its_reason_and_no_table() {
        let mut view = example();
        (view.state, view.reason) = (RecordState::Refused, Some("MPS_THREADS=0".to_owned()));
        view.daemons.clear();
        assert_eq!(
            lines(&view, None),
            ["job 7 of alice: its MPS was refused: MPS_THREADS=0"]
        );
    }
}
