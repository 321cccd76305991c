//! Debian's Prometheus and node_exporter read what our timer's service writes, and the alert for a
//! drained node fires.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use assert_cmd::assert::OutputAssertExt as _;
use serde_json::Value;

use crate::guide::commands;
use crate::machine::Machine;
use crate::{emptied, kept, run, said, skip, unpack};

const PACKAGES: &str = "prometheus prometheus-node-exporter";
const TEXTFILES: &str = "/var/lib/prometheus/node-exporter";
const RULES: &str = "/usr/share/mpsd/examples/mpsd.rules.yml";
const RULE_TESTS: &str = include_str!("mpsd.rules.test.yml");
const SERVER: &str = "http://127.0.0.1:9090";

/// The directory with the programs, made once and kept in the target directory; the error says why
/// there is none.
fn programs() -> Result<PathBuf, String> {
    let make = |place: &Path| unpack(place, PACKAGES);
    Ok(kept("monitoring", PACKAGES, make)?.join("root/usr/bin"))
}

#[derive(Debug)]
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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

/// The answer to a Prometheus query; empty until it serves.
fn query(machine: &Machine, promtool: &Path, expression: &str) -> Output {
    let mut command = beside(machine, promtool);
    command.args(["query", "instant", SERVER, expression]);
    command.output().unwrap()
}

/// By the guide: enabled, written, checked, scraped, shown, alerted.
pub fn tells_of_jobs_and_of_a_drain(cluster: &mut Machine, note: &Path) {
    let bin = match programs() {
        Ok(bin) => bin,
        Err(why) => return skip("the metrics in a real Prometheus", &why),
    };
    let promtool = bin.join("promtool");
    let dir = emptied("monitoring-run");
    let rules = cluster.at(RULES);
    fs::create_dir_all(cluster.at(TEXTFILES)).unwrap();
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

    let (srun, record) = cluster.holding(note);
    let job = record.job.unwrap();
    write(cluster);
    let page = cluster.at(&format!("{TEXTFILES}/mpsd.prom"));
    let mut check = Command::new(&promtool);
    check.args(["check", "metrics"]);
    let checked = check.stdin(fs::File::open(&page).unwrap()).assert();
    checked.success().stdout("").stderr("");

    let _servers = start(cluster, &bin, &dir, &rules);
    let tells = |machine: &Machine, expression: &str, what: &str| {
        let output = query(machine, &promtool, expression);
        String::from_utf8_lossy(&output.stdout).contains(what)
    };
    let clients = format!("mpsd_job_clients{{jobid=\"{job}\"}}");
    cluster.until("the job's client in Prometheus", |machine| {
        tells(machine, &clients, "=> 1 @")
    });
    for expression in expressions(cluster) {
        let output = query(cluster, &promtool, &expression);
        assert!(output.status.success(), "{expression}: {}", said(&output));
    }

    // The timer would find that the scheduler has no such drain.
    cluster.run("systemctl stop mpsd-reconcile.timer");
    let firing = "ALERTS{alertname=\"MpsdNodeDrained\",alertstate=\"firing\"}";
    assert!(!tells(cluster, firing, "MpsdNodeDrained"));
    let marker = cluster.mark_drained("mpsd: a test", &job, true);
    write(cluster);
    cluster.until("the alert", |machine| {
        tells(machine, firing, "MpsdNodeDrained")
    });

    fs::remove_file(marker).unwrap();
    cluster.run("systemctl disable --now mpsd-metrics.timer; systemctl start mpsd-reconcile.timer");
    cluster.cancel(&job, srun);
    assert!(page.exists(), "what was told last has gone");
    fs::remove_dir_all(cluster.at("/var/lib/prometheus")).unwrap();
    cluster.nothing_is_left();
}

/// As the timer does. The first start may join a run under way; the second looks again.
fn write(machine: &Machine) {
    for _ in 0..2 {
        machine.run("systemctl start mpsd-metrics.service");
    }
}

fn start(machine: &Machine, bin: &Path, dir: &Path, rules: &Path) -> [Server; 2] {
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\n\
         scrape_configs: [ {{ job_name: node, static_configs: [ {{ targets: ['127.0.0.1:9100'] }} ] }} ]\n",
        rules.display()
    );
    let file = dir.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let mut exporter = beside(machine, &bin.join("prometheus-node-exporter"));
    exporter.arg("--web.listen-address=127.0.0.1:9100");
    exporter.args(["--collector.disable-defaults", "--collector.textfile"]);
    exporter.arg("--collector.textfile.directory");
    exporter.arg(machine.at(TEXTFILES));
    let mut prometheus = beside(machine, &bin.join("prometheus"));
    prometheus.arg("--web.listen-address=127.0.0.1:9090");
    prometheus.arg("--config.file").arg(file);
    prometheus.arg("--storage.tsdb.path").arg(dir.join("data"));
    [serve(exporter), serve(prometheus)]
}

fn expressions(machine: &Machine) -> Vec<String> {
    let dashboard = machine.at("/usr/share/mpsd/examples/mpsd.dashboard.json");
    let dashboard: Value = serde_json::from_slice(&fs::read(dashboard).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let found = targets.map(|target| target["expr"].as_str().unwrap().replace("$instance", ".*"));
    let found: Vec<String> = found.collect();
    assert!(found.len() > 15, "{found:?}");
    found
}
