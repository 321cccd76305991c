//! One client program at the server.

use std::os::fd::OwnedFd;

use tests::double::node::{Gpu, MIB, SLICES};
use tests::double::wire::{Attach, CudaError, Granted, Reply};
use tests::double::{visible, wire};

use super::Server;
use super::fatal::Fatal;

#[derive(Debug)]
pub struct Client {
    pub connection: OwnedFd,
    /// Its pid in this server's pid namespace.
    pub pid: u32,
    pub id: u32,
    pub command: String,
    pub granted: Vec<Granted>,
    connections: u32,
    /// It computes with others on several GPUs, and has not ended its contexts itself.
    paired: bool,
}

impl Client {
    pub fn contexts(&self) -> usize {
        self.granted.iter().filter(|g| g.taken > 0).count()
    }

    pub fn has_context_on(&self, uuid: &str) -> bool {
        self.granted.iter().any(|g| g.taken > 0 && g.uuid == uuid)
    }

    pub fn device(&self) -> &str {
        let mut used = self.granted.iter().filter(|g| g.taken > 0);
        used.next().map_or("", |g| &g.uuid)
    }
}

/// CUDA takes 1 to 32, and 2 if the variable is not set or no number (documented: MPS guide,
/// "Environment Variables").
fn connections(attach: &Attach) -> u32 {
    let asked = attach.connections.as_ref();
    let asked = asked.and_then(|text| text.trim().parse().ok());
    asked.unwrap_or(2).clamp(1, 32)
}

impl Server {
    pub(super) fn take_client(&mut self, pid: u32, connection: OwnedFd) {
        self.last_client += 1;
        self.clients.push(Client {
            connection,
            pid,
            id: self.last_client,
            command: String::new(),
            granted: Vec::new(),
            connections: 1,
            paired: false,
        });
    }

    pub(super) fn client_spoke(&mut self, id: u32) {
        let Some(at) = self.clients.iter().position(|c| c.id == id) else {
            return;
        };
        let Some(packet) = wire::recv(&self.clients[at].connection) else {
            let client = self.clients.remove(at);
            self.poisoned |= client.paired;
            self.forget(&client);
            self.log_ended(&client);
            self.fault_may_end();
            return;
        };
        let reply = match serde_json::from_slice::<Attach>(&packet) {
            Ok(attach) => self.attach(at, &attach),
            Err(_) => self.allocate(at, &packet),
        };
        let reply = serde_json::to_vec(&reply).unwrap_or_default();
        let _ = wire::send(&self.clients[at].connection, &reply);
    }

    /// Recorded: the same lines, no matter how it ended.
    pub(super) fn log_ended(&self, client: &Client) {
        let (pid, left) = (client.pid, self.attached().count());
        let lost = |context: u32| {
            let words = "Server failed to recevie command with status 806, assuming client";
            let text = format!("{words} {{PID: {pid}, Context ID: {context}}} exit");
            self.log.server(text);
        };
        if !client.granted.is_empty() {
            lost(1);
            let text = format!("Client {{PID: {pid}, Context ID: 1}} exiting.");
            let text = text + " Number of active client contexts is";
            self.log.server(format!("{text} {left}."));
        }
        lost(0);
        self.log
            .server(format!("Client process {pid} disconnected"));
    }

    fn attach(&mut self, at: usize, attach: &Attach) -> Reply {
        if let Some(refused) = self.refuse_in_fault(self.clients[at].pid) {
            return refused;
        }
        if self.attached().count() >= self.most_clients() {
            return Reply::Failed(CudaError::of(808));
        }
        if let Some(failed) = self.poison(self.clients[at].pid) {
            return failed;
        }
        let shown: Vec<&Gpu> = self.gpus.iter().collect();
        let seen = visible::visible(&shown, attach.visible.as_deref());
        if seen.is_empty() {
            return Reply::Failed(CudaError::of(100));
        }
        let granted = self.grant(&seen, attach);
        let connections = connections(attach);
        if let Some(error) = self.refuse_connections(&granted, connections) {
            return Reply::Failed(error);
        }
        if granted.iter().all(|g| g.taken == 0) {
            return Reply::Failed(CudaError::of(101));
        }
        let is_too_small = |g: &Granted| g.taken > 0 && g.limit.is_some_and(|l| l < g.taken);
        if granted.iter().any(is_too_small) {
            return Reply::Failed(CudaError::of(2));
        }
        let client = &mut self.clients[at];
        for gpu in &granted {
            // Recorded: a GPU that a client only enumerated lists the client without memory.
            let _ = self.node.register(&gpu.uuid, client.pid, gpu.taken, "mps");
        }
        client.command.clone_from(&attach.command);
        client.granted.clone_from(&granted);
        (client.connections, client.paired) = (connections, attach.paired);
        self.log_attached(&self.clients[at]);
        Reply::Granted(granted)
    }

    /// The description's number; on a MIG device the part of its compute instance (NVIDIA's MIG
    /// guide, "Application Considerations": "lowered proportionally to the Compute Instance size").
    fn most_clients(&self) -> usize {
        let most = self.node.is.max_clients;
        let slices = self.gpus.iter().find_map(|gpu| gpu.slices);
        slices.map_or(most, |slices| most * slices as usize / SLICES as usize)
    }

    /// Recorded: of clients for which a GPU has no connections left, some get 809 and some 2.
    fn refuse_connections(&self, granted: &[Granted], wanted: u32) -> Option<CudaError> {
        let held = |uuid: &str| -> u32 {
            let all = self.clients.iter();
            let there = all.filter(|client| client.has_context_on(uuid));
            there.map(|client| client.connections).sum()
        };
        let mut used = granted.iter().filter(|gpu| gpu.taken > 0);
        let full = used.any(|gpu| held(&gpu.uuid) + wanted > self.node.is.connections);
        let code = [809, 2][self.last_client as usize % 2];
        full.then(|| CudaError::of(code))
    }

    fn log_attached(&self, client: &Client) {
        let pid = client.pid;
        let context = format!("{{PID: {pid}, Context ID: 1}}");
        let text = format!("Received new client request for {{PID: {pid}, Context ID: 0}}");
        self.log.server(text);
        self.log.server(format!("Client {context} connected"));
        self.log
            .server(format!("Creating worker thread for client {context}"));
        let gpus = self.gpus.iter();
        for Gpu { name, uuid, .. } in gpus.filter(|gpu| client.has_context_on(&gpu.uuid)) {
            let text = format!("Device {name} (uuid {uuid}) is associated");
            self.log.server(text);
        }
        self.log
            .server(format!("Status of client {context} is ACTIVE"));
    }

    fn grant(&self, seen: &[&Gpu], attach: &Attach) -> Vec<Granted> {
        let asked = attach.threads.as_deref().and_then(visible::percentage);
        let percent = asked.map_or(self.settings.threads, |p| p.min(self.settings.threads));
        let own = attach.memory.as_deref();
        let own = own.map(|memory| visible::client_limits(memory, seen));
        let mut granted = Vec::new();
        for (position, gpu) in seen.iter().enumerate() {
            let sms = visible::multiprocessors(gpu.sms, percent);
            let limit = match &own {
                Some(None) => None,
                None => self.default_limit(gpu),
                Some(Some(own)) => {
                    let both = [own[position], self.default_limit(gpu)];
                    both.into_iter().flatten().min()
                }
            };
            let all = gpu.cuda_memory_mib * MIB;
            let taken: u64 = self.node.contexts(&gpu.uuid).iter().map(|c| c.bytes).sum();
            let room = limit.unwrap_or(u64::MAX).min(all.saturating_sub(taken));
            let context = visible::context_bytes(sms);
            let is_used = attach.gpu.is_none_or(|used| used == position);
            granted.push(Granted {
                uuid: gpu.uuid.clone(),
                sms,
                limit,
                free: room.saturating_sub(context),
                taken: if is_used { context } else { 0 },
            });
        }
        granted
    }

    fn default_limit(&self, gpu: &Gpu) -> Option<u64> {
        let index = self.gpus.iter().position(|g| g.uuid == gpu.uuid)?;
        visible::daemon_limit(self.settings.memory_in_order(), index, &gpu.uuid)
    }

    /// `ALLOC bytes` or `FREE bytes` on the first GPU that the client uses, `FAULT`, `END`;
    /// anything else is a launch.
    fn allocate(&mut self, at: usize, packet: &[u8]) -> Reply {
        if self.fatal == Fatal::Handling {
            return Reply::Failed(CudaError::of(700));
        }
        match packet {
            b"FAULT" => return self.fault(at),
            b"END" => {
                self.clients[at].paired = false;
                return Reply::Done;
            }
            _ => {}
        }
        let text = String::from_utf8_lossy(packet);
        let (verb, bytes) = text.split_once(' ').unwrap_or((&text, "0"));
        let bytes: u64 = bytes.parse().unwrap_or(0);
        let client = &mut self.clients[at];
        let Some(gpu) = client.granted.iter_mut().find(|g| g.taken > 0) else {
            return Reply::Failed(CudaError::of(100));
        };
        match verb {
            "ALLOC" if bytes > gpu.free => return Reply::Failed(CudaError::of(2)),
            "ALLOC" => (gpu.free, gpu.taken) = (gpu.free - bytes, gpu.taken + bytes),
            "FREE" => (gpu.free, gpu.taken) = (gpu.free + bytes, gpu.taken.saturating_sub(bytes)),
            _ => return Reply::Done,
        }
        let _ = self.node.register(&gpu.uuid, client.pid, gpu.taken, "mps");
        Reply::Done
    }

    pub(super) fn forget(&self, client: &Client) {
        for gpu in &client.granted {
            self.node.unregister(&gpu.uuid, client.pid);
        }
    }
}
