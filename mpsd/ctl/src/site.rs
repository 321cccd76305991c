//! `mpsctl config` and `mpsctl advertise`: the site's settings, and the lines that tell a scheduler
//! of them.

use batch::Scheduler;
use batch::batch_system::{Offer, advertise};
use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::config::{Origin, Settings};
use mpsd_core::{Failure, Gpu, Inventory};
use serde_json::json;
use setup::{CheckLine, VerbReport};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// NVML loads in 12 ms, or in seconds if the driver has to wake the GPUs
/// (docs/facts/mps-control.md#times).
pub(super) const NVML_DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn inventory(worker: &Path, nvml: &str) -> Result<Inventory, Failure> {
    NvmlWorker::start(worker, nvml, NVML_DEADLINE)?.ask(&Question::Inventory)
}

#[derive(Debug, clap::Subcommand)]
pub enum ConfigVerb {
    /// Check a draft of the file, which any user may own; without FILE the file in force
    ///
    /// Exit status: 0 it can be used; 2 it cannot, and the line says where and why.
    Check {
        /// The draft
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Check the file, and print every key with its value in force on a node and the line it comes
    /// from
    Show {
        /// The node's name in the scheduler; this host if not given
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

pub fn check(draft: Option<&Path>, in_force: &Path, host: &str) -> VerbReport {
    let (file, read) = match draft {
        Some(draft) => (draft, Settings::draft(draft, host)),
        None => (in_force, Settings::load(in_force, host)),
    };
    VerbReport::from(vec![match read {
        Ok(_) => CheckLine::Pass(format!("'{}' can be used", file.display())),
        Err(broken) => CheckLine::Fail(broken.to_string()),
    }])
}

pub fn show(node: &str, file: &Path, json: bool) -> Result<String, Failure> {
    let settings = Settings::load(file, node)?;
    if !json {
        return Ok(format!("# node '{node}'\n{}", settings.explain(file)));
    }
    let origin = |one: &Origin| json!({"key": one.key, "value": &one.value, "line": one.line});
    let settings: Vec<_> = settings.origins.iter().map(origin).collect();
    let all = json!({"node": node, "file": file, "settings": settings});
    Ok(format!("{all}\n"))
}

#[derive(Debug, Clone, clap::Args)]
pub struct Advertise {
    /// The scheduler to print lines for
    #[arg(value_parser = batch::by_name())]
    pub scheduler: Scheduler,
    /// This node's name in the scheduler; the host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// A share for each GiB of a GPU's memory, in place of 'replicas'
    #[arg(long)]
    pub memory: bool,
}

impl Advertise {
    /// `worker` is the program `mpsd`, which asks NVML.
    pub fn run(
        &self,
        file: &Path,
        host: &str,
        worker: &Path,
        json: bool,
    ) -> Result<String, Failure> {
        let node = self.node.as_deref().unwrap_or(host);
        let settings = Settings::load(file, node)?;
        let inventory = inventory(worker, &settings.nvml)?;
        let offers = offers(&settings, &inventory, self.memory);
        let text = advertise(batch::of(self.scheduler), node, &offers)?;
        if !json {
            return Ok(text);
        }
        let lines: Vec<&str> = text.lines().collect();
        let all = json!({"scheduler": self.scheduler, "node": node, "lines": lines});
        Ok(format!("{all}\n"))
    }
}

fn offers<'a>(settings: &Settings, inventory: &'a Inventory, memory: bool) -> Vec<Offer<'a>> {
    let of = |gpu: &'a Gpu| {
        let gib = |mib: u64| u32::try_from(mib / 1024).ok();
        let most = inventory.clients(gpu, settings.max_clients);
        let (replicas, clients) = match memory {
            true => (gpu.memory_mib.and_then(gib), u32::MAX),
            false => (settings.replicas, most),
        };
        Offer {
            gpu,
            replicas,
            clients,
        }
    };
    inventory.gpus.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::testing::gpu;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn show_names_node_value_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("mpsd.toml");
        let text = "[[node]]\nhosts = \"n[1-9]\"\nmax_clients = 60\n[[node]]\nhosts = \"n4\"\nmax_clients = 16\n";
        std::fs::write(&config, text).unwrap();
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
        for (node, words) in [
            ("n3.domain", "# node 'n3.domain'\nrun_dir = \"/run/mpsd\""),
            ("n3.domain", "\nmax_clients = 60 "),
            ("n3.domain", "mpsd.toml:3\n"),
            ("n4", "\nmax_clients = 16 "),
            ("other", "\nmax_clients is not set "),
        ] {
            let text = show(node, &config, false).unwrap();
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn each_gpu_is_offered_in_replicas_or_in_gib_of_its_memory() {
        let settings = Settings::parse("replicas = 2", "n").unwrap();
        let inventory = Inventory {
            gpus: vec![gpu(0, 1024), gpu(1, 4096)],
            driver: "590.48.01".to_owned(),
            migs: Vec::new(),
        };
        let by_memory = offers(&settings, &inventory, true);
        let shares: Vec<u32> = by_memory.iter().map(Offer::shares).collect();
        assert_eq!(shares, [1, 4]);
        let offers = offers(&settings, &inventory, false);
        let each = offers.iter().map(|offer| (offer.replicas, offer.clients));
        assert_eq!(each.collect::<Vec<_>>(), [(Some(2), 60), (Some(2), 60)]);
    }
}
