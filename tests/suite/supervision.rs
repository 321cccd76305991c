//! What may happen to a running MPS: the outcome, and its line in the user's log.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::look::{self, wait_until};
use tests::figures;
use tests::place::{Place, Running, eventually, fast, kernel_tells_of_ends, kill};
use tests::stage::{THREE, USER, finish, prologue_args, uid_of};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
const STAYS: [&str; 3] = ["--hold", "20", "--busy"];
const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

fn served(job: &str, config: &str) -> Place {
    Place::with_job(fast(1), &format!("{CONFIG}{config}"), job, ACCOUNT, "0")
}

fn log_of(place: &Place, job: &str) -> String {
    place.log(job, "mpsd.log")
}

/// Waits for a line of the log with these words, and asserts that it is the only one.
#[track_caller]
fn says(place: &Place, job: &str, words: &str) {
    eventually(words, || log_of(place, job).contains(words));
    let log = log_of(place, job);
    let lines = log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines, 1, "'{words}' once in:\n{log}");
}

/// A process of the same user stops `mpsd`, and starts the server before it has its limits.
#[test]
fn a_server_that_its_user_starts_before_mpsd_does_harms_that_job_alone() {
    for (job, account, code) in [
        ("87.srv", "MPS=true", 0),
        ("88.srv", "MPS=true,MPS_THREADS=25", 2),
    ] {
        // A failed prologue of Torque uses its whole time.
        let place = Place::new(
            fast(1).times(|times| times.start = 3_000),
            "deadline_s = 10\n",
        );
        let mut prologue = place.start_torque(job, account, "0");
        let started = || !place.pids("nvidia-cuda-mps-control").is_empty();
        eventually("the control daemon starts", started);
        let supervisor = place.pids("mpsd");
        assert_eq!(supervisor.len(), 1, "{supervisor:?}");
        kill(supervisor[0], Signal::SIGSTOP);
        let socket = place.job(job).join("pipe/control");
        eventually("its socket", || socket.exists());
        place.say(job, &format!("start_server -uid {}", uid_of(USER)));
        kill(supervisor[0], Signal::SIGCONT);
        assert_eq!(prologue.wait(), Some(code), "{account}");
        place.torque_end(job).ok();
        place.assert_not_drained(account);
        place.assert_as_before(account);
    }
}

#[track_caller]
fn ends_clean(place: &Place, job: &str, after: &str) {
    place.assert_ends_clean(job, after);
    figures::tell("faults", 1);
}

fn error_of(text: &str) -> Option<u64> {
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    last["cuda"]["code"].as_u64()
}

fn client(place: &Place, job: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
    let mut command = place.cuda(args);
    command.envs([place.pipe(job)]).envs(env.iter().copied());
    let client = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let attached = || {
        let contexts = place.node.contexts();
        contexts
            .iter()
            .any(|(_, context)| context.pid == client.pid())
    };
    eventually("the client attaches", attached);
    client
}

#[track_caller]
fn error(mut client: Running) -> Option<u64> {
    client.wait();
    let out = client.0.stdout.take().expect("stdout");
    error_of(&std::io::read_to_string(out).expect("text"))
}

#[test]
fn a_server_that_dies_under_its_clients_costs_them_806_and_the_next_is_served() {
    let place = served("90.srv", "");
    let busy = client(&place, "90.srv", &STAYS, &[]);
    kill(place.pids(THREE[2])[0], Signal::SIGKILL);
    assert_eq!(error(busy), Some(806));
    says(&place, "90.srv", "its clients got error 806");
    assert_eq!(place.served("90.srv", &[]).json()["sms"], 32);
    ends_clean(&place, "90.srv", "a server that died under its client");
}

#[test]
fn a_control_daemon_that_dies_takes_its_server_along_and_the_log_says_what_follows() {
    let place = served("91.srv", "");
    let busy = client(&place, "91.srv", &STAYS, &[]);
    kill(place.pids(THREE[1])[0], Signal::SIGKILL);
    assert_eq!(error(busy), Some(806));
    says(&place, "91.srv", "new steps and 'mpsctl exec' are refused");
    for name in [THREE[2], THREE[0]] {
        eventually(format_args!("{name} ends"), || place.pids(name).is_empty());
    }
    // Its user finds that the socket does not answer. Root, asked by a hook, finds that the proved
    // process is gone.
    let args = ["exec", "--job", "91.srv", "--", "true"];
    let exec = place.mpsctl_as(USER, &args, &[]);
    let root = place.mpsctl(&["env", "--shell", "json", "--job", "91.srv"]);
    for ran in [exec, root] {
        ran.exits(2).complains("it has ended");
    }
    ends_clean(&place, "91.srv", "a control daemon that died");
}

#[test]
fn a_hung_control_daemon_is_named_at_the_start_and_ended_at_the_end() {
    let place = served("92.srv", "");
    let control = place.pids(THREE[1])[0];
    kill(control, Signal::SIGSTOP);
    assert!(look::alive(control));
    ends_clean(&place, "92.srv", "a control daemon that hung in service");
    let hung = Place::new(
        fast(1).fault(|f| f.start = "hangs".into()),
        "deadline_s = 3\n",
    );
    let ran = hung.openpbs("93.srv", USER, ACCOUNT);
    let words = "the control daemon or its server hangs";
    ran.exits(2).complains(words);
    hung.assert_as_before("a control daemon that hung at the start");
    hung.assert_not_drained("a control daemon that hung at the start");
}

#[test]
fn a_fatal_gpu_error_of_one_client_is_told_to_the_user_and_drains_nothing() {
    let told = "new ones are refused with error 807";
    let place = served("94.srv", "");
    let innocent = client(&place, "94.srv", &STAYS, &[]);
    let culprit = client(&place, "94.srv", &["--hold", "1", "--fault"], &[]);
    assert_eq!(error(innocent), Some(700), "the error of another");
    says(&place, "94.srv", told);
    let refused = place.tried("94.srv", &[]);
    assert_eq!(error_of(&refused.out), Some(807), "{refused:?}");
    assert_eq!(error(culprit), Some(700));
    eventually("with the last of them gone it serves again", || {
        place.tried("94.srv", &[]).code == Some(0)
    });
    ends_clean(&place, "94.srv", "a fatal GPU error");
    // An epilogue while the server still waits for its clients.
    let place = served("95.srv", "");
    let stays = client(&place, "95.srv", &["--hold", "20", "--fault"], &[]);
    says(&place, "95.srv", told);
    place.end("95.srv");
    drop(stays);
    place.assert_as_before("a server in FAULT state");
}

struct Parent(PathBuf);

impl Parent {
    fn new() -> Option<Self> {
        let name = format!("mpsd-test-{}-parent", std::process::id());
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let mut unified = mounts
            .into_iter()
            .filter(|mount| mount.join("cgroup.controllers").exists());
        let path = unified.find_map(|mount| {
            let path = mount.join(&name);
            fs::create_dir(&path).is_ok().then_some(path)
        });
        path.map(Self)
            .filter(|parent| parent.0.join("cgroup.kill").exists())
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        wait_until(Duration::from_secs(20), || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn the_end_of_the_daemon_that_ran_the_prologue_leaves_the_job_in_service() {
    let Some(parent) = Parent::new() else {
        return println!("not tried here: no unified hierarchy with cgroup.kill");
    };
    let place = Place::new(fast(1), CONFIG);
    let cgroup = parent.0.to_str().expect("a path");
    let shell = [
        "/bin/sh",
        "-c",
        "echo $$ > $0/cgroup.procs && exec \"$@\"",
        cgroup,
    ];
    let mut command = place.command_by(&shell, "mps-prologue");
    command.args(["--gpus", "0"]);
    finish(command.args(prologue_args("97.srv", ACCOUNT))).ok();
    // As 'systemctl restart slurmd' with KillMode=control-group.
    fs::write(parent.0.join("cgroup.kill"), "1").expect("cgroup.kill");
    let events = || fs::read_to_string(parent.0.join("cgroup.events"));
    eventually("the daemon's cgroup is empty", || {
        events().is_ok_and(|events| events.contains("populated 0"))
    });
    for name in THREE {
        assert_eq!(place.pids(name).len(), 1, "{name}");
    }
    place.served("97.srv", &[]);
    ends_clean(&place, "97.srv", "the end of the prologue's daemon");
}

/// A job under one policy, with a client that keeps its limit and one that does not.
struct Watched {
    place: Place,
    honest: Running,
    over: Running,
}

impl Watched {
    fn new(policy: &str) -> Self {
        let keep = "compute_mode = \"keep\"";
        let place = served(
            "96.srv",
            &format!("memory_over_limit = \"{policy}\"\n{keep}\n"),
        );
        let small = [&["--alloc", "256"][..], &STAYS].concat();
        Self {
            honest: client(&place, "96.srv", &small, &[]),
            over: greedy(&place),
            place,
        }
    }

    fn log(&self) -> String {
        log_of(&self.place, "96.srv")
    }

    fn lines(&self, client: &Running) -> usize {
        let line = format!("client {} holds ", client.pid());
        self.log().lines().filter(|l| l.contains(&line)).count()
    }

    #[track_caller]
    fn ends(self, after: &str) {
        let (log, innocent) = (self.log(), format!("client {} ", self.honest.pid()));
        assert!(!log.contains(&innocent), "{after}:\n{log}");
        drop((self.honest, self.over));
        ends_clean(&self.place, "96.srv", after);
    }
}

fn greedy(place: &Place) -> Running {
    greedy_in(place, "96.srv")
}

fn greedy_in(place: &Place, job: &str) -> Running {
    let args = [&["--alloc", "4096"][..], &STAYS].concat();
    client(place, job, &args, &[(LIMIT, "garbage")])
}

#[test]
fn a_client_over_its_memory_limit_is_told_or_ended_as_the_site_says() {
    let (ignored, logged) = (Watched::new("ignore"), Watched::new("log"));
    // A job of the same user on the same GPU, which may have more. The GPU lists its client for
    // both.
    let (place, other) = (&logged.place, "98.srv");
    place.begin(other, "MPS=true,MPS_MEM=6G", "0");
    let stranger = greedy_in(place, other);
    eventually("the client is told of", || logged.lines(&logged.over) > 0);
    // A line about a second client proves a second look. By then "ignore" has had time for a line
    // too.
    let second = greedy(&logged.place);
    eventually("the second is told of", || logged.lines(&second) > 0);
    drop(second);
    assert_eq!(logged.lines(&logged.over), 1, "log");
    assert_eq!(logged.lines(&stranger), 0, "another job's");
    drop(stranger);
    place.end(other);
    assert!(logged.log().contains("its limit is 1024 MiB"));
    assert_eq!(ignored.lines(&ignored.over), 0, "ignore");
    for (watched, policy) in [(ignored, "ignore"), (logged, "log")] {
        assert!(look::alive(watched.over.pid()), "{policy}: left alone");
        watched.ends(policy);
    }

    let Watched {
        place,
        honest,
        over,
    } = Watched::new("terminate");
    let pid = over.pid();
    assert_eq!(error(over), Some(810), "{}", log_of(&place, "96.srv"));
    says(&place, "96.srv", &format!("client {pid} holds "));
    says(&place, "96.srv", "terminate_client, it gets error 810");
    assert!(look::alive(honest.pid()), "the other client goes on");
    drop(honest);
    ends_clean(&place, "96.srv", "terminate");
}

/// NVML's library is missing at the first look, as during a driver's replacement.
#[test]
fn the_memory_watch_goes_on_once_nvml_answers_again() {
    let place = served("95.srv", "memory_over_limit = \"terminate\"\n");
    let (nvml, aside) = (place.node.nvml(), place.node.nvml().with_extension("aside"));
    fs::rename(&nvml, &aside).expect("NVML away");
    let over = greedy_in(&place, "95.srv");
    says(&place, "95.srv", "NVML does not answer");
    fs::rename(&aside, &nvml).expect("NVML back");
    // A new client speeds up the next look.
    let honest = client(&place, "95.srv", &STAYS, &[]);
    assert_eq!(error(over), Some(810), "{}", log_of(&place, "95.srv"));
    says(&place, "95.srv", "NVML does not answer");
    drop(honest);
    ends_clean(&place, "95.srv", "a silent NVML");
}

/// A client in this cgroup of a job that shares its MPS, without the variable of its limit.
fn without_limit(place: &Place, job: &str, mib: &str, cgroup: Option<&Path>) -> Running {
    in_cgroup(place, job, mib, cgroup, &["-u", LIMIT])
}

fn in_cgroup(place: &Place, job: &str, mib: &str, cgroup: Option<&Path>, env: &[&str]) -> Running {
    let mut command = Command::new("/bin/sh");
    let procs = cgroup.map_or("/dev/null".into(), |cgroup| cgroup.join("cgroup.procs"));
    command
        .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
        .arg(procs);
    let exec = place.mpsctl_of(USER);
    command.arg(exec.get_program()).args(exec.get_args());
    command.args(["exec", "--", "/usr/bin/env"]).args(env);
    command
        .arg(place.node.client())
        .arg("--node")
        .arg(place.node.dir());
    command.args(["--alloc", mib]).args(STAYS);
    command.env_clear().env("PBS_JOBID", job);
    let client = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    eventually("the client attaches", || place.has_context(client.pid()));
    client
}

/// The cgroups are those of Torque and of OpenPBS' hook. Outside them no job is known, so the
/// highest limit applies.
#[test]
fn a_client_that_voids_its_limit_is_held_to_that_of_its_own_job_in_a_shared_mps() {
    let config = format!("{CONFIG}shared_gpus = true\nmemory_over_limit = \"terminate\"\n");
    let place = Place::new(fast(1), &config);
    let (jobs, limits) = (["461.srv", "462.srv"], ["1G", "6G"]);
    let own = place.cgroups.as_ref();
    let own = own.expect("this machine has no cgroup hierarchy to test with");
    let groups = ["torque/461.srv", "pbs_jobs.service/jobid/462.srv"].map(|name| own.join(name));
    for (n, job) in jobs.iter().enumerate() {
        place
            .torque_on_gpu_0(job, &format!("MPS=true,MPS_MEM={}", limits[n]))
            .ok();
        fs::create_dir_all(&groups[n]).expect("a cgroup");
    }
    let within = [
        (jobs[0], "256", Some(groups[0].as_path())),
        (jobs[1], "4096", Some(&groups[1])),
        (jobs[0], "4096", None),
    ];
    let within = within.map(|(job, mib, group)| without_limit(&place, job, mib, group));
    let over = without_limit(&place, jobs[0], "4096", Some(&groups[0]));
    let pid = over.pid();
    assert_eq!(error(over), Some(810));
    let hidden = without_limit(&place, jobs[0], "8192", None);
    let of_hidden = format!("client {} holds ", hidden.pid());
    assert_eq!(error(hidden), Some(810));
    let id = format!("{}-{}", uid_of(USER), place.node.uuids()[0]);
    let seen = place.path("run/shared").join(id).join("observations");
    let told = || fs::read_to_string(&seen).is_ok_and(|text| text.contains(&of_hidden));
    eventually("mpsd tells of it", told);
    assert!(within.iter().all(|client| look::alive(client.pid())));
    drop(within);
    remove_groups(own, &groups);
    let told = place.end(jobs[0]);
    told.complains(format!("client {pid} of job 461.srv holds "));
    told.complains("its limit is 1024 MiB");
    told.complains(&of_hidden);
    place.end(jobs[1]);
    place.assert_as_before("members over their limits");
}

fn remove_groups(own: &Path, groups: &[PathBuf]) {
    let above = |group| Path::ancestors(group).take_while(|above| *above != own);
    let all: BTreeSet<&Path> = groups.iter().flat_map(|group| above(group)).collect();
    for group in all.into_iter().rev() {
        eventually("the cgroup is empty", || fs::remove_dir(group).is_ok());
    }
}

#[test]
fn a_job_whose_clients_are_together_over_its_limit_loses_the_youngest_and_no_other_job_does() {
    let config = format!("{CONFIG}shared_gpus = true\nmemory_over_limit = \"terminate\"\n");
    let place = Place::new(fast(1), &config);
    let (jobs, accounts) = (["471.srv", "472.srv"], ["MPS_MEM=job=4G", "MPS_MEM=6G"]);
    let own = place.cgroups.as_ref();
    let own = own.expect("this machine has no cgroup hierarchy to test with");
    let groups = jobs.map(|job| own.join("torque").join(job));
    for (n, job) in jobs.iter().enumerate() {
        let account = format!("MPS=true,{}", accounts[n]);
        place.torque_on_gpu_0(job, &account).ok();
        fs::create_dir(groups[n].parent().expect("a directory")).ok();
        fs::create_dir(&groups[n]).expect("a cgroup");
    }
    let start = |n: usize, mib: &str| in_cgroup(&place, jobs[n], mib, Some(&groups[n]), &[]);
    // Two of the first fit: 1804 MiB each beside their contexts.
    let within = [(0, "2000"), (1, "4096"), (0, "2000")].map(|(n, mib)| start(n, mib));
    let over = start(0, "2000");
    let beside = start(1, "4096");
    let pid = over.pid();
    assert_eq!(error(over), Some(810));
    let status = place.mpsctl_as(USER, &["status"], &[("PBS_JOBID", jobs[0])]);
    status
        .prints("all clients of this job: ")
        .prints("M of 4096M");
    let gpu = &place.node.uuids()[0];
    let metrics = place.mpsctl(&["metrics"]).ok();
    let of = |job: &str| {
        format!("mpsd_job_memory_limit_bytes{{jobid=\"{job}\",gpu=\"0\",uuid=\"{gpu}\"}}")
    };
    metrics.prints(format!("{} 4294967296\n", of(jobs[0])));
    metrics.lacks(of(jobs[1]));
    let living = within.iter().chain([&beside]);
    assert!(living.into_iter().all(|client| look::alive(client.pid())));
    drop((within, beside));
    remove_groups(own, &groups);
    let told = place.end(jobs[0]);
    told.complains("the clients of job 471.srv hold ");
    let line = format!("their limit together is 4096 MiB: client {pid}, the youngest, is ended");
    assert_eq!(told.err.matches(&line).count(), 1, "{told:?}");
    let report = place.mpsctl(&["report", jobs[0]]).ok();
    report.prints("GPU 0: its clients held at most ");
    report.prints(" of the 4096 MiB that they may together");
    place.end(jobs[1]);
    place
        .mpsctl(&["report", jobs[1]])
        .ok()
        .lacks("that they may together");
    place.assert_as_before("a job over its limit together");
}

/// Two jobs of the user in one MPS.
fn two_jobs() -> Place {
    let place = Place::new(fast(1), "deadline_s = 20\nshared_gpus = true\n");
    for job in SHARERS {
        place.torque_on_gpu_0(job, "MPS=true").ok();
    }
    place
}

const SHARERS: [&str; 2] = ["861.srv", "862.srv"];

/// A `quit` of the user's in a job, which waits for the daemon's end.
fn quits(place: &Place, job: &str) -> Running {
    let exec = ["exec", "--", "/bin/sh", "-c", "echo quit | \"$0\""];
    let mut command = place.mpsctl_of(USER);
    command
        .args(exec)
        .arg(place.node.control())
        .env("PBS_JOBID", job);
    Running::start(command.stdout(Stdio::null()))
}

fn in_job(place: &Place, job: &str) -> Value {
    place.exec(&[], &[("PBS_JOBID", job)]).ok().json()
}

#[test]
fn a_shared_mps_that_a_script_tells_to_quit_comes_back_for_all_its_jobs() {
    for is_busy in [false, true] {
        let place = two_jobs();
        let before = in_job(&place, SHARERS[0])["daemon_pid"].clone();
        let busy = is_busy.then(|| place.sharer(SHARERS[1]));
        let quit = quits(&place, SHARERS[0]);
        let mut after = Value::Null;
        eventually("another daemon serves new programs", || {
            let ran = place.exec(&[], &[("PBS_JOBID", SHARERS[1])]);
            after = ran
                .code
                .filter(|code| *code == 0)
                .map_or(Value::Null, |_| ran.json());
            after["under_mps"] == true && after["daemon_pid"] != before
        });
        assert_eq!(
            in_job(&place, SHARERS[0])["daemon_pid"],
            after["daemon_pid"]
        );
        // It also serves a job that begins now.
        place.torque_on_gpu_0("863.srv", "MPS=true").ok();
        assert_eq!(in_job(&place, "863.srv")["daemon_pid"], after["daemon_pid"]);
        if let Some(busy) = &busy {
            assert!(place.has_context(busy.pid()), "the busy program goes on");
        }
        drop(busy);
        drop(quit);
        let told = "told control daemon";
        for job in SHARERS {
            place.end(job).complains(told);
        }
        place.end("863.srv").lacks(told);
        place.assert_as_before("a shared MPS that was told to quit");
        for job in SHARERS {
            place
                .mpsctl(&["report", job])
                .prints("told to quit; ")
                .prints("told control daemon");
        }
        place.assert_not_drained("a shared MPS that was told to quit");
    }
}

#[test]
fn a_killed_rank_costs_the_next_program_nothing() {
    let place = served("96.srv", "");
    let stays = ["--hold", "20", "--paired"];
    let ranks = [(), ()].map(|()| client(&place, "96.srv", &stays, &[]));
    let [server] = place.pids(THREE[2])[..] else {
        panic!("a server")
    };
    for rank in ranks {
        kill(rank.pid(), Signal::SIGKILL);
        drop(rank);
    }
    if !log_of(&place, "96.srv").contains("was ended by") && !kernel_tells_of_ends() {
        println!("not tried here: this kernel tells of its own children only");
        return;
    }
    says(&place, "96.srv", &format!("server {server} ended by mpsd"));
    assert_eq!(place.served("96.srv", &[]).json()["sms"], 32, "limits");
    let log = log_of(&place, "96.srv");
    assert!(!log.contains(" died "), "{log}");
    ends_clean(&place, "96.srv", "killed ranks");
    place
        .mpsctl(&["report", "96.srv"])
        .lacks("caused a fatal")
        .lacks("was lost");
}

/// While another client works, the server stays, and its next client gets the error.
#[test]
fn who_gets_the_error_of_a_killed_rank_is_not_blamed_for_it() {
    let place = served("97.srv", "");
    let busy = client(&place, "97.srv", &STAYS, &[]);
    let rank = client(&place, "97.srv", &["--hold", "20", "--paired"], &[]);
    kill(rank.pid(), Signal::SIGKILL);
    drop(rank);
    eventually("the server has seen its end", || {
        place.log("97.srv", "control.log").contains("disconnected")
    });
    let victim = place.tried("97.srv", &[]);
    assert_eq!(error_of(&victim.out), Some(719), "{victim:?}");
    says(&place, "97.srv", "and did not cause it: start it again");
    place.served("97.srv", &[]);
    drop(busy);
    ends_clean(&place, "97.srv", "an error that was inherited");
    place.mpsctl(&["report", "97.srv"]).lacks("caused a fatal");
}

/// As after a module that sets CUDA_MPS_PIPE_DIRECTORY.
#[test]
fn a_program_outside_the_mps_of_its_job_is_named_while_no_program_reaches_it() {
    let config = "compute_mode = \"keep\"\n";
    let place = served("98.srv", config);
    let elsewhere = ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let mut command = place.cuda(&["--hold", "60"]);
    command
        .envs([elsewhere])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let outside = Running::start(command);
    let pid = outside.pid();
    let words = format!(
        "process {pid} of its user computes on {} outside it",
        place.node.uuids()[0]
    );
    says(&place, "98.srv", &words);
    drop(outside);
    place
        .end("98.srv")
        .complains("CUDA_MPS_PIPE_DIRECTORY was overwritten or lost there");
    place.assert_as_before("a program outside");
    place
        .mpsctl(&["report", "98.srv"])
        .prints(format!("process {pid} computed outside the job's MPS"));
    // A program that reaches it ends the search.
    place.begin("99.srv", ACCOUNT, "0");
    place.served("99.srv", &[]);
    place.end("99.srv").lacks("outside it");
}
