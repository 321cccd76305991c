//! OpenPBS's recorded argument vectors and environments, and what we read from them.

use crate::scheduler::call::{CallOptions, Program};
use crate::scheduler::devices::{Exclusive, GpuName, GpuSource};
use crate::scheduler::testing::{Call, TextHost};
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
const JOB_FILE: &str = "/var/spool/x/mom_priv/jobs/0.localhost.JB";
const PRINTJOB: &str = "/opt/x/bin/printjob /var/spool/x/mom_priv/jobs/0.localhost.JB";
const CGROUPS: &str = "/var/spool/x/aux/0.localhost.env";

fn prologue(given: CallOptions) -> Call<'static> {
    let mut call = Call::new(Program::Prologue, &["0.localhost", "alice", "users"], &ENV);
    call.given = given;
    call
}

fn hooked(vnodes: &str, place: &str, select: &str) -> Call<'static> {
    prologue(CallOptions {
        account: Some("MPS=per-gpu".into()),
        vnodes: Some(vnodes.into()),
        place: Some(place.into()),
        select: Some(select.into()),
        ..CallOptions::default()
    })
}

#[test]
fn openpbs_classic_prologue_reads_the_moms_job_file() {
    let mut call = prologue(CallOptions::default());
    let file = "---------\njobid:\t0.localhost\n    Account_Name = proj1,MPS=true,MPS_MEM=2G\n    Resource_List.mps = on+threads=25\n    \
                Resource_List.place = excl\n    exec_vnode = (nodeb:ncpus=8:ngpus=2)\n    schedselect = 1:ncpus=8:mpiprocs=4:ngpus=2\n";
    call.host = TextHost::default().command(PRINTJOB, 0, file);
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.sister), (Scheduler::OpenPbs, false));
    assert_eq!(
        s.account.as_deref(),
        Some(&b"proj1,MPS=true,MPS_MEM=2G"[..])
    );
    assert_eq!(s.resource.as_deref(), Some("on+threads=25"));
    let d = call.devices();
    let is_counted = matches!(d.gpus, GpuSource::Counted { count: 2, .. });
    assert!(is_counted, "a count names none");
    assert_eq!((d.whole_node, d.tasks_on_node), (true, Some(4)));
    call.host = TextHost::default().command(PRINTJOB, 1, "printjob: cannot open\n");
    assert_eq!(call.read().unwrap_err().exit_code(), 2);
    // Without printjob only a job that may have asked waits.
    for (file, asked) in [
        ("\0\u{1}Account_Name\0proj1\0", false),
        ("\0Account_Name\0proj1,Mps=true\0", true),
        ("", true),
    ] {
        call.host = TextHost::default().file(JOB_FILE, file);
        assert_eq!(call.read().is_err(), asked, "{file:?}");
    }
}

#[test]
fn openpbs_gpus_come_from_pbs_cgroups() {
    let mut call = hooked("(nodeb:ngpus=2)", "", "");
    let uuids = [
        "GPU-11111111-2222-3333-4444-555555555555",
        "GPU-21111111-2222-3333-4444-555555555555",
    ];
    // As `_discover_migs` of the hook finds them (docs/facts/pbs.md#gpus-of-a-job).
    let migs = [
        "MIG-405bbda1-6b05-535f-9702-f95e8cd170ce",
        "MIG-b0a55a70-b1b0-529f-af26-79ccdc267be0",
    ];
    for names in [uuids, migs] {
        let list = names.join("\\,");
        let text = format!("CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES={list}\n");
        call.host = TextHost::default().file(CGROUPS, &text);
        let d = call.devices();
        let names = names.map(|name| GpuName::Uuid(name.to_owned()));
        assert_eq!(d.gpus, GpuSource::Listed(names.to_vec()));
        assert_eq!(d.exclusive, Exclusive::GpusAlone);
        assert!(call.host.ran.borrow().is_empty(), "the options say it all");
    }
    call.host = TextHost::default().file(CGROUPS, "CUDA_VISIBLE_DEVICES=0\\,1\n");
    let GpuSource::Unknown(why) = call.devices().gpus else {
        panic!("numbers are not certain");
    };
    assert!(
        why.contains("aux/0.localhost.env' names GPUs by number"),
        "{why}"
    );
    call.given.gpus = Some("GPU-31111111-2222-3333-4444-555555555555".into());
    let is_named = matches!(call.devices().gpus, GpuSource::Listed(names) if names.len() == 1);
    assert!(is_named, "--gpus overrides");
}

#[test]
fn without_pbs_cgroups_a_vnode_has_a_count_of_gpus() {
    for (vnodes, place, expected) in [
        ("(nodeb:ngpus=2)", "pack", (2, false)),
        (
            "(nodea:ngpus=4)+(nodeb:ncpus=1:ngpus=1)+(nodeb:ngpus=1)",
            "",
            (2, false),
        ),
        (
            "(nodeb[0]:ngpus=1+nodeb[1]:ngpus=1)",
            "free:excl",
            (2, false),
        ),
        ("(nodeb[0]:ngpus=1)", "free:exclhost", (1, true)),
        ("(nodeb:ngpus=1)", "free:excl:group=host", (1, true)),
        ("(nodea:ngpus=4)+(nodeb:ncpus=1)", "exclhost", (0, true)),
        ("(nodeb:ngpus=0)", "exclhost", (0, true)),
    ] {
        let devices = hooked(vnodes, place, "").devices();
        let count = match devices.gpus {
            GpuSource::Counted { count, .. } => count,
            GpuSource::Unknown(_) | GpuSource::None => 0,
            other => panic!("{other:?}"),
        };
        assert_eq!(devices.exclusive, Exclusive::Unknown, "PBS names none");
        assert_eq!((count, devices.whole_node), expected, "{vnodes} {place}");
    }
}

#[test]
fn openpbs_epilogue_and_its_null_account() {
    let mut arguments = EPILOGUE;
    for (account, expected) in [("null", None), ("MPS=true", Some(b"MPS=true".to_vec()))] {
        arguments[8] = account;
        let s = Call::new(Program::Epilogue, &arguments, &ENV)
            .read()
            .unwrap();
        assert!(s.scheduler == Scheduler::OpenPbs && !s.sister && s.account == expected);
    }
}

#[test]
fn chunks_on_this_node_times_their_ranks() {
    let two = "(nodea:ncpus=4:ngpus=1)+(nodeb[0]:ncpus=2:ngpus=1+nodeb[1]:ncpus=2)+(nodeb[1]:ncpus=4:ngpus=1)";
    for (select, tasks) in [
        ("3:ncpus=4:mpiprocs=4:ngpus=1", Some(8)),
        ("3:ncpus=4:ngpus=1", None),
        ("1:ncpus=4:mpiprocs=2+2:mpiprocs=4", Some(8)),
        ("2:ncpus=4:mpiprocs=2+1:mpiprocs=4", Some(6)),
        ("1:ncpus=4:mpiprocs=2+1:mpiprocs=4", None),
        ("1:ncpus=4+2:mpiprocs=4", None),
    ] {
        assert_eq!(
            hooked(two, "", select).devices().tasks_on_node,
            tasks,
            "{select}"
        );
    }
}

#[test]
fn several_nodes_under_the_classic_scripts_have_no_daemon() {
    let [one, two] = [1, 2].map(super::under_classic_scripts);
    assert!(two.no_way_round && !one.no_way_round);
    assert!(two.why.contains("it has 2 nodes"));
}

/// A vnode may have another name than its host: `create node gpubox Mom=nodeb`.
#[test]
fn a_chunk_is_where_its_host_is() {
    for (vnodes, hosts, expected) in [
        ("(gpubox:ncpus=1:ngpus=2)", "nodeb:15002/0*4", (2, Some(4))),
        ("gpubox:ncpus=1:ngpus=2", "nodeb:15002/0", (2, Some(4))),
        (
            "(nodea:ngpus=4)+(gpubox:ngpus=1)",
            "nodea:15002/0+nodeb:15002/0",
            (1, Some(4)),
        ),
        ("(gpubox:ngpus=2)", "nodea:15002/0", (0, None)),
        ("(gpubox:ngpus=2)", "", (0, None)),
    ] {
        let mut call = hooked(vnodes, "excl", "2:mpiprocs=4");
        call.given.hosts = Some(hosts.into());
        let devices = call.devices();
        let count = match devices.gpus {
            GpuSource::Counted { count, .. } => count,
            GpuSource::Unknown(why) => {
                assert!(why.contains("set node under [pbs]"), "{why}");
                0
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((count, devices.tasks_on_node), expected, "{vnodes} {hosts}");
        assert!(
            count == 0 || !devices.whole_node,
            "the host may have other vnodes"
        );
    }
    let devices = hooked("(nodea:ngpus=2)+(nodeb:ncpus=8)", "", "").devices();
    assert_eq!(
        devices.gpus,
        GpuSource::None,
        "a node without GPUs of a job with GPUs"
    );
}
