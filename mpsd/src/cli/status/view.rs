//! What is told of a job's MPS: put together from what its daemons, NVML and the kernel say. The fields are those of
//! `--json`.

use crate::daemon::dialogue::InForce;
use crate::daemon::inquiry::{Client, Said, Server, Silence};
use crate::node::clients::Task;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::{Daemon, RecordGpu, RecordState};
use mpsd_core::text::one_line;
use mpsd_core::{GpuUuid, JobId};
use serde::Serialize;

/// MiB in bytes.
const MIB: u64 = 1 << 20;

/// A job that has MPS here, or was to have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The job, or the step with a daemon of its own.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// The user's name, where root's journal tells it.
    pub user: Option<String>,
    /// Seconds since 1970 at which it began, likewise.
    pub began: Option<u64>,
    /// How far its MPS is.
    pub state: RecordState,
    /// It was taken down, and something of it is here still.
    pub left: bool,
    /// Why it has none.
    pub reason: Option<String>,
    /// Its GPUs.
    pub gpus: Vec<RecordGpu>,
    /// Its control daemons.
    pub daemons: Vec<Daemon>,
}

/// What was learnt of it.
#[derive(Debug, Clone, Default)]
pub struct Learnt {
    /// Each daemon's own word, in the order of [`Subject::daemons`].
    pub said: Vec<Result<Said, Silence>>,
    /// NVML's list of each GPU that it answers for.
    pub nvml: Vec<(GpuUuid, Vec<GpuProcess>)>,
    /// The clients that are processes of its user.
    pub tasks: Vec<Task>,
}

/// The job's MPS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// The job.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// The user's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Seconds since 1970 at which it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
    /// How far it is.
    pub state: RecordState,
    /// It was taken down, and something of it is here still.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its control daemons.
    pub daemons: Vec<DaemonView>,
    /// Its GPUs with their clients.
    pub gpus: Vec<GpuView>,
    /// Its GPUs that no client uses; `None`: that cannot be told.
    pub without_client: Option<Vec<GpuUuid>>,
}

impl View {
    /// Its MPS was proved ready, and has not been taken down.
    pub fn is_up(&self) -> bool {
        self.state == RecordState::Ready && !self.left
    }

    /// One of its control daemons has ended.
    pub fn has_ended(&self) -> bool {
        self.daemons.iter().any(|daemon| daemon.ended)
    }
}

/// A control daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DaemonView {
    /// The GPUs that it is confined to.
    pub gpus: Vec<GpuUuid>,
    /// Its servers.
    pub servers: Vec<Server>,
    /// The limits of new clients.
    pub limits: Vec<InForce>,
    /// Why it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// It has ended.
    pub ended: bool,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuView {
    /// NVML's index on the node.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its clients; `None`: its daemon does not tell.
    pub clients: Option<Vec<ClientView>>,
}

/// A client on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientView {
    /// Its pid.
    pub pid: i32,
    /// Its rank in the job.
    pub rank: Option<u32>,
    /// Its command line.
    pub command: Option<String>,
    /// What it holds of the GPU's memory, MiB, as NVML counts: its context and code too.
    pub memory_mib: Option<u64>,
    /// Its server.
    pub server: i32,
}

/// Puts together what was learnt of a job.
pub fn view(subject: &Subject, learnt: &Learnt) -> View {
    let daemons = subject.daemons.iter().zip(&learnt.said);
    let gpus: Vec<GpuView> = subject
        .gpus
        .iter()
        .map(|gpu| of_gpu(subject, learnt, gpu))
        .collect();
    let idle = |gpu: &GpuView| Some((gpu.uuid.clone(), gpu.clients.as_ref()?.is_empty()));
    let known: Option<Vec<(GpuUuid, bool)>> = gpus.iter().map(idle).collect();
    View {
        job: subject.job.clone(),
        uid: subject.uid,
        user: subject.user.clone(),
        began: subject.began,
        state: subject.state,
        left: subject.left,
        reason: subject.reason.clone(),
        daemons: daemons.map(|(daemon, said)| of_daemon(daemon, said)).collect(),
        gpus,
        without_client: known.map(|known| {
            known
                .into_iter()
                .filter(|(_, idle)| *idle)
                .map(|(gpu, _)| gpu)
                .collect()
        }),
    }
}

fn of_daemon(daemon: &Daemon, said: &Result<Said, Silence>) -> DaemonView {
    let text = |text: &str| one_line(text, 80);
    let (servers, limits, silent) = match said {
        Ok(said) => (said.servers.clone(), said.limits.clone(), None),
        Err(why) => (Vec::new(), Vec::new(), Some(one_line(&why.to_string(), 200))),
    };
    DaemonView {
        gpus: daemon.gpus.clone(),
        // Whoever asked the daemon, what came is its user's own text.
        servers: servers
            .into_iter()
            .map(|server| Server {
                state: text(&server.state),
                ..server
            })
            .collect(),
        limits: limits
            .into_iter()
            .map(|limit| InForce {
                limit: text(&limit.limit),
                asked: limit.asked.as_deref().map(text),
                set: limit.set.as_deref().map(text),
                said: limit.said.as_deref().map(text),
                ..limit
            })
            .collect(),
        silent,
        ended: *said == Err(Silence::Ended),
    }
}

/// The clients on one GPU: those that NVML counts memory for there, and those that the daemon itself places there, where NVML
/// counts for them nowhere.
fn of_gpu(subject: &Subject, learnt: &Learnt, gpu: &RecordGpu) -> GpuView {
    let daemons = subject.daemons.iter().zip(&learnt.said);
    let mut here = daemons.filter(|(daemon, _)| daemon.gpus.contains(&gpu.uuid));
    let said = here.next().and_then(|(_, said)| said.as_ref().ok());
    let held = |pid: i32, on: &GpuUuid| {
        let (_, list) = learnt.nvml.iter().find(|(gpu, _)| gpu == on)?;
        let process = list.iter().find(|p| p.pid == pid && p.mps_client)?;
        process.memory.filter(|bytes| *bytes > 0)
    };
    let clients = said.map(|said| {
        let is_here = |client: &&Client| {
            let counted = subject.gpus.iter().any(|g| held(client.pid, &g.uuid).is_some());
            held(client.pid, &gpu.uuid).is_some() || (!counted && client.gpu.as_ref() == Some(&gpu.uuid))
        };
        let of_user = |pid: i32| learnt.tasks.iter().find(|task| task.pid == pid);
        let mut clients: Vec<ClientView> = said
            .clients
            .iter()
            .filter(is_here)
            .map(|client| ClientView {
                pid: client.pid,
                rank: of_user(client.pid).and_then(|task| task.rank),
                command: of_user(client.pid).map(|task| one_line(&task.command, 120)),
                memory_mib: held(client.pid, &gpu.uuid).map(|bytes| bytes / MIB),
                server: client.server,
            })
            .collect();
        clients.sort_by_key(|client| (client.rank, client.pid));
        clients
    });
    GpuView {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        clients,
    }
}

#[cfg(test)]
mod tests {
    //! Whose client is where, by what each of three says.

    use super::*;

    const GPUS: [&str; 2] = ["GPU-00000000-0001", "GPU-00000000-0002"];

    fn gpu(n: usize) -> GpuUuid {
        GpuUuid::parse(GPUS[n]).unwrap()
    }

    /// A ready job of user 1000 with two GPUs behind one daemon.
    pub fn subject() -> Subject {
        let record_gpu = |n: usize| RecordGpu {
            index: n as u32,
            uuid: gpu(n),
            cpus: None,
        };
        Subject {
            job: JobId::parse("7").unwrap(),
            uid: 1000,
            user: Some("alice".to_owned()),
            began: Some(1),
            state: RecordState::Ready,
            left: false,
            reason: None,
            gpus: vec![record_gpu(0), record_gpu(1)],
            daemons: vec![Daemon {
                gpus: vec![gpu(0), gpu(1)],
                pipe: "/p".into(),
                log: "/l".into(),
                threads: None,
                memory: Vec::new(),
                priority: None,
                partitions: Vec::new(),
            }],
        }
    }

    /// What a daemon says with these clients: pid and the GPU that `ps` names.
    pub fn said(clients: &[(i32, Option<usize>)]) -> Said {
        Said {
            servers: vec![Server {
                pid: 50,
                state: "ACTIVE".to_owned(),
            }],
            clients: clients
                .iter()
                .map(|(pid, on)| Client {
                    pid: *pid,
                    server: 50,
                    gpu: on.map(gpu),
                })
                .collect(),
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

    fn learnt(clients: &[(i32, Option<usize>)], nvml: [Vec<GpuProcess>; 2]) -> Learnt {
        let [first, second] = nvml;
        Learnt {
            said: vec![Ok(said(clients))],
            nvml: vec![(gpu(0), first), (gpu(1), second)],
            tasks: vec![Task {
                pid: 100,
                rank: Some(3),
                command: "./app".to_owned(),
            }],
        }
    }

    fn pids(view: &View, n: usize) -> Vec<i32> {
        let clients = view.gpus[n].clients.iter().flatten();
        clients.map(|client| client.pid).collect()
    }

    #[test]
    fn a_client_is_where_nvml_counts_its_memory() {
        // It looked at the first GPU, and uses the second: NVML lists it on both, and ps names the first.
        let nvml = [vec![process(100, 0, true)], vec![process(100, 512, true)]];
        let view = view(&subject(), &learnt(&[(100, Some(0))], nvml));
        assert_eq!(pids(&view, 0), Vec::<i32>::new());
        assert_eq!(pids(&view, 1), [100]);
        assert_eq!(view.without_client, Some(vec![gpu(0)]));
        let client = &view.gpus[1].clients.as_ref().unwrap()[0];
        assert_eq!(
            (client.memory_mib, client.rank, client.command.as_deref()),
            (Some(512), Some(3), Some("./app"))
        );
    }

    #[test]
    fn without_nvml_a_client_is_where_its_daemon_says() {
        let view = view(
            &subject(),
            &Learnt {
                nvml: Vec::new(),
                ..learnt(&[(100, Some(1)), (101, None)], [Vec::new(), Vec::new()])
            },
        );
        assert_eq!((pids(&view, 0), pids(&view, 1)), (vec![], vec![100]));
        assert_eq!(view.gpus[1].clients.as_ref().unwrap()[0].memory_mib, None);
    }

    #[test]
    fn what_is_no_client_of_this_daemon_is_not_shown() {
        // Another job's client, and the server itself.
        let nvml = [vec![process(900, 100, true), process(50, 66, false)], Vec::new()];
        let view = view(&subject(), &learnt(&[], nvml));
        assert_eq!(pids(&view, 0), Vec::<i32>::new());
        assert_eq!(view.without_client, Some(vec![gpu(0), gpu(1)]));
    }

    #[test]
    fn where_a_daemon_is_silent_nobody_says_that_its_gpus_are_idle() {
        let silent = Learnt {
            said: vec![Err(Silence::NoAnswer("no answer within 2000 ms".to_owned()))],
            ..Learnt::default()
        };
        let view = view(&subject(), &silent);
        assert_eq!(view.without_client, None);
        assert!(view.gpus.iter().all(|gpu| gpu.clients.is_none()));
        assert!(view.daemons[0].silent.is_some() && !view.daemons[0].ended);
    }

    #[test]
    fn no_control_character_of_a_users_comes_through() {
        let mut learnt = learnt(&[(100, Some(0))], [Vec::new(), Vec::new()]);
        let said = learnt.said[0].as_mut().unwrap();
        said.servers[0].state = "\u{1b}[2JACTIVE\n".to_owned();
        said.limits.push(InForce {
            limit: "threads\r".to_owned(),
            asked: Some("\u{7}".to_owned()),
            set: None,
            said: Some("\u{202e}25".to_owned()),
            holds: true,
        });
        learnt.tasks[0].command = "a\u{1b}]0;x\u{7}b".to_owned();
        let view = view(&subject(), &learnt);
        let text = format!("{view:?}");
        let hidden = ["\\u{1b}", "\\u{7}", "\\u{202e}", "\\r", "\\n"];
        assert!(hidden.iter().all(|hidden| !text.contains(hidden)), "{text}");
    }
}
