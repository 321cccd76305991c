//! A fatal GPU error, in the words of driver 580: every client on the GPU gets the error of the one that caused it, the
//! server's status is FAULT and new clients are refused until all of them have ended; then the same server, with a new
//! context, serves again.

use tests::double::node::{MIB, SERVER_MIB};
use tests::double::wire::{CudaError, Reply};

use super::Server;

/// How far the server is with a fatal error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fatal {
    /// There was none, or it is over.
    #[default]
    None,
    /// Its clients have not ended yet.
    Handling,
    /// They have; the context is made anew for the next client.
    ContextLost,
}

impl Server {
    /// A kernel of client `at` wrote to an address that is none.
    pub(super) fn fault(&mut self, at: usize) -> Reply {
        self.fatal = Fatal::Handling;
        let culprit = self.clients[at].pid;
        let server = |text: &str| self.log.line("Server", text);
        server(&format!(
            "Client {{PID: {culprit}, Context: 1}} encountered a fatal GPU error."
        ));
        server("Server is handling a fatal GPU error.");
        for (pid, _) in self.attached() {
            server(&format!(
                "Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down"
            ));
        }
        server("The following devices will be reset:");
        server("0");
        server("The following client process have a sticky error set:");
        for (pid, _) in self.attached() {
            server(&pid.to_string());
        }
        Reply::Failed(CudaError::of(700))
    }

    /// Before a client attaches: refuses it while the error is handled, makes the context anew afterwards.
    pub(super) fn refuse_in_fault(&mut self, pid: u32) -> Option<Reply> {
        match self.fatal {
            Fatal::None => None,
            Fatal::Handling => {
                let client = format!("client {{PID: {pid}, Context ID: 0}}");
                self.log.line(
                    "Server",
                    &format!("Server teardown in progress. Refusing to accept new {client}"),
                );
                self.log
                    .line("Server", &format!("Failed to accept {client} with status 807"));
                Some(Reply::Failed(CudaError::of(807)))
            }
            Fatal::ContextLost => {
                self.fatal = Fatal::None;
                for (index, gpu) in self.gpus.iter().enumerate() {
                    self.log.line(
                        "Server",
                        &format!("Creating server context on device {index} ({})", gpu.name),
                    );
                    let _ = self
                        .node
                        .register(&gpu.uuid, std::process::id(), SERVER_MIB * MIB, "server");
                }
                None
            }
        }
    }

    /// A client has gone: with the last of them the error is over.
    pub(super) fn fault_may_end(&mut self) {
        if self.fatal != Fatal::Handling || self.attached().next().is_some() {
            return;
        }
        self.fatal = Fatal::ContextLost;
        for (index, gpu) in self.gpus.iter().enumerate() {
            self.node.unregister(&gpu.uuid, std::process::id());
            self.log.line(
                "Server",
                &format!("Destroy server context on device {index} ({})", gpu.name),
            );
        }
    }
}
