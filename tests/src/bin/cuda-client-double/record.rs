//! The record of a client: one line of JSON, with the names that `mps-probe --json` uses and some
//! of its own.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tests::double::look::host;
use tests::double::node::{MIB, Node};
use tests::double::wire::CudaError;

use crate::attach::{Running, variable};

pub fn write(
    file: Option<&Path>,
    node: &Node,
    running: &Running,
    allocatable: Option<u64>,
    took: Duration,
) {
    let mps = running.mps.as_ref();
    let gpus = running.gpus.iter().enumerate().map(|(index, gpu)| {
        json!({
            "index": index, "uuid": gpu.uuid, "sms": gpu.sms, "free_mib": gpu.free / MIB,
            "limit_mib": gpu.limit.map(|l| l / MIB), "allocatable_mib": allocatable,
        })
    });
    let gpus: Vec<Value> = gpus.collect();
    let first = running.gpus.iter().find(|g| g.taken > 0);
    let record = json!({
        "pid": std::process::id(), "uid": nix::unistd::getuid().as_raw(), "node": node.is.name, "host": host(),
        "local_rank": mpsd_core::environment::rank(&variable).map(|(rank, _)| rank.local),
        "pipe_directory": variable("CUDA_MPS_PIPE_DIRECTORY"), "visible": variable("CUDA_VISIBLE_DEVICES"),
        "job": variable("MPSD_JOB"), "under_mps": mps.is_some(),
        "daemon_pid": mps.map(|m| m.daemon), "server_pid": mps.map(|m| m.server),
        "uuids": running.gpus.iter().map(|g| &g.uuid).collect::<Vec<_>>(),
        "sms": first.map(|g| g.sms), "memory_limit_mib": first.and_then(|g| g.limit).map(|l| l / MIB),
        "context_ms": took.as_millis() as u64, "gpus": gpus,
    });
    put(file, &record);
}

pub fn failed(file: Option<&Path>, node: &str, error: &CudaError, code: u8) -> ExitCode {
    let code = if error.code == 100 { 2 } else { code };
    put(
        file,
        &json!({
            "pid": std::process::id(), "node": node, "host": host(), "under_mps": false,
            "error": format!("error {} {}", error.code, error.name), "cuda": error, "exit_code": code,
        }),
    );
    ExitCode::from(code)
}

fn put(file: Option<&Path>, record: &Value) {
    // One write each, because the records of many tasks may share one file.
    let line = format!("{record}\n");
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
    if let Some(file) = file {
        match OpenOptions::new().create(true).append(true).open(file) {
            Ok(mut file) => drop(file.write_all(line.as_bytes())),
            Err(why) => eprintln!(
                "cuda-client-double: cannot write '{}': {why}",
                file.display()
            ),
        }
    }
}
