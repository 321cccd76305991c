//! The plan of each scenario as text. A change in what root does on a node changes a snapshot in
//! the same commit.

use tests::sim::scenario::Scenario;

/// Name and words of each scenario ([`Scenario::new`]).
const SCENARIOS: &str = r#"
exclusive: 2 MPS=true,MPS_THREADS=25,MPS_MEM=4G
shared_by_shards: 1 MPS=true,MPS_MEM=25% shared
shared_by_parts: 1 MPS=true,MPS_THREADS=auto,MPS_MEM=auto part tasks=2 config=[ceilings]; threads = 50; mem = "20G"
# One task, unless the user says how many.
shared_tasks_unknown: 1 MPS=true,MPS_THREADS=auto,MPS_MEM=auto part
shared_default_by_parts: 1 MPS=true part config=[defaults]; mem = "auto"
# The same for a job that did not ask. Its clients have no limit together.
shared_unasked_by_parts: 1 MPS=true part site config=[defaults]; mem = "auto"
shared_memory_of_the_job: 1 MPS=true,MPS_MEM=job=24G shared
memory_of_the_job: 1 MPS=true,MPS_MEM=job=24G
shared_of_two_gpus: 2 MPS=true,MPS_THREADS=10:20 shared
shared_part_unknown: 1 MPS=true,MPS_MEM=auto shared tasks=1
shared_default_part_unknown: 1 MPS=true shared config=[defaults]; mem = "auto"; threads = "auto"
shared_by_the_site: 1 MPS=true config=shared_gpus = true
shared_own: 1 MPS=own,MPS_THREADS=25 shared
shared_per_gpu: 2 MPS=per-gpu shared
shared_priority: 1 MPS=true,MPS_PRIORITY=below-normal shared
step: 1 MPS=true step
keep: 1 MPS=true config=compute_mode = "keep"
no_cgroup: 1 MPS=true config=cgroup = "none"
per_gpu: 2 MPS=per-gpu,MPS_MEM=4G,MPS_PRIORITY=below-normal
ranks: 1 MPS=true,MPS_THREADS=30:70,MPS_MEM=4G:8G
auto: 2 MPS=true,MPS_THREADS=auto,MPS_MEM=auto tasks=8
# Of six tasks on two GPUs, four may meet on one. With a GPU for each task it is three.
auto_six_tasks: 2 MPS=true,MPS_THREADS=auto,MPS_MEM=auto tasks=6
auto_six_bound_tasks: 2 MPS=true,MPS_THREADS=auto,MPS_MEM=auto,MPS_BIND=block tasks=6
auto_tasks_unknown: 1 MPS=true,MPS_THREADS=auto
default_auto_tasks_unknown: 1 MPS=true config=[defaults]; mem = "auto"; threads = "auto"
mode_auto: 2 MPS=auto,MPS_THREADS=auto tasks=8
mode_auto_shared: 1 MPS=auto shared
mode_auto_too_many_tasks: 1 MPS=auto tasks=49
bound: 2 MPS=true,MPS_BIND=closest,MPS_VISIBLE=ordinal
bound_by_the_site: 2 MPS=true config=[defaults]; bind = "block"
some_of_eight: 8 MPS=true listed=5,2
mig_one: 2 MPS=true,MPS_THREADS=50,MPS_MEM=4G divided=1:0/1
mig_two: 2 MPS=true,MPS_MEM=25% divided=2:1/0,0/2
mig_two_by_rank: 2 MPS=per-gpu,MPS_BIND=block,MPS_MEM=4G divided=2:0/1,1/1
mig_auto: 1 MPS=true,MPS_THREADS=auto,MPS_MEM=auto divided=1:0/0,0/2 tasks=16
mig_too_many_tasks: 1 MPS=true divided=1:0/0 tasks=7
mig_beside_a_gpu: 2 MPS=true divided=1:0/1 and=1
mig_beside_a_gpu_by_uuid: 2 MPS=true divided=1:0/1 and=GPU-00000001-0000-4000-8000-000000000000
mig_whole_gpu: 2 MPS=true divided=1: listed=0,1
mig_taken_away: 1 MPS=true divided=1: listed=MIG-12345678
mig_before_470: 1 MPS=true divided=1: listed=MIG-GPU-00000000-0000-4000-8000-000000000000/1/0
mig_not_bound: 1 MPS=true,MPS_BIND=none divided=1:0/0,0/1
mig_by_number: 1 MPS=true,MPS_VISIBLE=ordinal divided=1:0/0
mig_openpbs: 1 MPS=true,MPS_MEM=4G openpbs divided=1:0/1
older_than_volta: 2 MPS=per-gpu old=1
gpu_not_there: 1 MPS=true listed=7
no_gpu: 1 MPS=true no-gpu
gpus_unknown: 2 MPS=true unknown
gpus_unknown_whole_node: 2 MPS=true unknown perhaps-shared whole-node config=gpus_unknown = "whole-node-if-exclusive"
gpus_unknown_shared_node: 2 MPS=true unknown config=gpus_unknown = "whole-node-if-exclusive"
gpus_counted_all: 2 MPS=true counted=2
gpus_counted_some: 2 MPS=true counted=1
gpus_counted_node_alone: 2 MPS=true counted=1 whole-node
ceiling_threads: 1 MPS=true,MPS_THREADS=80 config=[ceilings]; threads = 50
ceiling_memory: 1 MPS=true,MPS_MEM=64G config=[ceilings]; mem = "32G"
defaults_of_the_site: 1 MPS=true config=[defaults]; threads = 50; mem = "8G"
more_memory_than_there_is: 1 MPS=true,MPS_MEM=200G
too_many_tasks: 1 MPS=true tasks=49
many_tasks_on_driver_590: 1 MPS=true driver=590.44.01 tasks=60
too_many_tasks_for_driver_590: 1 MPS=true driver=590.44.01 tasks=61
many_tasks_by_the_site: 1 MPS=true tasks=61 config=max_clients = 64
"#;

#[test]
fn the_plan_of_every_scenario_is_as_reviewed() {
    let mut names = std::collections::BTreeSet::new();
    for (name, words) in SCENARIOS.lines().filter_map(|line| line.split_once(": ")) {
        assert!(names.insert(name), "{name} twice");
        let scenario = Scenario::new(name, words);
        let text = match scenario.plan() {
            Ok(plan) => plan.to_string(),
            Err(failure) => format!("{}: {failure}\n", failure.kind()),
        };
        let config = scenario.config.replace('\n', "; ");
        let case = format!("asked: {}\n{config}\n", scenario.account);
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(name, case + &text);
        });
    }
}
