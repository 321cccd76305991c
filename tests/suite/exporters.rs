//! What other exporters are told of a job: beside foreign lines, in root's own directories, and
//! removed in any case.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::place::{Place, eventually, fast, kill};
use tests::scarcity::alone;
use tests::stage::{USER, chmod, uid_of};
use tests::syslog::Syslog;

const SOON: Duration = Duration::from_secs(5);

/// A node with both directories, which `[metrics]` names.
fn place(gpus: usize) -> (Place, PathBuf, PathBuf) {
    let place = Place::new(fast(gpus), "");
    let [map, stat] = ["map", "gpustat"].map(|name| place.directory(name));
    configure(&place, &map, &stat);
    (place, map, stat)
}

fn configure(place: &Place, map: &Path, stat: &Path) {
    let (map, stat) = (map.display(), stat.display());
    place.configure(&format!(
        "[metrics]\ndcgm_job_map = \"{map}\"\ngpustat = \"{stat}\"\n"
    ));
}

fn told(dir: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).expect("listed").flatten();
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("a name");
        (name, fs::read_to_string(entry.path()).expect("text"))
    };
    let mut all: Vec<_> = entries.map(read).collect();
    all.sort();
    all
}

fn file(name: impl ToString, text: impl ToString) -> (String, String) {
    (name.to_string(), text.to_string())
}

#[test]
fn both_have_a_line_of_the_job_for_each_gpu_beside_others_until_it_ends() {
    let (place, map, stat) = place(2);
    let uuids = place.node.uuids();
    fs::write(map.join("1"), "other\n").expect("file");
    fs::write(stat.join(&uuids[1]), "17 1\n").expect("file");
    // Left by a killed writer.
    fs::write(map.join(".0.new"), "7.").expect("file");
    place.begin("7.srv", "MPS=true", "0,1");
    let uid = uid_of(USER);
    assert_eq!(
        told(&map),
        [file("0", "7.srv\n"), file("1", "other\n7.srv\n")]
    );
    let mut expected = [
        file(&uuids[0], format!("7.srv {uid}\n")),
        file(&uuids[1], format!("17 1\n7.srv {uid}\n")),
    ];
    expected.sort();
    assert_eq!(told(&stat), expected);
    let about = fs::metadata(map.join("0")).expect("the file");
    assert_eq!((about.uid(), about.mode() & 0o7777), (0, 0o644));
    // Torque may begin a job again without an end in between.
    place.begin("7.srv", "MPS=true", "0,1");
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
        kill(start.pid(), Signal::SIGKILL);
        start.wait();
        // The worker of the killed program ends with it.
        let gone = || place.strict_end("8.srv").code == Some(0);
        eventually(format_args!("an end after {wait} ms"), gone);
        place.assert_as_before("a start that was killed");
        assert_eq!(
            (told(&map), told(&stat)),
            (Vec::new(), Vec::new()),
            "{wait} ms"
        );
    }
}

#[test]
fn what_is_not_roots_alone_is_told_nothing_and_no_job_fails_for_it() {
    alone(|| {
        let (place, map, stat) = place(1);
        let log = Syslog::hear(&place.directory("room"));
        let said = |words: &str, what: &str| {
            place.begin("9.srv", "MPS=true", "0");
            let lines = log.lines();
            let told = lines.iter().any(|line| line.contains(words));
            assert!(told, "{what}: {words}: {lines:?}");
            place.assert_ends_clean("9.srv", what);
        };
        let link = place.path("link");
        symlink(&map, &link).expect("a link");
        configure(&place, &link, &place.path("absent"));
        said(
            "dcgm-exporter is not told of it",
            "a link in the place of a directory",
        );
        said("jobstats is not told of it", "an absent directory");

        configure(&place, &map, &stat);
        chown(&map, Some(1), None).expect("owner");
        chmod(&stat, 0o777);
        said("is not root's alone to write", "directories of others");
        chown(&map, Some(0), None).expect("owner");
        chmod(&stat, 0o755);

        let secret = place.path("secret");
        fs::write(&secret, "kept\n").expect("file");
        symlink(&secret, map.join("0")).expect("a link");
        said(
            "dcgm-exporter is not told of it",
            "a link in the place of a file",
        );
        assert_eq!(fs::read_to_string(&secret).expect("text"), "kept\n");
        assert!(map.join("0").is_symlink());
        assert_eq!(told(&stat), Vec::new());
    });
}

#[test]
fn lines_that_cannot_be_taken_out_now_hold_no_end_and_go_with_the_next() {
    let (place, map, stat) = place(1);
    place.begin("10.srv", "MPS=true", "0");
    assert_eq!((told(&map).len(), told(&stat).len()), (1, 1));
    // Another job's start hangs and holds the lock.
    let name = map.display().to_string().replace('/', "-");
    let file = fs::File::create(place.path(&format!("run/.{name}.lock"))).expect("the lock");
    let lock =
        nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).expect("the lock");
    let end = place.strict_end("10.srv").exits(2);
    end.within(SOON)
        .complains("the job's lines for dcgm-exporter");
    assert_eq!(place.node.modes(), ["default"], "all else is as before");
    // A start beside it succeeds.
    place.begin("11.srv", "MPS=true", "0").within(SOON);
    place.strict_end("11.srv").exits(2);
    // Nor does the job's own, which Torque runs again.
    place.begin("10.srv", "MPS=true", "0").within(SOON);
    drop(lock);
    for job in ["10.srv", "11.srv"] {
        place.end(job);
    }
    assert_eq!((told(&map), told(&stat)), (Vec::new(), Vec::new()));
    place.assert_as_before("lines that could not be taken out");
}
