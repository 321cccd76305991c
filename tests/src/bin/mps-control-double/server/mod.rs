//! `nvidia-cuda-mps-server`: a context on every GPU that it can see, and the clients that the
//! control daemon passes to it.

mod answers;
mod client;
mod fatal;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use nix::poll::PollTimeout;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use tests::double::node::{Gpu, MIB, Node, SERVER_MIB};
use tests::double::{visible, wire};

use self::client::Client;
use crate::daemon::readable;
use crate::log::Log;
use crate::settings::Settings;
use crate::start::hang;

#[derive(Debug)]
pub struct Server {
    node: Node,
    log: Log,
    control: OwnedFd,
    gpus: Vec<Gpu>,
    settings: Settings,
    clients: Vec<Client>,
    last_client: u32,
    fatal: fatal::Fatal,
    /// A client that computes with others was killed: the next client pays.
    poisoned: bool,
}

pub fn run(node: Node) -> ExitCode {
    let log = Log::stdout();
    log.line("Other", "Startup");
    let faults = node.is.faults.clone();
    let socket = wire::pipe_directory().join("control");
    let place = socket.display();
    log.line(
        "Other",
        &format!("Connecting to control daemon on socket: {place}"),
    );
    if faults.server == "exits" {
        return ExitCode::FAILURE;
    }
    let Some((control, mut settings)) = connect(&socket) else {
        return ExitCode::FAILURE;
    };
    if faults.drop_limits {
        settings = Settings::default();
    }
    log.line("Other", "Initializing server process");
    let all = node.cuda();
    let all: Vec<&Gpu> = all.iter().collect();
    let all = visible::counted(&all, Some("PCI_BUS_ID"));
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let shown = visible::confined(&all, variable.as_deref());
    let gpus = shown.into_iter().cloned().collect();
    let mut server = Server {
        node,
        log,
        control,
        gpus,
        settings,
        clients: Vec::new(),
        last_client: 0,
        fatal: fatal::Fatal::None,
        poisoned: false,
    };
    if let Err(why) = server.initialize() {
        server.log.server(&why);
        return ExitCode::FAILURE;
    }
    server.serve()
}

fn connect(socket: &std::path::Path) -> Option<(OwnedFd, Settings)> {
    let control = wire::connect(socket).ok()?;
    wire::send(&control, b"SERVER").ok()?;
    let settings = serde_json::from_slice(&wire::recv(&control)?).ok()?;
    Some((control, settings))
}

impl Server {
    fn initialize(&mut self) -> Result<(), String> {
        let faults = self.node.is.faults.clone();
        let (least, most) = self.node.is.times.server_ready;
        let whole = least + u64::from(std::process::id()) * 7 % (most.saturating_sub(least) + 1);
        sleep(Duration::from_millis(whole / 2));
        if faults.server == "slow" {
            sleep(Duration::from_millis(faults.slow_ms));
        }
        if self.gpus.is_empty() {
            return Err("No usable devices".into());
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            self.create_context(index, gpu)?;
        }
        sleep(Duration::from_millis(whole - whole / 2));
        match faults.server.as_str() {
            "never-ready" => hang(),
            "initializing" => self.say("INITIALIZING"),
            _ => {
                let (pid, uid) = (std::process::id(), nix::unistd::Uid::current());
                let (driver, cuda) = (&self.node.is.driver_version, self.node.is.cuda_version);
                let branch = driver.split('.').next().unwrap_or(driver);
                let region = format!("mps.shm.{uid}.{pid}");
                let text = "CUDA MPS Server for Linux/Unix. Binary version:";
                self.log
                    .server(format!("Created anonymous shared memory region {region}"));
                self.log.server(format!("{text} {cuda}"));
                self.log.server(format!("Display Driver version: {branch}"));
                self.say("READY");
                self.log_settings();
                self.log.server("Server has started");
            }
        }
        Ok(())
    }

    pub(crate) fn create_context(&self, index: usize, gpu: &Gpu) -> Result<(), String> {
        let Gpu { name, uuid, .. } = gpu;
        let text = format!("Creating server context on device {index} ({name})");
        self.log.server(text);
        let foreign = self.node.contexts(uuid).iter().any(|c| c.kind != "mps");
        let mode = self.node.mode(&gpu.uuid);
        if mode == "prohibited" || (mode.starts_with("exclusive") && foreign) {
            let busy = "all CUDA-capable devices are busy or unavailable";
            return Err(format!(
                "Failed to create server context on device {uuid}: {busy}"
            ));
        }
        let (pid, bytes) = (std::process::id(), SERVER_MIB * MIB);
        let made = self.node.register(uuid, pid, bytes, "server");
        made.map_err(|e| format!("Failed to create server context: {e}"))
    }

    fn log_settings(&self) {
        let (threads, priority) = (self.settings.threads_text(), self.settings.priority);
        self.log
            .server(format!("Active Threads Percentage set to {threads}"));
        let limits = self.settings.memory_in_order();
        for (device, bytes) in limits.filter_map(|(of, text)| Some((of, visible::memory(text)?))) {
            let limit = format!("device {device} set to {bytes:#x} bytes");
            self.log
                .server(format!("Device pinned memory limit for {limit}"));
        }
        self.log
            .server(format!("Server Priority set to {priority}"));
    }

    fn say(&self, text: &str) {
        let _ = wire::send(&self.control, text.as_bytes());
    }

    fn serve(mut self) -> ExitCode {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        let terminated = mask.thread_block().and_then(|()| SignalFd::new(&mask));
        let Ok(terminated) = terminated else {
            return ExitCode::FAILURE;
        };
        loop {
            let own = [terminated.as_fd(), self.control.as_fd()];
            let clients = self.clients.iter().map(|c| c.connection.as_fd());
            let ready = readable(own.into_iter().chain(clients), PollTimeout::NONE);
            if ready[0] {
                let _ = terminated.read_signal();
                if !self.node.is.faults.server_survives_sigterm {
                    return self.end();
                }
            }
            if ready[1] && !self.control_spoke() {
                return self.end();
            }
            let clients = self.clients.iter().zip(&ready[2..]);
            let talking: Vec<u32> = clients.filter(|(_, r)| **r).map(|(c, _)| c.id).collect();
            for id in talking {
                self.client_spoke(id);
            }
        }
    }

    fn end(self) -> ExitCode {
        for gpu in &self.gpus {
            self.node.unregister(&gpu.uuid, std::process::id());
        }
        for client in &self.clients {
            self.forget(client);
        }
        ExitCode::SUCCESS
    }
}
