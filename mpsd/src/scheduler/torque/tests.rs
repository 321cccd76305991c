//! Torque's recorded argument vectors and environments, and what we make of them.

use crate::scheduler::call::{Program, UserRef};
use crate::scheduler::devices::{Exclusive, GpuName, GpuSource};
use crate::scheduler::testing::{Call, Paper};
use mpsd_core::job::Scheduler;

const LIST: &str = "nodes=1:gpus=1,neednodes=1:gpus=1,walltime=01:00:00";
const PROLOGUE: [&str; 8] = [
    "0.vm",
    "alice",
    "users",
    "job1",
    LIST,
    "batch",
    "MPS=true",
    "/var/spool/torque/mom_priv/jobs/0.vm.SC",
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
    "/var/spool/torque/mom_priv/jobs/0.vm.SC",
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

#[test]
fn torque_prologue() {
    let mut call = Call::new(Program::Prologue, &PROLOGUE, &ENV);
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.sister), (Scheduler::Torque, false));
    assert_eq!((s.job.as_str(), s.user), ("0.vm", UserRef::Name("alice".into())));
    assert_eq!(
        (s.account.as_deref(), s.node.as_deref()),
        (Some(&b"MPS=true"[..]), Some("vm"))
    );
    call.host = Paper::default().file("/var/spool/torque/aux//0.vmgpu", "vm-gpu0\nother-gpu3\nvm-gpu2\n");
    let d = call.devices();
    assert_eq!(
        d.gpus,
        GpuSource::Listed(vec![GpuName::Index(0), GpuName::Index(2)])
    );
    assert_eq!((d.exclusive, d.tasks_on_node), (Exclusive::GpusAlone, Some(4)));
    assert!(call.host.ran.borrow().is_empty());
}

#[test]
fn tasks_are_counted_where_the_user_named_the_nodes() {
    let named = |name: &str, value| if name == "PBS_NUM_NODES" { "0" } else { value };
    let env = ENV.map(|(name, value)| {
        (
            name,
            if name == "PBS_NUM_PPN" {
                "1"
            } else {
                named(name, value)
            },
        )
    });
    let mut call = Call::new(Program::Prologue, &PROLOGUE, &env);
    call.host = Paper::default().file("/var/spool/torque/aux//0.vm", "nodea\nnodea\nvm\nvm\nvm\n");
    assert_eq!(call.devices().tasks_on_node, Some(3));
    let env = SISTER_ENV.map(|(name, value)| (name, named(name, value)));
    let sister = Call::new(Program::Prologue, &PROLOGUE, &env);
    assert_eq!(sister.devices().tasks_on_node, None);
}

#[test]
fn torque_forms_of_other_releases_have_the_account_in_the_same_place() {
    for length in [7, 8] {
        let s = Call::new(Program::Prologue, &PROLOGUE[..length], &ENV)
            .read()
            .unwrap();
        assert_eq!(s.account.as_deref(), Some(&b"MPS=true"[..]), "{length}");
    }
    for length in [10, 11] {
        let s = Call::new(Program::Epilogue, &EPILOGUE[..length], &ENV)
            .read()
            .unwrap();
        assert_eq!(s.scheduler, Scheduler::Torque, "{length}");
        assert_eq!(s.account.as_deref(), Some(&b"proj1,MPS=true"[..]), "{length}");
    }
}

#[test]
fn torque_account_is_verbatim_and_empty_is_none() {
    let mut arguments = PROLOGUE;
    arguments[6] = "MPS=true,foo bar;x=1";
    assert_eq!(
        Call::new(Program::Prologue, &arguments, &ENV)
            .read()
            .unwrap()
            .account
            .unwrap(),
        b"MPS=true,foo bar;x=1"
    );
    arguments[6] = "";
    assert_eq!(
        Call::new(Program::Prologue, &arguments, &ENV)
            .read()
            .unwrap()
            .account,
        None
    );
}

#[test]
fn a_torque_sister_asks_qstat_and_takes_only_its_own_gpus() {
    let mut call = Call::new(Program::Prologue, &PROLOGUE, &SISTER_ENV);
    assert!(call.read().unwrap().sister);
    assert_eq!(call.read().unwrap().node, None, "PBS_MSHOST is another node");
    let status = "Job Id: 0.vm\n    Job_Name = job1\n    exec_gpus = nodea-gpu/0+nodea-gpu/1+\n\tnodeb-gpu/1+nodeb-gpu/3\n    interactive = False\n";
    call.host = Paper::default().command("/opt/x/bin/qstat -f 0.vm", 0, status);
    assert_eq!(
        call.devices().gpus,
        GpuSource::Listed(vec![GpuName::Index(1), GpuName::Index(3)])
    );
    let forged = format!("{status}    Variable_List = A=\n    exec_gpus = nodeb-gpu/0\n");
    call.host = Paper::default().command("/opt/x/bin/qstat -f 0.vm", 0, &forged);
    assert!(
        matches!(call.devices().gpus, GpuSource::Unknown(_)),
        "two lines of one name are no answer"
    );
    call.host = Paper::default().command("/opt/x/bin/qstat -f 0.vm", 153, "qstat: Unknown Job Id 0.vm\n");
    assert!(matches!(call.devices().gpus, GpuSource::Unknown(_)));
}

#[test]
fn torque_shared_gpus_prove_nothing_and_missing_files_are_told() {
    let mut arguments = PROLOGUE;
    arguments[4] = "walltime=01:00:00,nodes=1:ppn=2:gpus=1:shared";
    let mut call = Call::new(Program::Prologue, &arguments, &ENV);
    let GpuSource::Unknown(why) = call.devices().gpus else {
        panic!("no file, no GPUs")
    };
    assert_eq!(why, "no file '/var/spool/torque/aux//0.vmgpu'");
    call.host = Paper::default().file("/var/spool/torque/aux//0.vmgpu", "vm-gpu0\n");
    assert_eq!(call.devices().exclusive, Exclusive::Shared);
    arguments[4] = "nodes=1:ppn=4,neednodes=1:ppn=4";
    assert!(matches!(
        Call::new(Program::Prologue, &arguments, &ENV).devices().gpus,
        GpuSource::Unknown(_)
    ));
}

#[test]
fn a_wrong_vector_is_the_nodes_and_a_wrong_id_the_users() {
    for count in [1, 2, 4, 5, 6, 12] {
        let arguments = vec!["x"; count];
        let failure = Call::new(Program::Prologue, &arguments, &[]).read().unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{count}");
        assert!(failure.to_string().contains("JOB USER GROUP"), "{failure}");
    }
    assert_eq!(
        Call::new(Program::Prologue, &[], &[])
            .read()
            .unwrap_err()
            .exit_code(),
        2
    );
    assert_eq!(
        Call::new(Program::Epilogue, &PROLOGUE, &ENV)
            .read()
            .unwrap_err()
            .exit_code(),
        2
    );
    for id in ["../../etc", "a/b", "", "1\n2"] {
        let mut arguments = PROLOGUE;
        arguments[0] = id;
        assert!(
            Call::new(Program::Prologue, &arguments, &ENV).read().is_err(),
            "{id:?}"
        );
    }
}
