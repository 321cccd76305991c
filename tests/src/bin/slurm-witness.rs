//! A task of the site matrix (`tests::slurm::Witness`). `DIR LABEL HOLD`: looks at itself, runs the
//! node's CUDA client for HOLD seconds, and leaves its record in DIR.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result};
use tests::double::look::process;
use tests::double::node::{Gpu, Node};
use tests::double::visible;
use tests::slurm::{Record, Witness};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [dir, label, hold] => look(Path::new(dir), label, hold),
        _ => Err(anyhow::anyhow!("DIR LABEL HOLD")),
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
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let environment = environment.collect();
    let mut client = Command::new(node.dir.join("cuda-client-double"));
    client.arg("--node").arg(&node.dir).args(["--hold", hold]);
    let client = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let (cuda, daemon_uid) = finish(client.context("cannot start the CUDA client")?)?;
    let gpus = || node.is.gpu.iter();
    let used = gpus().filter(|gpu| cuda.uuids.contains(&gpu.uuid));
    let may_open = gpus().filter(|gpu| visible::may_open(gpu));
    let witness = Witness {
        label: label.to_owned(),
        node: node.is.name.clone(),
        devices: used.filter_map(file_name).collect(),
        may_open: may_open.filter_map(file_name).collect(),
        environment,
        limits: limits()?,
        cuda,
        daemon_uid,
    };
    let own = |name: &str| witness.variable(name).unwrap_or("x");
    let [job, step, task] = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"].map(own);
    let file = format!("{label}.{job}.{step}.{task}.{}", std::process::id());
    put(dir, &file, &serde_json::to_string(&witness)?)
}

/// The daemon lives as long as the client holds its contexts.
fn finish(mut client: std::process::Child) -> Result<(Record, Option<u32>)> {
    use std::io::{BufRead as _, BufReader};
    let output = client.stdout.take().context("a client without output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let record = serde_json::from_str::<Record>(&line);
    let record = record.with_context(|| format!("no record: '{line}'"))?;
    let pid = record.daemon_pid.map(i32::cast_unsigned);
    let daemon = pid.and_then(process);
    let uid = daemon.map(|daemon| daemon.uid);
    client.wait()?;
    Ok((record, uid))
}

fn limits() -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string("/proc/self/limits")?;
    // The name takes the first 26 columns.
    let lines = text.lines().skip(1);
    let lines = lines.filter_map(|line| line.split_at_checked(26));
    let limits = lines.map(|(name, values)| {
        let values: Vec<&str> = values.split_whitespace().take(2).collect();
        (name.trim().to_owned(), values.join(" "))
    });
    Ok(limits.collect())
}

/// By a rename, so that a reader sees all of it or nothing.
fn put(dir: &Path, name: &str, text: &str) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    std::fs::write(&new, text).with_context(|| format!("cannot write '{}'", new.display()))?;
    Ok(std::fs::rename(new, dir.join(format!("{name}.json")))?)
}
