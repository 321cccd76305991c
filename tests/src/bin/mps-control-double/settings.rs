//! The control daemon's defaults for the next server, and which of them a server has.

use serde::{Deserialize, Serialize};
use tests::double::visible::{self, MemoryLimit};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub threads: f64,
    pub memory: Vec<MemoryLimit>,
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
    pub fn set_threads(&mut self, text: &str) -> bool {
        let new = visible::percentage(text);
        self.threads = new.unwrap_or(self.threads);
        new.is_some()
    }

    pub fn threads_text(&self) -> String {
        format!("{:.1}", self.threads)
    }

    /// A value that does not begin with a number removes the limit (recorded).
    pub fn set_memory(&mut self, device: &str, value: &str) {
        let Some(value) = visible::canonical_memory(value) else {
            self.memory.retain(|(name, _)| name != device);
            return;
        };
        match self.memory.iter_mut().find(|(name, _)| name == device) {
            Some((_, old)) => *old = value,
            None => self.memory.push((device.to_owned(), value)),
        }
    }

    /// The memory limits in the order in which a server applies and logs them (recorded). The limit
    /// named first is last, so it overrides another name of the same GPU.
    pub fn memory_in_order(&self) -> impl Iterator<Item = &MemoryLimit> {
        self.memory.iter().skip(1).chain(self.memory.first())
    }

    pub fn memory_text(&self, device: &str) -> Option<&str> {
        let mut limits = self.memory.iter();
        let (_, value) = limits.find(|(name, _)| name == device)?;
        Some(value)
    }
}
