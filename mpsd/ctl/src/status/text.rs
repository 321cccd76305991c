//! A job's status in lines, none longer than the terminal: sentences wrap, rows of the table are
//! cut.

use super::model::{ClientStatus, DaemonStatus, GpuStatus, JobStatus};
use crate::terminal::{cut, wrap};
use mpsd::supervisor::queries::Server;
use mpsd_core::GpuUuid;
use mpsd_core::text::list;

const UNKNOWN: &str = "-";

pub fn sentence(text: &str, width: Option<usize>) -> Vec<String> {
    let text = wrap(text, 4, width);
    let lines = text.lines().map(|line| cut(line.to_owned(), width));
    lines.collect()
}

pub fn lines(status: &JobStatus, width: Option<usize>) -> Vec<String> {
    let user = status.user.clone();
    let user = user.unwrap_or_else(|| format!("user {}", status.uid));
    let (job, phase) = (&status.job, status.phase_line());
    let mut lines = vec![format!("job {job} of {user}: {phase}")];
    let others = &status.shared_with;
    if !others.is_empty() {
        // Only root's journal says when it began.
        let owner = status.began.map_or("your", |_| "the user's");
        let s = if others.len() == 1 { "" } else { "s" };
        lines.push(format!("  shared with {owner} job{s} {}", list(others)));
    }
    let several = status.daemons.len() > 1;
    let of_daemon = |daemon| daemon_lines(daemon, several, status.shared);
    lines.extend(status.daemons.iter().flat_map(of_daemon));
    lines.extend(task_lines(status));
    let fit = |text: &String| sentence(text, width);
    let mut lines: Vec<String> = lines.iter().flat_map(fit).collect();
    if status.phase.began() {
        let job = if status.shared { "  JOB     " } else { "" };
        let head = format!("  GPU     PID  RANK  MEMORY{job}  COMMAND");
        let of_gpu = |gpu| gpu_lines(gpu, status.shared);
        let rows = status.gpus.iter().flat_map(of_gpu);
        let rows = [head].into_iter().chain(rows);
        lines.extend(rows.map(|row| cut(row, width)));
        let after = status.gpus.iter().filter_map(together).chain(idle(status));
        lines.extend(after.collect::<Vec<_>>().iter().flat_map(fit));
    }
    lines
}

/// The limits that the job's tasks have by themselves, and not by the daemon.
fn task_lines(status: &JobStatus) -> impl Iterator<Item = String> {
    let threads = status.rank_threads.iter().map(ToString::to_string);
    let memory = |all: &Vec<(GpuUuid, u64)>| {
        let all = all.iter().map(|(_, mib)| format!("{mib}M"));
        let mut all: Vec<String> = all.collect();
        all.dedup();
        all.join("/")
    };
    let memory = status.rank_memory.iter().map(memory);
    let line = |values: Vec<String>, unit: &str| match &values[..] {
        [] => None,
        [one] => Some(format!("  each of this job's tasks: {one}{unit}")),
        all => {
            let all = all.join(", ");
            Some(format!("  this job's tasks by local rank: {all}{unit}"))
        }
    };
    let threads = line(threads.collect(), " % of the threads");
    threads.into_iter().chain(line(memory.collect(), ""))
}

fn daemon_lines(daemon: &DaemonStatus, several: bool, shared: bool) -> Vec<String> {
    let name = match daemon.gpus.first() {
        Some(gpu) if several => format!("control daemon of {gpu}"),
        _ => "control daemon".to_owned(),
    };
    if let Some(why) = &daemon.silent {
        return vec![format!("  {name}: {why}")];
    }
    let server = |server: &Server| format!("server {} {}", server.pid, server.state);
    let servers = match daemon.servers.is_empty() {
        true => "no server: the next client starts one".to_owned(),
        false => list(daemon.servers.iter().map(server)),
    };
    let mut lines = vec![format!("  {name}: answers; {servers}")];
    let unasked = match shared {
        true => "for all its jobs",
        false => "not asked for",
    };
    lines.extend(daemon.limits.iter().map(|limit| {
        let said = limit.said.as_deref().unwrap_or("nothing");
        let asked = limit.asked.as_ref();
        let asked = asked.map_or(unasked.to_owned(), |asked| format!("asked {asked}"));
        let holds = if limit.holds { "" } else { ": NOT in force" };
        format!("  {}: {asked}, the daemon says {said}{holds}", limit.limit)
    }));
    lines
}

fn gpu_lines(gpu: &GpuStatus, shared: bool) -> Vec<String> {
    let index = gpu.index;
    match gpu.clients.as_deref() {
        None => {
            let why = "its clients are not known: its control daemon does not tell";
            vec![format!("{index:>5}  {why}")]
        }
        Some([]) => vec![format!("{index:>5}  no client")],
        Some(clients) => {
            let line = |client| client_line(index, client, shared);
            clients.iter().map(line).collect()
        }
    }
}

fn together(gpu: &GpuStatus) -> Option<String> {
    let (index, held, limit) = (gpu.index, gpu.job_held_mib?, gpu.job_limit_mib?);
    Some(format!(
        "{index:>5}  all clients of this job: {held}M of {limit}M"
    ))
}

fn client_line(index: u32, client: &ClientStatus, shared: bool) -> String {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    let rank = or_unknown(client.rank.map(|rank| rank.to_string()));
    let memory = or_unknown(client.memory.map(|bytes| format!("{}M", bytes >> 20)));
    let command = client.command.as_deref().unwrap_or(UNKNOWN);
    let job = match shared {
        true => format!("  {:<8}", client.job.as_deref().unwrap_or(UNKNOWN)),
        false => String::new(),
    };
    let pid = client.pid;
    format!("{index:>5} {pid:>7} {rank:>5} {memory:>7}{job}  {command}")
}

fn idle(status: &JobStatus) -> Option<String> {
    let idle = status.without_client.as_ref();
    let idle = idle.filter(|gpus| !gpus.is_empty())?;
    let gpus = status.gpus.iter().filter(|gpu| idle.contains(&gpu.uuid));
    let gpus = list(gpus.map(|gpu| format!("{} ({})", gpu.index, gpu.uuid)));
    Some(format!("  no client uses GPU {gpus}"))
}

#[cfg(test)]
mod tests {
    use super::super::model::NvmlLists;
    use super::super::model::tests::{gpu, status};
    use super::*;
    use mpsd::supervisor::dialogue::InForce;
    use mpsd::supervisor::queries::{AnswerError, Server};
    use mpsd_core::JobId;

    fn example() -> JobStatus {
        let mut status = status();
        status.user = Some("alice".to_owned());
        status.daemons[0].servers = vec![Server {
            pid: 691,
            state: "ACTIVE".to_owned(),
        }];
        status.daemons[0].limits = vec![InForce {
            limit: "active thread percentage".to_owned(),
            asked: Some("25".to_owned()),
            said: Some("100.0".to_owned()),
            holds: false,
        }];
        status.gpus[0].clients = Some(vec![ClientStatus {
            pid: 4711,
            rank: Some(3),
            command: Some("./a-program with-a-long-name".to_owned()),
            memory: Some(512 << 20),
            server: 691,
            job: Some("7".to_owned()),
        }]);
        status.gpus[1].clients = Some(Vec::new());
        status.without_client = Some(vec![gpu(1)]);
        status
    }

    #[test]
    fn a_job_is_told_in_lines_that_fit() {
        let text = lines(&example(), None).join("\n");
        assert_eq!(
            text,
            "\
job 7 of alice: MPS is up (a reason)
  control daemon: answers; server 691 ACTIVE
  active thread percentage: asked 25, the daemon says 100.0: NOT in force
  GPU     PID  RANK  MEMORY  COMMAND
    0    4711     3    512M  ./a-program with-a-long-name
    1  no client
  no client uses GPU 1 (GPU-00000000-0001)"
        );
        for width in [1, 10, 40, 80] {
            let lines = lines(&example(), Some(width));
            let fits = |line: &String| line.chars().count() <= width;
            assert!(lines.iter().all(fits), "{lines:?}");
            let is_cut = lines.iter().any(|line| line.ends_with('>'));
            assert!(is_cut || width != 40, "{lines:?}");
        }
    }

    /// A remedy is at the end of its sentence.
    #[test]
    fn a_sentence_is_wrapped_and_not_cut() {
        let text = "under MPS: no, because CUDA_MPS_PIPE_DIRECTORY is not set here: attach with 'mpsctl exec -- COMMAND'";
        let lines = sentence(text, Some(80));
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:?}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&lines.join(" ")), text);
    }

    #[test]
    fn of_a_shared_mps_the_other_jobs_and_each_clients_job_are_told() {
        let mut status = example();
        (status.shared, status.began) = (true, Some(1));
        status.shared_with = ["8", "9"].map(|job| JobId::parse(job).unwrap()).into();
        status.daemons[0].limits[0].asked = None;
        status.rank_threads = vec!["25".parse().unwrap(), "12.5".parse().unwrap()];
        status.rank_memory = vec![vec![(gpu(0), 4096)]];
        status.gpus[0].job_limit_mib = Some(8192);
        status.gpus[0].job_held_mib = Some(512);
        let text = lines(&status, None).join("\n");
        for line in [
            "  shared with the user's jobs 8, 9",
            "  active thread percentage: for all its jobs, the daemon says 100.0: NOT in force",
            "  this job's tasks by local rank: 25, 12.5 % of the threads",
            "  each of this job's tasks: 4096M",
            "  GPU     PID  RANK  MEMORY  JOB       COMMAND",
            "    0    4711     3    512M  7         ./a-program with-a-long-name",
            "    0  all clients of this job: 512M of 8192M",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        status.began = None;
        status.shared_with.pop_last();
        assert!(lines(&status, None)[1] == "  shared with your job 8");
    }

    #[test]
    fn mps_with_an_ended_daemon_is_not_called_up() {
        let mut status = example();
        status.gpus[0].clients = None;
        status.add_answers(&[Err(AnswerError::Ended)], &NvmlLists::new(), &[]);
        let text = lines(&status, None).join("\n");
        let ended = "its MPS has ended\n  control daemon: it has ended";
        assert!(text.contains(ended) && !text.contains("is up"), "{text}");
        assert!(text.contains("0  its clients are not known"), "{text}");
        assert_eq!(serde_json::to_value(&status).unwrap()["state"], "ended");
    }
}
