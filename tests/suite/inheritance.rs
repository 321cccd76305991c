//! A job's processes inherit none of root's privileges, descriptors or environment.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use tests::node_bed::{NodeBed, fast, status_of};
use tests::run::{
    THREE, USER, finish, openpbs_args, prologue_on_gpu_0, script, strict_epilogue_args, uid_of,
};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
/// As bits of the masks in `/proc/PID/status`: SIGHUP, SIGINT, SIGTERM.
const ENDING: u64 = 1 << 0 | 1 << 1 | 1 << 14;

#[test]
fn privileges_are_dropped_whole_and_nothing_of_root_is_left_open() {
    let bed = NodeBed::new(fast(1), CONFIG);
    // A file of root's that our caller left open for us.
    let secret = bed.path("secret");
    fs::write(&secret, "root's").expect("write");
    let leaked = fs::File::open(&secret).expect("open");
    let inherited = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
    nix::fcntl::fcntl(&leaked, inherited).expect("fcntl");
    let mut command = bed.command_by(&["/usr/bin/prlimit", "--nofile=64:"], "mps-prologue");
    finish(command.args(openpbs_args("86.srv", USER, ACCOUNT))).ok();
    drop(leaked);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let files = format!("Max open files {} {most} files", most.min(16_384));
    let uid = uid_of(USER).to_string();
    for name in THREE {
        let pid = bed.pids(name)[0];
        let status = |key: &str| status_of(pid, key);
        let words = |key: &str| {
            let line = status(key);
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words("Uid"), vec![uid.clone(); 4], "{name}");
        let groups = [words("Gid"), words("Groups")].concat();
        assert!(!groups.contains(&"0".to_owned()), "{name}: {groups:?}");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_limited = limits.lines().any(|line| words(line) == files);
        assert!(is_limited, "{name}: {limits}");
        let capabilities = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(status);
        assert_eq!(capabilities, ["0000000000000000"; 4], "{name}");
        // mpsd reads its signals from a descriptor. The control daemon and its server must receive
        // theirs directly.
        if name == THREE[1] {
            for mask in ["SigBlk", "SigIgn"] {
                let signals = u64::from_str_radix(&status(mask), 16).expect("a mask");
                assert_eq!(signals & ENDING, 0, "{name} {mask} {signals:x}");
            }
        }
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        for fd in open.expect("fd").flatten() {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            let target = target.display().to_string();
            let kinds = ["/dev/null", "anon_inode:", "socket:", "pipe:"];
            let own = ["/86.srv/pipe/", "/86.srv/log/"];
            let fine = kinds.iter().any(|kind| target.starts_with(kind))
                || own.iter().any(|dir| target.contains(dir))
                // mpsd alone writes its observations there, and cannot read them.
                || (name == THREE[0] && target.ends_with("/86.srv/observations") && is_written_only(pid, &fd.path()));
            assert!(fine, "{name} holds '{target}'");
        }
    }
    bed.assert_ends_clean("86.srv", "privileges");
}

/// Whether a process can only write to this descriptor (`/proc/PID/fdinfo`, octal flags).
fn is_written_only(pid: u32, fd: &Path) -> bool {
    let number = fd.file_name().unwrap_or_default().display();
    let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 == 1)
}

#[test]
fn the_environment_of_root_reaches_neither_mpsd_nor_the_vendors_programs_nor_a_decision() {
    let bed = NodeBed::new(fast(1), CONFIG);
    let (evil, owned) = (bed.directory("evil"), bed.path("owned"));
    for name in [
        THREE[0],
        THREE[1],
        "libnvidia-ml.so.1",
        "pbsnodes",
        "scontrol",
    ] {
        script(&evil.join(name), &format!("touch {}", owned.display()));
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
    let args = prologue_on_gpu_0("87.srv", ACCOUNT);
    bed.prologue(&args, &tricks).ok();
    let allowed: BTreeSet<&str> = [
        "PATH",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PROTOCOL_VERSION",
    ]
    .into();
    for name in THREE {
        let environment = fs::read_to_string(format!("/proc/{}/environ", bed.pids(name)[0]));
        let environment = environment.expect("environ");
        for text in environment.split('\0').filter(|text| !text.is_empty()) {
            let is_rooted = text.contains(evil.as_str()) || text.contains("garbage");
            assert!(!is_rooted, "{name}: {text}");
            let key = text.split('=').next().unwrap_or("");
            // The vendor's control daemon gives its server variables of its own.
            let of_server = name == THREE[2] && key.starts_with("CUDA_");
            assert!(allowed.contains(key) || of_server, "{name}: {text}");
        }
    }
    assert!(!owned.exists(), "something of the user's was run by root");
    bed.assert_ends_clean("87.srv", "tricks with the environment");
}

/// The scheduler's daemon may have such a limit. Only the soft limit is tested: root in a container
/// may not raise the hard one.
#[test]
fn a_limit_of_a_files_size_ends_no_program_of_roots() {
    let bed = NodeBed::new(fast(1), "deadline_s = 3\nshared_gpus = true\n");
    let jobs = ["76.srv", "77.srv"];
    let run = |program: &str, args: &[&str]| {
        let limited = ["/usr/bin/prlimit", "--fsize=0:unlimited"];
        let ran = finish(bed.command_by(&limited, program).args(args));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    };
    for job in jobs {
        run("mps-prologue", &openpbs_args(job, USER, ACCOUNT));
    }
    for job in jobs {
        run("mps-epilogue", &strict_epilogue_args(job));
    }
    bed.assert_as_before("a limit of a file's size");
}
