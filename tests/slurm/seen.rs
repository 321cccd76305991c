//! What users and root see of a job's clients: `mpsctl status` while it runs, inside and as root,
//! and its report.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::node_bed::send;

use crate::jobs::{LIMIT, ONE_GPU, says};
use crate::runner::{Context, Group, cells};

pub const GROUP: Group = Group::new(
    "seen",
    cells![
        status_shows_the_clients_and_the_gpu_without_one,
        a_killed_client_is_named_with_its_task,
        a_lost_server_is_told_once,
        a_user_who_asks_reads_what_the_mps_was_used_for,
    ],
);

fn roots(cell: &Context, words: &str) -> Result<String> {
    let line = format!("SLURMD_NODENAME=node1 {} {words}", cell.mpsctl());
    let done = cell.bed.on_node("node1", &["/bin/sh", "-c", &line])?;
    Ok(done.success()?.stdout)
}

fn observations(cell: &Context) -> Vec<Value> {
    let jobs = std::fs::read_dir(cell.bed.run_dir().join("node1/jobs"));
    let files = jobs.into_iter().flatten().flatten();
    let read = |job: std::fs::DirEntry| {
        let text = std::fs::read_to_string(job.path().join("observations")).ok()?;
        serde_json::from_str(&text).ok()
    };
    files.filter_map(read).collect()
}

fn wait_observed(cell: &Context, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
    cell.wait(what, || Ok(observations(cell).iter().any(&holds)))
}

fn status_shows_the_clients_and_the_gpu_without_one(cell: &Context) -> Result<()> {
    let node = cell.nodes.node("node1")?;
    // The ninth task asks `mpsctl status` until all others are there.
    let mpsctl = cell.mpsctl();
    let asks = format!(
        "for i in $(seq 100); do out=$({mpsctl} status --json); code=$?; \
         [ $(echo \"$out\" | grep -o rank.: | wc -l) = 8 ] && break; sleep 0.2; done; echo \"$out\"; exit $code"
    );
    let client = cell.client("--gpu 1 --hold 12");
    let line = format!("if [ $SLURM_PROCID = 8 ]; then {asks}; fi; {client}");
    let words = "--mps --mps-threads=50 --mps-bind=none -w node1 -n9 --gres=gpu:2 --overcommit";
    let job = cell.start(&format!("srun {words}"), &line)?;
    cell.wait("eight clients", || {
        let mut contexts = node.contexts();
        contexts.retain(|(_, context)| context.kind == "mps" && context.bytes > 0);
        Ok(contexts.len() == 8)
    })?;
    let roots: Value = serde_json::from_str(&roots(cell, "status --json")?)?;
    let done = job.wait(LIMIT)?.success()?;
    let own = done.stdout.lines().find(|line| line.contains("\"jobs\":"));
    let own: Value = serde_json::from_str(own.context("no status")?)?;
    ensure!(own["under_mps"]["attached"] == "yes", "{own}");
    for told in [&own, &roots] {
        let job = &told["jobs"][0];
        let clients = job["gpus"][1]["clients"].as_array().context("no clients")?;
        let ranks = clients.iter().filter_map(|client| client["rank"].as_u64());
        ensure!(ranks.eq(0..8), "not each rank: {told}");
        let has_memory = |client: &Value| client["memory_mib"].as_u64() > Some(0);
        ensure!(clients.iter().all(has_memory), "{told}");
        let idle = serde_json::json!([node.uuids()[0]]);
        ensure!(job["without_client"] == idle, "{told}");
        let threads = &job["daemons"][0]["limits"][0];
        let right = threads["holds"] == true && threads["said"] == "50.0";
        ensure!(right, "{told}");
    }
    Ok(())
}

/// Once, at the end: after the script, and not after its steps; after the step if there is no
/// script.
fn a_user_who_asks_reads_what_the_mps_was_used_for(cell: &Context) -> Result<()> {
    // Long enough for mpsd to find it in a log on a busy machine.
    let line = cell.client("--hold 1");
    let told = |text: &str| {
        let of_report = |line: &&str| {
            line.contains(", by its own mpsd so far: ") && line.contains(" at once; GPU ")
        };
        text.lines().filter(of_report).count()
    };
    let asks = format!("{ONE_GPU} --mps-report");
    let (_, said) = cell.batch(&asks, &format!("srun /bin/sh -c '{line}'\n{line}"))?;
    let words = "on node1, by its own mpsd so far: 2 clients, 1 at once; GPU ";
    says(&said, &[words])?;
    ensure!(told(&said) == 1, "{said}");
    let silent = format!("{ONE_GPU} --mps-report=off");
    for (flags, times, lines) in [(asks.as_str(), 1, 0), (ONE_GPU, 0, 1), (&silent, 0, 0)] {
        let said = cell.run(&format!("srun {flags}"), &line)?.success()?.stderr;
        let of_end = |line: &&str| {
            line.contains(": on node1: 1 client at once") && line.contains("; mpsctl report ")
        };
        let count = said.lines().filter(of_end).count();
        ensure!((told(&said), count) == (times, lines), "{flags:?}: {said}");
    }
    // As from outside, or under --export=NONE: it inherits nothing of the script.
    let step = "env -u ENVIRONMENT srun /bin/true";
    let (_, said) = cell.batch(ONE_GPU, &format!("{step}\n{line}"))?;
    ensure!(said.matches("; mpsctl report ").count() == 1, "{said}");
    let allocation = format!("salloc {ONE_GPU} srun");
    let said = cell.run(&allocation, &line)?.success()?.stderr;
    ensure!(!said.contains("client at once"), "{said}");
    Ok(())
}

/// The step reports it. The script fails with it and does not repeat it. A job that fails without a
/// lost server, and a job without MPS, read nothing of ours.
fn a_lost_server_is_told_once(cell: &Context) -> Result<()> {
    let line = cell.client("--busy --hold 20");
    for runs in ["srun /bin/sh -c", "/bin/sh -c"] {
        let script = format!("#SBATCH --mps\n{runs} '{line}'\nexit 7");
        let job = cell.submit("-w node1 -n2 --gres=gpu:1 --overcommit", &script)?;
        wait_observed(cell, "a client with a context", |seen| {
            seen["clients"].as_u64() > Some(0)
        })?;
        let mut daemons = cell.nodes.node("node1")?.daemons().into_iter();
        let server = daemons.find(|daemon| daemon.exe.ends_with("nvidia-cuda-mps-server"));
        let server = server.context("no server")?.pid;
        send(server, Signal::SIGKILL)?;
        cell.bed.wait_job(job, &["FAILED"], LIMIT)?;
        let said = cell.output(job);
        let line = format!("on node1 its mpsd says: server {server} died (");
        let told = said.matches(&line).count();
        ensure!(told == 1, "told {told} times: {said}");
        let is_ours = said.contains("error: mps");
        ensure!(!is_ours, "it is no error of ours: {said}");
        cell.idle()?;
    }
    for flags in ["--mps --mps-report=off", ""] {
        let done = cell.run(&format!("srun {flags} -w node1 --gres=gpu:1"), "exit 7")?;
        ensure!(!done.stderr.contains("mps"), "{flags:?}: {}", done.stderr);
    }
    Ok(())
}

const THREE_TASKS: &str = "srun --mps -w node1 -n3 --gres=gpu:1 --overcommit --kill-on-bad-exit=0";

fn a_killed_client_is_named_with_its_task(cell: &Context) -> Result<()> {
    let client = cell.client("--busy --hold 4");
    let line = format!("echo pid $SLURM_PROCID $$; {client}");
    let job = cell.start(THREE_TASKS, &line)?;
    let pids = |seen: &Value| seen["pids"].as_array().cloned().unwrap_or_default();
    wait_observed(cell, "three clients", |seen| pids(seen).len() == 3)?;
    let all: Vec<Value> = observations(cell).iter().flat_map(pids).collect();
    let victim = u32::try_from(all[1].as_u64().context("a pid")?)?;
    send(victim, Signal::SIGKILL)?;
    let done = job.wait(LIMIT)?;
    let lines = done.stdout.lines();
    let mut tasks = lines.filter_map(|line| line.strip_prefix("pid ")?.split_once(' '));
    let task = tasks.find(|(_, pid)| *pid == victim.to_string());
    let (rank, _) = task.with_context(|| format!("no rank of {victim}: {}", done.stdout))?;
    let mut told = Value::Null;
    cell.wait("its report", || {
        let newest = "report --node node1 --since 1h --json | tail -n 1";
        told = serde_json::from_str(&roots(cell, newest)?).unwrap_or_default();
        Ok(told["killed"][0]["pid"] == victim)
    })?;
    let noted = &told["killed"][0];
    let right =
        noted["signal"] == 9 && noted["step"] == 0 && noted["rank"] == rank.parse::<u32>()?;
    ensure!(right && told["killed"][1].is_null(), "{told}");
    let id = told["job"].as_str().context("no job")?;
    let text = roots(cell, &format!("report {id} --node node1"))?;
    let named =
        format!("  client {victim} (task {rank} of step 0) was ended by signal 9 (SIGKILL)\n");
    says(&text, &[&named])?;
    ensure!(text.matches("was ended by").count() == 1, "{text}");
    Ok(())
}
