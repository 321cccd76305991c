//! Torque's moms and our prologue, epilogue and profile.

use crate::assertions::{Before, attached, bare, shell_ends};
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::Ended;

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::Torque, names)
}

#[test]
fn a_plain_job_is_untouched() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    for account in ["", "proj1", "MPSLAB", "mps_physics"] {
        let job = Job::new("0.vm", account);
        assert_eq!(c.torque_begin(&job), Verdict::Runs, "{account}");
        before.holds(&mut c);
        let run = c.torque_shell(&job, &Cluster::client(""));
        shell_ends(&mut c, run, &job, 0);
        bare(&c.records(0)[0]);
        assert_eq!(c.output(&job, 0).1, "", "{account}");
        c.torque_end(&job, 0);
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
    }
    before.holds(&mut c);
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
    c.torque_end(&job, 0);
    before.holds(&mut c);
}
