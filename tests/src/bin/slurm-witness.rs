//! A task of the site matrix (`tests::slurm::Witness`). `DIR LABEL HOLD`: looks at itself, runs the
//! node's CUDA client for HOLD seconds, and leaves its record in DIR. `--bystander DIR`: opens a
//! context repeatedly until `DIR/end` exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tests::double::node::{Gpu, Node, start_time};
use tests::double::visible;
use tests::slurm::{Bystander, Process, Record, Witness};

/// How often the bystander opens a context, and how long it keeps it: mostly it has none.
const PAUSE: Duration = Duration::from_millis(190);
const CONTEXT: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["--bystander", dir] => stand_by(Path::new(dir)),
        [dir, label, hold] => look(Path::new(dir), label, hold),
        _ => Err(anyhow::anyhow!("DIR LABEL HOLD, or --bystander DIR")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slurm-witness: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn node() -> Result<Node> {
    let name = std::env::var("SLURMD_NODENAME").context("no SLURMD_NODENAME")?;
    let own = std::env::current_exe()?;
    let nodes = own.parent().context("a program without a directory")?;
    Node::open(&nodes.join(name)).map_err(anyhow::Error::msg)
}

fn file_name(gpu: &Gpu) -> Option<String> {
    let name = gpu.device.as_ref()?.file_name()?;
    Some(name.to_string_lossy().into_owned())
}

fn look(dir: &Path, label: &str, hold: &str) -> Result<()> {
    let node = node()?;
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| {
            let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .collect();
    let client = Command::new(node.dir.join("fake-cuda-client"))
        .args(["--node".as_ref(), node.dir.as_os_str()])
        .args(["--hold", hold])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the CUDA client")?;
    let (cuda, daemon_uid) = finish(client)?;
    let gpus = || node.is.gpu.iter();
    let used = gpus().filter(|gpu| cuda.uuids.contains(&gpu.uuid));
    let witness = Witness {
        label: label.to_owned(),
        node: node.is.name.clone(),
        devices: used.filter_map(file_name).collect(),
        may_open: gpus()
            .filter(|gpu| visible::may_open(gpu))
            .filter_map(file_name)
            .collect(),
        environment,
        limits: limits()?,
        cuda,
        daemon_uid,
    };
    let own = |name: &str| witness.variable(name).unwrap_or("x").to_owned();
    let file = format!(
        "{label}.{}.{}.{}.{}",
        own("SLURM_JOB_ID"),
        own("SLURM_STEP_ID"),
        own("SLURM_PROCID"),
        std::process::id()
    );
    put(dir, &file, &serde_json::to_string(&witness)?)
}

/// The client's record and the user of its daemon, which lives as long as the client holds its
/// contexts.
fn finish(mut client: std::process::Child) -> Result<(Record, Option<u32>)> {
    use std::io::{BufRead as _, BufReader};
    let output = client.stdout.take().context("a client without output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let record: Record =
        serde_json::from_str(&line).with_context(|| format!("no record: '{line}'"))?;
    let uid = record
        .daemon_pid
        .and_then(Process::read)
        .map(|daemon| daemon.uid);
    client.wait()?;
    Ok((record, uid))
}

fn limits() -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string("/proc/self/limits")?;
    // The name takes the first 26 columns.
    let lines = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_at_checked(26));
    Ok(lines
        .map(|(name, values)| {
            let values: Vec<&str> = values.split_whitespace().take(2).collect();
            (name.trim().to_owned(), values.join(" "))
        })
        .collect())
}

/// By a rename, so that a reader sees all of it or nothing.
fn put(dir: &Path, name: &str, text: &str) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    std::fs::write(&new, text).with_context(|| format!("cannot write '{}'", new.display()))?;
    Ok(std::fs::rename(new, dir.join(format!("{name}.json")))?)
}

fn stand_by(dir: &Path) -> Result<()> {
    let node = node()?;
    let all: Vec<&Gpu> = node.is.gpu.iter().collect();
    let seen = visible::counted(&all, std::env::var("CUDA_DEVICE_ORDER").ok().as_deref());
    let list = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let own: Vec<&Gpu> = visible::visible(&seen, list.as_deref());
    let [gpu] = own[..] else {
        bail!("one GPU expected, {} seen", own.len());
    };
    let end: PathBuf = dir.join("end");
    let pid = std::process::id();
    start_time(pid).context("a process without a start time")?;
    let mut told = Bystander {
        device: file_name(gpu).unwrap_or_default(),
        ..Bystander::default()
    };
    put(dir, &node.is.name, &serde_json::to_string(&told)?)?;
    while !end.exists() {
        let before = told.troubles.clone();
        open(&node, gpu, pid, &mut told.troubles)?;
        told.contexts += 1;
        if told.troubles != before || told.contexts.is_multiple_of(5) {
            put(dir, &node.is.name, &serde_json::to_string(&told)?)?;
        }
        std::thread::sleep(PAUSE);
    }
    put(dir, &node.is.name, &serde_json::to_string(&told)?)
}

fn open(node: &Node, gpu: &Gpu, pid: u32, troubles: &mut BTreeSet<String>) -> Result<()> {
    let mode = node.mode(&gpu.uuid);
    if mode != gpu.mode {
        troubles.insert(format!("compute mode {mode} of its GPU"));
    }
    if mode.starts_with("exclusive") && !node.contexts(&gpu.uuid).is_empty() {
        troubles.insert("no context: the GPU is busy or unavailable".into());
        return Ok(());
    }
    node.register(&gpu.uuid, pid, 64 << 20, "bare")?;
    std::thread::sleep(CONTEXT);
    node.unregister(&gpu.uuid, pid);
    Ok(())
}
