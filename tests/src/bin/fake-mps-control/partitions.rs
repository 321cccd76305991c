//! Static partitions as in NVIDIA's MPS guide of release 615, on the page in brackets. Not verified
//! on any driver.

use serde::{Deserialize, Serialize};
use tests::double::node::Gpu;

use crate::daemon::Daemon;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Partition {
    pub uuid: String,
    /// The part of its full id after the UUID.
    pub id: String,
    pub chunks: u32,
    pub sms: u32,
}

/// "8 SMs on Hopper and newer, 4 SMs pre-Hopper" [When to Use MPS, Static SM Partitioning].
fn chunk(gpu: &Gpu) -> u32 {
    if gpu.capability >= (9, 0) { 8 } else { 4 }
}

fn account(gpu: &Gpu, all: &[Partition]) -> [(u32, u32); 2] {
    let own = || all.iter().filter(|one| one.uuid == gpu.uuid);
    let used: u32 = own().map(|one| one.chunks).sum();
    let sms: u32 = own().map(|one| one.sms).sum();
    [(gpu.sms / chunk(gpu) - used, gpu.sms - sms), (used, sms)]
}

impl Daemon {
    /// The only GPU with a UUID that begins with `part`: "This command accepts unique partial UUIDs
    /// of devices" [Legacy MPS v2 Interface].
    fn gpu_named(&self, part: &str) -> Option<Gpu> {
        let mut named = self
            .node
            .is
            .gpu
            .iter()
            .filter(|gpu| gpu.uuid.starts_with(part));
        match (named.next(), named.next()) {
            (Some(gpu), None) if part.starts_with("GPU-") => Some(gpu.clone()),
            _ => None,
        }
    }

    /// `sm_partition add <device UUID> <number of chunks>`: "Upon successful creation, the full
    /// partition ID is displayed"; `sm_partition rm <device UUID> <partition>` [Legacy MPS v2
    /// Interface].
    pub fn sm_partition(&mut self, words: &[&str]) -> String {
        let answer = match words {
            ["add", gpu, chunks] => self.add_partition(gpu, chunks),
            ["rm", gpu, id] => self.remove_partition(gpu, id),
            _ => None,
        };
        // The answer to a senseless command is documented nowhere.
        answer.unwrap_or_else(|| "Invalid sm_partition cmd\n".to_owned())
    }

    fn add_partition(&mut self, gpu: &str, chunks: &str) -> Option<String> {
        let (gpu, chunks) = (
            self.gpu_named(gpu)?,
            chunks.parse::<u32>().ok().filter(|n| *n > 0)?,
        );
        self.last_partition += 1;
        // Base64 of a fixed length in each example; programs that read them mention slashes.
        let id = format!("D/{:x}/{:A<26}==", std::process::id(), self.last_partition);
        let all = self.settings.partitions.as_mut()?;
        let [(free, free_sms), _] = account(&gpu, all);
        if chunks > free {
            // No oversubscription [CUDA programming guide 13.1, Green Contexts]; the words of
            // sglang-omni's tests of its MPS control.
            return Some(format!(
                "Failed to fulfill the requested SM partition of {chunks} chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n"
            ));
        }
        // The guide's last partition of several also has the multiprocessors that make up no chunk
        // [Common Tasks].
        let sms = if chunks == free {
            free_sms
        } else {
            chunks * chunk(&gpu)
        };
        let full = format!("{}/{id}\n", gpu.uuid);
        let uuid = gpu.uuid;
        all.push(Partition {
            uuid,
            id,
            chunks,
            sms,
        });
        self.tell_server();
        Some(full)
    }

    /// "Partitions cannot be removed while clients are actively using them" [When to Use MPS].
    fn remove_partition(&mut self, gpu: &str, id: &str) -> Option<String> {
        let gpu = self.gpu_named(gpu)?;
        let used = self.used();
        let all = self.settings.partitions.as_mut()?;
        let at = all
            .iter()
            .position(|one| one.uuid == gpu.uuid && one.id == id)?;
        if used.iter().any(|other| other == id) {
            return Some(format!(
                "Failed to remove SM partition {id}: it has clients\n"
            ));
        }
        all.remove(at);
        self.tell_server();
        Some(String::new())
    }

    fn tell_server(&self) {
        let all = serde_json::to_string(&self.settings.partitions).unwrap_or_default();
        self.ask(&format!("PARTITIONS {all}"));
    }

    fn used(&self) -> Vec<String> {
        let ids = self.ask("USED").unwrap_or_default();
        ids.lines().map(str::to_owned).collect()
    }

    /// "The output includes the device UUID, partition IDs, free and used chunks, free and used
    /// SMs, and whether the partition is in use. The display uses unique partial UUIDs of devices"
    /// [Legacy MPS v2 Interface]; its form is that of the examples [Common Tasks].
    pub fn lspart(&self) -> String {
        let used = self.used();
        let all = self.settings.partitions.as_deref().unwrap_or_default();
        let row = |c: [&str; 7]| {
            format!(
                "{:<15}{:<42}{:<7}{:<7}{:<6}{:<6}{}\n",
                c[0], c[1], c[2], c[3], c[4], c[5], c[6]
            )
        };
        let mut text = row([
            "GPU",
            "Partition",
            "free",
            "used",
            "free",
            "used",
            "clients",
        ]);
        text += &row(["", "", "chunk", "chunk", "SM", "SM", ""]);
        for gpu in &self.node.is.gpu {
            let part: String = gpu.uuid.chars().take(12).collect();
            let [free, taken] = account(gpu, all);
            let [free_chunks, free_sms, chunks, sms] =
                [free.0, free.1, taken.0, taken.1].map(|n| n.to_string());
            text += &row([&part, "-", &free_chunks, &chunks, &free_sms, &sms, "-"]);
            for one in all.iter().filter(|one| one.uuid == gpu.uuid) {
                let sms = one.sms.saturating_sub(self.node.is.faults.lacking_sms);
                let sms = sms.to_string();
                let clients = if used.contains(&one.id) { "Yes" } else { "No" };
                text += &row([
                    &part,
                    &one.id,
                    "-",
                    &one.chunks.to_string(),
                    "-",
                    &sms,
                    clients,
                ]);
            }
        }
        text
    }
}
