//! OpenPBS's recorded argument vectors and environments, and what we make of them.

use crate::scheduler::call::{CallOptions, Program};
use crate::scheduler::devices::{Exclusive, GpuName, GpuSource};
use crate::scheduler::testing::{Call, Paper};
use mpsd_core::job::Scheduler;

const ENV: [(&str, &str); 2] = [("PATH", "/bin:/usr/bin"), ("PBS_JOBDIR", "/home/alice")];
const EPILOGUE: [&str; 10] = [
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
fn openpbs_classic_prologue_reads_the_moms_job_file() {
    let mut call = Call::new(Program::Prologue, &["0.localhost", "alice", "users"], &ENV);
    let file = "---------\njobid:\t0.localhost\n    Account_Name = proj1,MPS=true,MPS_MEM=2G\n    Resource_List.mps = on+threads=25\n    \
                Resource_List.place = excl\n    exec_vnode = (nodeb:ncpus=8:ngpus=2)\n    schedselect = 1:ncpus=8:mpiprocs=4:ngpus=2\n";
    call.host = Paper::default().command(PRINTJOB, 0, file);
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.sister), (Scheduler::OpenPbs, false));
    assert_eq!(s.account.as_deref(), Some(&b"proj1,MPS=true,MPS_MEM=2G"[..]));
    assert_eq!(s.resource.as_deref(), Some("on+threads=25"));
    let d = call.devices();
    assert!(
        matches!(d.gpus, GpuSource::Counted { count: 2, .. }),
        "a count of GPUs names none"
    );
    assert_eq!((d.whole_node, d.tasks_on_node), (true, Some(4)));
    call.host = Paper::default().command(PRINTJOB, 1, "printjob: cannot open\n");
    assert_eq!(call.read().unwrap_err().exit_code(), 2);
}

#[test]
fn without_printjob_only_a_job_that_may_have_asked_waits() {
    let mut call = Call::new(Program::Prologue, &["0.localhost", "alice", "users"], &ENV);
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
    let mut call = Call::new(Program::Prologue, &["0.localhost", "alice", "users"], &ENV);
    call.given = CallOptions {
        account: Some("MPS=per-gpu".into()),
        vnodes: Some("(nodeb:ngpus=2)".into()),
        ..CallOptions::default()
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
    let unknown = |devices: crate::scheduler::Devices| match devices.gpus {
        GpuSource::Unknown(why) => why,
        other => panic!("{other:?}"),
    };
    call.host = Paper::default().file("/var/spool/x/aux/0.localhost.env", "CUDA_VISIBLE_DEVICES=0\\,1\n");
    assert!(unknown(call.devices()).contains("aux/0.localhost.env' names GPUs by number"));
    // As `_discover_migs` of the hook finds them (docs/facts/pbs.md#gpus-of-a-job).
    let migs = "MIG-405bbda1-6b05-535f-9702-f95e8cd170ce\\,MIG-b0a55a70-b1b0-529f-af26-79ccdc267be0";
    let text = format!("CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES={migs}\n");
    call.host = Paper::default().file("/var/spool/x/aux/0.localhost.env", &text);
    let names = migs.split("\\,").map(|name| GpuName::Uuid(name.to_owned()));
    assert_eq!(call.devices().gpus, GpuSource::Listed(names.collect()));
    // A vnode with a count of GPUs, and no hook that names them.
    call.host = Paper::default();
    let counted = |vnodes: &str, place: &str| {
        let mut call = Call::new(Program::Prologue, &["0.localhost", "alice", "users"], &ENV);
        call.given = CallOptions {
            account: Some("MPS=true".into()),
            vnodes: Some(vnodes.into()),
            place: Some(place.into()),
            ..CallOptions::default()
        };
        let devices = call.devices();
        let alone = devices.exclusive == Exclusive::GpusAlone;
        match devices.gpus {
            GpuSource::Counted { count, .. } => (count, alone),
            GpuSource::Unknown(_) => (0, alone),
            other => panic!("{other:?}"),
        }
    };
    for (vnodes, place, expected) in [
        ("(nodeb:ngpus=2)", "pack", (2, false)),
        (
            "(nodea:ngpus=4)+(nodeb:ncpus=1:ngpus=1)+(nodeb:ngpus=1)",
            "",
            (2, false),
        ),
        (
            "(nodeb[0]:ngpus=1+nodeb[1]:ncpus=2:ngpus=1)",
            "free:excl",
            (2, false),
        ),
        ("(nodeb[0]:ngpus=1)", "free:exclhost", (1, true)),
        ("(nodeb:ngpus=1)", "free:excl:group=host", (1, true)),
        ("(nodea:ngpus=4)+(nodeb:ncpus=1)", "exclhost", (0, false)),
        ("(nodeb:ngpus=0)", "exclhost", (0, false)),
    ] {
        assert_eq!(counted(vnodes, place), expected, "{vnodes} {place}");
    }
    call.given.gpus = Some("GPU-31111111-2222-3333-4444-555555555555".into());
    assert!(
        matches!(&call.devices().gpus, GpuSource::Listed(names) if names.len() == 1),
        "--gpus goes first"
    );
}

#[test]
fn openpbs_epilogue_and_its_null_account() {
    let s = Call::new(Program::Epilogue, &EPILOGUE, &ENV).read().unwrap();
    assert_eq!(
        (s.scheduler, s.account, s.sister),
        (Scheduler::OpenPbs, None, false)
    );
    let mut arguments = EPILOGUE;
    arguments[8] = "MPS=true";
    assert_eq!(
        Call::new(Program::Epilogue, &arguments, &ENV)
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
        let mut call = Call::new(Program::Prologue, &["0.localhost", "alice", "users"], &ENV);
        call.given = CallOptions {
            account: Some("".into()),
            select: Some(select.into()),
            vnodes: Some(vnodes.into()),
            ..CallOptions::default()
        };
        call.devices().tasks_on_node
    };
    assert_eq!(tasks("3:ncpus=4:mpiprocs=4:ngpus=1", two), Some(8));
    assert_eq!(tasks("3:ncpus=4:ngpus=1", two), None);
    assert_eq!(tasks("1:ncpus=4:mpiprocs=2+2:mpiprocs=4", two), None);
}

#[test]
fn several_nodes_under_the_classic_scripts_have_no_daemon() {
    let [one, two] = [1, 2].map(super::under_classic_scripts);
    assert!(two.no_way_round && !one.no_way_round);
    assert!(two.why.contains("it has 2 nodes"));
}
