//! A fatal GPU error as in NVIDIA's manual (docs/facts/mps-control.md#error-containment): every
//! client gets it, the status is FAULT, and new clients are refused until all have ended. Never
//! recorded: the log's words are the double's own.

use tests::double::wire::{CudaError, Reply};

use super::Server;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fatal {
    #[default]
    None,
    Handling,
    ContextLost,
}

impl Server {
    pub(super) fn fault(&mut self, at: usize) -> Reply {
        self.fatal = Fatal::Handling;
        let culprit = self.clients[at].pid;
        let text = format!("Client {culprit} caused a fatal error on its device");
        self.log.server(text);
        Reply::Failed(CudaError::of(700))
    }

    /// Until the error is handled; afterwards makes a new context.
    pub(super) fn refuse_in_fault(&mut self, pid: u32) -> Option<Reply> {
        match self.fatal {
            Fatal::None => None,
            Fatal::Handling => {
                let text = "is refused until those of the error have ended";
                self.log.server(format!("Client {pid} {text}"));
                Some(Reply::Failed(CudaError::of(807)))
            }
            Fatal::ContextLost => {
                self.fatal = Fatal::None;
                for (index, gpu) in self.gpus.iter().enumerate() {
                    let _ = self.create_context(index, gpu);
                }
                None
            }
        }
    }

    /// Recorded of two ranks of NCCL that were killed 3 s apart: the server's next client fails in
    /// its first context, once, and the log names it, which did nothing.
    pub(super) fn poison(&mut self, pid: u32) -> Option<Reply> {
        if !std::mem::take(&mut self.poisoned) {
            return None;
        }
        let client = format!("Client {{PID: {pid}, Context: 1}}");
        self.log.server(client + " encountered a fatal GPU error.");
        self.log.server("Server is handling a fatal GPU error.");
        Some(Reply::Failed(CudaError::of(719)))
    }

    pub(super) fn fault_may_end(&mut self) {
        if self.fatal != Fatal::Handling || self.attached().next().is_some() {
            return;
        }
        self.fatal = Fatal::ContextLost;
        for gpu in &self.gpus {
            self.node.unregister(&gpu.uuid, std::process::id());
        }
    }
}
