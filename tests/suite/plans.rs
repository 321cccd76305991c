//! The plan of each scenario as text. A change in what root does on a node changes a snapshot in
//! the same commit.

use batch::{Devices, Exclusive, GpuName, GpuSource, Part, Scheduler};
use tests::sim::scenario::Scenario;

const PART: Part = Part {
    own: 2,
    all: 16,
    of_threads: false,
};

fn scenarios() -> Vec<Scenario> {
    let unknown = |why: &str| GpuSource::Unknown(why.to_owned());
    let counted = |count: u32| GpuSource::Counted {
        count,
        why: "no names".to_owned(),
    };
    vec![
        Scenario::new("exclusive", "MPS=true,MPS_THREADS=25,MPS_MEM=4G", 2),
        Scenario::new("shared_by_shards", "MPS=true,MPS_MEM=25%", 1).shared(),
        Scenario::new(
            "shared_by_parts",
            "MPS=true,MPS_THREADS=auto,MPS_MEM=auto",
            1,
        )
        .config("[ceilings]\nthreads = 50\nmem = \"20G\"")
        .devices(|d| {
            d.exclusive = Exclusive::Shared(Some(PART));
            d.tasks_on_node = Some(2);
        }),
        // One task, unless the user says how many.
        Scenario::new(
            "shared_tasks_unknown",
            "MPS=true,MPS_THREADS=auto,MPS_MEM=auto",
            1,
        )
        .devices(|d| d.exclusive = Exclusive::Shared(Some(PART))),
        Scenario::new("shared_default_by_parts", "MPS=true", 1)
            .config("[defaults]\nmem = \"auto\"")
            .devices(|d| d.exclusive = Exclusive::Shared(Some(PART))),
        // The same for a job that did not ask: its clients have no limit together.
        Scenario::new("shared_unasked_by_parts", "MPS=true", 1)
            .config("[defaults]\nmem = \"auto\"")
            .devices(|d| d.exclusive = Exclusive::Shared(Some(PART)))
            .by_site(),
        Scenario::new("shared_memory_of_the_job", "MPS=true,MPS_MEM=job=24G", 1).shared(),
        Scenario::new("memory_of_the_job", "MPS=true,MPS_MEM=job=24G", 1),
        Scenario::new("shared_of_two_gpus", "MPS=true,MPS_THREADS=10:20", 2).shared(),
        Scenario::new("shared_part_unknown", "MPS=true,MPS_MEM=auto", 1).devices(|d| {
            d.exclusive = Exclusive::Shared(None);
            d.tasks_on_node = Some(1);
        }),
        Scenario::new("shared_default_part_unknown", "MPS=true", 1)
            .config("[defaults]\nmem = \"auto\"\nthreads = \"auto\"")
            .shared(),
        Scenario::new("shared_by_the_site", "MPS=true", 1).config("shared_gpus = true"),
        Scenario::new("shared_own", "MPS=own,MPS_THREADS=25", 1).shared(),
        Scenario::new("shared_per_gpu", "MPS=per-gpu", 2).shared(),
        Scenario::new("shared_priority", "MPS=true,MPS_PRIORITY=below-normal", 1).shared(),
        Scenario::new("step", "MPS=true", 1).step(),
        Scenario::new("keep", "MPS=true", 1).config("compute_mode = \"keep\""),
        Scenario::new("no_cgroup", "MPS=true", 1).config("cgroup = \"none\""),
        Scenario::new(
            "per_gpu",
            "MPS=per-gpu,MPS_MEM=4G,MPS_PRIORITY=below-normal",
            2,
        ),
        Scenario::new("ranks", "MPS=true,MPS_THREADS=30:70,MPS_MEM=4G:8G", 1),
        Scenario::new("auto", "MPS=true,MPS_THREADS=auto,MPS_MEM=auto", 2).tasks(8),
        // Of six tasks on two GPUs, four may meet on one. With a GPU for each task it is three.
        Scenario::new(
            "auto_six_tasks",
            "MPS=true,MPS_THREADS=auto,MPS_MEM=auto",
            2,
        )
        .tasks(6),
        Scenario::new(
            "auto_six_bound_tasks",
            "MPS=true,MPS_THREADS=auto,MPS_MEM=auto,MPS_BIND=block",
            2,
        )
        .tasks(6),
        Scenario::new("auto_tasks_unknown", "MPS=true,MPS_THREADS=auto", 1),
        Scenario::new("default_auto_tasks_unknown", "MPS=true", 1)
            .config("[defaults]\nmem = \"auto\"\nthreads = \"auto\""),
        Scenario::new("mode_auto", "MPS=auto,MPS_THREADS=auto", 2).tasks(8),
        Scenario::new("mode_auto_shared", "MPS=auto", 1).shared(),
        Scenario::new("mode_auto_too_many_tasks", "MPS=auto", 1).tasks(49),
        Scenario::new("bound", "MPS=true,MPS_BIND=closest,MPS_VISIBLE=ordinal", 2),
        Scenario::new("bound_by_the_site", "MPS=true", 2).config("[defaults]\nbind = \"block\""),
        Scenario::new("some_of_eight", "MPS=true", 8)
            .devices(|d| d.gpus = GpuSource::Listed(vec![GpuName::Index(5), GpuName::Index(2)])),
        Scenario::new("mig_one", "MPS=true,MPS_THREADS=50,MPS_MEM=4G", 2).divided(1, &[(0, 1)]),
        Scenario::new("mig_two", "MPS=true,MPS_MEM=25%", 2).divided(2, &[(1, 0), (0, 2)]),
        Scenario::new(
            "mig_two_by_rank",
            "MPS=per-gpu,MPS_BIND=block,MPS_MEM=4G",
            2,
        )
        .divided(2, &[(0, 1), (1, 1)]),
        Scenario::new("mig_auto", "MPS=true,MPS_THREADS=auto,MPS_MEM=auto", 1)
            .divided(1, &[(0, 0), (0, 2)])
            .tasks(16),
        Scenario::new("mig_too_many_tasks", "MPS=true", 1)
            .divided(1, &[(0, 0)])
            .tasks(7),
        Scenario::new("mig_beside_a_gpu", "MPS=true", 2)
            .divided(1, &[(0, 1)])
            .devices(|d| given(d, "1")),
        Scenario::new("mig_beside_a_gpu_by_uuid", "MPS=true", 2)
            .divided(1, &[(0, 1)])
            .devices(|d| given(d, "GPU-00000001-0000-4000-8000-000000000000")),
        Scenario::new("mig_whole_gpu", "MPS=true", 2)
            .divided(1, &[])
            .devices(|d| d.gpus = GpuSource::Listed(vec![GpuName::Index(0), GpuName::Index(1)])),
        Scenario::new("mig_taken_away", "MPS=true", 1)
            .divided(1, &[])
            .devices(|d| {
                d.gpus = GpuSource::Listed(vec![GpuName::Uuid("MIG-12345678".to_owned())])
            }),
        Scenario::new("mig_before_470", "MPS=true", 1)
            .divided(1, &[])
            .devices(|d| {
                let name = "MIG-GPU-00000000-0000-4000-8000-000000000000/1/0";
                d.gpus = GpuSource::Listed(vec![GpuName::Uuid(name.to_owned())]);
            }),
        Scenario::new("mig_not_bound", "MPS=true,MPS_BIND=none", 1).divided(1, &[(0, 0), (0, 1)]),
        Scenario::new("mig_by_number", "MPS=true,MPS_VISIBLE=ordinal", 1).divided(1, &[(0, 0)]),
        Scenario::new("mig_openpbs", "MPS=true,MPS_MEM=4G", 1)
            .of(Scheduler::OpenPbs, false)
            .divided(1, &[(0, 1)]),
        Scenario::new("older_than_volta", "MPS=per-gpu", 2).gpus(|gpus| old(&mut gpus[1])),
        Scenario::new("gpu_not_there", "MPS=true", 1)
            .devices(|d| d.gpus = GpuSource::Listed(vec![GpuName::Index(7)])),
        Scenario::new("no_gpu", "MPS=true", 1).devices(|d| d.gpus = GpuSource::None),
        Scenario::new("gpus_unknown", "MPS=true", 2).devices(|d| d.gpus = unknown("no file")),
        Scenario::new("gpus_unknown_whole_node", "MPS=true", 2)
            .config("gpus_unknown = \"whole-node-if-exclusive\"")
            .devices(|d| {
                d.gpus = unknown("no file");
                d.exclusive = Exclusive::Unknown;
                d.whole_node = true;
            }),
        Scenario::new("gpus_unknown_shared_node", "MPS=true", 2)
            .config("gpus_unknown = \"whole-node-if-exclusive\"")
            .devices(|d| d.gpus = unknown("no file")),
        Scenario::new("gpus_counted_all", "MPS=true", 2).devices(|d| d.gpus = counted(2)),
        Scenario::new("gpus_counted_some", "MPS=true", 2).devices(|d| d.gpus = counted(1)),
        Scenario::new("gpus_counted_node_alone", "MPS=true", 2).devices(|d| {
            d.gpus = counted(1);
            d.whole_node = true;
        }),
        Scenario::new("ceiling_threads", "MPS=true,MPS_THREADS=80", 1)
            .config("[ceilings]\nthreads = 50"),
        Scenario::new("ceiling_memory", "MPS=true,MPS_MEM=64G", 1)
            .config("[ceilings]\nmem = \"32G\""),
        Scenario::new("defaults_of_the_site", "MPS=true", 1)
            .config("[defaults]\nthreads = 50\nmem = \"8G\""),
        Scenario::new("more_memory_than_there_is", "MPS=true,MPS_MEM=200G", 1),
        Scenario::new("too_many_tasks", "MPS=true", 1).tasks(49),
        Scenario::new("many_tasks_on_driver_590", "MPS=true", 1)
            .driver("590.44.01")
            .tasks(60),
        Scenario::new("too_many_tasks_for_driver_590", "MPS=true", 1)
            .driver("590.44.01")
            .tasks(61),
        Scenario::new("many_tasks_by_the_site", "MPS=true", 1)
            .config("max_clients = 64")
            .tasks(61),
    ]
}

fn given(devices: &mut Devices, name: &str) {
    if let GpuSource::Listed(names) = &mut devices.gpus {
        names.extend(GpuName::parse(name));
    }
}

fn old(gpu: &mut mpsd_core::Gpu) {
    gpu.name = "Tesla P100".to_owned();
    gpu.capability = (6, 0);
    gpu.memory_mib = Some(16_384);
}

#[test]
fn the_plan_of_every_scenario_is_as_reviewed() {
    let mut names = std::collections::BTreeSet::new();
    for scenario in scenarios() {
        assert!(names.insert(scenario.name), "{} twice", scenario.name);
        let text = match scenario.plan() {
            Ok(plan) => plan.to_string(),
            Err(failure) => format!("{}: {failure}\n", failure.kind()),
        };
        let case = format!(
            "asked: {}\n{}\n",
            scenario.account,
            scenario.config.replace('\n', "; ")
        );
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(scenario.name, case + &text);
        });
    }
}
