//! OpenPBS without hooks: the classic prologue and epilogue, which do not get the account.

use crate::jobs::{NoControl, attached, bare, begins, begun, client, ends, free, says, says_once};
use tests::double::Builder;
use tests::mom::cluster::{Cluster, Product, Verdict};
use tests::mom::wire::Ended;

fn cluster() -> Cluster {
    classic(&["nodea"], "")
}

fn classic(names: &[&str], config: &str) -> Cluster {
    let mut c = Cluster::with(Product::OpenPbs, names, Builder::fast, config);
    for node in &mut c.nodes {
        node.sh("mpsctl pbs uninstall");
        node.try_sh("mpsctl pbs install --classic");
    }
    c.mark();
    c
}

#[test]
fn the_account_is_read_by_printjob_and_the_environment_by_the_profile() {
    let mut c = cluster();
    for account in ["", "proj1", "proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G"] {
        let job = begun(&mut c, account);
        let record = client(&mut c, &job);
        let told = c.told(&job);
        if account.contains("MPS") {
            attached(&record, &job, "nodea", 32, Some(2048));
            says_once(
                &told,
                &[
                    "do not attach tasks started by TM",
                    "unless it is 'mpsctl exec -- COMMAND'",
                ],
            );
        } else {
            bare(&record);
            assert_eq!(told, "");
        }
        ends(&mut c, &job);
    }
}

/// `qsub -V` inside a job with MPS.
#[test]
fn the_profile_removes_what_another_jobs_mps_left() {
    let mut c = cluster();
    let job = begun(&mut c, "proj1");
    let mut run = c.shell(&job, "env").unwrap();
    for (name, value) in [
        ("MPSD_JOB", "99.localhost"),
        (
            "CUDA_MPS_PIPE_DIRECTORY",
            "/run/mpsd/jobs/99.localhost/pipe",
        ),
    ] {
        run.env.insert(name.into(), value.into());
    }
    assert_eq!(c.nodes[0].run(run), Ended::Code(0));
    let (out, told) = c.output(&job, 0);
    assert!(!out.contains("99.localhost"), "{out}");
    assert_eq!(told, "");
    ends(&mut c, &job);
}

#[test]
fn refusals_abort_and_faults_requeue() {
    let mut c = cluster();
    let refused = c.job("MPS=maybe");
    assert_eq!(c.begin(&refused), Verdict::Aborted);
    says(&c.told(&refused), &["MPS=maybe"]);
    assert_eq!(c.state("nodea"), free());
    let _fault = NoControl::on(&c, 0);
    let failed = c.job("MPS=true");
    assert_eq!(c.begin(&failed), Verdict::Requeued);
    assert_eq!(c.state("nodea").0, "offline");
    c.is_as_before();
}

#[test]
fn a_pbs_at_an_unusual_place_is_found_by_the_configuration() {
    let mut c = cluster();
    c.nodes[0].sh(
        "mv /opt/pbs /opt/else; rm /etc/pbs.conf; printf '[pbs]\nexec = \"/opt/else\"\n' >>/etc/mpsd/mpsd.toml",
    );
    let job = begun(&mut c, "MPS=true");
    assert_eq!(c.gpus[0].modes()[0], "exclusive_process");
    c.end(&job, 0);
}

#[test]
fn without_printjob_a_job_that_asks_waits_and_no_other() {
    let mut c = cluster();
    c.nodes[0].sh("rm /opt/pbs/bin/printjob");
    let job = c.job("MPS=true");
    assert_eq!(c.begin(&job), Verdict::Requeued);
    says(
        &c.told(&job),
        &["no 'printjob' in /opt/pbs/bin", "set exec under [pbs]"],
    );
    begun(&mut c, "proj1");
    assert_eq!(c.state("nodea"), free());
}

/// On one node if the site says so; on several nodes always, because the others have no daemon.
#[test]
fn a_job_whose_tasks_could_run_outside_mps_is_refused() {
    for (names, config, word) in [
        (
            &["nodea"][..],
            "[pbs]\nunattached_tasks = \"refuse\"\n",
            "do not attach tasks started by TM; allowed: after the hook ('mpsctl pbs install')",
        ),
        (&["nodea", "nodeb"][..], "", "it has 2 nodes"),
    ] {
        let mut c = classic(names, config);
        let gpus: Vec<&[u32]> = names.iter().map(|_| &[0][..]).collect();
        let job = c.job("MPS=true").on(&gpus);
        assert_eq!(c.begin(&job), Verdict::Aborted);
        says_once(&c.told(&job), &[word]);
        let plain = c.job("proj1").on(&gpus);
        begins(&mut c, &plain);
        ends(&mut c, &plain);
        assert_eq!(c.state("nodea"), free());
        let text = c.nodes[0].sh_exits(2 * i32::from(!config.is_empty()), "mpsctl pbs check");
        says(
            &text,
            &["the classic scripts do not attach tasks that TM starts"],
        );
    }
}
