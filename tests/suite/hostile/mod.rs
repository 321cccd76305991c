//! What a hostile user may try, and what stops it. THREAT-MODEL.md names these tests.

mod locks;
mod shared;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;
use tests::double::copy_program;
use tests::double::look::{self, wait_until};
use tests::figures;
use tests::fuse::{FILE, Hung};
use tests::node_bed::{NodeBed, Running, eventually, fast, kill};
use tests::run::{OTHER_USER, THREE, USER, as_user, chmod, finish, prologue_args, script, uid_of};
use tests::scarcity::{Small, alone};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

fn served(job: &str) -> NodeBed {
    NodeBed::with_job(fast(1), CONFIG, job, ACCOUNT, "0")
}

/// A process of the user's without MPS, with these variables.
fn bystander(program: &Path, env: &[(&str, &Path)]) -> Running {
    let mut command = as_user(USER, program);
    command.arg("60").env_clear().envs(env.iter().copied());
    let running = Running::start(command.stdin(Stdio::null()));
    // setpriv becomes the program in place.
    let is_it = |p: look::Process| p.uid != 0 && !p.exe.ends_with("setpriv");
    let runs = || look::process(running.pid()).is_some_and(is_it);
    eventually("the bystander runs", runs);
    running
}

/// A tree of root's, and the state of its file, which must not change.
fn treasure(bed: &NodeBed) -> (PathBuf, impl Fn() -> String) {
    let dir = bed.directory("treasure");
    fs::write(dir.join("file"), "gold").expect("file");
    let at = dir.clone();
    let look = move || {
        let about = at.join("file").metadata().expect("the treasure is there");
        let text = fs::read_to_string(at.join("file")).expect("text");
        let owner = at.metadata().expect("directory").uid();
        let (mode, uid, links) = (about.mode(), about.uid(), about.nlink());
        format!("{text} {mode:o} {uid} {links} {owner}")
    };
    (dir, look)
}

#[test]
fn planted_pids_and_sockets_get_nobody_killed() {
    let bed = served("82.srv");
    let mut bystander = bystander(Path::new("/bin/sleep"), &[]);
    let pipe = bed.job("82.srv").join("pipe");
    let pid = bystander.pid().to_string();
    fs::write(pipe.join("nvidia-cuda-mps-control.pid"), pid).expect("pid file");
    // Sockets that accept every connection and never answer.
    let deaf = ["control", "control_privileged"].map(|name| {
        fs::remove_file(pipe.join(name)).expect("the socket is there");
        UnixListener::bind(pipe.join(name)).expect("socket")
    });
    bed.assert_ends_clean("82.srv", "planted pids and sockets");
    assert!(!bystander.has_ended());
    drop(deaf);
}

#[test]
fn a_process_that_merely_carries_our_variables_or_name_is_not_ours() {
    let bed = served("83.srv");
    let pipe = bed.job("83.srv").join("pipe");
    // Another file under the vendor's name, in the user's own directory.
    let copy = bed.directory("own").join(THREE[1]);
    copy_program(Path::new("/bin/sleep"), &copy).expect("copy");
    chmod(&copy, 0o755);
    let carries = [("CUDA_MPS_PIPE_DIRECTORY", pipe.as_path())];
    let mut two = [Path::new("/bin/sleep"), &copy].map(|program| bystander(program, &carries));
    bed.assert_ends_clean("83.srv", "processes with our variables");
    assert!(two.iter_mut().all(|process| !process.has_ended()));
}

/// An upgrade replaces the vendor's files while a job runs. Its user runs a new one with the job's
/// pipe directory.
#[test]
fn only_the_very_files_that_a_job_began_with_are_its_own() {
    let bed = NodeBed::without_cgroup(fast(1), CONFIG);
    bed.begin("94.srv", ACCOUNT, "0");
    let control = bed.node.control();
    // A session that waits for its commands.
    let session = || {
        let mut command = as_user(USER, &control);
        command.env_clear().envs([bed.pipe("94.srv")]);
        let session = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::null()));
        let runs = || look::process(session.pid()).is_some_and(|p| p.exe == control);
        eventually("the session runs", runs);
        session
    };
    let mut of_the_job = session();
    let upgrade = control.with_extension("new");
    copy_program(&control, &upgrade).expect("copy");
    fs::rename(&upgrade, &control).expect("rename");
    let mut of_another = session();
    bed.end("94.srv");
    assert!(of_the_job.has_ended() && !of_another.has_ended());
    drop((of_the_job, of_another));
    bed.assert_as_before("an upgrade under a job");
}

/// A user who can list a directory can keep its lock.
#[test]
fn a_stranger_reaches_no_pipe_and_nobody_but_root_lists_what_root_must_change() {
    let bed = NodeBed::new(fast(2), "deadline_s = 20\n");
    bed.begin("84.srv", ACCOUNT, "1");
    bed.configure("deadline_s = 20\nshared_gpus = true\n");
    bed.torque_on_gpu_0("85.srv", "MPS=true").ok();
    let run = bed.path("run");
    let id = format!("{}-{}", uid_of(USER), bed.node.uuids()[0]);
    for mps in [bed.job("84.srv"), run.join("shared").join(&id)] {
        let [pipe, log] = ["pipe", "log"].map(|name| mps.join(name));
        for dir in [&pipe, &log] {
            let about = dir.metadata().expect("directory");
            assert_eq!(about.mode() & 0o7777, 0o700, "{}", dir.display());
            assert_ne!(about.uid(), 0, "{}", dir.display());
        }
        finish(as_user(USER, "/bin/ls").arg(&pipe)).ok();
        for (user, program, paths) in [
            (OTHER_USER, "/bin/ls", vec![pipe.clone()]),
            (OTHER_USER, "/bin/ls", vec![log]),
            // The owner cannot put another directory in its place either.
            (USER, "/bin/mv", vec![pipe, mps.join("other")]),
        ] {
            finish(as_user(user, program).args(paths)).complains("Permission denied");
        }
    }
    let lock = run.join(format!("shared/.{id}.lock"));
    finish(as_user(USER, "/bin/cat").arg(lock)).complains("Permission denied");
    let cgroup = bed.cgroups.as_ref().map(|base| base.join("84.srv"));
    let ours = ["jobs", "jobs/84.srv", "shared", "gpus"].map(|dir| run.join(dir));
    for dir in ours.iter().chain(&cgroup) {
        let mode = dir.metadata().expect("directory").mode() & 0o7777;
        assert_eq!(mode & 0o044, 0, "{}: {mode:o}", dir.display());
        finish(as_user(USER, "/bin/ls").arg(dir)).complains("Permission denied");
    }
    // The vendor's own program, run by the stranger against the job's pipe.
    let mut quit = as_user(OTHER_USER, bed.node.control());
    quit.envs([bed.pipe("84.srv")]).stdin(Stdio::piped());
    let mut session = Running::start(quit.stdout(Stdio::null()).stderr(Stdio::null()));
    let _ = session.0.stdin.take().expect("stdin").write_all(b"quit\n");
    session.wait();
    assert_eq!(bed.pids(THREE[1]).len(), 2, "the daemons live");
    bed.end("84.srv");
    bed.assert_ends_clean("85.srv", "a stranger");
}

/// With its memory map locked: a process that reads its environment hangs too.
fn hides_in(program: &Path, at: &Path, hung: &Hung, env: &[(String, String)]) -> Running {
    let mut command = as_user(USER, program);
    command
        .env_clear()
        .env("MPS_DOUBLE_HANGS_IN", at.join(FILE));
    command.envs(env.iter().map(|(k, v)| (k, v)));
    let hidden = Running::start(command.stdin(Stdio::null()));
    eventually("the process hangs", || hung.holds_somebody());
    hidden
}

fn can_be_read(pid: u32, file: &str) -> bool {
    let mut command = Command::new("/bin/cat");
    let mut cat = Running::silent(command.arg(format!("/proc/{pid}/{file}")));
    wait_until(Duration::from_secs(1), || cat.has_ended())
}

/// The timer looks for the processes of Slurm's steps, and does not read a user's process under
/// their name.
#[test]
fn a_process_by_the_name_of_a_slurmstepd_holds_no_reconcile() {
    alone(|| {
        let bed = NodeBed::without_cgroup(fast(1), CONFIG);
        let Some((at, hung)) = bed.hung("fuse", Hung::over_writes) else {
            return;
        };
        let slurm = bed.directory("slurm");
        script(&slurm.join("scontrol"), "");
        let running = "case $2 in -s) ;; *) echo '4711|4711' ;; esac";
        script(&slurm.join("squeue"), running);
        let exec = format!("exec = \"{}\"", slurm.display());
        bed.configure(&format!("{CONFIG}[slurm]\n{exec}\n"));
        bed.refused("4711", "MPS=maybe");
        let stepd = bed.path("slurmstepd");
        copy_program(&bed.node.control(), &stepd).expect("a copy");
        let named = hides_in(&stepd, &at, &hung, &[]);
        let comm = fs::read_to_string(format!("/proc/{}/comm", named.pid()));
        assert_eq!(comm.expect("comm"), "slurmstepd\n");
        assert!(!can_be_read(named.pid(), "cmdline"), "it holds no lock");
        let ran = bed.mpsctl(&["reconcile", "--node", "gpu001"]);
        drop((hung, named));
        ran.within(Duration::from_secs(20));
        ran.prints("job 4711: its scheduler has it here");
    });
}

#[test]
fn a_process_that_nobody_can_look_at_keeps_nothing_from_its_end() {
    for cgroup in [true, false] {
        alone(|| {
            let bed = match cgroup {
                true => NodeBed::new(fast(1), CONFIG),
                false => NodeBed::without_cgroup(fast(1), CONFIG),
            };
            let _hidden = Small::over(&bed.path("run"), 256, 0o755);
            bed.begin("90.srv", ACCOUNT, "0");
            assert_eq!(bed.node.modes(), ["exclusive_process"]);
            let Some((at, hung)) = bed.hung("fuse", Hung::over_writes) else {
                return;
            };
            let hidden = hides_in(&bed.node.control(), &at, &hung, &[bed.pipe("90.srv")]);
            let pid = hidden.pid();
            assert!(!can_be_read(pid, "environ"), "it holds no lock");
            for file in ["stat", "status", "cgroup"] {
                assert!(can_be_read(pid, file), "{file}");
            }
            let others = || -> Vec<u32> {
                let all = THREE.iter().flat_map(|name| bed.pids(name));
                all.filter(|other| *other != pid).collect()
            };
            assert_eq!(others().len(), 3);
            let end = bed.end("90.srv");
            end.within(Duration::from_secs(6));
            assert_eq!(others(), [0; 0], "cgroup {cgroup}: {end:?}");
            assert_eq!(bed.node.modes(), ["default"], "cgroup {cgroup}: {end:?}");
            // The user's next job, and the timer's work.
            bed.begin("91.srv", ACCOUNT, "0");
            let ran = bed.mpsctl(&["reconcile", "--node", "gpu001"]);
            ran.within(Duration::from_secs(10));
            bed.end("91.srv");
            drop((hung, hidden));
            bed.assert_as_before("a process that cannot be read");
            figures::tell("faults", 1);
        });
    }
}

#[test]
fn a_file_system_mounted_in_the_pipe_directory_is_no_litter_and_a_requeued_job_starts() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let _hidden = Small::over(&bed.path("run"), 256, 0o755);
        let (dir, look) = treasure(&bed);
        let before = look();
        for round in 0..2 {
            bed.begin("92.srv", ACCOUNT, "0");
            let Some((pipe, hung)) = bed.hung("run/jobs/92.srv/pipe/deep/fuse", Hung::over) else {
                return;
            };
            let log = bed.hung("run/jobs/92.srv/log", Hung::over);
            let bound = pipe.with_file_name("bound");
            fs::create_dir(&bound).expect("directory");
            let (none, bind) = (None::<&str>, MsFlags::MS_BIND);
            mount(Some(&dir), &bound, none, bind, none).expect("bind mount");
            bed.end("92.srv");
            assert!(!bed.job("92.srv").exists(), "round {round}");
            let mounts = fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
            assert!(!mounts.contains("92.srv"), "round {round}: {mounts}");
            assert_eq!(look(), before, "round {round}");
            drop((hung, log));
        }
        bed.assert_as_before("file systems in the job's directories");
    });
}

#[test]
fn a_start_that_its_user_stops_does_not_come_up_after_the_jobs_end() {
    let slow = fast(1).times(|t| t.server_ready = (1500, 1500));
    let bed = NodeBed::new(slow, "deadline_s = 20\n");
    let options = ["--wait", "started", "--record", "--gpus", "0"];
    let args = [&options, &prologue_args("93.srv", ACCOUNT)[..]].concat();
    bed.prologue(&args, &[]).ok();
    eventually("a control daemon", || !bed.pids(THREE[1]).is_empty());
    let stopped = bed.pids(THREE[1]);
    for pid in stopped.iter().chain(&bed.pids("mpsd")) {
        kill(*pid, Signal::SIGSTOP);
    }
    let end = bed.strict_end("93.srv");
    for pid in stopped {
        kill(pid, Signal::SIGCONT);
    }
    end.ok();
    std::thread::sleep(Duration::from_secs(2));
    bed.assert_as_before("a start that its user stopped");
}
