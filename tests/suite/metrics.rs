//! `mpsctl metrics`: what stands on its page, what it asks nobody for, and what holds it up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::frozen::Frozen;
use tests::double::look::wait_until;
use tests::fuse::Hung;
use tests::place::{Place, fast, kill};
use tests::scarcity::{Small, alone};
use tests::stage::{Ran, USER, as_user, openpbs_args};

const SOON: Duration = Duration::from_secs(5);

fn metrics(place: &Place, args: &[&str]) -> Ran {
    place.stage.run("mpsctl", &[&["metrics"], args].concat(), &[])
}

/// The samples of a page, by name and labels.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line
                .rsplit_once(' ')
                .unwrap_or_else(|| panic!("no sample: '{line}'"));
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

/// The page now, each family with its help and its type before its samples.
#[track_caller]
fn page(place: &Place) -> BTreeMap<String, f64> {
    let ran = metrics(place, &[]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    for name in samples(&ran.out).keys() {
        let family = family(name);
        for word in ["HELP", "TYPE"] {
            assert!(
                ran.out.contains(&format!("# {word} {family} ")),
                "{name}: no {word}:\n{}",
                ran.out
            );
        }
    }
    samples(&ran.out)
}

fn family(sample: &str) -> &str {
    let name = sample.split('{').next().unwrap_or_default();
    let of_histogram = ["_bucket", "_sum", "_count"];
    let ends = of_histogram.iter().find_map(|end| name.strip_suffix(end));
    ends.unwrap_or(name)
}

#[track_caller]
fn is(page: &BTreeMap<String, f64>, sample: &str, value: f64) {
    assert_eq!(page.get(sample), Some(&value), "{sample}: {page:#?}");
}

#[test]
fn the_page_tells_of_jobs_clients_memory_failures_and_times_and_forgets_jobs_that_ended() {
    let mut place = Place::new(fast(2), "[reports]\nkeep = 1\n");
    let empty = page(&place);
    is(&empty, "mpsd_jobs{state=\"ready\"}", 0.0);
    is(&empty, "mpsd_jobs_begun_total", 0.0);
    assert!(
        !empty.contains_key("mpsd_nvml_up"),
        "NVML is asked for nothing: {empty:?}"
    );

    let ran = place.torque("7.srv", "MPS=true", "0,1");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let client = place.attached(
        "7.srv",
        &["--hold", "60", "--busy"],
        &[("CUDA_VISIBLE_DEVICES", "0")],
    );
    let [first, second] = &place.stage.node.uuids()[..] else {
        panic!("two GPUs");
    };
    let now = page(&place);
    let of = |name: &str, n: u32, uuid: &dyn std::fmt::Display| {
        format!("{name}{{jobid=\"7.srv\",gpu=\"{n}\",uuid=\"{uuid}\"}}")
    };
    is(&now, "mpsd_jobs{state=\"ready\"}", 1.0);
    is(&now, "mpsd_jobs_begun_total", 1.0);
    is(&now, "mpsd_nvml_up", 1.0);
    is(&now, "mpsd_gpus_idle", 1.0);
    is(&now, "mpsd_job_daemons_lost{jobid=\"7.srv\"}", 0.0);
    is(&now, &of("mpsd_job_clients", 0, first), 1.0);
    is(&now, &of("mpsd_job_clients", 1, second), 0.0);
    assert!(
        now[&of("mpsd_job_memory_bytes", 0, first)] > f64::from(1 << 20),
        "{now:?}"
    );
    is(&now, &of("mpsd_job_memory_bytes", 1, second), 0.0);

    let control = place.pids("nvidia-cuda-mps-control")[0];
    kill(control, Signal::SIGKILL);
    let lost = || page(&place).get("mpsd_job_daemons_lost{jobid=\"7.srv\"}") == Some(&1.0);
    assert!(wait_until(SOON, lost), "a control daemon was killed");
    drop(client);
    place.assert_ends_clean("7.srv", "a job that was looked at");

    for account in ["MPS=true,MPS_THREADS=300", "MPS=true,MPS_MEM=1000G"] {
        let ran = place.torque("8.srv", account, "0");
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let _ = place.strict_end("8.srv");
    }
    place
        .stage
        .node
        .change(|node| node.faults.start = "exits".to_owned());
    let ran = place
        .stage
        .prologue(&openpbs_args("9.srv", USER, "MPS=true"), &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    place.stage.node.change(|node| node.faults.start = String::new());
    let _ = place.strict_end("9.srv");

    for job in ["10.srv", "11.srv"] {
        let ran = place.torque(job, "MPS=true", "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        place.assert_ends_clean(job, "a job beyond those whose report is kept");
    }
    let after = page(&place);
    assert!(
        !after.keys().any(|name| name.contains("jobid=")),
        "of no job any more: {after:?}"
    );
    is(&after, "mpsd_starts_failed_total{kind=\"refusal\"}", 2.0);
    is(&after, "mpsd_starts_failed_total{kind=\"undetermined\"}", 1.0);
    is(&after, "mpsd_starts_failed_total{kind=\"fault\"}", 0.0);
    is(&after, "mpsd_jobs_begun_total", 3.0);
    is(&after, "mpsd_jobs_ended_total{as_before=\"true\"}", 3.0);
    is(&after, "mpsd_jobs_troubled_total{trouble=\"daemon_lost\"}", 1.0);
    is(&after, "mpsd_job_ready_seconds_count", 3.0);
    is(&after, "mpsd_job_ready_seconds_bucket{le=\"+Inf\"}", 3.0);
    is(&after, "mpsd_job_teardown_seconds_count", 3.0);
    assert!(after["mpsd_job_ready_seconds_sum"] > 0.0, "{after:?}");
}

#[test]
fn a_second_end_of_a_job_is_not_counted_again() {
    let mut place = Place::new(fast(1), "");
    assert_eq!(place.torque("12.srv", "MPS=true", "0").code, Some(0));
    place.stage.node.change(|node| node.nvml.init_fails = true);
    assert_eq!(place.strict_end("12.srv").code, Some(2));
    place.stage.node.change(|node| node.nvml.init_fails = false);
    let left = page(&place);
    is(&left, "mpsd_jobs_begun_total", 1.0);
    is(&left, "mpsd_jobs{state=\"left\"}", 1.0);
    is(&left, "mpsd_jobs{state=\"ready\"}", 0.0);
    let lost = "mpsd_job_daemons_lost{jobid=\"12.srv\"}";
    assert!(!left.contains_key(lost), "taken down is not lost: {left:?}");
    assert_eq!(place.strict_end("12.srv").code, Some(0));
    let now = page(&place);
    is(&now, "mpsd_jobs_ended_total{as_before=\"false\"}", 1.0);
    is(&now, "mpsd_jobs_ended_total{as_before=\"true\"}", 0.0);
    let drains = now["mpsd_drains{delivered=\"true\"}"] + now["mpsd_drains{delivered=\"false\"}"];
    assert!((drains - 1.0).abs() < f64::EPSILON, "{now:?}");
    place.take_drains();
}

#[test]
fn the_textfile_is_whole_readable_and_never_written_through_a_link() {
    let place = Place::new(fast(1), "");
    let dir = place.stage.path("textfile");
    fs::create_dir(&dir).expect("directory");
    let to = |path: &std::path::Path| metrics(&place, &["--textfile", path.to_str().expect("a path")]);
    let other = place.stage.path("other");
    fs::write(&other, "kept").expect("file");
    symlink(&other, dir.join("mpsd.prom")).expect("a link");
    let ran = to(&dir);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
    let file = dir.join("mpsd.prom");
    let about = fs::symlink_metadata(&file).expect("the file");
    assert!(about.is_file() && about.mode() & 0o7777 == 0o644, "{about:?}");
    assert!(samples(&fs::read_to_string(&file).expect("text")).contains_key("mpsd_gpus_idle"));
    assert_eq!(fs::read_to_string(&other).expect("text"), "kept");
    assert_eq!(fs::read_dir(&dir).expect("listed").count(), 1);

    let link = place.stage.path("linked");
    symlink(&dir, &link).expect("a link");
    for wrong in [link, place.stage.path("absent")] {
        let ran = to(&wrong);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.err.contains("mpsd.prom") && ran.err.lines().count() == 1,
            "{ran:?}"
        );
    }
    let user = place.stage.program("mpsctl");
    let ran = tests::stage::finish({
        let mut command = as_user(USER, user);
        command.arg("metrics");
        command
    });
    assert!(ran.code == Some(1) && ran.err.contains("root"), "{ran:?}");
}

#[test]
fn two_writers_of_the_textfile_take_turns() {
    let place = Place::new(fast(1), "");
    let dir = place.stage.path("textfile");
    fs::create_dir(&dir).expect("directory");
    let to = || metrics(&place, &["--textfile", dir.to_str().expect("a path")]);
    let run = place.stage.path("run");
    fs::create_dir_all(&run).expect("directory");
    let name = dir.display().to_string().replace('/', "-");
    let file = fs::File::create(run.join(format!(".{name}.lock"))).expect("the lock");
    let held = Flock::lock(file, FlockArg::LockExclusive).expect("the lock");
    let ran = to();
    assert!(ran.code == Some(2) && ran.took < SOON, "{ran:?}");
    assert!(ran.err.contains("still locked"), "{ran:?}");
    assert!(!dir.join("mpsd.prom").exists());
    drop(held);
    assert_eq!(to().code, Some(0));
    assert_eq!(fs::read_dir(&dir).expect("listed").count(), 1);
}

/// The process that asks NVML.
fn worker(place: &Place) -> Option<u32> {
    let processes = place.processes();
    let mut all = processes
        .iter()
        .filter(|process| process.exe.ends_with("bin/mpsd"));
    let maps = |pid| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    all.find(|process| maps(process.pid).contains("libnvidia-ml"))
        .map(|process| process.pid)
}

#[test]
fn while_one_process_hangs_in_nvml_no_look_starts_another() {
    let mut place = Place::new(fast(1), "");
    assert_eq!(place.torque("16.srv", "MPS=true", "0").code, Some(0));
    place.stage.node.change(|node| node.nvml.calls_hang = true);
    let frozen = std::thread::scope(|scope| {
        let look = scope.spawn(|| metrics(&place, &[]));
        assert!(wait_until(SOON, || worker(&place).is_some()), "nobody asks NVML");
        let frozen = Frozen::new(&[worker(&place).expect("a worker")]);
        let ran = look.join().expect("a look");
        is(&samples(&ran.out), "mpsd_nvml_up", 0.0);
        frozen
    });
    let frozen = match frozen {
        Ok(frozen) => frozen,
        Err(why) => return println!("not tried here, this machine has no version-1 freezer: {why}"),
    };
    let first = worker(&place).expect("it outlived SIGKILL");
    let ran = metrics(&place, &[]);
    is(&samples(&ran.out), "mpsd_nvml_up", 0.0);
    let line = format!("NVML is not asked: process {first}");
    assert!(ran.code == Some(2) && ran.err.contains(&line), "{ran:?}");
    drop(frozen);
    assert!(wait_until(SOON, || worker(&place).is_none()));
    place.stage.node.change(|node| node.nvml.calls_hang = false);
    is(&page(&place), "mpsd_nvml_up", 1.0);
    place.assert_ends_clean("16.srv", "a job beside a process that hung in NVML");
}

#[test]
fn neither_a_users_directory_nor_a_disk_that_does_not_answer_holds_anything_up() {
    alone(|| {
        let place = Place::new(fast(1), "");
        // Nothing but a mount namespace of this thread's own is wanted of it.
        let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
        assert_eq!(place.torque("13.srv", "MPS=true", "0").code, Some(0));
        let reports = place.stage.path("state/reports");
        fs::create_dir(&reports).expect("directory");
        let hung = match Hung::over_changes(&reports, 0) {
            Ok(hung) => hung,
            Err(why) => return println!("not tried here, this machine has no FUSE: {why}"),
        };
        let ran = metrics(&place, &[]);
        assert!(hung.holds_somebody(), "nobody asked that disk: {ran:?}");
        assert!(ran.code == Some(2) && ran.took < SOON, "{ran:?}");
        assert!(ran.err.contains("the counters"), "{ran:?}");
        is(&samples(&ran.out), "mpsd_jobs{state=\"ready\"}", 1.0);
        let ran = place.torque("15.srv", "MPS=true,MPS_THREADS=300", "0");
        assert!(ran.code == Some(1) && ran.took < SOON, "a refusal: {ran:?}");
        drop(hung);

        let pipe = place.stage.job("13.srv").join("pipe");
        let hung = Hung::over(&pipe, 0).expect("FUSE");
        is(&page(&place), "mpsd_jobs{state=\"ready\"}", 1.0);
        assert!(!hung.holds_somebody(), "a user's directory was looked into");
        drop(hung);
        place.assert_ends_clean("13.srv", "a job whose directory did not answer");
    });
}

/// The words of a text that are names of ours.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("mpsd_"))
        .map(family)
        .collect()
}

/// Alert rules, dashboard and docs name what is written, and of that nothing is left out.
#[test]
fn rules_dashboard_and_docs_name_what_the_page_has() {
    let place = Place::new(fast(1), "");
    assert_eq!(place.torque("14.srv", "MPS=true", "0").code, Some(0));
    let page = page(&place);
    place.assert_ends_clean("14.srv", "a job that was looked at");
    let written: BTreeSet<&str> = page.keys().map(|name| family(name)).collect();
    let dashboard = include_str!("../../docs/examples/mpsd.dashboard.json");
    let rules = include_str!("../../docs/examples/mpsd.rules.yml");
    let guide = include_str!("../../docs/metrics.md");
    let parsed: Value = serde_json::from_str(dashboard).expect("JSON");
    assert!(
        parsed["panels"]
            .as_array()
            .is_some_and(|panels| panels.len() > 10)
    );
    let shown: BTreeSet<&str> = names(dashboard).union(&names(rules)).copied().collect();
    assert_eq!(shown.difference(&written).collect::<Vec<_>>(), [&""; 0]);
    assert_eq!(
        written.difference(&shown).collect::<Vec<_>>(),
        [&""; 0],
        "nobody looks at them"
    );
    assert_eq!(names(guide), written, "docs/metrics.md");
}
