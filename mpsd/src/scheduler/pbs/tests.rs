//! The recorded argument vectors and environments of the three products, and what we make of them.

use crate::scheduler::testing::{Call, Paper};
use crate::scheduler::*;

const TORQUE_LIST: &str = "nodes=1:gpus=1,neednodes=1:gpus=1,walltime=01:00:00";
const TORQUE_PROLOGUE: [&str; 8] = [
    "0.vm",
    "alice",
    "users",
    "job1",
    TORQUE_LIST,
    "batch",
    "MPS=true",
    "/var/spool/torque/mom_priv/jobs/0.vm.SC",
];
const TORQUE_EPILOGUE: [&str; 11] = [
    "0.vm",
    "alice",
    "users",
    "job1",
    "4242",
    TORQUE_LIST,
    "cput=00:00:00,vmem=0kb,walltime=00:00:02,mem=0kb,energy_used=0",
    "batch",
    "proj1,MPS=true",
    "0",
    "/var/spool/torque/mom_priv/jobs/0.vm.SC",
];
const TORQUE_ENV: [(&str, &str); 9] = [
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
const OPENPBS_ENV: [(&str, &str); 2] = [("PATH", "/bin:/usr/bin"), ("PBS_JOBDIR", "/home/alice")];
const OPENPBS_EPILOGUE: [&str; 10] = [
    "0.localhost",
    "alice",
    "users",
    "job1",
    "77",
    "ncpus=1,place=pack",
    "cpupercent=0,cput=00:00:00,mem=0kb,ncpus=1,vmem=0kb,walltime=00:00:01",
    "workq",
    "null",
    "0",
];
const PRINTJOB: &str = "/opt/x/bin/printjob /var/spool/x/mom_priv/jobs/0.localhost.JB";

#[test]
fn torque_prologue() {
    let mut call = Call::new(Program::Prologue, &TORQUE_PROLOGUE, &TORQUE_ENV);
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.phase), (Scheduler::Torque, Phase::Prologue));
    assert_eq!(
        (s.job.as_str(), s.user, s.group.as_deref()),
        ("0.vm", UserRef::Name("alice".into()), Some("users"))
    );
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
fn torque_forms_of_other_releases_have_the_account_in_the_same_place() {
    for length in [7, 8] {
        let s = Call::new(Program::Prologue, &TORQUE_PROLOGUE[..length], &TORQUE_ENV)
            .read()
            .unwrap();
        assert_eq!(s.account.as_deref(), Some(&b"MPS=true"[..]), "{length}");
    }
    for length in [10, 11] {
        let s = Call::new(Program::Epilogue, &TORQUE_EPILOGUE[..length], &TORQUE_ENV)
            .read()
            .unwrap();
        assert_eq!(s.scheduler, Scheduler::Torque, "{length}");
        assert_eq!(s.account.as_deref(), Some(&b"proj1,MPS=true"[..]), "{length}");
    }
}

#[test]
fn torque_account_is_verbatim_and_empty_is_none() {
    let mut arguments = TORQUE_PROLOGUE;
    arguments[6] = "MPS=true,foo bar;x=1";
    assert_eq!(
        Call::new(Program::Prologue, &arguments, &TORQUE_ENV)
            .read()
            .unwrap()
            .account
            .unwrap(),
        b"MPS=true,foo bar;x=1"
    );
    arguments[6] = "";
    assert_eq!(
        Call::new(Program::Prologue, &arguments, &TORQUE_ENV)
            .read()
            .unwrap()
            .account,
        None
    );
}

#[test]
fn a_torque_sister_asks_qstat_and_takes_only_its_own_gpus() {
    let mut call = Call::new(Program::Prologue, &TORQUE_PROLOGUE, &SISTER_ENV);
    assert_eq!(call.read().unwrap().phase, Phase::ParallelPrologue);
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
        matches!(call.devices().gpus, GpuSource::Unknown { .. }),
        "two lines of one name are no answer"
    );
    call.host = Paper::default().command("/opt/x/bin/qstat -f 0.vm", 153, "qstat: Unknown Job Id 0.vm\n");
    assert!(matches!(call.devices().gpus, GpuSource::Unknown { .. }));
}

#[test]
fn torque_shared_gpus_prove_nothing_and_missing_files_are_told() {
    let mut arguments = TORQUE_PROLOGUE;
    arguments[4] = "walltime=01:00:00,nodes=1:ppn=2:gpus=1:shared";
    let mut call = Call::new(Program::Prologue, &arguments, &TORQUE_ENV);
    let GpuSource::Unknown { why } = call.devices().gpus else {
        panic!("no file, no GPUs")
    };
    assert_eq!(why, "no file '/var/spool/torque/aux//0.vmgpu'");
    call.host = Paper::default().file("/var/spool/torque/aux//0.vmgpu", "vm-gpu0\n");
    assert_eq!(call.devices().exclusive, Exclusive::Shared);
    arguments[4] = "nodes=1:ppn=4,neednodes=1:ppn=4";
    assert!(matches!(
        Call::new(Program::Prologue, &arguments, &TORQUE_ENV)
            .devices()
            .gpus,
        GpuSource::Unknown { .. }
    ));
}

#[test]
fn openpbs_classic_prologue_reads_the_moms_job_file() {
    let mut call = Call::new(
        Program::Prologue,
        &["0.localhost", "alice", "users"],
        &OPENPBS_ENV,
    );
    let file = "---------\njobid:\t0.localhost\n    Account_Name = proj1,MPS=true,MPS_MEM=2G\n    Resource_List.mps = on+threads=25\n    \
                Resource_List.place = excl\n    exec_vnode = (nodeb:ncpus=8:ngpus=2)\n    schedselect = 1:ncpus=8:mpiprocs=4:ngpus=2\n";
    call.host = Paper::default().command(PRINTJOB, 0, file);
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.phase), (Scheduler::OpenPbs, Phase::Prologue));
    assert_eq!(s.account.as_deref(), Some(&b"proj1,MPS=true,MPS_MEM=2G"[..]));
    assert_eq!(s.resource.as_deref(), Some("on+threads=25"));
    let d = call.devices();
    assert!(
        matches!(d.gpus, GpuSource::Unknown { .. }),
        "a count of GPUs names none"
    );
    assert_eq!((d.whole_node, d.tasks_on_node), (true, Some(4)));
    call.host = Paper::default().command(PRINTJOB, 1, "printjob: cannot open\n");
    assert_eq!(call.read().unwrap_err().exit_code(), 2);
}

#[test]
fn without_printjob_only_a_job_that_may_have_asked_waits() {
    let mut call = Call::new(
        Program::Prologue,
        &["0.localhost", "alice", "users"],
        &OPENPBS_ENV,
    );
    for (file, asked) in [
        ("\0\u{1}Account_Name\0proj1\0", false),
        ("\0Account_Name\0proj1,Mps=true\0", true),
        ("", true),
    ] {
        call.host = Paper::default().file("/var/spool/x/mom_priv/jobs/0.localhost.JB", file);
        assert_eq!(call.read().is_err(), asked, "{file:?}");
    }
}

#[test]
fn openpbs_gpus_come_from_pbs_cgroups() {
    let mut call = Call::new(
        Program::Prologue,
        &["0.localhost", "alice", "users"],
        &OPENPBS_ENV,
    );
    call.given = Given {
        account: Some("MPS=per-gpu".into()),
        vnodes: Some("(nodeb:ngpus=2)".into()),
        ..Given::default()
    };
    let uuids = "GPU-11111111-2222-3333-4444-555555555555\\,GPU-21111111-2222-3333-4444-555555555555";
    call.host = Paper::default().file(
        "/var/spool/x/aux/0.localhost.env",
        &format!("CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES={uuids}\n"),
    );
    let d = call.devices();
    assert!(matches!(&d.gpus, GpuSource::Listed(names) if names.len() == 2));
    assert_eq!(d.exclusive, Exclusive::GpusAlone);
    assert!(
        call.host.ran.borrow().is_empty(),
        "the hook's options say it all: no command is run"
    );
    call.given.gpus = Some("GPU-31111111-2222-3333-4444-555555555555".into());
    assert!(
        matches!(&call.devices().gpus, GpuSource::Listed(names) if names.len() == 1),
        "--gpus goes first"
    );
}

#[test]
fn openpbs_epilogue_and_its_null_account() {
    let s = Call::new(Program::Epilogue, &OPENPBS_EPILOGUE, &OPENPBS_ENV)
        .read()
        .unwrap();
    assert_eq!(
        (s.scheduler, s.account, s.phase),
        (Scheduler::OpenPbs, None, Phase::Epilogue)
    );
    let mut arguments = OPENPBS_EPILOGUE;
    arguments[8] = "MPS=true";
    assert_eq!(
        Call::new(Program::Epilogue, &arguments, &OPENPBS_ENV)
            .read()
            .unwrap()
            .account
            .unwrap(),
        b"MPS=true"
    );
}

#[test]
fn chunks_on_this_node_times_their_ranks() {
    let two =
        "(nodea:ncpus=4:ngpus=1)+(nodeb[0]:ncpus=2:ngpus=1+nodeb[1]:ncpus=2)+(nodeb[1]:ncpus=4:ngpus=1)";
    let tasks = |select: &str, vnodes: &str| {
        let mut call = Call::new(
            Program::Prologue,
            &["0.localhost", "alice", "users"],
            &OPENPBS_ENV,
        );
        call.given = Given {
            account: Some("".into()),
            select: Some(select.into()),
            vnodes: Some(vnodes.into()),
            ..Given::default()
        };
        call.devices().tasks_on_node
    };
    assert_eq!(tasks("3:ncpus=4:mpiprocs=4:ngpus=1", two), Some(8));
    assert_eq!(tasks("3:ncpus=4:ngpus=1", two), None);
    assert_eq!(tasks("1:ncpus=4:mpiprocs=2+2:mpiprocs=4", two), None);
}

#[test]
fn a_wrong_vector_is_the_nodes_and_a_wrong_id_the_users() {
    for count in [1, 2, 4, 5, 6, 12] {
        let arguments = vec!["x"; count];
        let failure = Call::new(Program::Prologue, &arguments, &[]).read().unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{count}");
        assert!(
            failure.to_string().contains("expected: JOB USER GROUP"),
            "{failure}"
        );
    }
    assert_eq!(
        Call::new(Program::Prologue, &[], &[])
            .read()
            .unwrap_err()
            .exit_code(),
        2
    );
    assert_eq!(
        Call::new(Program::Epilogue, &TORQUE_PROLOGUE, &TORQUE_ENV)
            .read()
            .unwrap_err()
            .exit_code(),
        2
    );
    for id in ["../../etc", "a/b", "", "1\n2"] {
        let mut arguments = TORQUE_PROLOGUE;
        arguments[0] = id;
        assert!(
            Call::new(Program::Prologue, &arguments, &TORQUE_ENV)
                .read()
                .is_err(),
            "{id:?}"
        );
    }
}
