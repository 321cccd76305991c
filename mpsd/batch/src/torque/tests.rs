//! Torque's recorded argument vectors and environments, and what we read from them.

use crate::call::{Location, Program, UserRef};
use crate::devices::{Exclusive, GpuName, GpuSource};
use crate::scheduled_devices;
use crate::testing::{Call, TextHost};
use mpsd_core::job::{JobId, Scheduler};

const LIST: &str = "nodes=1:gpus=1,neednodes=1:gpus=1,walltime=01:00:00";
const SCRIPT: &str = "/var/spool/torque/mom_priv/jobs/0.vm.SC";
const PROLOGUE: [&str; 8] = [
    "0.vm", "alice", "users", "job1", LIST, "batch", "MPS=true", SCRIPT,
];
const EPILOGUE: [&str; 11] = [
    "0.vm",
    "alice",
    "users",
    "job1",
    "4242",
    LIST,
    "cput=00:00:00,vmem=0kb,walltime=00:00:02,mem=0kb,energy_used=0",
    "batch",
    "proj1,MPS=true",
    "0",
    SCRIPT,
];
const ENV: [(&str, &str); 9] = [
    ("PATH", "/bin:/usr/bin"),
    ("LANG", "C"),
    ("PBS_RESOURCE_NODES", "1:gpus=1"),
    ("PBS_NUM_NODES", "1"),
    ("PBS_NUM_PPN", "4"),
    ("PBS_NP", "4"),
    ("PBS_NODENUM", "0"),
    ("PBS_MSHOST", "vm"),
    ("PBS_NODEFILE", "/var/spool/torque/aux//0.vm"),
];
const SISTER_ENV: [(&str, &str); 5] = [
    ("PATH", "/bin:/usr/bin"),
    ("PBS_NUM_NODES", "2"),
    ("PBS_NUM_PPN", "2"),
    ("PBS_NODENUM", "1"),
    ("PBS_MSHOST", "nodea"),
];
const GPU_FILE: &str = "/var/spool/torque/aux//0.vmgpu";

type Variable = (&'static str, &'static str);

fn with_named_nodes<const N: usize>(env: [Variable; N]) -> [Variable; N] {
    env.map(|(name, value)| match name {
        "PBS_NUM_NODES" => (name, "0"),
        "PBS_NUM_PPN" => (name, "1"),
        _ => (name, value),
    })
}

fn changed(place: usize, argument: &'static str) -> [&'static str; 8] {
    let mut arguments = PROLOGUE;
    arguments[place] = argument;
    arguments
}

#[test]
fn torque_prologue() {
    let mut call = Call::new(Program::Prologue, &PROLOGUE, &ENV);
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.sister), (Scheduler::Torque, false));
    assert_eq!(s.job.as_str(), "0.vm");
    assert_eq!(s.user, UserRef::Name("alice".into()));
    assert_eq!(s.account.as_deref(), Some(&b"MPS=true"[..]));
    assert_eq!(s.node.as_deref(), Some("vm"));
    call.host = TextHost::default().file(GPU_FILE, "vm-gpu0\nother-gpu3\nvm-gpu2\n");
    let d = call.devices();
    let gpus = vec![GpuName::Index(0), GpuName::Index(2)];
    assert_eq!(d.gpus, GpuSource::Listed(gpus));
    assert_eq!(d.exclusive, Exclusive::GpusAlone);
    assert_eq!(d.tasks_on_node, Some(4));
    assert!(call.host.ran.borrow().is_empty());
}

#[test]
fn the_mom_gives_a_job_the_numbers_of_its_own_gpu_file() {
    let host = TextHost::default().file(GPU_FILE, "vm-gpu2\nother-gpu3\nvm-gpu0\n");
    let scheduled = |job: &str, file: Option<&str>| {
        let env = |name: &str| file.filter(|_| name == "PBS_GPUFILE").map(str::to_owned);
        let location = Location {
            node: Some("vm".to_owned()),
            ..Location::default()
        };
        scheduled_devices(&JobId::parse(job).unwrap(), &env, &location, &host)
    };
    assert_eq!(scheduled("0.vm", Some(GPU_FILE)).as_deref(), Some("2,0"));
    // 'qsub -V' carries the name of another job's file.
    assert_eq!(scheduled("1.vm", Some(GPU_FILE)), None);
    assert_eq!(scheduled("0.vm", None), None);
    assert_eq!(scheduled("0.vm", Some("/elsewhere/0.vmgpu")), None);
}

#[test]
fn tasks_are_counted_if_the_user_named_the_nodes() {
    let env = with_named_nodes(ENV);
    let mut call = Call::new(Program::Prologue, &PROLOGUE, &env);
    let nodes = "nodea\nnodea\nvm\nvm\nvm\n";
    call.host = TextHost::default().file("/var/spool/torque/aux//0.vm", nodes);
    assert_eq!(call.devices().tasks_on_node, Some(3));
    let env = with_named_nodes(SISTER_ENV);
    let sister = Call::new(Program::Prologue, &PROLOGUE, &env);
    assert_eq!(sister.devices().tasks_on_node, None);
}

#[test]
fn the_account_is_verbatim_in_every_release_and_empty_is_none() {
    let (odd, empty) = (changed(6, "MPS=true,foo bar;x=1"), changed(6, ""));
    for (program, arguments, account) in [
        (Program::Prologue, &PROLOGUE[..7], Some("MPS=true")),
        (Program::Prologue, &PROLOGUE, Some("MPS=true")),
        (Program::Epilogue, &EPILOGUE[..10], Some("proj1,MPS=true")),
        (Program::Epilogue, &EPILOGUE, Some("proj1,MPS=true")),
        (Program::Prologue, &odd, Some("MPS=true,foo bar;x=1")),
        (Program::Prologue, &empty, None),
    ] {
        let s = Call::new(program, arguments, &ENV).read().unwrap();
        assert_eq!(s.scheduler, Scheduler::Torque);
        assert_eq!(s.account, account.map(|text| text.as_bytes().to_vec()));
    }
}

#[test]
fn a_torque_sister_asks_qstat_and_takes_only_its_own_gpus() {
    let mut call = Call::new(Program::Prologue, &PROLOGUE, &SISTER_ENV);
    let s = call.read().unwrap();
    // PBS_MSHOST is another node.
    assert_eq!((s.sister, s.node), (true, None));
    let status = "Job Id: 0.vm\n    exec_gpus = nodea-gpu/0+nodea-gpu/1+\n\tnodeb-gpu/1+nodeb-gpu/3\n    interactive = False\n";
    let forged = format!("{status}    Variable_List = A=\n    exec_gpus = nodeb-gpu/0\n");
    let own = GpuSource::Listed(vec![GpuName::Index(1), GpuName::Index(3)]);
    for (code, text, known) in [
        (0, status, true),
        // Two lines of one name are no answer.
        (0, &forged, false),
        (153, "qstat: Unknown Job Id 0.vm\n", false),
    ] {
        call.host = TextHost::default().command("/opt/x/bin/qstat -f 0.vm", code, text);
        let gpus = call.devices().gpus;
        assert_eq!(gpus == own, known, "{gpus:?}");
        assert_eq!(matches!(gpus, GpuSource::Unknown(_)), !known, "{gpus:?}");
    }
}

#[test]
fn a_mode_of_the_gpus_lets_jobs_share_them_and_missing_files_are_told() {
    let (shared, alone) = (Exclusive::Shared(None), Exclusive::GpusAlone);
    for (resources, exclusive) in [
        ("walltime=01:00:00,nodes=1:ppn=2:gpus=1:shared", shared),
        ("nodes=1:ppn=2+2:gpus=1:reseterr:default,need=3", shared),
        ("nodes=1:gpus=1:exclusive_thread,policy=shared", alone),
        ("nodes=default:gpus=1,naccesspolicy:shared", alone),
    ] {
        let arguments = changed(4, resources);
        let mut call = Call::new(Program::Prologue, &arguments, &ENV);
        let why = format!("no file '{GPU_FILE}'");
        assert_eq!(call.devices().gpus, GpuSource::Unknown(why));
        call.host = TextHost::default().file(GPU_FILE, "vm-gpu0\n");
        assert_eq!(call.devices().exclusive, exclusive, "{resources}");
    }
    let arguments = changed(4, "nodes=1:ppn=4,neednodes=1:ppn=4");
    let none = Call::new(Program::Prologue, &arguments, &ENV).devices();
    assert!(matches!(none.gpus, GpuSource::Unknown(_)));
}

#[test]
fn a_wrong_vector_is_the_nodes_and_a_wrong_id_the_users() {
    let code = |program, arguments: &[&str], env| {
        let failure = Call::new(program, arguments, env).read().unwrap_err();
        (failure.exit_code(), failure.to_string())
    };
    for count in [0, 1, 2, 4, 5, 6, 12] {
        let (code, why) = code(Program::Prologue, &vec!["x"; count], &[]);
        let is_told = code == 2 && why.contains("JOB USER GROUP");
        assert!(is_told, "{count}: {why}");
    }
    assert_eq!(code(Program::Epilogue, &PROLOGUE, &ENV).0, 2);
    for id in ["../../etc", "a/b", "", "1\n2"] {
        let code = code(Program::Prologue, &changed(0, id), &ENV).0;
        assert!(code > 0, "{id:?}");
    }
}

#[test]
fn the_last_alarm_counts() {
    let config = "$logevent 255\n$prologalarm 15\n# $prologalarm 3\n$prologalarm 60\n";
    assert_eq!(super::prolog_alarm(config), Some(60));
    assert_eq!(super::prolog_alarm("$prologalarm x\n"), None);
}
