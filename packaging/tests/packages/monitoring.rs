//! Prometheus and its node_exporter, out of Debian's own packages, beside a machine whose jobs have MPS: they scrape what our timer's
//! service writes from within its sandbox, and the alert for a drained node fires.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::guide::commands;
use crate::machine::{HOST, Machine};
use crate::{run, said, skip};

/// Debian's packages, and what of them is needed.
const PACKAGES: [&str; 2] = ["prometheus", "prometheus-node-exporter"];
const PROGRAMS: [&str; 3] = ["prometheus", "promtool", "prometheus-node-exporter"];
/// Where the units write, and Debian's node_exporter looks.
const TEXTFILES: &str = "/var/lib/prometheus/node-exporter";
const RULES: &str = "/usr/share/mpsd/examples/mpsd.rules.yml";
const RULE_TESTS: &str = include_str!("mpsd.rules.test.yml");
const SERVER: &str = "http://127.0.0.1:9090";

/// The directory with the programs, made once and kept in the target directory; why there can be none.
fn programs() -> Result<PathBuf, String> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("monitoring");
    let bin = place.join("usr/bin");
    if PROGRAMS.iter().all(|name| bin.join(name).exists()) {
        return Ok(bin);
    }
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).unwrap();
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        let output = command.args(words).current_dir(&place).output();
        let output = output.map_err(|error| format!("no apt-get: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("apt-get cannot get them: {}", said(&output))),
        }
    };
    let download = [&["download", "-q"], &PACKAGES[..]].concat();
    apt(&download).or_else(|_| apt(&["update", "-q"]).and_then(|()| apt(&download)))?;
    for entry in fs::read_dir(&place).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|end| end == "deb") {
            run(Command::new("dpkg").arg("-x").arg(&file).arg(&place));
            fs::remove_file(&file).unwrap();
        }
    }
    Ok(bin)
}

/// A server of this test's, with the machine's network; ended with the test.
#[derive(Debug)]
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command on this machine's files, with the other one's network.
fn beside(machine: &Machine, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "nsenter"]);
    command.arg(format!("--net={}", machine.network().display()));
    command.arg(program).stdin(Stdio::null());
    command
}

fn serve(mut command: Command) -> Server {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Server(child.unwrap())
}

/// What a query of Prometheus' tells; nothing as long as it does not serve.
fn query(machine: &Machine, promtool: &Path, expression: &str) -> Output {
    let mut command = beside(machine, promtool);
    command.args(["query", "instant", SERVER, expression]);
    command.output().unwrap()
}

/// By the guide: enabled, written, checked, scraped, shown, and told of.
pub fn tells_of_jobs_and_of_a_drain(cluster: &mut Cluster, note: &Path) {
    let bin = match programs() {
        Ok(bin) => bin,
        Err(why) => return skip("the metrics in a real Prometheus", &why),
    };
    let promtool = bin.join("promtool");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("monitoring-run");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let rules = cluster.machine.at(RULES);
    fs::create_dir_all(cluster.machine.at(TEXTFILES)).unwrap();
    for line in commands("metrics.md", "Prometheus") {
        match line.strip_prefix("promtool ") {
            Some(words) => {
                let words = words.replace(RULES, rules.to_str().unwrap());
                run(Command::new(&promtool).args(words.split(' ')));
            }
            None => drop(cluster.administrator(&line)),
        }
    }
    fs::copy(&rules, dir.join("mpsd.rules.yml")).unwrap();
    fs::write(dir.join("test.yml"), RULE_TESTS).unwrap();
    let mut tests = Command::new(&promtool);
    run(tests.args(["test", "rules", "test.yml"]).current_dir(&dir));

    let (mut srun, record) = cluster.holding(&["--gres=gpu:1", "--mps", "--mps-threads=25"], note);
    let job = record.job.unwrap();
    write(&cluster.machine);
    let page = cluster.machine.at(&format!("{TEXTFILES}/mpsd.prom"));
    let checked = Command::new(&promtool)
        .args(["check", "metrics"])
        .stdin(fs::File::open(&page).unwrap())
        .output()
        .unwrap();
    let text = said(&checked);
    assert!(
        checked.status.success() && checked.stderr.is_empty() && checked.stdout.is_empty(),
        "{text}"
    );

    let _servers = start(&cluster.machine, &bin, &dir, &rules);
    let tells = |machine: &Machine, expression: &str, what: &str| {
        let output = query(machine, &promtool, expression);
        String::from_utf8_lossy(&output.stdout).contains(what)
    };
    let clients = format!("mpsd_job_clients{{jobid=\"{job}\"}}");
    cluster
        .machine
        .until("the job's client in Prometheus", |machine| {
            tells(machine, &clients, "=> 1 @")
        });
    for expression in expressions(&cluster.machine) {
        let output = query(&cluster.machine, &promtool, &expression);
        assert!(output.status.success(), "{expression}: {}", said(&output));
    }

    // The timer would find that its scheduler knows of no such drain.
    let timer = ["systemctl", "stop", "mpsd-reconcile.timer"];
    cluster.machine.run(&timer);
    let firing = "ALERTS{alertname=\"MpsdNodeDrained\",alertstate=\"firing\"}";
    assert!(!tells(&cluster.machine, firing, "MpsdNodeDrained"));
    let drains = cluster.machine.at("/var/lib/mpsd/drains");
    fs::create_dir_all(&drains).unwrap();
    let marker = drains.join(format!("slurm-{HOST}"));
    let text = format!(
        r#"{{"version":1,"scheduler":"slurm","node":"{HOST}","reason":"mpsd: a test","job":"{job}","delivered":true,"when":1}}"#
    );
    fs::write(&marker, text).unwrap();
    write(&cluster.machine);
    cluster
        .machine
        .until("the alert", |machine| tells(machine, firing, "MpsdNodeDrained"));

    fs::remove_file(marker).unwrap();
    cluster
        .machine
        .run(&["systemctl", "disable", "--now", "mpsd-metrics.timer"]);
    cluster.machine.run(&["systemctl", "start", timer[2]]);
    cluster.machine.run(&["scancel", &job]);
    srun.wait().unwrap();
    let page = cluster.machine.at(&format!("{TEXTFILES}/mpsd.prom"));
    assert!(page.exists(), "what was told last has gone");
    fs::remove_dir_all(cluster.machine.at("/var/lib/prometheus")).unwrap();
    cluster.nothing_is_left();
}

/// What the timer does. A run of the timer's may be under way that has looked already: the first start joins it then, and the
/// second looks again.
fn write(machine: &Machine) {
    for _ in 0..2 {
        machine.run(&["systemctl", "start", "mpsd-metrics.service"]);
    }
}

/// node_exporter and Prometheus, which looks at it each second.
fn start(machine: &Machine, bin: &Path, dir: &Path, rules: &Path) -> [Server; 2] {
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\n\
         scrape_configs: [ {{ job_name: node, static_configs: [ {{ targets: ['127.0.0.1:9100'] }} ] }} ]\n",
        rules.display()
    );
    let file = dir.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let mut exporter = beside(machine, &bin.join("prometheus-node-exporter"));
    exporter.args([
        "--web.listen-address=127.0.0.1:9100",
        "--collector.disable-defaults",
    ]);
    exporter
        .arg("--collector.textfile")
        .arg("--collector.textfile.directory");
    exporter.arg(machine.at(TEXTFILES));
    let mut prometheus = beside(machine, &bin.join("prometheus"));
    prometheus.arg("--web.listen-address=127.0.0.1:9090");
    prometheus.arg("--config.file").arg(file);
    prometheus.arg("--storage.tsdb.path").arg(dir.join("data"));
    [serve(exporter), serve(prometheus)]
}

/// The queries of the dashboard that is installed, for all nodes.
fn expressions(machine: &Machine) -> Vec<String> {
    let text = fs::read_to_string(machine.at("/usr/share/mpsd/examples/mpsd.dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let found: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap().replace("$instance", ".*"))
        .collect();
    assert!(found.len() > 15, "{found:?}");
    found
}
