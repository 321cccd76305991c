//! Real SIGKILLs of real processes in every phase. After one epilogue the node is exactly as
//! before, and never drained.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::double::look::{self, wait_until};
use tests::figures;
use tests::node_bed::{NodeBed, Running, eventually, fast, kill};
use tests::run::{THREE, prologue_args, skip};

/// Long enough for every start, short enough for a test.
const SHORT: &str = "deadline_s = 3\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
/// How long a stepped process runs between two looks.
const STRIDE: Duration = Duration::from_micros(150);

fn begun(bed: &NodeBed, job: &str) -> Option<(usize, usize)> {
    let text = std::fs::read(bed.job(job).join("journal")).ok()?;
    let journal: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let all = journal["plan"]["effects"].as_array()?.len();
    Some((usize::try_from(journal["begun"].as_u64()?).ok()?, all))
}

/// A scan of all processes would take too long.
fn worker(parent: u32) -> Option<u32> {
    let own = look::process(parent)?.exe;
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.ok()?;
    let mut children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    children.find(|pid| look::process(*pid).is_some_and(|child| child.exe == own))
}

/// Lets the worker run in strides until `enough` or its end, and stops it while `enough` looks.
fn step_until(program: &mut Running, mut enough: impl FnMut(usize) -> bool) -> Option<u32> {
    // Root's programs have priority on a CPU, and so must the process that steps them.
    mpsd_sys::priority::raise();
    let parent = program.pid();
    let end = Instant::now() + Duration::from_secs(20);
    let mut found = None;
    while found.is_none() && program.0.try_wait().ok()?.is_none() && Instant::now() < end {
        found = worker(parent);
    }
    let pid = found?;
    for stride in 0.. {
        kill(pid, Signal::SIGSTOP);
        if program.0.try_wait().ok()?.is_some() || !look::alive(pid) {
            return None;
        }
        if enough(stride) {
            return Some(pid);
        }
        kill(pid, Signal::SIGCONT);
        std::thread::sleep(STRIDE);
        assert!(Instant::now() < end, "it does not end, stride by stride");
    }
    None
}

/// Kills the prologue once its journal has `at` begun effects, and returns how many it has
/// afterwards.
fn kill_prologue(bed: &NodeBed, job: &str, at: usize, whole: bool, later: bool) -> Option<usize> {
    let mut program = bed.start_torque(job, ACCOUNT, "0");
    let pid = step_until(&mut program, |_| begun(bed, job).map_or(0, |b| b.0) >= at)?;
    // The guard takes its worker along.
    let target = if whole { program.pid() } else { pid };
    kill(target, Signal::SIGKILL);
    // A worker that was not yet tied to its guard notices the guard's death when it continues.
    kill(pid, Signal::SIGCONT);
    let code = program.wait();
    assert_eq!(code, (!whole).then_some(2), "what a scheduler sees");
    eventually("the worker ends with its guard", || !look::alive(pid));
    let state = begun(bed, job).map_or(0, |b| b.0);
    if later {
        std::thread::sleep(Duration::from_millis(60));
    }
    Some(state)
}

fn prologue_matrix(bed: &NodeBed) {
    bed.begin("20.srv", ACCOUNT, "0");
    let (_, all) = begun(bed, "20.srv").expect("journal");
    assert_eq!(bed.node.modes(), ["exclusive_process"]);
    bed.assert_ends_clean("20.srv", "a whole job");
    let mut seen: BTreeMap<usize, u32> = BTreeMap::new();
    for round in 0..4 {
        for at in 0..=all {
            let job = format!("{}.srv", 100 + round * 10 + at);
            let (whole, later) = (round % 2 == 0, round >= 2);
            if let Some(state) = kill_prologue(bed, &job, at, whole, later) {
                *seen.entry(state).or_default() += 1;
            }
            let after = format!("a prologue killed at {at} of {all}, {whole} {later}");
            bed.assert_ends_clean(&job, &after);
        }
    }
    println!("prologues killed, by effects begun: {seen:?}");
    // Each state of the journal was hit.
    assert!(seen.keys().copied().eq(0..=all), "{seen:?}");
    figures::tell("real_kills", seen.values().sum::<u32>().into());
}

#[test]
fn a_prologue_killed_at_every_state_of_the_journal() {
    prologue_matrix(&NodeBed::new(fast(1), SHORT));
}

#[test]
fn the_same_on_a_node_without_cgroups() {
    prologue_matrix(&NodeBed::without_cgroup(fast(1), SHORT));
}

#[test]
fn an_epilogue_killed_in_every_phase_is_finished_by_the_next() {
    let bed = NodeBed::new(fast(1), SHORT);
    let mut killed = 0;
    let mut stride = 0;
    loop {
        let job = format!("{}.srv", 200 + stride);
        bed.begin(&job, ACCOUNT, "0");
        let mut program = bed.start_end(&job);
        let hit = step_until(&mut program, |now| now >= stride);
        if let Some(worker) = hit {
            kill(program.pid(), Signal::SIGKILL);
            kill(worker, Signal::SIGCONT);
            killed += 1;
        }
        program.wait();
        bed.assert_ends_clean(&job, &format!("an epilogue killed after {stride} strides"));
        if hit.is_none() {
            break;
        }
        stride += 1 + stride / 6;
    }
    assert!(killed >= 5, "only {killed} epilogues were killed");
    figures::tell("real_kills", killed);
}

fn strike(bed: &NodeBed, name: &str, signal: Signal) -> bool {
    let pids = bed.pids(name);
    for pid in &pids {
        kill(*pid, signal);
    }
    !pids.is_empty()
}

#[test]
fn whatever_a_user_does_to_the_three_is_not_the_nodes_fault() {
    let slow = fast(1).times(|t| {
        t.start = 60;
        t.server_ready = (250, 250);
        t.server_exit = 150;
    });
    let bed = NodeBed::new(slow, SHORT);
    let mut struck = 0;
    let both = |name| [Signal::SIGKILL, Signal::SIGSTOP].map(|signal| (name, signal));
    for (name, signal) in THREE.into_iter().flat_map(both) {
        let after = format!("{signal} to {name}");
        let mut start = bed.start_torque("40.srv", ACCOUNT, "0");
        let strikes = || strike(&bed, name, signal);
        assert!(wait_until(Duration::from_secs(2), strikes), "{after}");
        // A killed server's first client starts it again. In all other cases the job has no MPS.
        let code = start.wait();
        assert!(code == Some(2) || code == Some(0), "{after}: {code:?}");
        bed.assert_ends_clean("40.srv", &format!("{after} while it starts"));

        bed.begin("41.srv", ACCOUNT, "0");
        assert!(strike(&bed, name, signal), "{after} while it serves");
        bed.assert_ends_clean("41.srv", &format!("{after} while it serves"));
        struck += 2;

        for pause in [5, 60] {
            bed.begin("42.srv", ACCOUNT, "0");
            let mut end = bed.start_end("42.srv");
            std::thread::sleep(Duration::from_millis(pause));
            struck += u64::from(strike(&bed, name, signal));
            let after = format!("{after} {pause} ms after the epilogue began");
            assert_eq!(end.wait(), Some(0), "{after}");
            bed.assert_ends_clean("42.srv", &after);
        }
    }
    bed.begin("41.srv", ACCOUNT, "0");
    for name in THREE {
        strike(&bed, name, Signal::SIGSTOP);
    }
    bed.assert_ends_clean("41.srv", "all three stopped");
    figures::tell("real_kills", struck + 3);
}

/// If the mode were restored too early, another job could begin on the GPU while this job's daemons
/// are still ending.
#[test]
fn a_gpu_has_its_mode_back_only_when_the_jobs_processes_have_ended() {
    let stubborn = fast(1).fault(|f| {
        f.refuse_quit = true;
        f.ignore_sigterm = true;
        f.server_survives_sigterm = true;
    });
    let bed = NodeBed::with_job(stubborn, SHORT, "31.srv", ACCOUNT, "0");
    let mut end = bed.start_end("31.srv");
    let mut looks = 0;
    // Reads the mode first: a process that is alive afterwards was alive then.
    while bed.node.modes() == ["exclusive_process"] {
        looks += 1;
        std::thread::sleep(Duration::from_millis(5));
        assert!(looks < 4000, "it is never restored");
    }
    let left: Vec<u32> = THREE.iter().flat_map(|name| bed.pids(name)).collect();
    assert_eq!(left, [0; 0], "the mode is restored before they have ended");
    assert_eq!(end.wait(), Some(0));
    bed.assert_as_before("daemons that take their time");
}

/// qsub and Torque's daemons wait until everything that they opened for the prologue is closed.
#[test]
fn a_start_that_goes_on_alone_keeps_nothing_of_its_caller_open() {
    let slow = fast(1).times(|t| t.server_ready = (4000, 4000));
    let bed = NodeBed::new(slow, "deadline_s = 20\n");
    let shell = ["/bin/sh", "-c", "exec \"$@\" 9>&1 >/dev/null 2>&1", "sh"];
    let mut command = bed.command_by(&shell, "mps-prologue");
    command.args(["--wait", "started", "--record", "--gpus", "0"]);
    command.args(prologue_args("32.srv", ACCOUNT));
    let mut start = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let inherited = start.0.stdout.take().expect("a pipe");
    assert_eq!(start.wait(), Some(0));
    let returned = Instant::now();
    std::io::read_to_string(inherited).expect("its end");
    let waited = returned.elapsed();
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert!(bed.job("32.srv").exists());
    bed.assert_ends_clean("32.srv", "a start that goes on alone");
}

/// With `leftover_clients = "kill"` root kills a user's process. It must belong to the job, by the
/// scheduler's cgroup.
#[test]
fn a_client_that_stays_is_killed_only_where_the_site_says_so_and_the_job_owns_it() {
    for (rule, killed) in [("report", false), ("kill", true)] {
        let config = format!("{SHORT}compute_mode = \"keep\"\nleftover_clients = \"{rule}\"\n");
        let bed = NodeBed::new(fast(1), &config);
        let Some(cgroups) = &bed.cgroups else {
            return skip("suite, clients that stay", "no cgroups");
        };
        bed.begin("33.srv", ACCOUNT, "0");
        // Outside MPS, so nothing else ends them.
        let outside = [("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")];
        let its_own = bed.attached("33.srv", &["--hold", "30"], &outside);
        let another = bed.attached("33.srv", &["--hold", "30"], &outside);
        // Named as Torque names a job's cgroup; only root can move a process into it.
        let torque = cgroups.join("torque");
        for (job, client) in [("33.srv", &its_own), ("333.srv", &another)] {
            let cgroup = torque.join(job);
            std::fs::create_dir_all(&cgroup).expect("a cgroup");
            std::fs::write(cgroup.join("cgroup.procs"), client.pid().to_string()).expect("moved");
        }
        bed.end("33.srv");
        let limit = Duration::from_secs(u64::from(killed));
        let gone = wait_until(limit, || !look::alive(its_own.pid()));
        assert_eq!(gone, killed, "{rule}");
        assert!(look::alive(another.pid()), "{rule}: it is not the job's");
        drop((its_own, another));
        for cgroup in [torque.join("33.srv"), torque.join("333.srv"), torque] {
            eventually("it is empty", || std::fs::remove_dir(&cgroup).is_ok());
        }
        bed.assert_as_before(rule);
    }
}

/// A worker that set a compute mode after the end of its job would change the node.
#[test]
fn a_worker_of_nvml_ends_with_the_prologue_that_asks_it() {
    let bed = NodeBed::new(fast(1).nvml(|f| f.init_hangs = true), "deadline_s = 60\n");
    let mut prologue = bed.start_torque("9.srv", ACCOUNT, "0");
    let worker = bed.nvml_worker_comes();
    kill(prologue.pid(), Signal::SIGKILL);
    assert_eq!(prologue.wait(), None);
    eventually("the worker ends", || !look::alive(worker));
    bed.assert_ends_clean("9.srv", "a prologue killed while NVML hangs");
}
