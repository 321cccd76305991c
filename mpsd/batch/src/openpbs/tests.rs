//! What our hook says of a job under OpenPBS, and what we read from it.

use crate::call::{CallOptions, Location, Program};
use crate::devices::{Devices, Exclusive, GpuName, GpuSource, Part};
use crate::scheduled_devices;
use crate::testing::{Call, TextHost};
use mpsd_core::job::{JobId, Scheduler};

const ENV: [(&str, &str); 2] = [("PATH", "/bin:/usr/bin"), ("PBS_JOBDIR", "/home/alice")];
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
fn the_hook_says_it_all_and_what_is_empty_was_not_asked() {
    let mut call = prologue(CallOptions {
        account: Some("".into()),
        resource: Some("on+threads=25".into()),
        queue: Some("workq".into()),
        sister: true,
        ..CallOptions::default()
    });
    let s = call.read().unwrap();
    assert_eq!((s.scheduler, s.sister), (Scheduler::OpenPbs, true));
    let resource = Some("on+threads=25".to_owned());
    assert_eq!((s.account, s.resource), (None, resource));
    assert_eq!(s.queue.as_deref(), Some("workq"));
    call.given = CallOptions {
        account: Some("proj1,MPS=true".into()),
        resource: Some(String::new()),
        ..CallOptions::default()
    };
    let s = call.read().unwrap();
    let account = Some(b"proj1,MPS=true".to_vec());
    assert_eq!((s.account, s.resource), (account, None));
    let end = Call::new(Program::Epilogue, &["0.localhost", "alice", "users"], &ENV);
    assert_eq!(end.read().unwrap().account, None);
    assert!(call.host.ran.borrow().is_empty());
}

fn scheduled(job: &str, host: &TextHost) -> Option<String> {
    let job = JobId::parse(job).unwrap();
    let location = Location {
        home: Some("/var/spool/x".into()),
        ..Location::default()
    };
    scheduled_devices(&job, &|_| None, &location, host)
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
        assert_eq!(scheduled("0.localhost", &call.host), Some(names.join(",")));
        assert_eq!(scheduled("1.localhost", &call.host), None);
        let names = names.map(|name| GpuName::Uuid(name.to_owned()));
        assert_eq!(d.gpus, GpuSource::Listed(names.to_vec()));
        assert_eq!(d.exclusive, Exclusive::GpusAlone);
        assert!(d.are_confined());
        assert!(call.host.ran.borrow().is_empty(), "the options say it all");
    }
    let other = TextHost::default().file(CGROUPS, "A=1\n");
    assert_eq!(scheduled("0.localhost", &other), None);
    call.host = TextHost::default().file(CGROUPS, "CUDA_VISIBLE_DEVICES=0\\,1\n");
    let gpus = call.devices().gpus;
    let numbers = "aux/0.localhost.env' names GPUs by number";
    assert!(
        matches!(&gpus, GpuSource::Unknown(why) if why.contains(numbers)),
        "{gpus:?}"
    );
    call.given.gpus = Some("GPU-31111111-2222-3333-4444-555555555555".into());
    let is_named = matches!(call.devices().gpus, GpuSource::Listed(names) if names.len() == 1);
    assert!(is_named, "--gpus overrides");
}

fn counted(devices: &Devices) -> u32 {
    match devices.gpus {
        GpuSource::Counted { count, .. } => count,
        GpuSource::Unknown(_) | GpuSource::None => 0,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn without_pbs_cgroups_a_vnode_has_a_count_of_gpus() {
    let several = "(nodea:ngpus=4)+(nodeb:ncpus=1:ngpus=1)+(nodeb:ngpus=1)";
    let two = "(nodeb[0]:ngpus=1+nodeb[1]:ngpus=1)";
    for (vnodes, place, expected) in [
        ("(nodeb:ngpus=2)", "pack", (2, false)),
        (several, "", (2, false)),
        (two, "free:excl", (2, false)),
        ("(nodeb[0]:ngpus=1)", "free:exclhost", (1, true)),
        ("(nodeb:ngpus=1)", "free:excl:group=host", (1, true)),
        ("(nodea:ngpus=4)+(nodeb:ncpus=1)", "exclhost", (0, true)),
        ("(nodeb:ngpus=0)", "exclhost", (0, true)),
    ] {
        let devices = hooked(vnodes, place, "").devices();
        let found = (counted(&devices), devices.whole_node);
        assert_eq!(devices.exclusive, Exclusive::Unknown, "PBS names none");
        assert_eq!(found, expected, "{vnodes} {place}");
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
        ("1:ncpus=4:mpiprocs=2+3:mpiprocs=4", None),
        ("1:ncpus=4+2:mpiprocs=4", None),
    ] {
        let devices = hooked(two, "", select).devices();
        assert_eq!(devices.tasks_on_node, tasks, "{select}");
    }
}

/// A vnode may have another name than its host: `create node gpubox Mom=nodeb`.
#[test]
fn a_chunk_is_where_its_host_is() {
    let both = "(nodea:ngpus=4)+(gpubox:ngpus=1)";
    let hosts = "nodea:15002/0+nodeb:15002/0";
    for (vnodes, hosts, expected) in [
        ("(gpubox:ncpus=1:ngpus=2)", "nodeb:15002/0*4", (2, Some(4))),
        ("gpubox:ncpus=1:ngpus=2", "nodeb:15002/0", (2, Some(4))),
        (both, hosts, (1, Some(4))),
        ("(gpubox:ngpus=2)", "nodea:15002/0", (0, None)),
        ("(gpubox:ngpus=2)", "", (0, None)),
        ("(gpubox:ngpus=2)", "nodeb:15002/0+nodea:15002/0", (0, None)),
    ] {
        let mut call = hooked(vnodes, "excl", "2:mpiprocs=4");
        call.given.hosts = Some(hosts.into());
        let devices = call.devices();
        if let GpuSource::Unknown(why) = &devices.gpus {
            assert!(why.contains("set node under [pbs]"), "{why}");
        }
        let count = counted(&devices);
        assert_eq!((count, devices.tasks_on_node), expected, "{vnodes} {hosts}");
        // The host may have other vnodes.
        assert!(count == 0 || !devices.whole_node);
    }
    // A node without GPUs of a job with GPUs.
    let devices = hooked("(nodea:ngpus=2)+(nodeb:ncpus=8)", "", "").devices();
    assert_eq!(devices.gpus, GpuSource::None);
}

/// Where the site offers shares, the hook makes a vnode of each GPU.
#[test]
fn a_vnode_names_the_jobs_gpu_and_its_shares() {
    let [a, b] = [1, 2].map(|n| format!("GPU-{n}1111111-2222-3333-4444-555555555555"));
    let part = |own| Exclusive::Shared(Some(Part::of_shares(own, 16)));
    // The job's GPUs, its shares (0: it has the GPUs whole), and what the hook says.
    let table = "
        a  4  (nodeb:ncpus=2+nodeb[a]:mps_shares=4)
        ab 2  (nodeb:ncpus=2+nodeb[a]:mps_shares=2+nodeb[b]:mps_shares=6)
        a  8  (nodeb[a]:mps_shares=4)+(nodeb[a]:mps_shares=4+nodeb:ncpus=1)
        b  1  (nodea[a]:mps_shares=4)+(nodeb[b]:mps_shares=1)
        a  16 (nodeb[a]:mps_shares=40)
        a  4  nodeb:ncpus=2+nodeb[a]:mps_shares=4
        ab 0  (nodeb:ncpus=2+nodeb[a]:ngpus=1+nodeb[b]:ngpus=1)
        a  4  (nodeb[a]:ngpus=1:mps_shares=4)";
    for row in table.trim().lines() {
        let [gpus, own, vnodes] = row.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let vnodes = vnodes.replace("[a]", &format!("[{a}]"));
        let vnodes = vnodes.replace("[b]", &format!("[{b}]"));
        let mut call = hooked(&vnodes, "free", "1:mpiprocs=3");
        call.given.shares = Some(16);
        let devices = call.devices();
        let named = |gpu| GpuName::Uuid(if gpu == 'a' { &a } else { &b }.clone());
        let named = gpus.chars().map(named).collect();
        assert_eq!(devices.gpus, GpuSource::Listed(named), "{row}");
        let exclusive = match own {
            "0" => Exclusive::Unknown,
            own => part(own.parse().unwrap()),
        };
        assert_eq!(devices.exclusive, exclusive, "{row}");
        assert!(!devices.whole_node && call.host.ran.borrow().is_empty());
        assert!(!devices.are_confined(), "{row}");
        call.given.shares = None;
        let is_listed = matches!(call.devices().gpus, GpuSource::Listed(_));
        assert!(!is_listed, "{row}");
    }
    // Its host has another name.
    let vnodes = format!("(gpubox:ncpus=1+gpubox[{a}]:mps_shares=4)");
    let mut renamed = hooked(&vnodes, "", "");
    renamed.given.shares = Some(16);
    renamed.given.hosts = Some("nodeb:15002/0".into());
    assert_eq!(renamed.devices().exclusive, part(4));
    for (vnodes, place) in [("(nodeb:ncpus=2)", "excl"), ("(nodeb:ngpus=1)", "excl")] {
        let mut call = hooked(vnodes, place, "");
        assert!(call.devices().whole_node, "{vnodes}");
        call.given.shares = Some(16);
        // Another job may have its GPUs' vnodes.
        assert!(!call.devices().whole_node);
    }
}
