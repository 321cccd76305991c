//! What this machine has, real GPUs or doubles; and what was seen of the job there, against
//! its request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tests::slurm::{Bed, Gpus, MODEL, Options, Process, Product, Record, SMS, Simulated, User};

use crate::onlooker::Observations;
use crate::promises::Promises;

/// Thread percentage and MiB of memory that the job asks for, and its clients on a node.
pub const THREADS: u64 = 50;
pub const MEMORY: u64 = 4096;
pub const CLIENTS: usize = 2;
/// How much less than its limit a client may allocate, in MiB. Its context counts too (recorded on
/// an H200: 145 MiB with 32 multiprocessors, 315 with 78), and it tries in steps of 64.
const MARGIN: u64 = 315 + 64;

pub enum Site {
    Simulated(Option<Simulated>),
    /// One node with this machine's GPUs, by number of `/dev/nvidiaN`.
    Real(Vec<u32>, Option<Product>),
}

impl Site {
    pub fn find() -> Result<Site> {
        if !Path::new("/dev/nvidia0").exists() {
            return Ok(Site::Simulated(None));
        }
        let names = std::fs::read_dir("/dev")?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let numbers: BTreeSet<u32> = names
            .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
            .collect();
        Ok(Site::Real(numbers.into_iter().collect(), None))
    }

    pub fn nodes(&self) -> usize {
        match self {
            Site::Simulated(_) => 2,
            Site::Real(..) => 1,
        }
    }

    pub fn headline(&self) -> String {
        match self {
            Site::Simulated(_) => format!(
                "mpsd demo: no NVIDIA GPU here, so two nodes with two simulated GPUs each ('{MODEL}') and doubles of NVIDIA's \
                 control daemon, server, NVML and CUDA that behave as recorded of driver 580"
            ),
            Site::Real(gpus, _) => {
                let count = gpus.len();
                format!(
                    "mpsd demo: one node with this machine's {count} GPU(s) and NVIDIA's own MPS"
                )
            }
        }
    }

    pub fn options(&self) -> Options {
        let gpus = match self {
            Site::Simulated(_) => Gpus::Simulated(2),
            Site::Real(gpus, _) => Gpus::Real(gpus.clone()),
        };
        Options {
            nodes: self.nodes(),
            gpus,
            ..Options::default()
        }
    }

    pub fn install(&mut self, bed: &mut Bed) -> Result<()> {
        match self {
            Site::Simulated(simulated) => {
                *simulated = Some(Simulated::install(bed, "", |node| node)?)
            }
            Site::Real(_, product) => {
                let dirs = ["/usr/bin", "/usr/local/bin"].iter();
                let mut files = dirs.map(|dir| Path::new(dir).join("nvidia-cuda-mps-control"));
                let control = files.find(|path| path.exists());
                let control = control
                    .context("a GPU is here, but 'nvidia-cuda-mps-control' is not installed")?;
                let config = Product::settings(bed, &control, Path::new("libnvidia-ml.so.1"));
                *product = Some(Product::install(bed, &config)?);
            }
        }
        Ok(())
    }

    pub fn doubles(&self) -> Vec<PathBuf> {
        match self {
            Site::Simulated(Some(simulated)) => simulated
                .nodes
                .iter()
                .map(|node| node.dir().to_owned())
                .collect(),
            _ => Vec::new(),
        }
    }

    pub fn arguments(&self) -> Vec<&'static str> {
        let words = match self {
            Site::Simulated(_) => {
                "--mps --mps-threads=50 --mps-mem=4G -N2 -n4 --ntasks-per-node=2 --gres=gpu:1"
            }
            Site::Real(..) => {
                "--mps --mps-threads=50 --mps-mem=4G -N1 -n2 --ntasks-per-node=2 --gres=gpu:1"
            }
        };
        words.split(' ').collect()
    }

    /// The client's name, and its shell line. It tries how much it can allocate, writes its record
    /// and holds its context.
    pub fn client(&self) -> (&'static str, String) {
        match self {
            Site::Simulated(Some(simulated)) => {
                ("a-cuda-program", simulated.client("--alloc=8192 --hold 1"))
            }
            Site::Real(_, Some(product)) => {
                let dir = product.libexec.display();
                (
                    "mps-probe",
                    format!("exec {dir}/mps-probe --json --alloc=8192 --hold 2"),
                )
            }
            _ => ("false", "false".into()),
        }
    }

    pub fn judge(
        &self,
        promises: &mut Promises,
        seen: &BTreeMap<String, Observations>,
        records: &[Record],
        user: &User,
    ) {
        let expected = self.nodes() * CLIENTS;
        let wrote = format!("{expected} clients wrote their record");
        promises.check(records.len() == expected, &wrote, || {
            format!("{} did", records.len())
        });
        for (name, seen) in seen {
            promises.line(format!("\n{name}"));
            let is_its = |record: &&Record| record.node.is_empty() || record.node == *name;
            let own: Vec<&Record> = records.iter().filter(is_its).collect();
            daemon(promises, seen, user);
            self.limits(promises, &own);
            clients(promises, seen, &own, user);
            if matches!(self, Site::Simulated(_)) {
                mode(promises, seen, &own);
            }
        }
        promises.line("");
    }

    fn limits(&self, promises: &mut Promises, records: &[&Record]) {
        let gpus = || records.iter().filter_map(|record| record.gpus.first());
        let sms: BTreeSet<u64> = gpus().map(|gpu| gpu.sms).collect();
        // A real GPU's number is not known here.
        let expected = matches!(self, Site::Simulated(_)).then_some(SMS * THREADS / 100);
        let right = expected.map_or(sms.len() == 1, |expected| sms == BTreeSet::from([expected]));
        let promise = format!(
            "limit: {THREADS} % of the threads gives each client {} multiprocessors",
            list(&sms)
        );
        promises.check(right, &promise, || format!("expected {expected:?}"));
        let got: BTreeSet<u64> = gpus().filter_map(|gpu| gpu.allocatable_mib).collect();
        let least = MEMORY - MARGIN;
        let within = !got.is_empty() && got.iter().all(|mib| (least..=MEMORY).contains(mib));
        let promise = format!(
            "limit: of {MEMORY} MiB each client could allocate {} MiB, its context takes the rest",
            list(&got)
        );
        promises.check(within, &promise, || format!("expected {least} to {MEMORY}"));
    }
}

fn daemon(promises: &mut Promises, seen: &Observations, user: &User) {
    let both = seen.prologue.zip(seen.server_up);
    let took = both.map(|(from, to)| to.saturating_duration_since(from).as_millis().to_string());
    // On a busy machine a prologue may begin and end between two looks.
    let time = took.unwrap_or_else(|| "?".into());
    let promise = format!("daemon: server up {time} ms after the prologue began");
    promises.check(seen.server_up.is_some(), &promise, || {
        "no server was seen".to_owned()
    });
    let all: Vec<&Process> = seen.daemons.values().chain(seen.servers.values()).collect();
    let own = seen.daemons.len() == 1 && all.iter().all(|process| process.uid == user.uid);
    let pids =
        |of: &BTreeMap<i32, Process>| of.keys().map(i32::to_string).collect::<Vec<_>>().join(",");
    let (control, server) = (pids(&seen.daemons), pids(&seen.servers));
    let promise = format!(
        "control daemon {control} and server {server} run as '{}'",
        user.name
    );
    promises.check(own, &promise, || format!("{all:?}"));
}

fn clients(promises: &mut Promises, seen: &Observations, records: &[&Record], user: &User) {
    let is_attached = |record: &&Record| {
        let known = record.server_pid;
        let known = known.is_none_or(|pid| seen.servers.contains_key(&pid));
        record.under_mps && record.uid == Some(user.uid) && known
    };
    let attached = records.len() == CLIENTS && records.iter().all(is_attached);
    let pids: Vec<String> = records
        .iter()
        .map(|record| record.pid.to_string())
        .collect();
    let promise = format!("clients {} attached to that server", pids.join(", "));
    promises.check(attached, &promise, || format!("{records:?}"));
}

fn mode(promises: &mut Promises, seen: &Observations, records: &[&Record]) {
    let used: BTreeSet<&String> = records.iter().flat_map(|record| &record.uuids).collect();
    let turned = ["default", "exclusive_process", "default"];
    let is_right = |(uuid, modes): (&String, &Vec<String>)| match used.contains(uuid) {
        true => modes == &turned,
        false => modes == &turned[..1],
    };
    let right = !used.is_empty() && seen.modes.iter().all(is_right);
    let promise = "compute mode: default → exclusive_process → default on the job's GPU, untouched on the other";
    promises.check(right, promise, || format!("{:?}", seen.modes));
}

fn list(values: &BTreeSet<u64>) -> String {
    let words: Vec<String> = values.iter().map(u64::to_string).collect();
    if words.is_empty() {
        "no".into()
    } else {
        words.join(" or ")
    }
}
