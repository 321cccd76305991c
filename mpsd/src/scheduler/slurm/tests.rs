//! The recorded environments of Slurm, and what we make of them.

use crate::scheduler::testing::{Call, Paper};
use crate::scheduler::*;

#[test]
fn slurm_prolog_epilog_and_step() {
    let job = [
        ("CUDA_VISIBLE_DEVICES", "1,2"),
        ("SLURM_JOB_GPUS", "1,2"),
        ("SLURMD_NODENAME", "node1"),
        ("SLURM_JOB_ID", "47"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_JOB_NTASKS", "5"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_CONF", "/etc/slurm/slurm.conf"),
        ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
        ("SLURM_JOB_RESTART_COUNT", "0"),
    ];
    let mut call = Call::new(Program::Prologue, &[], &job);
    let s = call.read().unwrap();
    assert_eq!(
        (s.job.as_str(), s.user, s.node.as_deref()),
        ("47", UserRef::Uid(1000), Some("node1"))
    );
    assert_eq!((s.step, s.restart), (false, Some(0)));
    call.host = Paper::default()
        .file("/etc/slurm/slurm.conf", "GresTypes=gpu\n")
        .file("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia0\n");
    let d = call.devices();
    assert_eq!(
        d.gpus,
        GpuSource::Listed(vec![GpuName::Index(1), GpuName::Index(2)])
    );
    assert_eq!((d.exclusive, d.tasks_on_node), (Exclusive::GpusAlone, Some(3)));
    call.host = Paper::default().file("/etc/slurm/slurm.conf", "gresTypes=gpu,Shard # both\n");
    assert_eq!(call.devices().exclusive, Exclusive::Unknown);

    let step = [
        ("SLURM_JOB_ID", "47"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_STEP_GPUS", "2"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NUM_NODES", "1"),
    ];
    let call = Call::new(Program::Prologue, &[], &step);
    let s = call.read().unwrap();
    assert_eq!((s.job.as_str(), s.step), ("47.3", true));
    assert_eq!(call.devices().gpus, GpuSource::Listed(vec![GpuName::Index(2)]));
    assert_eq!(call.devices().tasks_on_node, Some(4));
}

#[test]
fn no_gpu_and_mig_in_slurm() {
    let plain = [("SLURM_JOB_ID", "47"), ("SLURM_JOB_UID", "1000")];
    assert_eq!(
        Call::new(Program::Prologue, &[], &plain).devices().gpus,
        GpuSource::None
    );
    let mig = [
        ("SLURM_JOB_ID", "47"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_JOB_GPUS", "0"),
        ("CUDA_VISIBLE_DEVICES", "MIG-abc"),
    ];
    let d = Call::new(Program::Prologue, &[], &mig).devices();
    assert_eq!(d.gpus, GpuSource::Listed(vec![GpuName::Uuid("MIG-abc".into())]));
}
