//! Torque's moms and our prologue, epilogue and profile.

use crate::assertions::{Before, attached, shell_ends, torque_client};
use crate::both;
use tests::double::Builder;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::Ended;

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::Torque, names)
}

#[test]
fn a_plain_job_is_untouched() {
    both::plain_jobs_are_untouched(&mut cluster(&["nodea"]), "0.vm");
}

#[test]
fn the_flag_that_the_suite_is_named_after() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("1.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    assert_eq!(c.gpus[0].modes(), ["exclusive_process", "default"]);
    let run = c.torque_shell(&job, &Cluster::client(""));
    shell_ends(&mut c, run, &job, 0);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    assert_eq!(c.output(&job, 0).1, "");
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

/// Torque confines no task, with and without NVML of its own: its number is the index that CUDA counts, whatever the number
/// of the device file.
#[test]
fn a_number_is_the_index_that_cuda_counts() {
    let crossed = |node: Builder| {
        node.describe(|node| {
            for (gpu, minor) in node.gpu.iter_mut().zip([1, 0]) {
                gpu.minor = Some(minor);
            }
        })
    };
    let mut c = Cluster::with(Product::Torque, &["nodea"], crossed, "");
    let before = Before::of(&mut c);
    let mut gpus = |id: &str, account: &str| {
        let job = Job::new(id, account).on(&[&[1]]);
        assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
        let modes = c.gpus[0].modes();
        let run = c.torque_shell(&job, &Cluster::client(""));
        shell_ends(&mut c, run, &job, 0);
        let record = c.records(0).remove(0);
        c.torque_end(&job, 0);
        (record["uuids"].clone(), record["under_mps"] == true, modes)
    };
    let (without, bare, _) = gpus("8.vm", "");
    let (with, under_mps, modes) = gpus("9.vm", "MPS=true");
    assert_eq!((bare, under_mps), (false, true));
    assert_eq!(with, without);
    assert_eq!(modes, ["default", "exclusive_process"]);
    before.holds(&mut c);
}

#[test]
fn limits_beside_the_sites_own_account() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("2.vm", "proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let four = format!(
        "for i in 1 2 3 4; do {} & done; wait",
        Cluster::client("--hold 0.2")
    );
    let run = c.torque_shell(&job, &four);
    shell_ends(&mut c, run, &job, 0);
    let records = c.records(0);
    assert_eq!(records.len(), 4);
    records
        .iter()
        .for_each(|record| attached(record, &job, "nodea", 32, Some(2048)));
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn ranks_are_bound() {
    let mut c = cluster(&["nodea"]);
    both::ranks_are_bound(
        &mut c,
        "12.vm",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    );
}

#[test]
fn ranks_are_bound_to_the_gpus_near_their_cores() {
    let mut c = cluster(&["nodea"]);
    if c.nodes[0].try_sh("taskset -c 1 true").0 != Ended::Code(0) {
        println!("skipped: this machine has no second core");
        return;
    }
    // The first GPU is near core 1, the second near core 0.
    c.gpus[0].change(|node| {
        for (gpu, near) in node.gpu.iter_mut().zip([0b10, 0b01]) {
            gpu.cpus = near;
        }
    });
    let job = Job::new("13.vm", "MPS=true,MPS_BIND=closest").on(&[&[0, 1]]);
    assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let client = Cluster::client("");
    let rank = |rank: u32, cores: &str| {
        format!("OMPI_COMM_WORLD_LOCAL_RANK={rank} taskset -c {cores} mpsctl exec -- {client}")
    };
    both::shell(&mut c, &job, &format!("{}; {}", rank(0, "0"), rank(1, "1")), 0);
    let records = c.records(0);
    let uuids = c.gpus[0].uuids();
    let seen: Vec<_> = records.iter().map(|record| record["uuids"].clone()).collect();
    let expected = [1, 0].map(|gpu| serde_json::json!([uuids[gpu]]));
    assert_eq!(seen, expected, "{:?}", c.output(&job, 0));
    c.torque_end(&job, 0);
}

#[test]
fn a_daemon_for_each_gpu_and_a_list_by_rank() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = both::a_daemon_for_each_gpu_and_a_list_by_rank(&mut c, "3.vm", "OMPI_COMM_WORLD_LOCAL_RANK");
    // A rank that nobody told its number is not run beside its limits.
    both::shell(
        &mut c,
        &job,
        &format!("mpsctl exec -- {}", Cluster::client("")),
        1,
    );
    assert!(c.records(0).is_empty());
    assert!(
        c.output(&job, 0).1.contains("OMPI_COMM_WORLD_LOCAL_RANK"),
        "{:?}",
        c.output(&job, 0)
    );
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_job_on_two_nodes() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("4.vm", "MPS=true,MPS_THREADS=50").on(&[&[0], &[1]]);
    assert_eq!(
        c.torque_begin(&job),
        Verdict::Runs,
        "{:?} {:?}",
        c.output(&job, 0),
        c.output(&job, 1)
    );
    assert_eq!(
        c.gpus[1].modes(),
        ["default", "exclusive_process"],
        "the sister took its own GPU"
    );
    let run = c.torque_shell(&job, &Cluster::client(""));
    shell_ends(&mut c, run, &job, 0);
    attached(&c.records(0)[0], &job, "nodea", 66, None);
    // TM starts tasks without a shell and without a profile: attached by the mom's $job_starter without a word of the
    // user, and by 'mpsctl exec' as well.
    for (at, node) in ["nodea", "nodeb"].into_iter().enumerate() {
        for prefix in ["", "/usr/bin/mpsctl exec -- "] {
            torque_client(&mut c, &job, at, prefix, &[]);
            attached(&c.records(at)[0], &job, node, 66, None);
        }
    }
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn an_interactive_job_ends_with_its_user() {
    let mut c = cluster(&["nodea"]);
    let job = Job::new("7.vm", "MPS=true").interactive();
    c.torque_files(&job);
    let prologue = c.torque_run(&job, 0, "prologue", None);
    both::an_interactive_job_ends_with_its_user(&mut c, &job, Some(prologue));
}

#[test]
fn restarting_the_mom_leaves_a_running_job_attached() {
    both::restarting_the_mom_leaves_a_running_job_attached(&mut cluster(&["nodea"]), "8.vm");
}

#[test]
fn a_rank_nobody_told_has_the_lowest_of_a_list() {
    both::a_rank_nobody_told_has_the_lowest_of_a_list(&mut cluster(&["nodea"]), "9.vm");
}

#[test]
fn too_many_tasks_are_told_once() {
    both::too_many_tasks_are_told_once(Product::Torque, "19.vm");
}
