//! `mpsctl metrics`: the content of its page, and that nothing delays it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::frozen::Frozen;
use tests::double::node::Counts;
use tests::fuse::Hung;
use tests::node_bed::{NodeBed, eventually, fast, kill};
use tests::run::{Ran, USER, skip};
use tests::scarcity::{Small, alone};

const SOON: Duration = Duration::from_secs(5);

type Samples = BTreeMap<String, f64>;

fn metrics(bed: &NodeBed, args: &[&str]) -> Ran {
    bed.mpsctl(&[&["metrics"], args].concat())
}

fn textfile(bed: &NodeBed, dir: &Path) -> Ran {
    metrics(bed, &["--textfile", dir.to_str().expect("a path")])
}

fn samples(page: &str) -> Samples {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a sample");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}

#[track_caller]
fn page(bed: &NodeBed) -> Samples {
    let ran = metrics(bed, &[]).ok();
    assert_eq!(ran.err, "", "{ran:?}");
    let samples = samples(&ran.out);
    for name in samples.keys() {
        ran.prints(format!("# HELP {} ", family(name)));
        ran.prints(format!("# TYPE {} ", family(name)));
    }
    samples
}

fn family(sample: &str) -> &str {
    let name = sample.split('{').next().unwrap_or_default();
    let of_histogram = ["_bucket", "_sum", "_count"];
    let ends = of_histogram.iter().find_map(|end| name.strip_suffix(end));
    ends.unwrap_or(name)
}

#[track_caller]
fn is(page: &Samples, sample: &str, value: f64) {
    assert_eq!(page.get(sample), Some(&value), "{sample}: {page:#?}");
}

#[test]
fn the_page_tells_of_jobs_clients_memory_failures_and_times_and_forgets_jobs_that_ended() {
    let mut bed = NodeBed::new(fast(2), "[reports]\nkeep = 1\n");
    let empty = page(&bed);
    is(&empty, "mpsd_jobs{state=\"ready\"}", 0.0);
    is(&empty, "mpsd_jobs_begun_total", 0.0);
    assert!(!empty.contains_key("mpsd_nvml_up"), "NVML: {empty:?}");

    bed.begin("7.srv", "MPS=true", "0,1");
    let first_gpu = [("CUDA_VISIBLE_DEVICES", "0")];
    let client = bed.attached("7.srv", &["--hold", "60", "--busy"], &first_gpu);
    let uuids = bed.node.uuids();
    let of = |name: &str, n: usize| {
        let uuid = &uuids[n];
        format!("{name}{{jobid=\"7.srv\",gpu=\"{n}\",uuid=\"{uuid}\"}}")
    };
    let now = page(&bed);
    let lost = "mpsd_job_daemons_lost{jobid=\"7.srv\"}";
    is(&now, "mpsd_jobs{state=\"ready\"}", 1.0);
    is(&now, "mpsd_jobs_begun_total", 1.0);
    is(&now, "mpsd_nvml_up", 1.0);
    is(&now, "mpsd_gpus_idle", 1.0);
    is(&now, lost, 0.0);
    is(&now, &of("mpsd_job_clients", 0), 1.0);
    is(&now, &of("mpsd_job_clients", 1), 0.0);
    let used = now[&of("mpsd_job_memory_bytes", 0)];
    assert!(used > f64::from(1 << 20), "{now:?}");
    is(&now, &of("mpsd_job_memory_bytes", 1), 0.0);

    kill(bed.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
    let is_counted = || page(&bed).get(lost) == Some(&1.0);
    eventually("the lost daemon is counted", is_counted);
    drop(client);
    bed.assert_ends_clean("7.srv", "a job that was looked at");

    for account in ["MPS=true,MPS_THREADS=300", "MPS=true,MPS_MEM=1000G"] {
        bed.torque("8.srv", account, "0").exits(1);
        bed.strict_end("8.srv");
    }
    bed.node.change(|node| node.faults.start = "exits".into());
    bed.openpbs("9.srv", USER, "MPS=true").exits(2);
    bed.node.change(|node| node.faults.start = String::new());
    bed.strict_end("9.srv");

    for job in ["10.srv", "11.srv"] {
        bed.begin(job, "MPS=true", "0");
        bed.assert_ends_clean(job, "more jobs than reports are kept");
    }
    let after = page(&bed);
    let of_jobs = after.keys().filter(|name| name.contains("jobid="));
    assert_eq!(of_jobs.count(), 0, "{after:?}");
    for (sample, value) in [
        ("mpsd_starts_failed_total{kind=\"refusal\"}", 2.0),
        ("mpsd_starts_failed_total{kind=\"undetermined\"}", 1.0),
        ("mpsd_starts_failed_total{kind=\"fault\"}", 0.0),
        ("mpsd_jobs_begun_total", 3.0),
        ("mpsd_jobs_ended_total{as_before=\"true\"}", 3.0),
        ("mpsd_jobs_troubled_total{trouble=\"daemon_lost\"}", 1.0),
        ("mpsd_job_ready_seconds_count", 3.0),
        ("mpsd_job_ready_seconds_bucket{le=\"+Inf\"}", 3.0),
        ("mpsd_job_teardown_seconds_count", 3.0),
    ] {
        is(&after, sample, value);
    }
    assert!(after["mpsd_job_ready_seconds_sum"] > 0.0, "{after:?}");
}

/// The alert that a node's configuration is broken must not need a working configuration.
#[test]
fn a_broken_configuration_is_a_number_and_its_faults_are_counted() {
    let bed = NodeBed::new(fast(1), "deadline_s = 3\n");
    is(&page(&bed), "mpsd_config_usable", 1.0);
    bed.configure("deadline_s = 3\ncolour = \"red\"\n");
    bed.torque_on_gpu_0("18.srv", "MPS=true").exits(2);
    let dir = bed.directory("textfile");
    let ran = textfile(&bed, &dir).ok();
    ran.complains("unknown key 'colour'");
    let text = fs::read_to_string(dir.join("mpsd.prom")).expect("text");
    let broken = samples(&text);
    is(&broken, "mpsd_config_usable", 0.0);
    is(&broken, "mpsd_starts_failed_total{kind=\"fault\"}", 1.0);
    bed.configure("");
    let mended = page(&bed);
    is(&mended, "mpsd_config_usable", 1.0);
    is(&mended, "mpsd_starts_failed_total{kind=\"fault\"}", 1.0);
}

#[test]
fn the_textfile_is_whole_readable_and_never_written_through_a_link() {
    let bed = NodeBed::new(fast(1), "");
    let dir = bed.directory("textfile");
    let other = bed.path("other");
    fs::write(&other, "kept").expect("file");
    symlink(&other, dir.join("mpsd.prom")).expect("a link");
    textfile(&bed, &dir).ok().prints_nothing();
    let file = dir.join("mpsd.prom");
    let about = fs::symlink_metadata(&file).expect("the file");
    assert_eq!((about.is_file(), about.mode() & 0o7777), (true, 0o644));
    let text = fs::read_to_string(&file).expect("text");
    assert!(samples(&text).contains_key("mpsd_gpus_idle"));
    assert_eq!(fs::read_to_string(&other).expect("text"), "kept");
    assert_eq!(fs::read_dir(&dir).expect("listed").count(), 1);

    let link = bed.path("linked");
    symlink(&dir, &link).expect("a link");
    for wrong in [link, bed.path("absent")] {
        let ran = textfile(&bed, &wrong).exits(2);
        ran.complains("mpsd.prom");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    let ran = bed.mpsctl_as(USER, &["metrics"], &[]).exits(1);
    ran.complains("root");
}

#[test]
fn two_writers_of_the_textfile_take_turns() {
    let bed = NodeBed::new(fast(1), "");
    let dir = bed.directory("textfile");
    let name = dir.display().to_string().replace('/', "-");
    let file = fs::File::create(bed.path(&format!("run/.{name}.lock"))).expect("the lock");
    let held = Flock::lock(file, FlockArg::LockExclusive).expect("the lock");
    let ran = textfile(&bed, &dir).exits(2);
    ran.within(SOON).complains("still locked");
    assert!(!dir.join("mpsd.prom").exists());
    drop(held);
    textfile(&bed, &dir).ok();
    assert_eq!(fs::read_dir(&dir).expect("listed").count(), 1);
}

#[test]
fn while_one_process_hangs_in_nvml_no_look_starts_another() {
    let mut bed = NodeBed::new(fast(1), "");
    bed.begin("16.srv", "MPS=true", "0");
    bed.node.change(|node| node.nvml.calls_hang = true);
    let frozen = std::thread::scope(|scope| {
        let look = scope.spawn(|| metrics(&bed, &[]));
        let frozen = Frozen::new(&[bed.nvml_worker_comes()]);
        let ran = look.join().expect("a look");
        is(&samples(&ran.out), "mpsd_nvml_up", 0.0);
        frozen
    });
    let frozen = match frozen {
        Ok(frozen) => frozen,
        Err(why) => {
            return skip(
                "suite, a hung NVML",
                &format!("no version-1 freezer: {why}"),
            );
        }
    };
    let first = bed.nvml_worker().expect("it outlived SIGKILL");
    let ran = metrics(&bed, &[]).exits(2);
    is(&samples(&ran.out), "mpsd_nvml_up", 0.0);
    ran.complains(format!("NVML is not asked: process {first}"));
    drop(frozen);
    eventually("the process ends", || bed.nvml_worker().is_none());
    bed.node.change(|node| node.nvml.calls_hang = false);
    is(&page(&bed), "mpsd_nvml_up", 1.0);
    bed.assert_ends_clean("16.srv", "a job beside a process that hung in NVML");
}

#[test]
fn neither_a_users_directory_nor_a_disk_that_does_not_answer_holds_anything_up() {
    alone(|| {
        let bed = NodeBed::new(fast(2), "");
        // For its mount namespace, which belongs to this thread.
        let _hidden = Small::over(&bed.path("run"), 256, 0o755);
        bed.begin("13.srv", "MPS=true", "0");
        bed.begin("19.srv", "MPS=true", "1");
        let of_root = |at: &Path, _| Hung::over_changes(at, 0);
        let Some((_, hung)) = bed.hung("state/reports", of_root) else {
            return;
        };
        let ran = metrics(&bed, &[]).exits(2);
        assert!(hung.holds_somebody(), "nobody asked that disk: {ran:?}");
        ran.within(SOON).complains("the counters");
        is(&samples(&ran.out), "mpsd_jobs{state=\"ready\"}", 2.0);
        let refused = bed.torque("15.srv", "MPS=true,MPS_THREADS=300", "0");
        refused.exits(1).within(SOON);
        bed.end("19.srv").within(SOON);
        drop(hung);

        let hung = Hung::over(&bed.job("13.srv").join("pipe"), 0).expect("FUSE");
        is(&page(&bed), "mpsd_jobs{state=\"ready\"}", 1.0);
        assert!(!hung.holds_somebody(), "root looked into it");
        drop(hung);
        bed.assert_ends_clean("13.srv", "a job whose directory did not answer");
    });
}

fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("mpsd_"));
    ours.map(family).collect()
}

/// Alert rules, dashboard and docs name everything on the page, and nothing else.
#[test]
fn the_reports_figures_are_on_the_page_while_a_job_runs_and_its_advice_is_counted_at_its_end() {
    let node = fast(1).describe(|node| node.gpu[0].counts = Some(Counts::NARROW));
    let bed = NodeBed::with_job(node, "", "17.srv", "MPS=true,MPS_MEM=job=4G", "0");
    let args = ["--hold", "60", "--busy"];
    let clients = [(); 2].map(|()| bed.attached("17.srv", &args, &[]));
    let mut now = Samples::new();
    eventually("two looks", || {
        now = page(&bed);
        let mut names = now.keys();
        names.any(|name| name.starts_with("mpsd_job_energy_joules_total"))
    });
    drop(clients);
    let written: BTreeSet<&str> = now.keys().map(|name| family(name)).collect();
    let dashboard = include_str!("../../docs/examples/mpsd.dashboard.json");
    let rules = include_str!("../../docs/examples/mpsd.rules.yml");
    let parsed: Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = parsed["panels"].as_array().expect("panels");
    assert!(panels.len() > 10);
    let shown: BTreeSet<&str> = names(dashboard).union(&names(rules)).copied().collect();
    assert_eq!(shown, written);
    assert_eq!(names(include_str!("../../docs/metrics.md")), written);
    let uuid = &bed.node.uuids()[0];
    let of = |name: &str, more: &str| {
        format!("mpsd_job_{name}{{jobid=\"17.srv\",gpu=\"0\",uuid=\"{uuid}\"{more}}}")
    };
    for (counter, value) in [
        ("time", 0.97),
        ("multiprocessors", 0.12),
        ("bandwidth", 0.06),
    ] {
        let name = of("gpu_utilization_ratio", &format!(",of=\"{counter}\""));
        is(&now, &name, value);
    }
    let joules = now[&of("energy_joules_total", "")];
    assert!((150.0..3000.0).contains(&joules), "{now:?}");
    let limit = f64::from(4u32 << 10) * f64::from(1u32 << 20);
    is(&now, &of("client_memory_limit_bytes", ""), limit);
    let largest = now[&of("client_memory_max_bytes", "")];
    assert!(largest > f64::from(1 << 20), "{now:?}");
    is(&now, "mpsd_jobs_advised_total{rule=\"room\"}", 0.0);
    bed.assert_ends_clean("17.srv", "a job whose use is counted");
    let told = bed.mpsctl(&["report", "17.srv", "--json"]).ok().json();
    let after = page(&bed);
    let count = |part: &str| after.keys().filter(|name| name.contains(part)).count();
    assert!(count("advised") > 5, "{after:?}");
    let rule = told["advice"]["rule"].as_str().expect("advice");
    let advised = format!("mpsd_jobs_advised_total{{rule=\"{rule}\"}}");
    is(&after, &advised, 1.0);
    assert_eq!(count("jobid="), 0, "{after:?}");
}
