//! What is seen of a job's clients: `mpsctl status` while it runs, in it and as root, and its report when it has ended.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::double::NodeDouble;
use tests::slurm::Options;

use crate::mps::{LIMIT, nodes, simulated, start};
use crate::runner::{Context, Group};

/// One bed for both.
pub const GROUP: Group = Group {
    name: "seen",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: &[
        (
            "eight_clients_and_the_gpu_without_one",
            eight_clients_and_the_gpu_without_one,
        ),
        ("a_report_of_what_was_lost", a_report_of_what_was_lost),
        (
            "a_killed_client_is_named_with_its_task",
            a_killed_client_is_named_with_its_task,
        ),
        ("a_script_is_told_once", a_script_is_told_once),
        (
            "who_asks_reads_what_the_mps_was_used_for",
            who_asks_reads_what_the_mps_was_used_for,
        ),
    ],
};

/// `mpsctl` of the bed's product with its configuration, as words of a shell.
fn mpsctl(cell: &Context) -> Result<String> {
    let product = &nodes(cell)?.product;
    let (program, config) = (product.libexec.join("mpsctl"), &product.config);
    Ok(format!("{} --config {}", program.display(), config.display()))
}

/// What root is told on `node1`, an object.
fn roots(cell: &Context, verb: &str) -> Result<Value> {
    let line = format!("SLURMD_NODENAME=node1 {} {verb}", mpsctl(cell)?);
    let done = cell.bed.on_node("node1", &["/bin/sh", "-c", &line])?.success()?;
    serde_json::from_str(&done.stdout).with_context(|| format!("{verb}: {}{}", done.stdout, done.stderr))
}

/// The clients on the second GPU of a job.
fn clients(job: &Value) -> Vec<&Value> {
    job["gpus"][1]["clients"]
        .as_array()
        .into_iter()
        .flatten()
        .collect()
}

fn eight_clients_and_the_gpu_without_one(cell: &Context) -> Result<()> {
    let node = nodes(cell)?.node("node1")?;
    // The ninth task asks, as often as it takes for all to be there.
    let asks = format!(
        "for i in $(seq 100); do out=$({} status --json); code=$?; \
         [ $(echo \"$out\" | grep -o rank.: | wc -l) = 8 ] && break; sleep 0.2; done; echo \"$out\"; exit $code",
        mpsctl(cell)?
    );
    let client = nodes(cell)?.client("--gpu 1 --hold 12");
    let line = format!("if [ $SLURM_PROCID = 8 ]; then {asks}; fi; {client}");
    let shape = ["-w", "node1", "-n9", "--gres=gpu:2", "--overcommit"];
    let job = start(
        cell,
        &cell.user,
        &[
            &["srun", "--mps", "--mps-threads=50", "--mps-bind=none"],
            &shape[..],
        ]
        .concat(),
        &line,
    )?;
    cell.bed.wait_until("eight clients", LIMIT, || {
        let contexts = node.contexts();
        Ok(contexts
            .iter()
            .filter(|(_, context)| context.kind == "mps" && context.bytes > 0)
            .count()
            == 8)
    })?;
    let seen_by_root = roots(cell, "status --json")?;
    let done = job.wait(LIMIT)?.success()?;
    let own = done
        .stdout
        .lines()
        .find(|line| line.contains("\"jobs\":"))
        .context("no status")?;
    let own: Value = serde_json::from_str(own)?;
    ensure!(own["under_mps"]["attached"] == "yes", "{own}");
    for told in [&own, &seen_by_root] {
        let job = &told["jobs"][0];
        let ranks: Vec<_> = clients(job)
            .iter()
            .filter_map(|client| client["rank"].as_u64())
            .collect();
        ensure!(ranks == (0..8).collect::<Vec<u64>>(), "ranks {ranks:?}: {told}");
        let memory = clients(job)
            .iter()
            .all(|client| client["memory_mib"].as_u64() > Some(0));
        ensure!(memory, "memory: {told}");
        ensure!(
            job["without_client"] == serde_json::json!([node.uuids()[0]]),
            "{told}"
        );
        let threads = &job["daemons"][0]["limits"][0];
        ensure!(threads["holds"] == true && threads["said"] == "50.0", "{told}");
    }
    Ok(())
}

/// Kills the server of the node's only job; its pid.
fn kill_server(node: &NodeDouble) -> Result<u32> {
    let daemons = node.daemons();
    let mut servers = daemons
        .iter()
        .filter(|daemon| daemon.exe.ends_with("nvidia-cuda-mps-server"));
    let server = servers.next().context("no server")?.pid;
    kill(Pid::from_raw(i32::try_from(server)?), Signal::SIGKILL)?;
    Ok(server)
}

/// How many lines tell of the death of `server`.
fn lost_server(text: &str, server: u32) -> usize {
    let told = format!("on node1 its mpsd says: server {server} died (");
    text.lines().filter(|line| line.contains(&told)).count()
}

/// Once, at the end: of a script, whose steps say nothing of it, and of a step where there is no script.
fn who_asks_reads_what_the_mps_was_used_for(cell: &Context) -> Result<()> {
    // Long enough for mpsd to read of it in a log on a busy machine.
    let line = nodes(cell)?.client("--hold 1");
    let told = |text: &str| {
        let of_report =
            |line: &&str| line.contains(", by its own mpsd so far: ") && line.contains(" clients, ");
        text.lines().filter(of_report).count()
    };
    let asks = ["-w", "node1", "--gres=gpu:1", "--mps", "--mps-report"];
    let script = format!("srun /bin/sh -c '{line}'\n{line}");
    let job = cell.bed.sbatch(&cell.user, &asks, &script)?;
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    let said = cell.bed.output(&cell.user, job);
    ensure!(
        told(&said) == 1 && said.contains("on node1, by its own mpsd so far: 2 clients, 1 at once; GPU "),
        "{said}"
    );
    for (flags, times) in [(&asks[..], 1), (&asks[..4], 0)] {
        let done = start(cell, &cell.user, &[&["srun"], flags].concat(), &line)?
            .wait(LIMIT)?
            .success()?;
        ensure!(told(&done.stderr) == times, "{flags:?}: {}", done.stderr);
    }
    Ok(())
}

/// Its step is told, and the script, which fails with it, does not say it again. A job that fails without a lost server, and
/// one without MPS, read nothing of ours.
fn a_script_is_told_once(cell: &Context) -> Result<()> {
    let simulated = nodes(cell)?;
    let node = simulated.node("node1")?;
    let line = simulated.client("--busy --hold 20");
    let asks = ["-w", "node1", "-n2", "--gres=gpu:1", "--overcommit"];
    for (runs, is_told_by) in [("srun /bin/sh -c", "the step"), ("/bin/sh -c", "the script")] {
        let script = format!("#SBATCH --mps\n{runs} '{line}'\nexit 7");
        let job = cell.bed.sbatch(&cell.user, &asks, &script)?;
        cell.bed.wait_until("a client with a context", LIMIT, || {
            let seen = cell.bed.run_dir().join(format!("node1/jobs/{job}/observations"));
            Ok(std::fs::read_to_string(seen)
                .is_ok_and(|text| !text.contains("\"clients\":0,") && !text.is_empty()))
        })?;
        let server = kill_server(node)?;
        cell.bed.wait_job(job, &["FAILED"], LIMIT)?;
        let said = cell.bed.output(&cell.user, job);
        ensure!(
            lost_server(&said, server) == 1,
            "{is_told_by} is told once: {said}"
        );
        ensure!(!said.contains("error: mps"), "it is no error of ours: {said}");
    }
    for flags in [&["--mps"][..], &[]] {
        let shape = ["-w", "node1", "--gres=gpu:1"];
        let done = start(cell, &cell.user, &[&["srun"], flags, &shape].concat(), "exit 7")?.wait(LIMIT)?;
        ensure!(!done.stderr.contains("mps"), "{flags:?}: {}", done.stderr);
    }
    Ok(())
}

/// Three on one GPU, of which one may fail.
const THREE_TASKS: [&str; 8] = [
    "srun",
    "--mps",
    "-w",
    "node1",
    "-n3",
    "--gres=gpu:1",
    "--overcommit",
    "--kill-on-bad-exit=0",
];

/// One of three is killed; the two others end by themselves.
fn a_killed_client_is_named_with_its_task(cell: &Context) -> Result<()> {
    let client = nodes(cell)?.client("--busy --hold 4");
    let line = format!("echo pid $SLURM_PROCID $$; {client}");
    let job = start(cell, &cell.user, &THREE_TASKS, &line)?;
    let mut pids = Vec::new();
    cell.bed.wait_until("three clients", LIMIT, || {
        let jobs = std::fs::read_dir(cell.bed.run_dir().join("node1/jobs"));
        let accounts = jobs.into_iter().flatten().flatten();
        let accounts =
            accounts.filter_map(|job| std::fs::read_to_string(job.path().join("observations")).ok());
        pids = accounts
            .filter_map(|text| serde_json::from_str::<Value>(&text).ok())
            .flat_map(|seen| seen["pids"].as_array().cloned().unwrap_or_default())
            .filter_map(|pid| pid.as_i64())
            .collect();
        Ok(pids.len() == 3)
    })?;
    let victim = i32::try_from(pids[1])?;
    kill(Pid::from_raw(victim), Signal::SIGKILL)?;
    let done = job.wait(LIMIT)?;
    let ranks = done.stdout.lines().filter_map(|line| line.strip_prefix("pid "));
    let rank = ranks
        .filter_map(|line| line.trim().split_once(' '))
        .find_map(|(rank, pid)| (pid == victim.to_string()).then_some(rank))
        .with_context(|| format!("no rank of {victim}: {}", done.stdout))?;
    let mut told = Value::Null;
    cell.bed.wait_until("its report", LIMIT, || {
        told = roots(cell, "report --node node1 --since 1h --json | tail -n 1").unwrap_or_default();
        Ok(told["killed"][0]["pid"] == victim)
    })?;
    let noted = &told["killed"];
    ensure!(
        noted.as_array().is_some_and(|all| all.len() == 1)
            && noted[0]["signal"] == 9
            && noted[0]["step"] == 0
            && noted[0]["rank"] == rank.parse::<u32>()?,
        "{told}"
    );
    let id = told["job"].as_str().context("no job")?;
    let line = format!("SLURMD_NODENAME=node1 {} report {id} --node node1", mpsctl(cell)?);
    let text = cell
        .bed
        .on_node("node1", &["/bin/sh", "-c", &line])?
        .success()?
        .stdout;
    let named = format!("  client {victim} (task {rank} of step 0) was ended by signal 9 (SIGKILL)\n");
    ensure!(
        text.contains(&named) && text.matches("was ended by").count() == 1,
        "{text}"
    );
    Ok(())
}

fn a_report_of_what_was_lost(cell: &Context) -> Result<()> {
    let simulated = nodes(cell)?;
    let node = simulated.node("node1")?;
    let _two = simulated.change(|node| node.max_clients = 2)?;
    // The third comes when the others are there.
    let client = simulated.client("--busy --hold 20");
    let line = format!("[ $SLURM_PROCID = 2 ] && sleep 3; echo pid $SLURM_PROCID $$; {client}");
    let job = start(cell, &cell.user, &THREE_TASKS, &line)?;
    let seen = |words: &str| -> Result<bool> {
        let jobs = cell.bed.run_dir().join("node1/jobs");
        let mut files = std::fs::read_dir(&jobs).into_iter().flatten().flatten();
        Ok(files.any(|dir| {
            std::fs::read_to_string(dir.path().join("observations")).is_ok_and(|text| text.contains(words))
        }))
    };
    cell.bed
        .wait_until("a client without a context", LIMIT, || seen("\"beside\":2"))?;
    let server = kill_server(node)?;
    cell.bed
        .wait_until("a lost server", LIMIT, || seen("\"servers_lost\":[{"))?;
    let done = job.wait(LIMIT)?;
    ensure!(
        lost_server(&done.stderr, server) == 1,
        "told once: {}",
        done.stderr
    );
    let third = done
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("pid 2 "))
        .context("no third task")?;
    let mut told = Value::Null;
    cell.bed.wait_until("its report", LIMIT, || {
        told = roots(cell, "report --node node1 --since 1h --json | tail -n 1").unwrap_or_default();
        Ok(told["said_by_user"]["servers_lost"][0]["pid"] == server)
    })?;
    let lost = &told["said_by_user"];
    ensure!(
        lost["refused"][0]["pid"] == third.trim().parse::<i32>()?,
        "{third}: {told}"
    );
    ensure!(lost["servers_lost"][0]["clients"] == 2, "{told}");
    ensure!(
        told["as_before"] == true && told["scheduler"] == "slurm",
        "{told}"
    );
    ensure!(told["ready_ms"].as_u64() > Some(0), "{told}");
    Ok(())
}
