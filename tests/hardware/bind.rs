//! Ranks on two GPUs, through a real Slurm: what each way to bind them brings to a program that takes the first GPU it sees, and
//! to one that maps its ranks itself. Sixteen of these clients do not fill a GPU: what is shown is where each runs, and what
//! binding costs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Deserialize;
use tests::slurm::{Bed, User};

use crate::debs::Debs;
use crate::job;
use crate::look::{self, Look};
use crate::result::Section;
use crate::site::{self, Place};
use crate::slurm::{self, Slice, tail};

/// Longest that one `srun` may take.
const SRUN: Duration = Duration::from_secs(60);
/// From the command to the moment when all clients count, and how long they do. Seconds.
const UP: f64 = 6.0;
const COUNT: f64 = 2.0;
/// Clients at once.
const CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Ways to bind.
const WAYS: [&str; 6] = ["none", "block", "cyclic", "closest", "block+peers", "auto"];

/// What a client says of itself.
#[derive(Debug, Deserialize)]
pub struct Client {
    rank: usize,
    visible: usize,
    listed: Option<String>,
    pub uuid: String,
    late: bool,
    pub per_second: f64,
}

/// The whole experiment.
pub fn run(section: &mut Section, place: &Place, debs: &Path) -> Result<()> {
    let gpus = site::gpus()?;
    let [first, second, ..] = &gpus[..] else {
        section.fact("left_out", "this machine has one GPU");
        return Ok(());
    };
    let before = Look::take(&place.run)?;
    let brought = Debs::install(debs)?;
    let slice = Slice::make();
    let mut options = slurm::options(vec![0, 1]);
    options.cpus = CLIENTS[CLIENTS.len() - 1] as u32;
    let bed = slurm::with_plugin(place, options)?;
    slurm::start(section, &bed)?;
    let user = User::named(&place.user.name)?;
    let outcome = all(section, place, &bed, &user);
    if outcome.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
    }
    outcome?;
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    drop((bed, brought, slice));
    let kept = [first, second]
        .map(|gpu| job::kept(&place.run, &gpu.uuid))
        .concat();
    look::compare(section, &before, &place.run, &kept, Duration::from_secs(5))
}

fn all(section: &mut Section, place: &Place, bed: &Bed, user: &User) -> Result<()> {
    cores(section, place, bed, user)?;
    let mut rates = BTreeMap::new();
    for way in WAYS {
        for (by_rank, counts) in [(false, &CLIENTS[..]), (true, &CLIENTS[2..])] {
            for count in counts.iter().filter(|count| !by_rank || **count != 8) {
                let flag = format!("--mps-bind={way}");
                let clients = run_clients(place, bed, user, 2, *count, &[&flag], by_rank)?;
                let name = name(way, by_rank, *count);
                rates.insert((way, by_rank, *count), tell(section, &name, &clients));
                judge(section, &name, way, by_rank, *count, &clients);
            }
        }
    }
    let most = CLIENTS[CLIENTS.len() - 1];
    let rate = |way, by_rank| rates.get(&(way, by_rank, most)).copied().unwrap_or(0.0);
    for way in WAYS {
        for by_rank in [false, true] {
            let times = rate(way, by_rank) / rate("none", by_rank);
            let name = name(way, by_rank, most);
            section.fact(&format!("{name}: times the unbound"), format!("{times:.2}"));
        }
    }
    numbers(section, place, bed, user)
}

fn name(way: &str, by_rank: bool, count: usize) -> String {
    let program = if by_rank {
        "maps its ranks itself"
    } else {
        "takes the first GPU"
    };
    format!("{way}, {program}, {count} clients")
}

/// NVML says of each GPU which cores are near it; the kernel says the same.
fn cores(section: &mut Section, place: &Place, bed: &Bed, user: &User) -> Result<()> {
    let script = format!("cat {}/jobs/$MPSD_JOB/record", place.run.join("mpsd").display());
    let words = ["--gres=gpu:2", "--mps", "/bin/sh", "-c", &script];
    let said = bed.srun(user, &words, SRUN)?.success()?.stdout;
    let record: serde_json::Value = serde_json::from_str(&said).context("the job's record")?;
    let listed = site::smi(&["--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"])?;
    for gpu in record["gpus"].as_array().into_iter().flatten() {
        let uuid = gpu["uuid"].as_str().unwrap_or_default();
        let line = listed
            .lines()
            .find(|line| line.starts_with(uuid))
            .unwrap_or_default();
        let bus = line.rsplit(',').next().unwrap_or_default().trim().to_lowercase();
        // nvidia-smi writes the domain with eight digits, the kernel with four.
        let file = format!("/sys/bus/pci/devices/{}/local_cpulist", &bus[bus.len().min(4)..]);
        match fs::read_to_string(&file) {
            Ok(kernels) => section.equal(
                format!("{uuid}: cores by NVML and in '{file}'"),
                &gpu["cpus"].as_str(),
                &Some(kernels.trim()),
            ),
            Err(error) => {
                section.fact(&format!("{uuid}: '{file}'"), error.to_string());
                continue;
            }
        };
    }
    Ok(())
}

/// One `srun --mps` of `count` clients on `gpus` GPUs, which all count during the same two seconds.
pub fn run_clients(
    place: &Place,
    bed: &Bed,
    user: &User,
    gpus: usize,
    count: usize,
    flags: &[&str],
    by_rank: bool,
) -> Result<Vec<Client>> {
    let program = place.staged("cuda-load")?.display().to_string();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let (tasks, at, seconds) = (format!("-n{count}"), (now + UP).to_string(), COUNT.to_string());
    let gres = format!("--gres=gpu:{gpus}");
    let mut words = vec![&*gres, &tasks, "--mps"];
    words.extend(flags);
    words.extend([&program, "--at", &at, "--seconds", &seconds]);
    words.extend(by_rank.then_some("--by-rank"));
    let said = bed.srun(user, &words, SRUN)?.success()?.stdout;
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let clients: Result<Vec<Client>, _> = lines.map(serde_json::from_str).collect();
    let mut clients = clients?;
    clients.sort_by_key(|client| client.rank);
    Ok(clients)
}

/// Their rates by GPU, as a fact; all together, launches a second.
pub fn tell(section: &mut Section, name: &str, clients: &[Client]) -> f64 {
    let sum: f64 = clients.iter().map(|client| client.per_second).sum();
    let each: Vec<String> = by_gpu(clients)
        .into_values()
        .map(|(count, rate)| format!("{count} on a GPU with {rate:.0}"))
        .collect();
    section.fact(name, format!("{sum:.0} launches a second: {}", each.join(", ")));
    sum
}

/// Clients and launches a second of each GPU.
pub fn by_gpu(clients: &[Client]) -> BTreeMap<&str, (usize, f64)> {
    let mut gpus = BTreeMap::new();
    for client in clients {
        let gpu: &mut (usize, f64) = gpus.entry(client.uuid.as_str()).or_default();
        gpu.0 += 1;
        gpu.1 += client.per_second;
    }
    gpus
}

fn judge(section: &mut Section, name: &str, way: &str, by_rank: bool, count: usize, clients: &[Client]) {
    section.equal(format!("{name}: clients"), &clients.len(), &count);
    let late = clients.iter().filter(|client| client.late).count();
    section.equal(format!("{name}: clients that came late"), &late, &0);
    // The only process of a node keeps all GPUs.
    let alone = !["none", "auto"].contains(&way) && !way.contains("peers") && count > 1;
    let counts: Vec<usize> = clients.iter().map(|client| client.visible).collect();
    let expected = vec![if alone { 1 } else { 2 }; clients.len()];
    section.equal(format!("{name}: GPUs that each sees"), &counts, &expected);
    // Where the cores of this machine are near one GPU only, 'closest' is that one.
    let bound = if way == "auto" { count > 2 } else { way != "none" };
    let spread = (bound || by_rank) && way != "closest" && count > 1;
    if spread {
        let each: Vec<usize> = by_gpu(clients)
            .into_values()
            .map(|(clients, _)| clients)
            .collect();
        section.equal(format!("{name}: clients on each GPU"), &each, &vec![count / 2; 2]);
    }
}

/// The daemon's own numbers lead to the same GPUs as UUIDs.
fn numbers(section: &mut Section, place: &Place, bed: &Bed, user: &User) -> Result<()> {
    let gpus = |names: &str| -> Result<Vec<String>> {
        let flags = ["--mps-bind=cyclic+peers", names];
        let clients = run_clients(place, bed, user, 2, 4, &flags, false)?;
        let lists: Vec<_> = clients
            .iter()
            .filter_map(|client| client.listed.clone())
            .collect();
        eprintln!("hardware: {names}: {lists:?}");
        Ok(clients.into_iter().map(|client| client.uuid).collect())
    };
    let by_uuid = gpus("--mps-visible=uuid")?;
    section.equal(
        "GPUs by number and by UUID",
        &gpus("--mps-visible=ordinal")?,
        &by_uuid,
    );
    Ok(())
}
