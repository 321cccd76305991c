//! What befalls an MPS that is in service: its outcome, and the line in the user's log that says so.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::look::{self, wait_until};
use tests::figures;
use tests::place::{Place, Running, fast, kill};
use tests::stage::{Ran, USER, as_user, finish, openpbs_args, prologue_args};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
/// A look at the clients' memory comes every second.
const SOON: Duration = Duration::from_secs(20);
const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

fn served(job: &str, config: &str) -> Place {
    let place = Place::new(fast(1), &format!("{CONFIG}{config}"));
    let ran = place.torque(job, ACCOUNT, "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place
}

/// The job's own log, as its user reads it.
fn log_of(place: &Place, job: &str) -> String {
    fs::read_to_string(place.stage.job(job).join("log/mpsd.log")).unwrap_or_default()
}

#[track_caller]
fn says(place: &Place, job: &str, words: &str) {
    wait_until(SOON, || log_of(place, job).contains(words));
    let log = log_of(place, job);
    let lines = log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines, 1, "'{words}' once in:\n{log}");
}

#[track_caller]
fn ends_clean(place: &Place, job: &str, after: &str) {
    place.assert_ends_clean(job, after);
    figures::tell("faults", 1);
}

fn client(place: &Place, job: &str) -> Ran {
    place.stage.client(&[] as &[&str], &[place.pipe(job)])
}

fn error_of(text: &str) -> Option<u64> {
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    last["cuda"]["code"].as_u64()
}

/// A client of the job that runs until it is asked for.
struct Client(Running);

impl Client {
    fn start(place: &Place, job: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command: Command = as_user(USER, place.stage.node.client());
        command
            .arg("--node")
            .arg(place.stage.node.dir())
            .args(args)
            .env_clear();
        let child = command
            .envs([place.pipe(job)])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("client");
        let client = Self(Running(child));
        let attached = || {
            let contexts = place.stage.node.contexts();
            contexts.iter().any(|(_, context)| context.pid == client.0.0.id())
        };
        assert!(wait_until(SOON, attached), "the client does not attach");
        client
    }

    fn pid(&self) -> u32 {
        self.0.0.id()
    }

    /// The error that it ended with, once it has.
    fn error(mut self) -> Option<u64> {
        let ended = wait_until(SOON * 2, || {
            self.0.0.try_wait().is_ok_and(|status| status.is_some())
        });
        assert!(ended, "the client does not end");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.0.0.stdout.take().expect("stdout"), &mut text).expect("text");
        error_of(&text)
    }
}

#[test]
fn a_server_that_dies_under_its_clients_costs_them_806_and_the_next_is_served() {
    let place = served("90.srv", "");
    let busy = Client::start(&place, "90.srv", &["--hold", "20", "--busy"], &[]);
    let server = place.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGKILL);
    assert_eq!(busy.error(), Some(806));
    says(&place, "90.srv", "its clients got error 806");
    assert_eq!(client(&place, "90.srv").code, Some(0));
    ends_clean(&place, "90.srv", "a server that died under its client");
}

#[test]
fn a_control_daemon_that_dies_takes_its_server_along_and_the_log_says_what_follows() {
    let place = served("91.srv", "");
    let busy = Client::start(&place, "91.srv", &["--hold", "20", "--busy"], &[]);
    kill(place.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
    assert_eq!(busy.error(), Some(806));
    says(&place, "91.srv", "new steps and 'mpsctl exec' are refused");
    assert!(wait_until(SOON, || place
        .pids("nvidia-cuda-mps-server")
        .is_empty()));
    assert!(
        wait_until(SOON, || place.pids("mpsd").is_empty()),
        "nothing is left to watch"
    );
    // Its user finds the socket deaf; root, for a hook, finds that the process which it proved has gone.
    let words = [
        "--config",
        &place.stage.config().display().to_string(),
        "exec",
        "--job",
        "91.srv",
        "--",
        "true",
    ]
    .map(str::to_owned);
    let exec = finish({
        let mut command = as_user(USER, place.stage.program("mpsctl"));
        command.args(words).env_clear();
        command
    });
    let root = place
        .stage
        .run("mpsctl", &["env", "--shell", "json", "--job", "91.srv"], &[]);
    for ran in [exec, root] {
        assert!(ran.code == Some(2) && ran.err.contains("it has ended"), "{ran:?}");
    }
    ends_clean(&place, "91.srv", "a control daemon that died");
}

#[test]
fn a_hung_control_daemon_is_named_at_the_start_and_ended_at_the_end() {
    let place = served("92.srv", "");
    let control = place.pids("nvidia-cuda-mps-control")[0];
    kill(control, Signal::SIGSTOP);
    assert!(look::alive(control));
    ends_clean(&place, "92.srv", "a control daemon that hung in service");
    let hung = Place::new(fast(1).fault(|f| f.start = "hangs".into()), "deadline_s = 3\n");
    let ran = hung.stage.prologue(&openpbs_args("93.srv", USER, ACCOUNT), &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("the control daemon or its server hangs"),
        "{ran:?}"
    );
    hung.assert_as_before("a control daemon that hung at the start");
    hung.assert_not_drained("a control daemon that hung at the start");
}

#[test]
fn a_fatal_gpu_error_of_one_client_is_told_to_the_user_and_drains_nothing() {
    let place = served("94.srv", "");
    let innocent = Client::start(&place, "94.srv", &["--hold", "20", "--busy"], &[]);
    let culprit = Client::start(&place, "94.srv", &["--hold", "1", "--fault"], &[]);
    assert_eq!(innocent.error(), Some(700), "the error of another");
    says(&place, "94.srv", "new ones are refused with error 807");
    let refused = client(&place, "94.srv");
    assert_eq!(error_of(&refused.out), Some(807), "{refused:?}");
    assert_eq!(culprit.error(), Some(700));
    assert!(
        wait_until(SOON, || client(&place, "94.srv").code == Some(0)),
        "with the last of them gone it serves again"
    );
    ends_clean(&place, "94.srv", "a fatal GPU error");
    // An epilogue while the server still waits for its clients.
    let place = served("95.srv", "");
    let stays = Client::start(&place, "95.srv", &["--hold", "20", "--fault"], &[]);
    says(&place, "95.srv", "new ones are refused with error 807");
    assert_eq!(place.strict_end("95.srv").code, Some(0));
    drop(stays);
    place.assert_as_before("a server in FAULT state");
    place.assert_not_drained("a server in FAULT state");
}

/// A cgroup as a scheduler's daemon has one.
struct Parent(PathBuf);

impl Parent {
    fn new() -> Option<Self> {
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .iter()
            .map(Path::new)
            .filter(|mount| mount.join("cgroup.controllers").exists())
            .map(|mount| mount.join(format!("mpsd-test-{}-parent", std::process::id())))
            .find(|path| fs::create_dir(path).is_ok())
            .map(Self)
            .filter(|parent| parent.0.join("cgroup.kill").exists())
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        wait_until(SOON, || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn the_end_of_the_daemon_that_ran_the_prologue_leaves_the_job_in_service() {
    let Some(parent) = Parent::new() else {
        return println!("not tried here: no unified hierarchy with cgroup.kill");
    };
    let place = Place::new(fast(1), CONFIG);
    let enter = "echo $$ > $0/cgroup.procs && exec \"$@\"";
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", enter])
        .arg(&parent.0)
        .arg(place.stage.program("mps-prologue"));
    command
        .arg("--config")
        .arg(place.stage.config())
        .args(["--gpus", "0"]);
    let ran = finish({
        command.args(prologue_args("97.srv", ACCOUNT)).env_clear();
        command
    });
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // As 'systemctl restart slurmd' with KillMode=control-group.
    fs::write(parent.0.join("cgroup.kill"), "1").expect("cgroup.kill");
    let is_empty =
        || fs::read_to_string(parent.0.join("cgroup.events")).is_ok_and(|e| e.contains("populated 0"));
    assert!(wait_until(SOON, is_empty), "the daemon's cgroup does not end");
    for name in ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        assert_eq!(place.pids(name).len(), 1, "{name}");
    }
    assert_eq!(client(&place, "97.srv").code, Some(0));
    ends_clean(&place, "97.srv", "the end of the daemon that ran the prologue");
}

/// A client that voids the vendor's limit, as any client can, and holds 4 GiB.
fn greedy(place: &Place, job: &str) -> Client {
    Client::start(
        place,
        job,
        &["--alloc", "4096", "--hold", "20", "--busy"],
        &[(LIMIT, "garbage")],
    )
}

/// A job under one policy, with a client that keeps its limit and one that does not.
struct Watched {
    place: Place,
    honest: Client,
    over: Client,
}

impl Watched {
    fn new(policy: &str) -> Self {
        let place = served("96.srv", &format!("memory_over_limit = \"{policy}\"\n"));
        let honest = Client::start(
            &place,
            "96.srv",
            &["--alloc", "256", "--hold", "20", "--busy"],
            &[],
        );
        let over = greedy(&place, "96.srv");
        Self { place, honest, over }
    }

    /// Lines of the job's log that say of this client that it holds too much.
    fn lines(&self, client: &Client) -> usize {
        let line = format!("client {} holds ", client.pid());
        let log = log_of(&self.place, "96.srv");
        log.lines().filter(|l| l.contains(&line)).count()
    }

    #[track_caller]
    fn told(&self, client: &Client) {
        let told = wait_until(SOON, || self.lines(client) > 0);
        assert!(told, "not told in:\n{}", log_of(&self.place, "96.srv"));
    }

    #[track_caller]
    fn ends(self, after: &str) {
        let log = log_of(&self.place, "96.srv");
        let innocent = format!("client {} ", self.honest.pid());
        assert!(!log.contains(&innocent), "{after}:\n{log}");
        drop((self.honest, self.over));
        ends_clean(&self.place, "96.srv", after);
    }
}

#[test]
fn a_client_over_its_memory_limit_is_told_or_ended_as_the_site_says() {
    let ignored = Watched::new("ignore");
    let logged = Watched::new("log");
    logged.told(&logged.over);
    // A line about a second one proves another look: the first was told once, whatever the number of looks, and where
    // nobody looks that long was enough.
    let second = greedy(&logged.place, "96.srv");
    logged.told(&second);
    drop(second);
    assert_eq!(logged.lines(&logged.over), 1, "log");
    assert!(log_of(&logged.place, "96.srv").contains("its limit is 1024 MiB"));
    assert_eq!(ignored.lines(&ignored.over), 0, "ignore");
    for watched in [&ignored, &logged] {
        assert!(look::alive(watched.over.pid()), "it is left alone");
    }
    ignored.ends("ignore");
    logged.ends("log");

    let Watched { place, honest, over } = Watched::new("terminate");
    let pid = over.pid();
    assert_eq!(over.error(), Some(810), "{}", log_of(&place, "96.srv"));
    says(&place, "96.srv", &format!("client {pid} holds "));
    says(&place, "96.srv", "terminate_client, it gets error 810");
    assert!(look::alive(honest.pid()), "the other one goes on");
    drop(honest);
    ends_clean(&place, "96.srv", "terminate");
}
