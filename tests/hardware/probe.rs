//! The probe by itself: outside MPS, and under a daemon started by hand.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::clients::{self, Limits};
use crate::result::Section;
use crate::site::{self, Gpu, Place};
use crate::vendor::Daemon;

/// Number of clients at once.
pub const CLIENTS: usize = 8;

/// What a client outside MPS sees of the GPU.
pub fn bare(section: &mut Section, place: &Place, gpu: &Gpu) -> Result<u64> {
    let mut env = site::base_env();
    // A directory that does not exist: no daemon of the machine answers.
    env.insert(
        "CUDA_MPS_PIPE_DIRECTORY".into(),
        place.run.join("none").display().to_string(),
    );
    env.insert("CUDA_VISIBLE_DEVICES".into(), gpu.uuid.clone());
    let probe = place.staged("mps-probe")?;
    let client = clients::alone(place.as_user(&probe, &env).args(["--json", "--alloc=1024"]))?;
    section.fact("bare_client", client.report.to_string());
    section.check(
        "a client without a daemon says so",
        client.report["under_mps"] == false,
        client.report.to_string(),
    );
    section.equal(
        "UUID as nvidia-smi tells it",
        &client.word("uuid"),
        &gpu.uuid.as_str(),
    );
    let refused = clients::alone(place.as_user(&probe, &env).args(["--json", "--require-mps"]))?;
    section.equal("--require-mps outside MPS: exit code", &refused.code, &Some(1));
    match client.number("sms") {
        Some(sms) => Ok(sms),
        None => bail!("the probe saw no multiprocessors: {}", client.report),
    }
}

/// The commands that set the limits, one a line.
pub fn limit_commands(gpu: &str, limits: &Limits) -> Vec<String> {
    vec![
        format!("set_default_active_thread_percentage {}\n", limits.percent),
        format!(
            "set_default_device_pinned_mem_limit {gpu} {}M\n",
            limits.memory_mib
        ),
    ]
}

/// Eight clients at once under a daemon started by hand.
pub fn under_daemon(section: &mut Section, place: &Place, gpu: &Gpu, limits: &Limits) -> Result<()> {
    let mut daemon = Daemon::start(place, &gpu.uuid, "probe", &limit_commands(&gpu.uuid, limits))?;
    let probe = place.staged("mps-probe")?;
    let env = daemon.client_env();
    let (clients, listed) = clients::at_once(
        CLIENTS,
        |_| {
            let mut command = place.as_user(&probe, &env);
            command.args(limits.probe_options()).args(["--hold", "2"]);
            Ok(command)
        },
        || {
            Ok(daemon
                .command(&format!("get_client_list {}\n", daemon.server))?
                .stdout
                .lines()
                .count())
        },
    )?;
    section.equal("clients in the daemon's list", &listed, &CLIENTS);
    clients::judge(section, &clients, limits);
    if let Some(client) = clients.first() {
        section.fact("first_client", client.report.to_string());
    }
    let pinned = daemon
        .client_env()
        .into_iter()
        .chain([("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), "10".to_owned())]);
    let lower = clients::alone(
        place
            .as_user(&probe, &pinned.collect::<BTreeMap<_, _>>())
            .arg("--json"),
    )?;
    section.fact(
        "sms_of_a_client_that_asks_for_10",
        lower.number("sms").unwrap_or(0) as i64,
    );
    daemon.collect();
    section.fact("daemon_log", daemon.log.join("\n"));
    section.fact("quit_ms", crate::child::ms(daemon.quit()?));
    Ok(())
}
