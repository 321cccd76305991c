//! The control daemon's defaults for the next server, and what a server has of them.

use serde::{Deserialize, Serialize};
use tests::double::visible::{self, MemoryLimit};

/// Defaults for upcoming servers, or the settings of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Active thread percentage.
    pub threads: f64,
    /// Pinned memory limits, in the order in which they were set last.
    pub memory: Vec<MemoryLimit>,
    /// Client priority, 0 or 1.
    pub priority: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            threads: 100.0,
            memory: Vec::new(),
            priority: 0,
        }
    }
}

impl Settings {
    /// Takes over a thread percentage; false, and no change, if it is none.
    pub fn set_threads(&mut self, text: &str) -> bool {
        let new = visible::percentage(text);
        self.threads = new.unwrap_or(self.threads);
        new.is_some()
    }

    /// The thread percentage as the daemon writes it.
    pub fn threads_text(&self) -> String {
        format!("{:.1}", self.threads)
    }

    /// Sets a memory limit; nothing is checked (recorded: `3X`, `2GB` and a GPU that does not exist are accepted).
    pub fn set_memory(&mut self, device: &str, value: &str) {
        self.memory.retain(|(name, _)| name != device);
        self.memory.push((device.to_owned(), value.to_owned()));
    }

    /// A memory limit as it was typed.
    pub fn memory_text(&self, device: &str) -> Option<&str> {
        self.memory
            .iter()
            .find(|(name, _)| name == device)
            .map(|(_, value)| value.as_str())
    }
}
