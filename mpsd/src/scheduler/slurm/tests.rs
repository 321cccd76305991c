//! The recorded environments of Slurm, and what we make of them.

use crate::scheduler::call::{Program, UserRef};
use crate::scheduler::devices::Devices;
use crate::scheduler::devices::{Exclusive, GpuName, GpuSource};
use crate::scheduler::testing::{Call, Paper};
use mpsd_core::{ComputeMode, Failure, Gpu, GpuUuid, Inventory};

fn places(devices: &Devices) -> Vec<u32> {
    match &devices.gpus {
        GpuSource::Numbered(numbers) => numbers.numbers.iter().map(|number| number.place).collect(),
        other => panic!("{other:?}"),
    }
}

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
    assert!(!s.step);
    call.host = Paper::default()
        .file("/etc/slurm/slurm.conf", "GresTypes=gpu\n")
        .file("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia0\n");
    let d = call.devices();
    assert_eq!(places(&d), [1, 2]);
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
    assert_eq!(places(&call.devices()), [2]);
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

/// A node whose bus order is that of `minors`; GPU `n` of the bus has the UUID `GPU-0000000n`.
fn node(minors: &[u32]) -> Inventory {
    let gpu = |(index, minor): (u32, &u32)| Gpu {
        index,
        uuid: uuid(index),
        name: "NVIDIA H200".to_owned(),
        memory_mib: Some(143_771),
        mode: ComputeMode::Default,
        mig: mpsd_core::gpu::Mig::Off,
        capability: (9, 0),
        minor: Some(*minor),
        cpus: None,
    };
    Inventory {
        gpus: (0..).zip(minors).map(gpu).collect(),
        driver: String::new(),
        migs: Vec::new(),
    }
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap()
}

/// What no slurmstepd writes is the user's word, and may be another job's device.
#[test]
fn a_steps_mig_device_is_believed_only_where_slurm_names_it() {
    for (gres, believed) in [
        ("AutoDetect=nvml\n", true),
        ("AutoDetect=nvml\nNodeName=n2 Name=gpu Flags=no_gpu_env\n", true),
        (
            "AutoDetect=nvml\nName=gpu Flags=nvidia_gpu_env,opencl_gpu_env\n",
            true,
        ),
        ("AutoDetect=nvml\nName=gpu Flags=no_gpu_env\n", false),
        ("AutoDetect=nvml\nNodeName=n1 Name=gpu Flags=amd_gpu_env\n", false),
    ] {
        let env = [
            ("CUDA_VISIBLE_DEVICES", "MIG-abc"),
            ("SLURM_STEP_GPUS", "0"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_ID", "47"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_CONF", "/etc/slurm/slurm.conf"),
            ("SLURM_STEP_ID", "0"),
        ];
        let mut call = Call::new(Program::Prologue, &[], &env);
        let slurm = "GresTypes=gpu\nNodeName=n[1-4] Gres=gpu:6\n";
        call.host = Paper::default()
            .file("/etc/slurm/slurm.conf", slurm)
            .file("/etc/slurm/gres.conf", gres);
        let gpus = call.devices().gpus;
        let own = GpuSource::Listed(vec![GpuName::Uuid("MIG-abc".into())]);
        match believed {
            true => assert_eq!(gpus, own, "{gres}"),
            false => assert!(matches!(gpus, GpuSource::Unknown(_)), "{gres}: {gpus:?}"),
        }
    }
}

/// A job's prolog on a node: what its files say, and its two variables.
struct Case {
    gres: &'static str,
    granted: &'static str,
    jobs: &'static str,
    cuda: &'static str,
    minors: &'static [u32],
}

const CONFINED: &str = "TaskPlugin=task/affinity,task/cgroup\n";
const FREE: &str = "TaskPlugin=task/affinity\n";

impl Case {
    /// The job's GPUs by their place on the bus, or the refusal.
    fn gpus(&self, task: &str, inventory: &Inventory) -> Result<Vec<u32>, String> {
        // A prolog is told one type only, and asks the controller; a step is told all.
        let (place, context, step) = if self.gres.contains("Type=") {
            ("SLURM_STEP_GPUS", "", "0")
        } else {
            ("SLURM_JOB_GPUS", "prolog_slurmd", "")
        };
        let env = [
            ("CUDA_VISIBLE_DEVICES", self.cuda),
            (place, self.jobs),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_ID", "47"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_CONF", "/etc/slurm/slurm.conf"),
            ("SLURM_SCRIPT_CONTEXT", context),
            ("SLURM_STEP_ID", step),
        ];
        let mut call = Call::new(Program::Prologue, &[], &env);
        let slurm = format!(
            "{task}GresTypes=gpu\nNodeName=DEFAULT CPUs=8\nNodeName=n[1-4] Gres={}\n",
            self.granted
        );
        call.host = Paper::default()
            .file("/etc/slurm/slurm.conf", &slurm)
            .file("/etc/slurm/cgroup.conf", "ConstrainDevices=yes\n")
            .file("/etc/slurm/gres.conf", self.gres);
        let GpuSource::Numbered(numbers) = call.devices().gpus else {
            panic!("numbers expected");
        };
        match numbers.gpus(inventory) {
            Ok(gpus) => Ok(gpus.iter().map(|gpu| gpu.index).collect()),
            Err(Failure::Refusal(refusal)) => Err(refusal.to_string()),
            Err(other) => panic!("{other}"),
        }
    }

    /// Under ConstrainDevices the GPUs `confined`, without it `free`.
    fn is(&self, confined: &[u32], free: &[u32]) {
        for (task, expected) in [(CONFINED, confined), (FREE, free)] {
            let got = self.gpus(task, &node(self.minors));
            assert_eq!(got.as_deref(), Ok(expected), "{task}{}", self.gres);
        }
    }

    /// Refused both ways, each time with all of `words`.
    fn is_refused(&self, words: &[&str]) {
        for task in [CONFINED, FREE] {
            let why = self.gpus(task, &node(self.minors)).unwrap_err();
            assert!(
                words.iter().all(|word| why.contains(word)),
                "{task}{}: {why}",
                self.gres
            );
        }
    }
}

/// `File=/dev/nvidia[0-3]` where the buses 07, 0b, 48, 4c have the minors 2, 3, 0, 1 (as a public page shows it).
const SITE: Case = Case {
    gres: "Name=gpu File=/dev/nvidia[0-3]\n",
    granted: "gpu:4",
    jobs: "1",
    cuda: "1",
    minors: &[2, 3, 0, 1],
};

#[test]
fn a_place_in_a_complete_list() {
    SITE.is(&[3], &[1]);
    Case {
        jobs: "0,2,3",
        ..SITE
    }
    .is(&[2, 0, 1], &[0, 2, 3]);
    Case {
        minors: &[0, 1, 2, 3],
        ..SITE
    }
    .is(&[1], &[1]);
    let lines = "NodeName=n[2-4] Name=gpu File=/dev/nvidia9\n\
                 nodename=n1 name=gpu file=/dev/nvidia3,/dev/nvidia[0-1] \\\n cores=0-3\n\
                 Name=gpu File=/dev/nvidia2 # Name comes before NodeName\nName=mps Count=200\n";
    Case {
        gres: lines,
        jobs: "0",
        ..SITE
    }
    .is(&[0], &[0]);
    Case {
        gres: lines,
        jobs: "1",
        ..SITE
    }
    .is(&[1], &[1]);
}

#[test]
fn without_the_controller_a_prolog_with_several_types_is_refused_in_words() {
    let mut call = Call::new(
        Program::Prologue,
        &[],
        &[
            ("SLURM_JOB_GPUS", "1"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_JOB_ID", "47"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_CONF", "/nowhere/slurm.conf"),
            ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
        ],
    );
    call.host = Paper::default()
        .file("/nowhere/slurm.conf", "NodeName=n1 Gres=gpu:a:1,gpu:b:1\n")
        .file(
            "/nowhere/gres.conf",
            "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n",
        );
    let GpuSource::Unknown(why) = call.devices().gpus else {
        panic!("one type's GPUs are taken for all");
    };
    assert!(why.contains("one type only"), "{why}");
}

#[test]
fn types_in_the_order_of_slurm_conf() {
    let lines = "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n";
    let case = Case {
        gres: lines,
        granted: "gpu:b:1,gpu:A:1(S:0),shard:4",
        jobs: "1",
        cuda: "1",
        minors: &[0, 1],
    };
    case.is(&[0], &[1]);
    Case {
        granted: "gpu:a:1,gpu:b:1",
        ..case
    }
    .is(&[1], &[1]);
    let untyped = Case {
        granted: "gpu:2",
        gres: "Name=gpu Type=b File=/dev/nvidia1\nName=gpu Type=a File=/dev/nvidia0\n",
        ..SITE
    };
    Case {
        jobs: "0",
        cuda: "0",
        minors: &[0, 1],
        ..untyped
    }
    .is(&[1], &[0]);
}

#[test]
fn a_gpu_that_slurm_does_not_list() {
    let case = Case {
        gres: "\nName=gpu File=/dev/nvidia1\n",
        granted: "gpu:1",
        jobs: "0",
        cuda: "0",
        minors: &[0, 1],
    };
    case.is_refused(&[
        "'/dev/nvidia1' ('/etc/slurm/gres.conf' line 2)",
        "'/dev/nvidia0', which gres.conf does not list",
        "allowed: ",
    ]);
    // Slurm takes no more files than slurm.conf grants.
    let cut = Case {
        gres: "Name=gpu File=/dev/nvidia[0-1]\n",
        ..case
    };
    cut.is(&[0], &[0]);
    Case {
        jobs: "1",
        cuda: "1",
        ..cut
    }
    .is_refused(&["GPU 1 of Slurm"]);
    // The last of the bus is in nobody's way.
    Case {
        gres: "Name=gpu File=/dev/nvidia0\n",
        ..case
    }
    .is(&[0], &[0]);
}

#[test]
fn what_slurm_finds_by_itself() {
    let bus = Case {
        gres: "AutoDetect=nvml\n",
        ..SITE
    };
    bus.is(&[1], &[1]);
    let uuids = Case {
        cuda: "GPU-00000001",
        ..bus
    };
    uuids.is(&[1], &[1]);
    Case {
        gres: "AutoDetect=nvidia\n",
        ..SITE
    }
    .is(&[3], &[1]);
    Case {
        gres: "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia[0-3]\n",
        ..SITE
    }
    .is(&[3], &[1]);
    // Two sources that name different GPUs.
    Case {
        cuda: "GPU-00000002",
        ..bus
    }
    .is_refused(&["GPU-00000002"]);
    // Some of them: which ones is not known, unless Slurm says so.
    let some = Case {
        granted: "gpu:2",
        ..bus
    };
    assert!(
        some.gpus(CONFINED, &node(SITE.minors))
            .unwrap_err()
            .contains("line 1")
    );
    let said = Case {
        cuda: "GPU-00000003",
        ..some
    };
    assert_eq!(said.gpus(CONFINED, &node(SITE.minors)), Ok(vec![3]));
    Case {
        gres: "AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\n",
        ..some
    }
    .is(&[1], &[1]);
    // Tasks that get the UUIDs too go where these say.
    let by_uuid = "AutoDetect=nvml\nName=gpu Flags=nvidia_gpu_env,env_uuid\n";
    Case {
        gres: by_uuid,
        cuda: "GPU-00000003",
        ..some
    }
    .is(&[3], &[3]);
}

#[test]
fn beside_a_divided_gpu_a_number_is_no_guess() {
    let mut divided = node(SITE.minors);
    divided.gpus[3].mig = mpsd_core::gpu::Mig::On;
    // Its tasks can open nothing else, and CUDA counts from there.
    assert_eq!(
        SITE.gpus(CONFINED, &divided),
        SITE.gpus(CONFINED, &node(SITE.minors))
    );
    assert!(SITE.gpus(FREE, &divided).unwrap_err().contains("MIG mode"));
    // MIG devices are places in Slurm's own list: more than there are GPUs.
    let found = Case {
        gres: "AutoDetect=nvml\n",
        granted: "gpu:6",
        ..SITE
    };
    for task in [CONFINED, FREE] {
        let why = found.gpus(task, &divided).unwrap_err();
        assert!(why.contains("certain"), "{why}");
    }
}

#[test]
fn what_cannot_be_read_is_no_guess() {
    let lost = "Name=gpu File=/dev/nvidia\n";
    let case = Case { gres: lost, ..SITE };
    assert!(
        case.gpus(CONFINED, &node(SITE.minors))
            .unwrap_err()
            .contains("/dev/nvidia")
    );
    // Every GPU is open to the task: the number is CUDA's whatever the list says.
    assert_eq!(case.gpus(FREE, &node(SITE.minors)), Ok(vec![1]));
    let mut mixed = node(SITE.minors);
    mixed.gpus[0].name = "NVIDIA A100".to_owned();
    // CUDA counts the faster GPUs first, and which ones those are is its secret.
    assert!(SITE.gpus(FREE, &mixed).unwrap_err().contains("leads CUDA to"));
    assert_eq!(SITE.gpus(CONFINED, &mixed), Ok(vec![3]));
    for gres in [
        "Name=gpu MultipleFiles=/dev/nvidia[0-1]\n",
        "AutoDetect=rsmi\n",
        "include more.conf\n",
        "",
    ] {
        assert!(
            Case { gres, ..SITE }.gpus(CONFINED, &node(SITE.minors)).is_err(),
            "{gres}"
        );
    }
}
