//! What is known of a job with MPS, from root's journal or record, its control daemons, NVML and
//! the kernel. `mpsctl status` and `mpsctl metrics` both show this value. Its fields are those of
//! `status --json`.

use mpsd::job::Journal;
use mpsd::node::tasks::Task;
use mpsd::supervisor::dialogue::InForce;
use mpsd::supervisor::queries::{AnswerError, Client, DaemonAnswer, Server};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::{self, Daemon, Record, RecordGpu, RecordState};
use mpsd_core::text::one_line;
use mpsd_core::{GpuUuid, JobId, Percent};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// NVML's processes on each GPU that it answered for.
pub type NvmlLists = BTreeMap<GpuUuid, Vec<GpuProcess>>;

/// Where a job's MPS stands. The words are for a sentence that names the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    #[display("its MPS is being started")]
    Starting,
    #[display("MPS is up")]
    Ready,
    #[display("a part of its MPS has ended")]
    Degraded,
    #[display("its MPS has ended")]
    Ended,
    #[display("its MPS was taken down, and something of it is left")]
    Left,
    #[display("its MPS was refused")]
    Refused,
    #[display("its MPS did not start")]
    Failed,
    #[display("it needs no MPS")]
    Unneeded,
}

impl From<RecordState> for Phase {
    fn from(state: RecordState) -> Self {
        match state {
            RecordState::Starting => Self::Starting,
            RecordState::Ready => Self::Ready,
            RecordState::Refused => Self::Refused,
            RecordState::Failed => Self::Failed,
            RecordState::Unneeded => Self::Unneeded,
        }
    }
}

impl Phase {
    /// Its MPS was proved ready, and root has not taken it down.
    pub fn began(self) -> bool {
        matches!(self, Self::Ready | Self::Degraded | Self::Ended)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobStatus {
    /// The job, or the step with a daemon of its own.
    pub job: JobId,
    pub uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Seconds since 1970, which root's journal has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
    /// Its daemons serve the user's other jobs on its GPUs as well.
    pub shared: bool,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub shared_with: BTreeSet<JobId>,
    #[serde(rename = "state")]
    pub phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub daemons: Vec<DaemonStatus>,
    pub gpus: Vec<GpuStatus>,
    /// The GPUs that no client uses; `None`: a daemon does not answer.
    pub without_client: Option<Vec<GpuUuid>>,
    /// Limits that the job's tasks have by themselves, by local rank; one is for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rank_threads: Vec<Percent>,
    /// MiB on each GPU, likewise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rank_memory: Vec<Vec<(GpuUuid, u64)>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DaemonStatus {
    #[serde(skip)]
    pub pipe: PathBuf,
    pub gpus: Vec<GpuUuid>,
    pub servers: Vec<Server>,
    pub limits: Vec<InForce>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    pub ended: bool,
    /// It may run, but programs reach another daemon or none.
    #[serde(skip)]
    pub out_of_reach: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuStatus {
    /// NVML's on the node.
    pub index: u32,
    pub uuid: GpuUuid,
    /// The job's clients on it; `None`: not known.
    pub clients: Option<Vec<ClientStatus>>,
    /// What the job's clients may hold together, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_limit_mib: Option<u64>,
    /// What they hold, if they have such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_held_mib: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ClientStatus {
    pub pid: i32,
    pub rank: Option<u32>,
    pub command: Option<String>,
    /// The client's job, by its scheduler's cgroup or its own word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The GPU's memory that NVML counts for it, bytes: its context and code too. Serialized in
    /// MiB.
    #[serde(rename = "memory_mib", serialize_with = "as_mib")]
    pub memory: Option<u64>,
    pub server: i32,
}

fn as_mib<S: Serializer>(bytes: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    bytes.map(|bytes| bytes >> 20).serialize(to)
}

/// If the site gave the job MPS, some of its steps may be without. The node's log names them.
fn reason_of(record: &Record) -> Option<String> {
    let by_site = record.by_site.is_some() && record.state == RecordState::Ready;
    let of_site = "from its site; steps that could meet MPS in their own way run without it: see the node's log";
    let reason = record.reason.clone();
    reason.or_else(|| by_site.then(|| of_site.to_owned()))
}

impl JobStatus {
    /// Without a record, the start has not written it yet, or the end is under way.
    pub fn of_journal(journal: &Journal, record: Option<&Record>) -> Self {
        Self {
            user: Some(journal.user.clone()),
            began: Some(journal.began_at),
            shared: journal.joined_gpus().next().is_some(),
            phase: match record {
                _ if journal.has_remains => Phase::Left,
                Some(record) => record.state.into(),
                None => Phase::Starting,
            },
            ..Self::new(journal.record(), record)
        }
    }

    pub fn of_record(record: &Record) -> Self {
        let user = users::get_user_by_uid(record.uid);
        Self {
            user: user.map(|user| user.name().to_string_lossy().into_owned()),
            shared: record.shared,
            phase: record.state.into(),
            ..Self::new(record, Some(record))
        }
    }

    /// A job with this plan, whose tasks were `told` this.
    fn new(plan: &Record, told: Option<&Record>) -> Self {
        let daemon = |plan: &Daemon| DaemonStatus {
            gpus: plan.gpus.clone(),
            pipe: plan.pipe.clone(),
            ..DaemonStatus::default()
        };
        let gpu = |gpu: &RecordGpu| GpuStatus {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            clients: None,
            job_limit_mib: told.and_then(|told| record::limit_on(&told.job_memory, &gpu.uuid)),
            job_held_mib: None,
        };
        Self {
            job: plan.job.clone(),
            uid: plan.uid,
            user: None,
            began: None,
            shared: false,
            shared_with: BTreeSet::new(),
            phase: Phase::Starting,
            reason: told.and_then(reason_of),
            daemons: plan.daemons.iter().map(daemon).collect(),
            gpus: plan.gpus.iter().map(gpu).collect(),
            without_client: None,
            rank_threads: told.map_or_else(Vec::new, |told| told.rank_threads.clone()),
            rank_memory: told.map_or_else(Vec::new, |told| told.rank_memory.clone()),
        }
    }

    pub fn phase_line(&self) -> String {
        match self.phase {
            Phase::Refused | Phase::Failed => {
                let reason = self.reason.as_deref().unwrap_or("no reason is recorded");
                format!("{}: {reason}", self.phase)
            }
            Phase::Ready | Phase::Unneeded if self.reason.is_some() => {
                let reason = self.reason.as_deref().unwrap_or_default();
                format!("{} ({reason})", self.phase)
            }
            phase => phase.to_string(),
        }
    }

    /// Adds the daemons' answers, in the order of `daemons`, and what NVML and the kernel say of
    /// their clients.
    pub fn add_answers(
        &mut self,
        answers: &[Result<DaemonAnswer, AnswerError>],
        nvml: &NvmlLists,
        tasks: &[Task],
    ) {
        self.daemons.truncate(answers.len());
        for (daemon, answer) in self.daemons.iter_mut().zip(answers) {
            daemon.add(answer);
        }
        let ended = self.daemons.iter().filter(|daemon| daemon.ended).count();
        if self.phase == Phase::Ready && ended > 0 {
            let all = ended == self.daemons.len();
            self.phase = if all { Phase::Ended } else { Phase::Degraded };
        }
        let memory = |pid: i32, gpu: &GpuUuid| {
            let mut process = nvml.get(gpu)?.iter();
            let process = process.find(|p| p.pid == pid && p.mps_client)?;
            process.memory.filter(|bytes| *bytes > 0)
        };
        let uuids: Vec<GpuUuid> = self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let is_counted = |pid: i32| uuids.iter().any(|uuid| memory(pid, uuid).is_some());
        for gpu in &mut self.gpus {
            let mut both = self.daemons.iter().zip(answers);
            let Some((_, Ok(answer))) = both.find(|(daemon, _)| daemon.gpus.contains(&gpu.uuid))
            else {
                continue;
            };
            // If NVML counts memory for a client on no GPU, its daemon's word counts.
            let is_here = |client: &&Client| {
                memory(client.pid, &gpu.uuid).is_some()
                    || (client.gpu.as_ref() == Some(&gpu.uuid) && !is_counted(client.pid))
            };
            let status = |client: &Client| {
                let task = tasks.iter().find(|task| task.pid == client.pid);
                ClientStatus {
                    pid: client.pid,
                    rank: task.and_then(|task| task.rank),
                    command: task.map(|task| one_line(&task.command, 120)),
                    job: task.and_then(|task| task.job.clone()),
                    memory: memory(client.pid, &gpu.uuid),
                    server: client.server,
                }
            };
            let mut clients: Vec<ClientStatus> =
                answer.clients.iter().filter(is_here).map(status).collect();
            clients.sort_by_key(|client| (client.rank, client.pid));
            let whole = Some(self.job.whole().as_str().to_owned());
            let own = clients
                .iter()
                .filter(|client| !self.shared || client.job == whole);
            let held: u64 = own.filter_map(|client| client.memory).sum();
            gpu.job_held_mib = gpu.job_limit_mib.map(|_| held >> 20);
            gpu.clients = Some(clients);
        }
        let is_known = self.gpus.iter().all(|gpu| gpu.clients.is_some());
        let idle = self.gpus.iter();
        let idle = idle.filter(|gpu| gpu.clients.as_ref().is_some_and(Vec::is_empty));
        let idle = idle.map(|gpu| gpu.uuid.clone()).collect();
        self.without_client = is_known.then_some(idle);
    }
}

impl DaemonStatus {
    /// Any answer is text of the job's user, so it is made fit for a terminal.
    fn add(&mut self, answer: &Result<DaemonAnswer, AnswerError>) {
        let text = |text: &str| one_line(text, 80);
        let server = |server: &Server| Server {
            state: text(&server.state),
            ..*server
        };
        let limit = |limit: &InForce| InForce {
            limit: text(&limit.limit),
            asked: limit.asked.as_deref().map(text),
            said: limit.said.as_deref().map(text),
            holds: limit.holds,
        };
        match answer {
            Ok(answer) => {
                self.servers = answer.servers.iter().map(server).collect();
                self.limits = answer.limits.iter().map(limit).collect();
            }
            Err(why) => {
                self.silent = Some(one_line(&why.to_string(), 300));
                self.ended = *why == AnswerError::Ended;
                self.out_of_reach = matches!(why, AnswerError::Replaced(_) | AnswerError::Hidden);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use mpsd_core::testing::record;

    pub fn gpu(n: u32) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-00000000-000{n}")).unwrap()
    }

    /// A ready job of user 1000 with two GPUs behind one daemon.
    pub fn status() -> JobStatus {
        let mut record = record(&[0, 1]);
        record.reason = Some("a reason".to_owned());
        for own in &mut record.gpus {
            own.uuid = gpu(own.index);
        }
        record.daemons = vec![Daemon {
            gpus: vec![gpu(0), gpu(1)],
            pipe: "/p".into(),
            ..Daemon::default()
        }];
        JobStatus::of_record(&record)
    }

    /// The answer of a daemon with these clients: pid and the GPU that `ps` names.
    fn answer(clients: &[(i32, Option<u32>)]) -> DaemonAnswer {
        let client = |(pid, on): &(i32, Option<u32>)| Client {
            pid: *pid,
            server: 50,
            gpu: on.map(gpu),
        };
        DaemonAnswer {
            servers: vec![Server {
                pid: 50,
                state: "ACTIVE".to_owned(),
            }],
            clients: clients.iter().map(client).collect(),
            limits: Vec::new(),
        }
    }

    fn process(pid: i32, mib: u64, mps_client: bool) -> GpuProcess {
        GpuProcess {
            pid,
            memory: Some(mib << 20),
            mps_client,
        }
    }

    fn answered(answer: DaemonAnswer, nvml: [Vec<GpuProcess>; 2], command: &str) -> JobStatus {
        let mut status = status();
        let task = Task {
            pid: 100,
            rank: Some(3),
            command: command.to_owned(),
            job: None,
        };
        let lists = (0..).map(gpu).zip(nvml);
        let lists = lists.filter(|(_, list)| !list.is_empty()).collect();
        status.add_answers(&[Ok(answer)], &lists, &[task]);
        status
    }

    fn pids(status: &JobStatus) -> [Vec<i32>; 2] {
        [0, 1].map(|n: usize| {
            let clients = status.gpus[n].clients.iter().flatten();
            clients.map(|client| client.pid).collect()
        })
    }

    #[test]
    fn a_client_is_where_nvml_counts_its_memory_and_else_where_its_daemon_says() {
        // It looked at the first GPU, and uses the second: NVML lists it on both, and ps names the
        // first.
        let nvml = [vec![process(100, 0, true)], vec![process(100, 512, true)]];
        let found = answered(answer(&[(100, Some(0))]), nvml, "./app");
        assert_eq!(pids(&found), [vec![], vec![100]]);
        assert_eq!(found.without_client, Some(vec![gpu(0)]));
        let json = serde_json::to_value(&found).unwrap();
        let client = serde_json::json!({"pid": 100, "rank": 3, "command": "./app", "memory_mib": 512, "server": 50});
        assert_eq!(json["gpus"][1]["clients"][0], client);
        let by_daemon = answer(&[(100, Some(1)), (101, None)]);
        let found = answered(by_daemon, [vec![], vec![]], "./app");
        assert_eq!(pids(&found), [vec![], vec![100]]);
        let (of_other, server) = (process(900, 100, true), process(50, 66, false));
        let found = answered(answer(&[]), [vec![of_other, server], vec![]], "./app");
        assert_eq!(found.without_client, Some(vec![gpu(0), gpu(1)]));
    }

    #[test]
    fn a_jobs_own_limits_are_those_of_its_record() {
        let mut record = record(&[]);
        record.rank_threads = vec!["25".parse().unwrap()];
        record.rank_memory = vec![vec![(gpu(0), 4096)]];
        let json = serde_json::to_value(JobStatus::of_record(&record)).unwrap();
        assert_eq!(json["rank_threads"], serde_json::json!(["25"]));
        assert_eq!(json["rank_memory"], serde_json::json!([[[gpu(0), 4096]]]));
    }

    #[test]
    fn what_a_jobs_clients_hold_together_leaves_out_other_jobs_of_a_shared_mps() {
        let tasks = [(100, "7"), (101, "8"), (102, "7")].map(|(pid, job)| Task {
            pid,
            rank: None,
            command: String::new(),
            job: Some(job.to_owned()),
        });
        let held = |shared, limit| {
            let mut status = status();
            status.shared = shared;
            status.gpus[0].job_limit_mib = limit;
            let pids = [100, 101, 102];
            let clients = pids.map(|pid| (pid, Some(0)));
            let lists = NvmlLists::from([(gpu(0), pids.map(|pid| process(pid, 512, true)).into())]);
            status.add_answers(&[Ok(answer(&clients))], &lists, &tasks);
            status.gpus[0].job_held_mib
        };
        assert_eq!(held(true, Some(1)), Some(1024));
        assert_eq!(held(false, Some(1)), Some(1536));
        assert_eq!(held(true, None), None);
    }

    #[test]
    fn the_gpus_of_a_silent_daemon_are_not_called_idle() {
        let mut status = status();
        let why = AnswerError::Failed("no answer within 2000 ms".to_owned());
        status.add_answers(&[Err(why)], &NvmlLists::new(), &[]);
        assert_eq!(status.without_client, None);
        assert_eq!(status.gpus[0].clients, None);
        assert!(status.daemons[0].silent.is_some() && status.phase == Phase::Ready);
    }

    #[test]
    fn no_control_character_of_a_user_comes_through() {
        let mut hostile = answer(&[(100, Some(0))]);
        hostile.servers[0].state = "\u{1b}[2JACTIVE\n".to_owned();
        hostile.limits.push(InForce {
            limit: "threads\r".to_owned(),
            asked: Some("\u{7}".to_owned()),
            said: Some("\u{202e}25".to_owned()),
            holds: true,
        });
        let found = answered(hostile, [vec![], vec![]], "a\u{1b}]0;x\u{7}b");
        let text = format!("{found:?}");
        let hidden = ["\\u{1b}", "\\u{7}", "\\u{202e}", "\\r", "\\n"];
        assert!(hidden.iter().all(|hidden| !text.contains(hidden)), "{text}");
    }
}
