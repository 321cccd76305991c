//! What a job's processes inherit: of root's privileges, descriptors and environment nothing; and what they may lack.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use mpsd::job::spec::Spec;
use mpsd_core::config::MemoryOverLimit;
use tests::place::{Place, fast};
use tests::stage::{finish, prologue_args};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
/// The signals that end a program, as bits of the masks in `/proc/PID/status`: SIGHUP, SIGINT, SIGTERM.
const ENDING: u64 = 1 << 0 | 1 << 1 | 1 << 14;
const THREE: [&str; 3] = ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

#[test]
fn privileges_are_dropped_whole_and_nothing_of_root_is_left_open() {
    let place = Place::new(fast(1), CONFIG);
    // A file of root's that whoever starts us left open for us.
    let secret = place.stage.path("secret");
    fs::write(&secret, "root's").expect("write");
    let leaked = fs::File::open(&secret).expect("open");
    nix::fcntl::fcntl(
        &leaked,
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
    )
    .expect("fcntl");
    assert_eq!(place.torque("86.srv", ACCOUNT, "0").code, Some(0));
    drop(leaked);
    let uid = place
        .stage
        .job("86.srv")
        .join("pipe")
        .metadata()
        .expect("pipe")
        .uid();
    for name in THREE {
        let pid = place.pids(name)[0];
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let field = |key: &str| {
            let line = status
                .lines()
                .find_map(|l| l.strip_prefix(key))
                .unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("Uid:"), vec![uid.to_string(); 4], "{name}");
        assert!(field("Gid:").iter().all(|gid| gid != "0"), "{name}");
        assert!(!field("Groups:").contains(&"0".to_owned()), "{name}");
        for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(field(capabilities), ["0000000000000000"], "{name} {capabilities}");
        }
        // mpsd reads its signals from a descriptor; the control daemon, and by it the server, must hear them by itself.
        if name == THREE[1] {
            for mask in ["SigBlk:", "SigIgn:"] {
                let signals = u64::from_str_radix(&field(mask).concat(), 16).expect("a mask");
                assert_eq!(signals & ENDING, 0, "{name} {mask} {signals:x}");
            }
        }
        for fd in fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").flatten() {
            let target = fs::read_link(fd.path()).unwrap_or_default().display().to_string();
            let fine = target == "/dev/null"
                || ["anon_inode:", "socket:", "pipe:"]
                    .iter()
                    .any(|kind| target.starts_with(kind))
                || target.contains("/86.srv/pipe/")
                || target.contains("/86.srv/log/")
                // mpsd alone, to write what it saw into: it reads nothing there.
                || (name == THREE[0] && target.ends_with("/86.srv/observations") && is_written_only(pid, &fd.path()));
            assert!(fine, "{name} holds '{target}'");
        }
    }
    place.assert_ends_clean("86.srv", "privileges");
}

/// Root hands descriptor 5 over only where it could make the file `seen`; else the number is `mpsd`'s own to use.
#[test]
fn an_mpsd_without_the_file_for_what_it_saw_starts_and_ends() {
    let place = Place::new(fast(1), CONFIG);
    let spec = Spec {
        job: "87.srv".to_owned(),
        uid: 0,
        control: place.stage.node.control(),
        nvml: String::new(),
        daemons: Vec::new(),
        servers: Vec::new(),
        start_ms: 5_000,
        command_ms: 1_000,
        over_limit: MemoryOverLimit::Ignore,
        most: mpsd_core::record::ClientLimits::default(),
    };
    let (asked, said) = (place.stage.path("spec"), place.stage.path("said"));
    fs::write(&asked, serde_json::to_string(&spec).expect("JSON")).expect("write");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "exec \"$0\" 3<\"$1\" 4>\"$2\" 5<&-"])
        .arg(place.stage.program("mpsd"))
        .args([&asked, &said]);
    let ran = finish(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(fs::read_to_string(&said).expect("a report"), "{\"Ok\":[]}\n");
}

/// Whether a process can only write to this descriptor (`/proc/PID/fdinfo`, octal flags).
fn is_written_only(pid: u32, fd: &Path) -> bool {
    let number = fd.file_name().unwrap_or_default();
    let about = fs::read_to_string(
        Path::new("/proc")
            .join(pid.to_string())
            .join("fdinfo")
            .join(number),
    );
    let about = about.unwrap_or_default();
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & 3 == 1)
}

#[test]
fn the_environment_of_root_reaches_neither_mpsd_nor_the_vendors_programs_nor_a_decision() {
    let place = Place::new(fast(1), CONFIG);
    let evil = place.stage.path("evil");
    let owned = place.stage.path("owned");
    fs::create_dir(&evil).expect("directory");
    for name in [
        "nvidia-cuda-mps-control",
        "mpsd",
        "libnvidia-ml.so.1",
        "pbsnodes",
        "scontrol",
    ] {
        fs::write(evil.join(name), format!("#!/bin/sh\ntouch {}\n", owned.display())).expect("write");
        fs::set_permissions(evil.join(name), fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let evil = evil.display().to_string();
    let tricks = [
        ("PATH", evil.as_str()),
        ("LD_LIBRARY_PATH", &evil),
        ("HOME", &evil),
        ("TMPDIR", &evil),
        ("SHELL", "/bin/false"),
        ("BASH_ENV", "/tmp/x"),
        ("CUDA_MPS_PIPE_DIRECTORY", &evil),
        ("CUDA_MPS_LOG_DIRECTORY", &evil),
        ("CUDA_VISIBLE_DEVICES", "7"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "garbage"),
        ("SLURM_JOB_ID", "1"),
        ("SLURM_JOB_UID", "0"),
        ("SECRET_OF_ROOT", "yes"),
    ];
    let mut args = prologue_args("87.srv", ACCOUNT);
    args.splice(0..0, ["--gpus", "0"]);
    let ran = place.stage.prologue(&args, &tricks);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let allowed: BTreeSet<&str> = [
        "PATH",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PROTOCOL_VERSION",
    ]
    .into();
    for name in THREE {
        let pid = place.pids(name)[0];
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("environ");
        for variable in environment.split(|b| *b == 0).filter(|v| !v.is_empty()) {
            let text = String::from_utf8_lossy(variable).into_owned();
            assert!(
                !text.contains(&evil) && !text.contains("garbage"),
                "{name}: {text}"
            );
            let key = text.split('=').next().unwrap_or("");
            // The vendor's control daemon gives its server variables of its own.
            assert!(
                allowed.contains(key) || (name == THREE[2] && key.starts_with("CUDA_")),
                "{name}: {text}"
            );
        }
    }
    assert!(!owned.exists(), "something of the user's was run by root");
    place.assert_ends_clean("87.srv", "tricks with the environment");
}

#[test]
fn a_user_at_the_limit_of_their_processes_drains_nothing() {
    let place = Place::new(fast(1), "deadline_s = 3\n");
    for most in [1, 2, 3] {
        let mut command = Command::new("/usr/bin/prlimit");
        command
            .arg(format!("--nproc={most}:{most}"))
            .arg(place.stage.program("mps-prologue"))
            .arg("--config")
            .arg(place.stage.config())
            .args(["--gpus", "0"])
            .args(prologue_args("88.srv", ACCOUNT))
            .env_clear();
        let ran = finish(command);
        assert!(ran.code == Some(0) || ran.code == Some(2), "{ran:?}");
        place.assert_ends_clean("88.srv", &format!("at most {most} processes"));
    }
}
