//! How a CUDA program finds its MPS and uses it.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tests::double::node::Node;
use tests::double::visible::may_open;
use tests::double::wire::{self, Attach, CudaError, Granted, Reply};

use crate::bare::Bare;

#[derive(Debug)]
pub struct Running {
    pub gpus: Vec<Granted>,
    pub mps: Option<Mps>,
    bare: Option<Bare>,
}

#[derive(Debug)]
pub struct Mps {
    pub daemon: u32,
    pub server: u32,
    connection: OwnedFd,
}

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Opens contexts: through MPS if a daemon listens in the pipe directory, else silently without it.
pub fn attach(node: &Node, gpu: Option<usize>, paired: bool) -> Result<Running, CudaError> {
    // Recorded: in a pid namespace with the outer /proc, CUDA fails with an error of the operating
    // system.
    let own = std::fs::read_link("/proc/self").unwrap_or_default();
    if own != Path::new(&std::process::id().to_string()) {
        return Err(CudaError::of(304));
    }
    let socket = wire::pipe_directory().join("control");
    for _ in 0..8 {
        let version = match wire::connect(&socket) {
            Ok(connection) => connection,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(CudaError::of(805)),
            Err(_) => {
                let (bare, gpus) = Bare::open(node, gpu)?;
                let (mps, bare) = (None, Some(bare));
                return Ok(Running { gpus, mps, bare });
            }
        };
        let _ = wire::send(&version, b"VERSION");
        drop(version);
        let connection = wire::connect(&socket).map_err(|_| CudaError::of(805))?;
        match wire::send_credentials(&connection, b"CLIENT") {
            // Recorded: the program hangs if its user has no name in its user namespace.
            Err(e) if e.kind() == ErrorKind::InvalidInput => loop {
                nix::unistd::pause();
            },
            // The daemon does not listen: it is quitting.
            Err(_) => return Err(CudaError::of(805)),
            Ok(()) => {}
        }
        match wire::recv_fd(&connection) {
            Some((packet, Some(server))) => {
                let running = ask(&packet, server, gpu, paired)?;
                return match all_open(node, &running.gpus) {
                    true => Ok(running),
                    false => Err(CudaError::of(100)),
                };
            }
            Some((packet, None)) if packet == b"RETRY" => {}
            _ => return Err(CudaError::of(805)),
        }
    }
    Err(CudaError::of(805))
}

fn all_open(node: &Node, gpus: &[Granted]) -> bool {
    let got = |uuid: &str| gpus.iter().any(|granted| granted.uuid == uuid);
    let all = node.cuda();
    all.iter().all(|gpu| !got(&gpu.uuid) || may_open(gpu))
}

fn ask(
    names: &[u8],
    connection: OwnedFd,
    gpu: Option<usize>,
    paired: bool,
) -> Result<Running, CudaError> {
    let names = String::from_utf8_lossy(names);
    let words = names.split_whitespace().skip(1);
    let mut pids = words.map(|word| word.parse().unwrap_or(0));
    let (server, daemon) = (pids.next().unwrap_or(0), pids.next().unwrap_or(0));
    let command = std::env::args().next().unwrap_or_default();
    let asked = Attach {
        visible: variable("CUDA_VISIBLE_DEVICES"),
        threads: variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        memory: variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        connections: variable("CUDA_DEVICE_MAX_CONNECTIONS"),
        paired,
        gpu,
        command,
    };
    let mps = Mps {
        daemon,
        server,
        connection,
    };
    match mps.call(&serde_json::to_vec(&asked).unwrap_or_default()) {
        Reply::Granted(gpus) => {
            let (mps, bare) = (Some(mps), None);
            Ok(Running { gpus, mps, bare })
        }
        Reply::Failed(error) => Err(error),
        Reply::Done => Err(CudaError::of(806)),
    }
}

impl Mps {
    fn call(&self, packet: &[u8]) -> Reply {
        let _ = wire::send(&self.connection, packet);
        let reply = wire::recv(&self.connection);
        let reply = reply.and_then(|answer| serde_json::from_slice(&answer).ok());
        reply.unwrap_or_else(|| Reply::Failed(CudaError::of(806)))
    }
}

impl Running {
    pub fn allocate(&mut self, bytes: u64) -> Result<(), CudaError> {
        let Some(at) = self.gpus.iter().position(|g| g.taken > 0) else {
            return Err(CudaError::of(100));
        };
        if let Some(mps) = &self.mps {
            return done(mps.call(format!("ALLOC {bytes}").as_bytes()));
        }
        let gpu = &mut self.gpus[at];
        if bytes > gpu.free {
            return Err(CudaError::of(2));
        }
        gpu.free -= bytes;
        gpu.taken += bytes;
        self.bare.iter().for_each(|bare| bare.register(gpu));
        Ok(())
    }

    pub fn free(&mut self, bytes: u64) {
        if let Some(mps) = &self.mps {
            let _ = mps.call(format!("FREE {bytes}").as_bytes());
        } else if let Some(gpu) = self.gpus.iter_mut().find(|g| g.taken > 0) {
            gpu.free += bytes;
            gpu.taken -= bytes;
            self.bare.iter().for_each(|bare| bare.register(gpu));
        }
    }

    /// `FAULT`; `LAUNCH`; or `END`, its own end of its contexts, as of every program that no signal
    /// ends.
    pub fn tell(&self, what: &str) -> Result<(), CudaError> {
        match &self.mps {
            Some(mps) => done(mps.call(what.as_bytes())),
            None => Ok(()),
        }
    }

    /// Sleeps; if `attentive`, only until the server is gone or has said something.
    pub fn sleep(&self, time: Duration, attentive: bool) {
        let Some(mps) = self.mps.as_ref().filter(|_| attentive) else {
            std::thread::sleep(time);
            return;
        };
        let mut fds = [PollFd::new(mps.connection.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut fds, timeout);
    }
}

fn done(reply: Reply) -> Result<(), CudaError> {
    match reply {
        Reply::Failed(error) => Err(error),
        _ => Ok(()),
    }
}
