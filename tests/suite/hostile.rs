//! What a hostile user may try, and what holds it. THREAT-MODEL.md names these tests.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tests::double::copy_program;
use tests::double::look::{self, wait_until};
use tests::figures;
use tests::fuse::Hung;
use tests::place::{Place, Running, fast, kill};
use tests::scarcity::{Older, Small, alone};
use tests::stage::{OTHER_USER, USER, as_user, finish};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
const THREE: [&str; 3] = ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// A node with job `job` in service.
fn served(job: &str) -> Place {
    let place = Place::new(fast(1), CONFIG);
    let ran = place.torque(job, ACCOUNT, "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place
}

/// A process of the user that has nothing to do with MPS, with these variables; it is killed with the guard.
struct Bystander(Running);

impl Bystander {
    fn run(program: &Path, env: &[(&str, &Path)]) -> Self {
        let mut command = as_user(USER, program);
        command.arg("60").env_clear().envs(env.iter().copied());
        let child = command.stdin(Stdio::null()).spawn().expect("bystander");
        // setpriv becomes the program in place.
        let pid = child.id();
        assert!(wait_until(Duration::from_secs(30), || {
            look::process(pid).is_some_and(|p| p.uid != 0 && !p.exe.ends_with("setpriv"))
        }));
        Self(Running(child))
    }

    fn lives(&self) -> bool {
        look::alive(self.0.0.id())
    }
}

/// A tree of root's with one file that nothing may touch.
fn treasure(place: &Place) -> (PathBuf, impl Fn() -> String) {
    let dir = place.stage.path("treasure");
    fs::create_dir(&dir).expect("directory");
    fs::write(dir.join("file"), "gold").expect("file");
    let file = dir.join("file");
    let look = move || {
        let about = file.metadata().expect("the treasure is there");
        let text = fs::read_to_string(&file).expect("text");
        format!("{text} {:o} {} {}", about.mode(), about.uid(), about.nlink())
    };
    (dir, look)
}

#[test]
fn links_fifos_and_deep_trees_in_the_jobs_directories_lead_nowhere() {
    let place = served("80.srv");
    let (dir, look) = treasure(&place);
    let before = look();
    let job = place.stage.job("80.srv");
    for into in ["pipe", "log"] {
        let into = job.join(into);
        symlink(&dir, into.join("link")).expect("symlink");
        symlink("/", into.join("root")).expect("symlink");
        symlink("loop", into.join("loop")).expect("symlink");
        fs::hard_link(dir.join("file"), into.join("hard")).expect_err("a hard link into another file system");
        fs::write(into.join("own"), "").expect("file");
        fs::hard_link(into.join("own"), into.join("hard")).expect("hard link");
        nix::unistd::mkfifo(&into.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("fifo");
        let mut deep = into.join("deep");
        for _ in 0..60 {
            deep = deep.join("d");
        }
        fs::create_dir_all(&deep).expect("deep");
        symlink(&dir, deep.join("link")).expect("symlink");
        fs::set_permissions(into.join("deep"), fs::Permissions::from_mode(0o000)).expect("chmod");
    }
    place.assert_ends_clean("80.srv", "links, FIFOs, deep trees");
    assert_eq!(look(), before);
    fs::remove_dir_all(dir).expect("remove");
}

/// Nobody but root can put one there; a mistake of root's, or a hole, is to cost no more than the job.
#[test]
fn a_symlink_in_the_jobs_directory_is_not_followed() {
    let place = served("79.srv");
    let (dir, look) = treasure(&place);
    let before = (look(), dir.metadata().expect("directory").uid());
    let pipe = place.stage.job("79.srv").join("pipe");
    for at in place.stage.mounts() {
        nix::mount::umount2(&at, nix::mount::MntFlags::MNT_DETACH).expect("unmounted");
    }
    fs::rename(&pipe, pipe.with_extension("old")).expect("rename");
    symlink(&dir, &pipe).expect("symlink");
    let end = place.strict_end("79.srv");
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!((look(), dir.metadata().expect("directory").uid()), before);
    // And before the job begins.
    fs::create_dir(place.stage.job("79.srv")).expect("directory");
    fs::set_permissions(place.stage.job("79.srv"), fs::Permissions::from_mode(0o711)).expect("chmod");
    symlink(&dir, &pipe).expect("symlink");
    let ran = place.torque("79.srv", ACCOUNT, "0");
    assert!(
        ran.code == Some(2) && ran.err.contains("is a symbolic link"),
        "{ran:?}"
    );
    assert_eq!((look(), dir.metadata().expect("directory").uid()), before);
    place.take_drains();
    fs::remove_dir_all(dir).expect("remove");
    place.assert_as_before("a link in the place of a directory");
}

#[test]
fn swapping_a_directory_for_a_link_during_the_epilogue_leads_nowhere() {
    for round in 0..6 {
        let place = served("81.srv");
        let (dir, look) = treasure(&place);
        let before = look();
        let pipe = place.stage.job("81.srv").join("pipe");
        let (inner, link) = (pipe.join("inner"), pipe.join("link"));
        for n in 0..200 {
            fs::create_dir_all(inner.join(format!("{n}"))).expect("directory");
        }
        symlink(&dir, &link).expect("symlink");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let spare = pipe.join("spare");
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs::rename(&inner, &spare);
                    let _ = fs::rename(&link, &inner);
                    let _ = fs::rename(&inner, &link);
                    let _ = fs::rename(&spare, &inner);
                }
            });
            let end = place.stage.torque_end("81.srv");
            stop.store(true, Ordering::Relaxed);
            assert_eq!(end.code, Some(0), "{end:?}");
        });
        assert_eq!(look(), before, "round {round}");
        place.assert_ends_clean("81.srv", "swapping");
        fs::remove_dir_all(dir).expect("remove");
    }
}

#[test]
fn planted_pids_and_sockets_get_nobody_killed() {
    let place = served("82.srv");
    let bystander = Bystander::run(Path::new("/bin/sleep"), &[]);
    let pipe = place.stage.job("82.srv").join("pipe");
    fs::write(
        pipe.join("nvidia-cuda-mps-control.pid"),
        bystander.0.0.id().to_string(),
    )
    .expect("pid file");
    // A socket that takes every conversation and never answers.
    for name in ["control", "control_privileged"] {
        fs::remove_file(pipe.join(name)).expect("the socket is there");
    }
    let deaf: Vec<UnixListener> = ["control", "control_privileged"]
        .iter()
        .map(|name| UnixListener::bind(pipe.join(name)).expect("socket"))
        .collect();
    place.assert_ends_clean("82.srv", "planted pids and sockets");
    assert!(bystander.lives());
    drop(deaf);
}

#[test]
fn a_process_that_merely_carries_our_variables_or_name_is_not_ours() {
    let place = served("83.srv");
    let pipe = place.stage.job("83.srv").join("pipe");
    // The vendor's name on another file, in a place of the user's.
    let named = place.stage.path("own");
    fs::create_dir(&named).expect("directory");
    fs::set_permissions(&named, fs::Permissions::from_mode(0o755)).expect("chmod");
    let copy = named.join(THREE[1]);
    copy_program(Path::new("/bin/sleep"), &copy).expect("copy");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("chmod");
    let carries = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_path())];
    let two = [
        Bystander::run(Path::new("/bin/sleep"), &carries),
        Bystander::run(&copy, &carries),
    ];
    place.assert_ends_clean("83.srv", "processes with our variables");
    assert!(two.iter().all(Bystander::lives));
}

/// An upgrade lays new files under the vendor's names while a job runs; its user runs one of them with the job's pipe directory.
#[test]
fn only_the_very_files_that_a_job_began_with_are_its_own() {
    let place = Place::without_cgroup(fast(1), CONFIG);
    let ran = place.torque("94.srv", ACCOUNT, "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let control = place.stage.node.control();
    let pipe = place.stage.job("94.srv").join("pipe");
    // A session that waits for its commands.
    let session = || {
        let mut command = as_user(USER, &control);
        command.env_clear().env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        let session = Running(command.spawn().expect("session"));
        let runs = || look::process(session.0.id()).is_some_and(|p| p.exe == control);
        assert!(wait_until(Duration::from_secs(30), runs));
        session
    };
    let mut of_the_job = session();
    let upgrade = control.with_extension("new");
    copy_program(&control, &upgrade).expect("copy");
    fs::rename(&upgrade, &control).expect("rename");
    let mut of_another = session();
    let end = place.strict_end("94.srv");
    assert_eq!(end.code, Some(0), "{end:?}");
    let ended = |running: &mut Running| running.0.try_wait().is_ok_and(|end| end.is_some());
    assert!(ended(&mut of_the_job), "{end:?}");
    assert!(!ended(&mut of_another), "{end:?}");
    drop((of_the_job, of_another));
    place.assert_as_before("an upgrade under a job");
}

#[test]
fn a_stranger_reaches_no_pipe_and_nobody_lists_the_jobs() {
    let place = served("84.srv");
    let job = place.stage.job("84.srv");
    for name in ["pipe", "log"] {
        let about = job.join(name).metadata().expect("directory");
        assert_eq!(about.mode() & 0o7777, 0o700, "{name}");
        assert_ne!(about.uid(), 0, "{name}");
    }
    let ls = |user: &str, path: &Path| {
        let mut command = as_user(user, "/bin/ls");
        command.arg(path);
        finish(command).code
    };
    assert_ne!(ls(OTHER_USER, &job.join("pipe")), Some(0));
    assert_ne!(ls(USER, &place.stage.path("run/jobs")), Some(0));
    assert_eq!(ls(USER, &job.join("pipe")), Some(0), "its owner does");
    // The vendor's own program, run by the stranger against the job's pipe.
    let mut quit = as_user(OTHER_USER, place.stage.node.control());
    quit.env("CUDA_MPS_PIPE_DIRECTORY", job.join("pipe"));
    quit.stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = quit.spawn().expect("control");
    let mut input = child.stdin.take().expect("stdin");
    let _ = input.write_all(b"quit\n");
    drop(input);
    assert!(wait_until(Duration::from_secs(30), || child
        .try_wait()
        .is_ok_and(|s| s.is_some())));
    assert_eq!(place.pids(THREE[1]).len(), 1, "the daemon lives");
    // Nor can the owner put another directory in the place of theirs.
    let mut away = as_user(USER, "/bin/mv");
    away.arg(job.join("pipe")).arg(job.join("elsewhere"));
    assert_ne!(finish(away).code, Some(0));
    place.assert_ends_clean("84.srv", "a stranger");
}

#[test]
fn the_users_log_is_bounded_and_without_escapes_whatever_the_vendors_says() {
    let place = served("85.srv");
    let mpsd = place.pids("mpsd")[0];
    let log = place.stage.job("85.srv").join("log");
    let mut control = fs::OpenOptions::new()
        .append(true)
        .open(log.join("control.log"))
        .expect("control.log");
    let before = resident_kb(mpsd);
    // 24 MB without a line's end, then what looks like events, with escapes and bytes that are no text.
    for _ in 0..24 {
        control.write_all(&vec![b'x'; 1 << 20]).expect("write");
    }
    control
        .write_all(b"\n[x] Failed to start server \x1b]0;owned\x07\x1b[2J\xff\xfe\n[x] Server 1 exited with status 7\n")
        .expect("write");
    let seen = || fs::read(log.join("mpsd.log")).unwrap_or_default();
    assert!(wait_until(Duration::from_secs(30), || {
        String::from_utf8_lossy(&seen()).contains("status 7")
    }));
    let text = seen();
    assert!(text.len() < 4096, "{} bytes", text.len());
    assert!(
        !text.iter().any(|b| *b < b' ' && *b != b'\n') && std::str::from_utf8(&text).is_ok(),
        "{:?}",
        String::from_utf8_lossy(&text)
    );
    assert!(
        resident_kb(mpsd) < before + 4096,
        "{} kB, was {before}",
        resident_kb(mpsd)
    );
    place.assert_ends_clean("85.srv", "a hostile log");
}

fn resident_kb(pid: u32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn stopped_processes_do_not_stop_the_epilogue() {
    let place = served("89.srv");
    for name in THREE {
        for pid in place.pids(name) {
            kill(pid, nix::sys::signal::Signal::SIGSTOP);
        }
    }
    let began = std::time::Instant::now();
    place.assert_ends_clean("89.srv", "all three stopped");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_server_that_hangs_in_a_file_system_of_its_users_is_not_the_nodes_fault() {
    alone(|| {
        let mut place = Place::new(fast(1), "deadline_s = 4\n");
        let at = place.stage.path("fuse");
        fs::create_dir(&at).expect("directory");
        // Nothing but a mount namespace of this thread's own is wanted of it.
        let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
        let uid = nix::unistd::User::from_name(USER)
            .expect("users")
            .expect("user")
            .uid;
        let hung = match Hung::over_for_all(&at, uid.as_raw()) {
            Ok(hung) => hung,
            Err(why) => return println!("not tried here, this machine has no FUSE: {why}"),
        };
        let file = at.join(tests::fuse::FILE).display().to_string();
        place.stage.node.change(|d| d.faults.server_opens = file);
        let ran = place.torque("89.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(wait_until(Duration::from_secs(30), || hung.holds_somebody()));
        let end = place.strict_end("89.srv");
        assert_eq!(end.code, Some(2), "it is there still: {end:?}");
        assert!(end.err.contains("state D after"), "{end:?}");
        place.assert_not_drained("a server in a user's file system");
        drop(hung);
        place.assert_ends_clean("89.srv", "a file system that was taken away");
        figures::tell("faults", 1);
    });
}

/// A directory with FUSE over it, seen by this thread and what it starts; none where this machine has no FUSE.
fn over(
    place: &Place,
    name: &str,
    mount: impl Fn(&Path, u32) -> std::io::Result<Hung>,
) -> Option<(PathBuf, Hung)> {
    let at = place.stage.path(name);
    fs::create_dir_all(&at).expect("directory");
    let uid = nix::unistd::User::from_name(USER)
        .expect("users")
        .expect("user")
        .uid;
    match mount(&at, uid.as_raw()) {
        Ok(hung) => Some((at, hung)),
        Err(why) => {
            println!("not tried here, this machine has no FUSE: {why}");
            None
        }
    }
}

/// A process of the user's that runs the vendor's file with the job's pipe directory, and hangs with the lock of its memory
/// map held: whoever reads its environment hangs as well.
fn hide(place: &Place, at: &Path, hung: &Hung, job: &str) -> Running {
    let mut command = as_user(USER, place.stage.node.control());
    command
        .env_clear()
        .env("FAKE_MPS_HANGS_IN", at.join(tests::fuse::FILE))
        .env("CUDA_MPS_PIPE_DIRECTORY", place.stage.job(job).join("pipe"));
    let hidden = Running(command.stdin(Stdio::null()).spawn().expect("a process"));
    assert!(wait_until(Duration::from_secs(30), || hung.holds_somebody()));
    hidden
}

/// The timer looks for the processes of Slurm's steps: a user's with such a name is not read.
#[test]
fn a_process_by_the_name_of_a_slurmstepd_holds_no_reconcile() {
    alone(|| {
        let place = Place::without_cgroup(fast(1), CONFIG);
        let Some((at, hung)) = over(&place, "fuse", Hung::over_writes) else {
            return;
        };
        let slurm = place.stage.path("slurm");
        fs::create_dir_all(&slurm).expect("directory");
        for (name, text) in [
            ("scontrol", ""),
            ("squeue", "case $2 in -s) ;; *) echo '4711|4711' ;; esac"),
        ] {
            fs::write(slurm.join(name), format!("#!/bin/sh\n{text}\n")).expect("command");
            fs::set_permissions(slurm.join(name), fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        place.configure(&format!("{CONFIG}[slurm]\nexec = \"{}\"\n", slurm.display()));
        let asked = ["4711", USER, "nogroup", "j", "r", "q", "MPS=maybe"];
        let options = ["--scheduler", "torque", "--record", "--gpus", "0"];
        let refused = place.stage.prologue(&[&options[..], &asked].concat(), &[]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let stepd = place.stage.path("slurmstepd");
        copy_program(&place.stage.node.control(), &stepd).expect("a copy");
        let mut command = as_user(USER, &stepd);
        command
            .env_clear()
            .env("FAKE_MPS_HANGS_IN", at.join(tests::fuse::FILE));
        let named = Running(command.stdin(Stdio::null()).spawn().expect("a process"));
        assert!(wait_until(Duration::from_secs(30), || hung.holds_somebody()));
        let file = |name: &str| format!("/proc/{}/{name}", named.0.id());
        assert_eq!(fs::read_to_string(file("comm")).expect("comm"), "slurmstepd\n");
        assert!(!can_be_read(&file("cmdline")), "it holds no lock");
        let mut command = std::process::Command::new(place.stage.program("mpsctl"));
        command
            .arg("--config")
            .arg(place.stage.config())
            .args(["reconcile", "--node", "gpu001"]);
        command.env_clear().stdout(Stdio::piped());
        let mut reconcile = Running(command.spawn().expect("mpsctl"));
        let ended = wait_until(Duration::from_secs(20), || {
            reconcile.0.try_wait().is_ok_and(|status| status.is_some())
        });
        drop(hung);
        drop(named);
        assert!(ended, "it reads what a user's process holds");
        let mut said = String::new();
        let out = reconcile.0.stdout.as_mut().expect("its output");
        std::io::Read::read_to_string(out, &mut said).expect("its output");
        assert!(said.contains("job 4711: its scheduler has it here"), "{said}");
    });
}

/// Whether `cat FILE` ends within a second.
fn can_be_read(file: &str) -> bool {
    let mut cat = Running(
        std::process::Command::new("/bin/cat")
            .arg(file)
            .stdout(Stdio::null())
            .spawn()
            .expect("cat"),
    );
    wait_until(Duration::from_secs(1), || {
        cat.0.try_wait().is_ok_and(|s| s.is_some())
    })
}

#[test]
fn a_process_that_nobody_can_look_at_keeps_nothing_from_its_end() {
    for cgroup in [true, false] {
        alone(|| {
            let made = if cgroup { Place::new } else { Place::without_cgroup };
            let place = made(fast(1), CONFIG);
            let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
            let ran = place.torque("90.srv", ACCOUNT, "0");
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert_eq!(place.stage.node.modes(), ["exclusive_process"]);
            let Some((at, hung)) = over(&place, "fuse", Hung::over_writes) else {
                return;
            };
            let hidden = hide(&place, &at, &hung, "90.srv");
            let pid = hidden.0.id();
            assert!(!can_be_read(&format!("/proc/{pid}/environ")), "it holds no lock");
            for file in ["stat", "status", "cgroup"] {
                assert!(can_be_read(&format!("/proc/{pid}/{file}")), "{file}");
            }
            let others = || {
                THREE
                    .iter()
                    .flat_map(|name| place.pids(name))
                    .filter(|p| *p != pid)
                    .count()
            };
            assert_eq!(others(), 3);
            let end = place.strict_end("90.srv");
            assert_eq!(end.code, Some(0), "cgroup {cgroup}: {end:?}");
            assert!(end.took < Duration::from_secs(6), "cgroup {cgroup}: {end:?}");
            assert_eq!(others(), 0, "cgroup {cgroup}: {end:?}");
            assert_eq!(place.stage.node.modes(), ["default"], "cgroup {cgroup}: {end:?}");
            // The user's next job, and what the timer does.
            let ran = place.torque("91.srv", ACCOUNT, "0");
            assert_eq!(ran.code, Some(0), "cgroup {cgroup}: {ran:?}");
            let ran = place.stage.run("mpsctl", &["reconcile", "--node", "gpu001"], &[]);
            assert!(ran.took < Duration::from_secs(10), "cgroup {cgroup}: {ran:?}");
            assert_eq!(place.strict_end("91.srv").code, Some(0), "cgroup {cgroup}");
            place.assert_not_drained("a process that nobody can look at");
            drop(hung);
            drop(hidden);
            place.assert_as_before("a process that nobody can look at");
            figures::tell("faults", 1);
        });
    }
}

#[test]
fn a_file_system_mounted_in_the_pipe_directory_is_no_litter_and_a_requeued_job_starts() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
        let (dir, look) = treasure(&place);
        let before = look();
        for round in 0..2 {
            let ran = place.torque("92.srv", ACCOUNT, "0");
            assert_eq!(ran.code, Some(0), "round {round}: {ran:?}");
            let Some((pipe, hung)) = over(&place, "run/jobs/92.srv/pipe/deep/fuse", Hung::over) else {
                return;
            };
            let log = over(&place, "run/jobs/92.srv/log", Hung::over);
            let bound = pipe.parent().expect("parent").join("bound");
            fs::create_dir(&bound).expect("directory");
            let bind = nix::mount::MsFlags::MS_BIND;
            nix::mount::mount(Some(&dir), &bound, None::<&str>, bind, None::<&str>).expect("bind mount");
            let end = place.strict_end("92.srv");
            assert_eq!(end.code, Some(0), "round {round}: {end:?}");
            assert!(!place.stage.job("92.srv").exists(), "round {round}");
            let mounts = fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
            assert!(!mounts.contains("92.srv"), "round {round}: {mounts}");
            assert_eq!(look(), before, "round {round}");
            drop((hung, log));
        }
        fs::remove_dir_all(dir).expect("remove");
        place.assert_as_before("file systems in the job's directories");
    });
}

/// What an end says of a directory that it cannot remove.
const CANNOT_CLEAN: &str = "cannot clean the user's directory";

/// From now on `job` gets no file systems of its own: a namespace is kept for it.
fn unbounded(place: &Place, job: &str) -> Older {
    let mut older = Older::start();
    older.keep_for(&place.stage.path("containers"), job);
    older
}

/// A process of the user's that keeps the lock of `what`: it lists or writes it, as `how` says, with memory that the user's file system
/// withholds. That goes first: until then nothing ends the process. `None`: this machine has no FUSE.
fn keep(place: &Place, how: &str, what: &Path) -> Option<(Hung, Running)> {
    let (at, hung) = over(place, "fuse", Hung::over_reads)?;
    let mut command = as_user(USER, place.stage.node.control());
    command.env_clear().env(how, what);
    command.env("FAKE_MPS_HANGS_IN", at.join(tests::fuse::FILE));
    let holder = Running(command.stdin(Stdio::null()).spawn().expect("a process"));
    assert!(wait_until(Duration::from_secs(30), || hung.holds_somebody()));
    Some((hung, holder))
}

/// A user's process lists the pipe directory into memory that the user's file system withholds: the directory is locked. Where the job's
/// directories have file systems of their own, root removes them without that lock.
#[test]
fn a_directory_whose_lock_its_user_keeps_holds_nobody() {
    for bounded in [true, false] {
        alone(|| {
            let place = Place::new(fast(2), CONFIG);
            let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
            let _older = (!bounded).then(|| unbounded(&place, "96.srv"));
            let ran = place.torque("96.srv", ACCOUNT, "0");
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let pipe = place.stage.job("96.srv").join("pipe");
            let Some(kept) = keep(&place, "FAKE_MPS_LISTS", &pipe) else {
                return;
            };
            // Its output is read to the end, as a scheduler reads it.
            let end = place.strict_end("96.srv");
            assert!(end.took < Duration::from_secs(9), "{end:?}");
            let holder_only = [vec![], vec![kept.1.0.id()], vec![]];
            assert_eq!(THREE.map(|name| place.pids(name)), holder_only, "{end:?}");
            assert_eq!(place.stage.node.modes(), ["default", "default"]);
            // The same job again, what the timer does, and somebody else's job.
            let ran = place.torque("96.srv", ACCOUNT, "0");
            if bounded {
                assert_eq!((end.code, ran.code), (Some(0), Some(0)), "{end:?} {ran:?}");
            } else {
                assert!(end.code == Some(2) && end.err.contains(CANNOT_CLEAN), "{end:?}");
                let late = ran.took >= Duration::from_secs(10);
                assert!(ran.code == Some(2) && !late, "{ran:?}");
            }
            let ran = place.stage.run("mpsctl", &["reconcile", "--node", "gpu001"], &[]);
            assert!(ran.took < Duration::from_secs(15), "{ran:?}");
            let ran = place.torque("97.srv", ACCOUNT, "1");
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert_eq!(place.strict_end("97.srv").code, Some(0));
            place.assert_not_drained("a directory that its user keeps");
            drop(kept);
            place.assert_ends_clean("96.srv", "a directory that its user let go");
        });
    }
}

/// A user's process writes to the control daemon's log what the user's file system withholds: the daemon writes there as it ends.
#[test]
fn a_daemon_whose_log_its_user_keeps_is_told_by_the_exit_code_and_ends_with_that() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
        let ran = place.torque("99.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let log = place.stage.job("99.srv").join("log/control.log");
        let Some(kept) = keep(&place, "FAKE_MPS_WRITES", &log) else {
            return;
        };
        let end = place.strict_end("99.srv");
        assert_eq!(end.code, Some(2), "{end:?}");
        assert!(
            end.took < Duration::from_secs(9) && end.err.contains("state D after"),
            "{end:?}"
        );
        let left = THREE.map(|name| place.pids(name).len());
        assert_eq!(left, [0, 2, 0], "the daemon, and who keeps it: {end:?}");
        assert_eq!(place.stage.node.modes(), ["default"]);
        place.assert_not_drained("a log that its user keeps");
        drop(kept);
        place.assert_ends_clean("99.srv", "a log that its user let go");
    });
}

/// A user's process writes to the file of the ranks' locks, which is its own, what the user's file system withholds.
#[test]
fn a_lock_file_of_ranks_that_its_user_keeps_holds_nobody() {
    for bounded in [true, false] {
        alone(|| {
            let node = fast(1).describe(|node| node.driver_version = "590.44.01".to_owned());
            let place = Place::new(node, CONFIG);
            let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
            let _older = (!bounded).then(|| unbounded(&place, "95.srv"));
            let ran = place.torque("95.srv", "MPS=true,MPS_SMS=16:32", "0");
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let ranks = mpsd_core::Paths::new(place.stage.path("run"), "/");
            let ranks = ranks
                .job(&mpsd_core::JobId::parse("95.srv").expect("a job"))
                .partitions_lock();
            let Some(kept) = keep(&place, "FAKE_MPS_WRITES", &ranks) else {
                return;
            };
            let end = place.strict_end("95.srv");
            assert!(end.took < Duration::from_secs(9), "{end:?}");
            let ran = place.torque("95.srv", ACCOUNT, "0");
            assert!(ran.took < Duration::from_secs(10), "{ran:?}");
            if bounded {
                assert_eq!((end.code, ran.code), (Some(0), Some(0)), "{end:?} {ran:?}");
            } else {
                assert!(end.code == Some(2) && end.err.contains(CANNOT_CLEAN), "{end:?}");
                assert_eq!(ran.code, Some(2), "{ran:?}");
            }
            place.assert_not_drained("a lock that its user keeps");
            drop(kept);
            place.assert_ends_clean("95.srv", "a lock that its user let go");
        });
    }
}

/// Whoever can list a directory can keep its lock.
#[test]
fn nobody_but_root_lists_what_root_must_change() {
    let place = served("98.srv");
    let cgroup = place.cgroups.as_ref().map(|base| base.join("98.srv"));
    let ours = ["run/jobs", "run/jobs/98.srv", "run/gpus"].map(|dir| place.stage.path(dir));
    for dir in ours.iter().chain(&cgroup) {
        let mode = dir.metadata().expect("directory").mode() & 0o7777;
        assert_eq!(mode & 0o044, 0, "{}: {mode:o}", dir.display());
    }
    place.assert_ends_clean("98.srv", "directories");
}

#[test]
fn directories_that_are_slow_to_remove_keep_no_gpu_from_its_mode() {
    alone(|| {
        const GPUS: usize = 16;
        const FILES: usize = 10_000;
        let place = Place::new(fast(GPUS), "deadline_s = 4\n");
        let _older = unbounded(&place, "95.srv");
        let all: Vec<String> = (0..GPUS).map(|gpu| gpu.to_string()).collect();
        let ran = place.torque("95.srv", "MPS=per-gpu", &all.join(","));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let job = place.stage.job("95.srv");
        let pipes: Vec<PathBuf> = (0..GPUS).map(|n| job.join(format!("pipe-{n}"))).collect();
        // A link is made in less time than a file.
        std::thread::scope(|scope| {
            for pipe in &pipes {
                scope.spawn(move || {
                    let first = pipe.join("0");
                    fs::write(&first, "").expect("file");
                    (1..FILES).for_each(|n| fs::hard_link(&first, pipe.join(n.to_string())).expect("link"));
                });
            }
        });
        let whole = |pipe: &&PathBuf| pipe.join((FILES - 1).to_string()).exists() && pipe.join("0").exists();
        let mut end = place.start_end("95.srv");
        let began = std::time::Instant::now();
        let restored = || place.stage.node.modes().iter().all(|mode| mode == "default");
        loop {
            let there = pipes.iter().filter(whole).count();
            if restored() {
                break;
            }
            // What was removed by then was removed before the modes were as before.
            assert_eq!(there, GPUS);
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(end.wait(), Some(0));
        assert!(
            began.elapsed() < Duration::from_secs(4 + 3),
            "{:?}",
            began.elapsed()
        );
        let finished = || place.strict_end("95.srv").code == Some(0);
        assert!((0..5).any(|_| finished()), "what is left is the next look's");
        place.assert_as_before("slow directories");
        place.assert_not_drained("slow directories");
    });
}

#[test]
fn a_start_that_its_user_stops_does_not_come_up_after_the_jobs_end() {
    let slow = fast(1).times(|t| t.server_ready = (1500, 1500));
    let place = Place::new(slow, "deadline_s = 20\n");
    let mut args = vec!["--wait", "started", "--record", "--gpus", "0"];
    args.extend(tests::stage::prologue_args("93.srv", ACCOUNT));
    let ran = place.stage.prologue(&args, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut stopped = Vec::new();
    assert!(wait_until(Duration::from_secs(30), || {
        stopped = place.pids("nvidia-cuda-mps-control");
        !stopped.is_empty()
    }));
    for pid in stopped.iter().chain(&place.pids("mpsd")) {
        kill(*pid, nix::sys::signal::Signal::SIGSTOP);
    }
    let end = place.strict_end("93.srv");
    for pid in &stopped {
        kill(*pid, nix::sys::signal::Signal::SIGCONT);
    }
    assert_eq!(end.code, Some(0), "{end:?}");
    std::thread::sleep(Duration::from_secs(2));
    place.assert_as_before("a start that its user stopped");
    place.assert_not_drained("a start that its user stopped");
}

/// Programs of ours that have not ended: after a call has returned, those that wait for somebody's lock.
fn stuck(place: &Place) -> usize {
    place.processes().iter().filter(|p| p.uid == 0).count()
}

/// The directory that a site names for the jobs' cgroups has the mode that mkdir(1) gives it: anybody may list it.
#[test]
fn a_strangers_lock_on_the_sites_cgroup_directory_holds_no_job() {
    alone(|| {
        let place = Place::new(fast(2), CONFIG);
        let Some(cgroups) = place.cgroups.clone() else {
            return println!("not tried here, this machine has no cgroups");
        };
        fs::set_permissions(&cgroups, fs::Permissions::from_mode(0o755)).expect("mode");
        let _hidden = Small::over(&place.stage.path("run"), 1024, 0o755);
        let ran = place.torque("60.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(cgroups.join("60.srv").exists());
        let Some(kept) = keep(&place, "FAKE_MPS_LISTS", &cgroups) else {
            return;
        };
        // One begins, and ends, without a cgroup; of the other only the empty cgroup stays.
        for _ in 0..3 {
            let ran = place.torque("61.srv", ACCOUNT, "1");
            assert!(
                ran.code == Some(0) && ran.took < Duration::from_secs(4),
                "{ran:?}"
            );
            let end = place.strict_end("61.srv");
            assert!(
                end.code == Some(0) && end.took < Duration::from_secs(4),
                "{end:?}"
            );
            let end = place.strict_end("60.srv");
            assert!(
                end.code == Some(2) && end.took < Duration::from_secs(4),
                "{end:?}"
            );
            assert!(end.err.contains("the job's cgroup stays"), "{end:?}");
            assert!(stuck(&place) <= 1, "{}", stuck(&place));
        }
        assert_eq!(place.stage.node.modes(), ["default", "default"]);
        let looked = place.stage.run("mpsctl", &["doctor", "--node", "gpu001"], &[]);
        assert!(looked.took < Duration::from_secs(20), "{looked:?}");
        let named = format!("WARN  '{}'", cgroups.display());
        assert!(looked.out.contains(&named), "{looked:?}");
        assert!(stuck(&place) <= 1, "{}", stuck(&place));
        place.assert_not_drained("a cgroup directory that a stranger keeps");
        drop(kept);
        assert!(wait_until(Duration::from_secs(5), || stuck(&place) == 0));
        place.assert_ends_clean("60.srv", "a cgroup directory that a stranger let go");
    });
}

/// Other exporters read these directories as users of their own, so that others may list them.
#[test]
fn a_strangers_lock_on_an_exporters_directory_holds_no_job() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let [map, stat] = ["map", "gpustat"].map(|name| place.stage.path(name));
        for dir in [&map, &stat] {
            fs::create_dir(dir).expect("directory");
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        let (shown_map, shown_stat) = (map.display(), stat.display());
        place.configure(&format!(
            "{CONFIG}[metrics]\ndcgm_job_map = \"{shown_map}\"\ngpustat = \"{shown_stat}\"\n"
        ));
        let Some(kept) = keep(&place, "FAKE_MPS_LISTS", &stat) else {
            return;
        };
        for _ in 0..3 {
            let ran = place.torque("62.srv", ACCOUNT, "0");
            assert!(
                ran.code == Some(0) && ran.took < Duration::from_secs(4),
                "{ran:?}"
            );
            assert_eq!(fs::read_to_string(map.join("0")).expect("told"), "62.srv\n");
            let end = place.strict_end("62.srv");
            assert!(end.took < Duration::from_secs(4), "{end:?}");
            assert_eq!(fs::read_dir(&map).expect("listed").count(), 0, "the other one's");
            assert_eq!(place.stage.node.modes(), ["default"]);
            assert!(stuck(&place) <= 1, "{}", stuck(&place));
        }
        place.assert_not_drained("an exporter's directory that a stranger keeps");
        let looked = place.stage.run("mpsctl", &["doctor", "--node", "gpu001"], &[]);
        for dir in [&map, &stat] {
            assert!(
                looked.out.contains(&format!("WARN  '{}'", dir.display())),
                "{looked:?}"
            );
        }
        drop(kept);
        assert!(wait_until(Duration::from_secs(5), || stuck(&place) == 0));
        place.assert_ends_clean("62.srv", "an exporter's directory that a stranger let go");
    });
}

/// A timer runs it each minute.
#[test]
fn a_strangers_lock_on_the_textfile_directory_leaves_one_process_at_most() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let dir = place.stage.path("textfile");
        fs::create_dir(&dir).expect("directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("mode");
        let Some(kept) = keep(&place, "FAKE_MPS_LISTS", &dir) else {
            return;
        };
        let write = || {
            let args = ["metrics", "--textfile", dir.to_str().expect("a path")];
            place.stage.run("mpsctl", &args, &[])
        };
        for _ in 0..3 {
            let ran = write();
            assert!(
                ran.code == Some(2) && ran.took < Duration::from_secs(9),
                "{ran:?}"
            );
            assert!(stuck(&place) <= 1, "{}", stuck(&place));
        }
        drop(kept);
        assert!(wait_until(Duration::from_secs(5), || stuck(&place) == 0));
        assert_eq!(write().code, Some(0));
        assert!(dir.join("mpsd.prom").exists());
    });
}
