//! The recorded environments of Slurm, and what we read from them.

use super::conf::Conf;
use super::gres::Gres;
use crate::call::{Program, UserRef};
use crate::devices::{Devices, Exclusive, GpuName, GpuSource, Part};
use crate::slurm::numbers::List;
use crate::testing::{Call, TextHost, gpu};
use mpsd_core::gpu::Mig;
use mpsd_core::{Failure, Inventory};

const IDENTITY: [(&str, &str); 2] = [("SLURM_JOB_ID", "47"), ("SLURM_JOB_UID", "1000")];
const CONF: &str = "/etc/slurm/slurm.conf";
const GRES: &str = "/etc/slurm/gres.conf";

/// The identity of job 47 on node n1, and these variables.
fn environment<'e>(more: &[(&'e str, &'e str)]) -> Vec<(&'e str, &'e str)> {
    let place = [("SLURMD_NODENAME", "n1"), ("SLURM_CONF", CONF)];
    [&IDENTITY[..], &place, more].concat()
}

fn files(conf: &str, gres: &str) -> TextHost {
    TextHost::default().file(CONF, conf).file(GRES, gres)
}

fn places(devices: &Devices) -> Vec<u32> {
    match &devices.gpus {
        GpuSource::Numbered(numbers) => numbers.numbers.iter().map(|number| number.place).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn slurm_prolog_epilog_and_step() {
    let job = environment(&[
        ("CUDA_VISIBLE_DEVICES", "1,2"),
        ("SLURM_JOB_GPUS", "1,2"),
        ("SLURM_JOB_NTASKS", "5"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
        ("SLURM_JOB_RESTART_COUNT", "0"),
    ]);
    let mut call = Call::new(Program::Prologue, &[], &job);
    let s = call.read().unwrap();
    assert_eq!((s.job.as_str(), s.step), ("47", false));
    assert_eq!(s.user, UserRef::Uid(1000));
    assert_eq!(s.node.as_deref(), Some("n1"));
    call.host = files("GresTypes=gpu\n", "Name=gpu File=/dev/nvidia0\n");
    let d = call.devices();
    assert_eq!(places(&d), [1, 2]);
    assert_eq!(d.exclusive, Exclusive::GpusAlone);
    assert_eq!(d.tasks_on_node, Some(3));
    for (conf, gres) in [
        ("gresTypes=gpu,Shard # both\n", ""),
        ("GresTypes=gpu\n", "Name=mps Count=100\n"),
    ] {
        call.host = files(conf, gres);
        assert_eq!(call.devices().exclusive, Exclusive::Unknown, "{conf}");
    }

    let step = environment(&[
        ("SLURM_STEP_ID", "3"),
        ("SLURM_STEP_GPUS", "2"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NUM_NODES", "1"),
    ]);
    let call = Call::new(Program::Prologue, &[], &step);
    let s = call.read().unwrap();
    assert_eq!((s.job.as_str(), s.step), ("47.3", true));
    let d = call.devices();
    assert_eq!((places(&d), d.tasks_on_node), (vec![2], Some(4)));
}

/// Untrusted: it may name another job's device.
#[test]
fn a_steps_device_is_believed_only_if_slurm_names_it() {
    for (gres, believed) in [
        ("", true),
        ("NodeName=n2 Name=gpu Flags=no_gpu_env\n", true),
        ("Name=gpu Flags=nvidia_gpu_env,opencl_gpu_env\n", true),
        ("Name=gpu Flags=no_gpu_env\n", false),
        ("NodeName=n1 Name=gpu Flags=amd_gpu_env\n", false),
    ] {
        let env = environment(&[
            ("CUDA_VISIBLE_DEVICES", "MIG-abc"),
            ("SLURM_STEP_GPUS", "0"),
            ("SLURM_STEP_ID", "0"),
        ]);
        let mut call = Call::new(Program::Prologue, &[], &env);
        let conf = "GresTypes=gpu\nNodeName=n[1-4] Gres=gpu:6\n";
        call.host = files(conf, &format!("AutoDetect=nvml\n{gres}"));
        match call.devices().gpus {
            GpuSource::Listed(names) => {
                assert_eq!(names, [GpuName::Uuid("MIG-abc".into())]);
                assert!(believed, "{gres}");
            }
            other => assert!(
                !believed && matches!(other, GpuSource::Unknown(_)),
                "{gres}"
            ),
        }
        let env = environment(&[
            ("CUDA_VISIBLE_DEVICES", "GPU-abc"),
            ("SLURM_STEP_GPUS", "0"),
            ("SLURM_STEP_ID", "0"),
        ]);
        let host = call.host;
        let mut call = Call::new(Program::Prologue, &[], &env);
        call.host = host;
        let GpuSource::Numbered(found) = call.devices().gpus else {
            panic!("{gres}");
        };
        let expected = believed.then(|| "GPU-abc".to_owned());
        assert_eq!(found.numbers[0].uuid, expected, "{gres}");
    }
}

/// A node with these GPUs in the order of the bus, by their minor numbers.
fn node(minors: &[u32]) -> Inventory {
    let gpus = (0..).zip(minors).map(|(index, minor)| gpu(index, *minor));
    Inventory {
        gpus: gpus.collect(),
        driver: String::new(),
        migs: Vec::new(),
    }
}

/// A job's prolog on a node: what its files say, and its two variables.
#[derive(Clone, Copy)]
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
        let (place, context, step) = match self.gres.contains("Type=") {
            true => ("SLURM_STEP_GPUS", "", "0"),
            false => ("SLURM_JOB_GPUS", "prolog_slurmd", ""),
        };
        let env = environment(&[
            ("CUDA_VISIBLE_DEVICES", self.cuda),
            (place, self.jobs),
            ("SLURM_SCRIPT_CONTEXT", context),
            ("SLURM_STEP_ID", step),
        ]);
        let mut call = Call::new(Program::Prologue, &[], &env);
        let nodes = format!("NodeName=n[1-4] Gres={}\n", self.granted);
        let nodes = format!("NodeName=DEFAULT CPUs=8\n{nodes}");
        call.host = files(&format!("{task}GresTypes=gpu\n{nodes}"), self.gres)
            .file("/etc/slurm/cgroup.conf", "ConstrainDevices=yes\n");
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
            let said = words.iter().all(|word| why.contains(word));
            assert!(said, "{task}{}: {why}", self.gres);
        }
    }

    fn gres(self, gres: &'static str) -> Self {
        Self { gres, ..self }
    }

    fn granted(self, granted: &'static str) -> Self {
        Self { granted, ..self }
    }

    fn cuda(self, cuda: &'static str) -> Self {
        Self { cuda, ..self }
    }

    /// With these numbers, which both variables have.
    fn jobs(self, jobs: &'static str) -> Self {
        Self { jobs, ..self }.cuda(jobs)
    }

    fn minors(self, minors: &'static [u32]) -> Self {
        Self { minors, ..self }
    }
}

/// The buses 07, 0b, 48, 4c have the minors 2, 3, 0, 1 (from a public page).
const SITE: Case = Case {
    gres: "Name=gpu File=/dev/nvidia[0-3]\n",
    granted: "gpu:4",
    jobs: "1",
    cuda: "1",
    minors: &[2, 3, 0, 1],
};

#[test]
fn without_the_controller_a_prolog_with_several_types_is_refused_in_words() {
    let env = environment(&[
        ("SLURM_JOB_GPUS", "1"),
        ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
    ]);
    let mut call = Call::new(Program::Prologue, &[], &env);
    let gres = "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n";
    call.host = files("NodeName=n1 Gres=gpu:a:1,gpu:b:1\n", gres);
    let gpus = call.devices().gpus;
    let is_refused = |why: &str| why.contains("one type only");
    assert!(matches!(&gpus, GpuSource::Unknown(why) if is_refused(why)));
    // The types of other nodes are none of this one's.
    let cluster = "NodeName=n1 Name=gpu Type=a File=/dev/nvidia[0-1]\nNodeName=n2 Name=gpu Type=b File=/dev/nvidia0\n";
    call.host = files("NodeName=n1 Gres=gpu:a:2\n", cluster);
    let gpus = call.devices().gpus;
    assert!(matches!(&gpus, GpuSource::Numbered(_)), "{gpus:?}");
}

#[test]
fn types_in_the_order_of_slurm_conf() {
    let two = SITE.minors(&[0, 1]);
    let case = two.gres("Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n");
    case.granted("gpu:b:1,gpu:A:1(S:0),shard:4").is(&[0], &[1]);
    case.granted("gpu:a:1,gpu:b:1").is(&[1], &[1]);
    let untyped =
        two.gres("Name=gpu Type=b File=/dev/nvidia1\nName=gpu Type=a File=/dev/nvidia0\n");
    for granted in ["gpu:2", "gpu:1,gpu:1"] {
        untyped.granted(granted).jobs("0").is(&[1], &[0]);
    }
}

#[test]
fn a_gpu_that_slurm_does_not_list() {
    let two = SITE.minors(&[0, 1]).granted("gpu:1").jobs("0");
    two.gres("\nName=gpu File=/dev/nvidia1\n").is_refused(&[
        "'/dev/nvidia1' ('/etc/slurm/gres.conf' line 2)",
        "'/dev/nvidia0', which gres.conf does not list",
        "allowed: ",
    ]);
    // Slurm takes no more files than slurm.conf grants.
    let cut = two.gres("Name=gpu File=/dev/nvidia[0-1]\n");
    cut.is(&[0], &[0]);
    cut.jobs("1").is_refused(&["GPU 1 of Slurm"]);
    // Tasks that get UUIDs count no GPU.
    two.gres("Name=gpu File=/dev/nvidia1 Flags=nvidia_gpu_env,env_uuid\n")
        .is(&[1], &[1]);
    // The last GPU of the bus disturbs no other's number.
    two.gres("Name=gpu File=/dev/nvidia0\n").is(&[0], &[0]);
}

#[test]
fn gpus_that_slurm_finds_by_itself() {
    let bus = SITE.gres("AutoDetect=nvml\n");
    bus.is(&[1], &[1]);
    bus.cuda("GPU-00000001").is(&[1], &[1]);
    SITE.gres("AutoDetect=nvidia\n").is(&[3], &[1]);
    let off = "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia[0-3]\n";
    SITE.gres(off).is(&[3], &[1]);
    // Two sources that name different GPUs.
    bus.cuda("GPU-00000002").is_refused(&["GPU-00000002"]);
    // Two of four, and nothing says which, unless Slurm does.
    let some = bus.granted("gpu:2");
    let refused = |case: &Case| case.gpus(CONFINED, &node(SITE.minors)).unwrap_err();
    assert!(refused(&some).contains("line 1"));
    let said = some.cuda("GPU-00000003");
    assert_eq!(said.gpus(CONFINED, &node(SITE.minors)), Ok(vec![3]));
    some.gres("AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\n")
        .is(&[1], &[1]);
    // Fewer files than GPUs give types alone.
    SITE.gres("AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3]\n")
        .is(&[1], &[1]);
    // Slurm looks for the words, not for one word. Under 'full' either plugin may have found them.
    SITE.gres("AutoDetect=NVML,nvidia\n").is(&[1], &[1]);
    let why = refused(&SITE.gres("AutoDetect=full\n"));
    assert!(why.contains("line 1") && why.contains("differ"), "{why}");
    let sorted = SITE.minors(&[0, 1, 2, 3]);
    let either = "AutoDetect=full\nName=gpu File=/dev/nvidia[0-3]\n";
    sorted.gres(either).is(&[1], &[1]);
    // Tasks that get UUIDs too use the GPUs of those.
    said.gres("AutoDetect=nvml\nName=gpu Flags=nvidia_gpu_env,env_uuid\n")
        .is(&[3], &[3]);
}

#[test]
fn a_dynamic_nodes_words_are_its_line() {
    let text = "GresTypes=gpu\nTaskPlugin=task/cgroup\nNodeName=n2 Gres=gpu:1\n";
    let host = files(text, "Name=gpu File=/dev/nvidia[0-1]\n");
    let conf = Conf::find(Some(CONF.as_ref()), &host).unwrap();
    let read = |words: Option<&str>| Gres::of(&conf, "n1", words, &host).unwrap();
    let none = read(None);
    let why = "no line for node 'n1'";
    assert!(!none.grants && matches!(&none.list, List::Unknown(said) if said.contains(why)));
    let some = read(Some("RealMemory=4000 Gres=gpu:2"));
    assert!(some.grants && matches!(&some.list, List::Files(files) if files.len() == 2));
    assert!(matches!(read(Some("")).list, List::Unknown(why) if why.contains("no Gres")));
}

#[test]
fn beside_a_divided_gpu_a_number_is_no_guess() {
    let (whole, mut divided) = (node(SITE.minors), node(SITE.minors));
    divided.gpus[3].mig = Mig::On;
    // Its tasks can open nothing else, and CUDA counts from there.
    assert_eq!(SITE.gpus(CONFINED, &divided), SITE.gpus(CONFINED, &whole));
    assert!(SITE.gpus(FREE, &divided).unwrap_err().contains("MIG mode"));
    // MIG devices have places in Slurm's own list, which is then longer than the list of GPUs.
    let found = SITE.gres("AutoDetect=nvml\n").granted("gpu:6");
    for task in [CONFINED, FREE] {
        assert!(found.gpus(task, &divided).unwrap_err().contains("certain"));
    }
}

#[test]
fn an_unreadable_file_is_no_guess() {
    let whole = node(SITE.minors);
    let lost = SITE.gres("Name=gpu File=/dev/nvidia\n");
    assert!(
        lost.gpus(CONFINED, &whole)
            .unwrap_err()
            .contains("/dev/nvidia")
    );
    // The task can open every GPU: the number is CUDA's under any list.
    assert_eq!(lost.gpus(FREE, &whole), Ok(vec![1]));
    let mut mixed = node(SITE.minors);
    mixed.gpus[0].name = "NVIDIA A100".to_owned();
    // CUDA counts the faster GPUs first, and does not say which ones those are.
    assert!(
        SITE.gpus(FREE, &mixed)
            .unwrap_err()
            .contains("CUDA would open")
    );
    assert_eq!(SITE.gpus(CONFINED, &mixed), Ok(vec![3]));
    for gres in [
        "Name=gpu MultipleFiles=/dev/nvidia[0-1]\n",
        "AutoDetect=rsmi\n",
        "include more.conf\n",
        "",
    ] {
        assert!(SITE.gres(gres).gpus(CONFINED, &whole).is_err(), "{gres}");
    }
}

const TWO: &str = "JobId=7 JobName=x NodeList=n[1-3] JOB_GRES=gpu:a:1,gpu:b:2 Nodes=n[1-2] CPU_IDs=0-1 Mem=0 \
               GRES=gpu:a:1(IDX:0),gpu:b:2(IDX:2-3) Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a:2(IDX:0,1) MinCPUsNode=1";

fn places_of(text: &str, node: &str, told: u32) -> Result<Vec<GpuName>, String> {
    super::all_of(&super::of_node(text, node)?, &[GpuName::Index(told)])
}

#[test]
fn the_places_of_every_type_and_no_answer_for_a_forged_line() {
    for (text, node, told, places) in [
        (TWO, "n2", 2, &[0, 2, 3][..]),
        (TWO, "n3", 1, &[0, 1]),
        ("Nodes=n3 GRES=gpu:b:1(IDX:1),gpu:a:0(IDX:)", "n3", 1, &[1]),
        ("Nodes=n3 GRES=shard:1(IDX:1)", "n3", 1, &[1]),
    ] {
        let places: Vec<GpuName> = places.iter().map(|place| GpuName::Index(*place)).collect();
        assert_eq!(places_of(text, node, told), Ok(places), "{text}");
    }
    // The job's name is the user's text.
    let forged = "=x Nodes=n2 GRES=gpu:4(IDX:0-3)";
    let lines = "=x\nJobId=8 Nodes=n2 GRES=gpu:4(IDX:0-3)\nJobId=9";
    for (text, node, told) in [
        (&*TWO.replace("=x", forged), "n2", 2),
        (&TWO.replace("=x", lines), "n2", 2),
        (TWO, "n4", 0),
        (TWO, "n3", 3),
        ("", "n1", 0),
        ("Nodes=n1 GRES=gpu:a:1", "n1", 0),
    ] {
        assert!(places_of(text, node, told).is_err(), "{text}");
    }
}

/// As 22.05 says it, and as 23.11 to 26.05 do, with all shards of each GPU.
#[test]
fn the_shards_of_a_job_are_what_the_controller_lists_for_this_node() {
    let shards = |gres: &str| super::shards_of(gres).unwrap_or_default();
    assert_eq!(shards("shard:2(IDX:0)"), [(2, None)]);
    assert_eq!(shards("gpu:a:1(IDX:1),shard:3(IDX:2)"), [(3, None)]);
    assert_eq!(shards("shard:2(2/4)"), [(2, Some(4))]);
    let of_two = "gpu:a:1(IDX:1),shard:a100:2(0/4,2/8)";
    assert_eq!(shards(of_two), [(2, Some(8))]);
    assert_eq!(shards("shard:6(4/4,2/4)"), [(4, Some(4)), (2, Some(4))]);
    let others = "gpu:1(IDX:0) shard:x(IDX:0) shard:0(IDX:0) shard:2(IDX:0-1) shard:0(0/4,0/4) \
                  shard:1(1/x) shard:1(1/0) shard:1() shard(CNT:2) mps:50(IDX:0) mps:50(50/100)";
    for other in others.split(' ').chain([""]) {
        assert_eq!(shards(other), [], "{other}");
    }
    let list = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:0)";
    assert_eq!(super::of_node(list, "n1"), Ok("shard:2(IDX:0)".to_owned()));
    let forged = format!("JobName=x Nodes=n1 GRES=shard:16(IDX:0) {list}");
    assert!(super::of_node(&forged, "n1").is_err());
}

#[test]
fn a_part_is_told_where_each_gpu_has_as_many_shards_and_no_word_of_the_users_is_one() {
    let exclusive = |conf: &str, gres: &str, words: &[(&str, &str)]| {
        let step = [("SLURM_STEP_ID", "3"), ("SLURM_STEP_GPUS", "0")];
        let env = environment(&[words, &step].concat());
        let mut call = Call::new(Program::Prologue, &[], &env);
        call.host = files(conf, gres);
        call.devices().exclusive
    };
    let part = |own, all| {
        let mut part = Part::of_shares(own, all);
        part.of_threads = all == 100;
        Exclusive::Shared(Some(part))
    };
    let shard = ("SLURM_SHARDS_ON_NODE", "3");
    let mps = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25");
    let conf = "GresTypes=gpu,shard,mps\nNodeName=n1 Gres=gpu:2,shard:16\n";
    let sum = "Name=shard Count=16\n";
    assert_eq!(exclusive(conf, sum, &[shard]), part(3, 8));
    let even = "Name=shard Count=8 File=/dev/nvidia0\nName=shard Count=8 File=/dev/nvidia1\n";
    assert_eq!(exclusive(conf, even, &[shard]), part(3, 8));
    let many = ("SLURM_SHARDS_ON_NODE", "12");
    assert_eq!(exclusive(conf, even, &[many]), part(8, 8));
    let uneven = even.replacen("=8", "=12", 1).replacen("=8", "=4", 1);
    assert_eq!(exclusive(conf, &uneven, &[shard]), Exclusive::Shared(None));
    // Slurm does not say how a step's shards are dealt out to several GPUs.
    let two = ("SLURM_STEP_GPUS", "0,1");
    let of_two = exclusive(conf, even, &[shard, two]);
    assert_eq!(of_two, Exclusive::Shared(None));
    assert_eq!(exclusive(conf, even, &[mps]), part(25, 100));
    assert_eq!(exclusive(conf, even, &[]), Exclusive::Unknown);
    // In a step each variable is the user's own if the cluster lacks that gres.
    let only_shards = conf.replace(",mps", "");
    let only_mps = "GresTypes=gpu,mps\nNodeName=n1 Gres=gpu:2,mps:200\n";
    assert_eq!(exclusive(&only_shards, even, &[shard, mps]), part(3, 8));
    assert_eq!(exclusive(&only_shards, even, &[mps]), Exclusive::Unknown);
    let count = "Name=mps Count=200\n";
    let with_mps = |words: &[(&str, &str)]| exclusive(only_mps, count, words);
    assert_eq!(with_mps(&[shard, mps]), part(25, 100));
    assert_eq!(with_mps(&[shard]), Exclusive::Unknown);
    for word in [shard, mps] {
        let alone = exclusive("GresTypes=gpu\nNodeName=n1 Gres=gpu:2\n", "", &[word]);
        assert_eq!(alone, Exclusive::GpusAlone);
    }
}
