//! What other exporters are told of a job: beside others' lines, in directories of root's alone, and gone whatever happens.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::look::wait_until;
use tests::place::{Place, fast, kill};
use tests::scarcity::alone;
use tests::syslog::Syslog;

const SOON: Duration = Duration::from_secs(5);

/// A node with both directories, which `[metrics]` names.
fn place(gpus: usize) -> (Place, PathBuf, PathBuf) {
    let place = Place::new(fast(gpus), "");
    let [map, stat] = ["map", "gpustat"].map(|name| place.stage.path(name));
    for dir in [&map, &stat] {
        fs::create_dir(dir).expect("directory");
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    configure(&place, &map, &stat);
    (place, map, stat)
}

fn configure(place: &Place, map: &Path, stat: &Path) {
    let (map, stat) = (map.display(), stat.display());
    place.configure(&format!(
        "[metrics]\ndcgm_job_map = \"{map}\"\ngpustat = \"{stat}\"\n"
    ));
}

#[track_caller]
fn begin(place: &Place, job: &str, gpus: &str) {
    let ran = place.torque(job, "MPS=true", gpus);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Name and text of each file of a directory.
fn told(dir: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).expect("listed").flatten();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().expect("a name");
            (name, fs::read_to_string(entry.path()).expect("text"))
        })
        .collect();
    all.sort();
    all
}

fn file(name: impl ToString, text: impl ToString) -> (String, String) {
    (name.to_string(), text.to_string())
}

#[test]
fn both_have_a_line_of_the_job_for_each_gpu_beside_others_until_it_ends() {
    let (place, map, stat) = place(2);
    let uuids = place.stage.node.uuids();
    fs::write(map.join("1"), "other\n").expect("file");
    fs::write(stat.join(&uuids[1]), "17 1\n").expect("file");
    // What a writer that was killed left.
    fs::write(map.join(".0.new"), "7.").expect("file");
    begin(&place, "7.srv", "0,1");
    let uid = fs::metadata(place.stage.job("7.srv").join("pipe"))
        .expect("the user's")
        .uid();
    assert_eq!(told(&map), [file("0", "7.srv\n"), file("1", "other\n7.srv\n")]);
    let mut expected = [
        file(&uuids[0], format!("7.srv {uid}\n")),
        file(&uuids[1], format!("17 1\n7.srv {uid}\n")),
    ];
    expected.sort();
    assert_eq!(told(&stat), expected);
    let about = fs::metadata(map.join("0")).expect("the file");
    assert_eq!((about.uid(), about.mode() & 0o7777), (0, 0o644));
    // Begun again without an end between, as Torque does.
    begin(&place, "7.srv", "0,1");
    assert_eq!(told(&map)[1], file("1", "other\n7.srv\n"));
    place.assert_ends_clean("7.srv", "a job that others were told of");
    assert_eq!(told(&map), [file("1", "other\n")]);
    assert_eq!(told(&stat), [file(&uuids[1], "17 1\n")]);
}

#[test]
fn killed_at_any_moment_of_its_start_a_job_leaves_no_line() {
    let (place, map, stat) = place(1);
    for wait in [0, 5, 20, 40, 80, 120, 160] {
        let mut start = place.start_torque("8.srv", "MPS=true", "0");
        std::thread::sleep(Duration::from_millis(wait));
        kill(start.0.id(), Signal::SIGKILL);
        start.wait();
        // The worker below the program that was killed ends with it.
        let gone = || place.strict_end("8.srv").code == Some(0);
        assert!(wait_until(SOON, gone), "{wait} ms");
        place.assert_as_before("a start that was killed");
        assert_eq!((told(&map), told(&stat)), (Vec::new(), Vec::new()), "{wait} ms");
    }
}

#[test]
fn what_is_not_roots_alone_is_told_nothing_and_no_job_fails_for_it() {
    alone(|| {
        let (place, map, stat) = place(1);
        let room = place.stage.path("room");
        fs::create_dir(&room).expect("directory");
        let log = Syslog::hear(&room);
        let said = |words: &str| {
            let lines = log.lines();
            assert!(
                lines.iter().any(|line| line.contains(words)),
                "{words}: {lines:?}"
            );
        };
        let link = place.stage.path("link");
        symlink(&map, &link).expect("a link");
        let absent = place.stage.path("absent");
        configure(&place, &link, &absent);
        begin(&place, "9.srv", "0");
        said("dcgm-exporter is not told of it");
        place.assert_ends_clean("9.srv", "a link in the place of a directory");
        begin(&place, "9.srv", "0");
        said("jobstats is not told of it");
        place.assert_ends_clean("9.srv", "an absent directory");

        configure(&place, &map, &stat);
        chown(&map, Some(1), None).expect("owner");
        fs::set_permissions(&stat, fs::Permissions::from_mode(0o777)).expect("mode");
        begin(&place, "9.srv", "0");
        said("is not root's alone to write");
        place.assert_ends_clean("9.srv", "directories of others");
        chown(&map, Some(0), None).expect("owner");
        fs::set_permissions(&stat, fs::Permissions::from_mode(0o755)).expect("mode");

        let secret = place.stage.path("secret");
        fs::write(&secret, "kept\n").expect("file");
        symlink(&secret, map.join("0")).expect("a link");
        begin(&place, "9.srv", "0");
        said("dcgm-exporter is not told of it");
        place.assert_ends_clean("9.srv", "a link in the place of a file");
        assert_eq!(fs::read_to_string(&secret).expect("text"), "kept\n");
        assert!(map.join("0").is_symlink());
        assert_eq!(told(&stat), Vec::new());
    });
}

#[test]
fn lines_that_cannot_be_taken_out_now_hold_no_end_and_go_with_the_next() {
    let (place, map, stat) = place(1);
    begin(&place, "10.srv", "0");
    assert_eq!((told(&map).len(), told(&stat).len()), (1, 1));
    // Somebody else's start hangs with it.
    let name = map.display().to_string().replace('/', "-");
    let path = place.stage.path(&format!("run/.{name}.lock"));
    let file = fs::File::create(&path).expect("the lock");
    let lock = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).expect("the lock");
    let end = place.strict_end("10.srv");
    assert!(end.code == Some(2) && end.took < SOON, "{end:?}");
    assert!(end.err.contains("the job's lines for dcgm-exporter"), "{end:?}");
    place.assert_not_drained("a lock that is held");
    assert_eq!(place.stage.node.modes(), ["default"], "all else is as before");
    // A start beside it fails for nothing of that.
    let other = place.torque("11.srv", "MPS=true", "0");
    assert!(other.code == Some(0) && other.took < SOON, "{other:?}");
    drop(lock);
    for job in ["10.srv", "11.srv"] {
        assert_eq!(place.strict_end(job).code, Some(0), "{job}");
    }
    assert_eq!((told(&map), told(&stat)), (Vec::new(), Vec::new()));
    place.assert_as_before("lines that could not be taken out");
}
