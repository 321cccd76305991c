//! OpenPBS without pbs_cgroups: which jobs have GPUs, although PBS names none.

use crate::jobs::{attached, bare, begins, client, ends, is_refused, openpbs, says};
use tests::double::Builder;
use tests::mom::cluster::{Cluster, OTHER_USER, Product};

/// A stock server gives a number of GPUs without names. If that leaves a doubt, the job is refused.
/// The compute mode stays: whatever the job's request says, `qrun -H` may bring another job to the
/// node later.
#[test]
fn a_stock_server_serves_whole_nodes_and_nodes_of_one_gpu() {
    for (here, gpus, place, state, is_served) in [
        (2, &[0, 1][..], "pack", "", true),
        (2, &[0, 1][..], "free:exclhost", "", true),
        (2, &[0][..], "free:excl", "", true),
        (1, &[0][..], "pack", "", true),
        (2, &[0][..], "pack", "", false),
        // By a vnode's `sharing` or a reservation, which only the server knows.
        (2, &[0][..], "free", "job-exclusive", true),
        (2, &[0][..], "free", "resv-exclusive", true),
        (2, &[0][..], "free", "job-busy", false),
    ] {
        let few = |builder: Builder| builder.gpus(here, "NVIDIA H200").fast();
        let mut c = Cluster::with(Product::OpenPbs, &["nodea"], few, "");
        if !state.is_empty() {
            c.serve("nodes/nodea", &format!("{state}\n"));
        }
        let job = c.job("MPS=true,MPS_THREADS=50").on(&[gpus]).stock(place);
        if is_served {
            begins(&mut c, &job);
            assert_eq!(c.gpus[0].modes(), vec!["default"; here]);
            attached(&client(&mut c, &job), &job, "nodea", 66, None);
        } else {
            let words = [
                "pbs_cgroups is not there to name them",
                "allowed: all 2 GPUs of the node, or the node alone",
            ];
            says(&is_refused(&mut c, &job), &words);
        }
        ends(&mut c, &job);
    }
}

/// `qrun -H` and a vnode with `sharing=ignore_excl` disregard `place`. A job that has ended but is
/// not yet forgotten counts no more.
#[test]
fn a_job_is_alone_if_its_mom_has_no_other_that_runs() {
    let mut c = openpbs(&["nodea"], "");
    let other = c.job("proj1").of(OTHER_USER).stock("free");
    c.openpbs_files(&other);
    let job = c.job("MPS=true").stock("free:exclhost");
    let why = format!(
        "'place' asks for the node alone, and its mom has job {} too",
        other.id
    );
    says(&is_refused(&mut c, &job), &[&why]);
    bare(&client(&mut c, &other));
    ends(&mut c, &job);
    c.openpbs_reaches(&other, 50);
    let job = c.job("MPS=true").stock("free:exclhost");
    begins(&mut c, &job);
    attached(&client(&mut c, &job), &job, "nodea", 132, None);
    ends(&mut c, &job);
}
