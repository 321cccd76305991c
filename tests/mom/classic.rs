//! OpenPBS without hooks: the classic prologue and epilogue, which are not told the account.

use crate::assertions::{Before, attached, bare, shell_ends};
use crate::both;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::Ended;

fn cluster() -> Cluster {
    classic(&["nodea"], "")
}

fn classic(names: &[&str], config: &str) -> Cluster {
    let mut c = Cluster::with(Product::OpenPbs, names, |builder| builder.fast(), config);
    for node in &mut c.nodes {
        node.sh("mpsctl pbs uninstall");
        node.try_sh("mpsctl pbs install --classic");
    }
    c
}

/// The line that such a job finds in its error file.
const TOLD: &str = "OpenPBS's classic scripts do not attach tasks started by TM: such a task runs outside MPS unless it is 'mpsctl exec -- COMMAND'\n";

#[test]
fn account_by_printjob_and_environment_by_the_profile() {
    let mut c = cluster();
    let before = Before::of(&mut c);
    for (account, asked) in [
        ("", false),
        ("proj1", false),
        ("proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G", true),
    ] {
        let job = Job::new("30.localhost", account);
        assert_eq!(c.openpbs_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
        let run = c.openpbs_shell(&job, &Cluster::client("")).unwrap();
        shell_ends(&mut c, run, &job, 0);
        let records = c.records(0);
        if asked {
            attached(&records[0], &job, "nodea", 32, Some(2048))
        } else {
            bare(&records[0])
        }
        let told = c.output(&job, 0).1;
        assert!(
            if asked {
                told.ends_with(TOLD) && told.lines().count() == 1
            } else {
                told.is_empty()
            },
            "{told}"
        );
        c.openpbs_end(&job, 0);
        c.nodes[0].sh("rm -f /var/spool/pbs/spool/*");
        before.holds(&mut c);
    }
}

#[test]
fn refusals_abort_and_faults_requeue() {
    let mut c = cluster();
    let before = Before::of(&mut c);
    let job = Job::new("31.localhost", "MPS=maybe");
    assert_eq!(c.openpbs_begin(&job), Verdict::Aborted);
    assert!(c.output(&job, 0).1.contains("MPS=maybe"));
    assert_eq!(c.state("nodea").0, "free");
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(&mut c);
    std::fs::remove_file(c.gpus[0].control()).unwrap();
    let job = Job::new("32.localhost", "MPS=true");
    assert_eq!(c.openpbs_begin(&job), Verdict::Requeued);
    assert_eq!(c.state("nodea").0, "offline");
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(&mut c);
}

#[test]
fn an_interactive_job_ends_with_its_user() {
    let mut c = cluster();
    let job = Job::new("33.localhost", "MPS=true").interactive();
    c.openpbs_files(&job);
    let prologue = c.openpbs_run(&job, "prologue", None);
    both::an_interactive_job_ends_with_its_user(&mut c, &job, Some(prologue));
}

#[test]
fn a_pbs_at_an_unusual_place_is_found_by_the_configuration() {
    let mut c = cluster();
    c.nodes[0]
        .sh("mv /opt/pbs /opt/else; rm /etc/pbs.conf; printf '[pbs]\nexec = \"/opt/else\"\n' >>/etc/mpsd/mpsd.toml");
    let job = Job::new("34.localhost", "MPS=true");
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    assert_eq!(c.gpus[0].modes()[0], "exclusive_process");
    c.openpbs_end(&job, 0);
}

#[test]
fn without_printjob_the_job_waits_and_the_line_says_where_it_was_looked_for() {
    let mut c = cluster();
    c.nodes[0].sh("rm /opt/pbs/bin/printjob");
    let job = Job::new("35.localhost", "MPS=true");
    assert_eq!(c.openpbs_begin(&job), Verdict::Requeued);
    let text = c.output(&job, 0).1;
    assert!(
        text.contains("no 'printjob' in /opt/pbs/bin") && text.contains("set exec under [pbs]"),
        "{text}"
    );
    assert_eq!(
        c.openpbs_begin(&Job::new("36.localhost", "proj1")),
        Verdict::Runs,
        "no other job suffers"
    );
    assert_eq!(c.state("nodea").0, "free");
}

#[test]
fn where_tasks_could_run_bare_the_job_is_refused() {
    // Where the site wants it so; and on several nodes in any case, since the others have no daemon.
    for (names, config, word) in [
        (
            &["nodea"][..],
            "[pbs]\nunattached_tasks = \"refuse\"\n",
            "do not attach tasks started by TM; allowed: after the hook ('mpsctl pbs install')",
        ),
        (&["nodea", "nodeb"][..], "", "it has 2 nodes"),
    ] {
        let mut c = classic(names, config);
        let before = Before::of(&mut c);
        let gpus: Vec<&[u32]> = names.iter().map(|_| &[0][..]).collect();
        let job = Job::new("37.localhost", "MPS=true").on(&gpus);
        assert_eq!(c.openpbs_begin(&job), Verdict::Aborted);
        let text = c.output(&job, 0).1;
        assert!(text.contains(word) && text.lines().count() == 1, "{text}");
        let plain = Job::new("38.localhost", "proj1").on(&gpus);
        assert_eq!(c.openpbs_begin(&plain), Verdict::Runs);
        c.openpbs_end(&plain, 0);
        assert_eq!(c.state("nodea"), ("free".into(), String::new()));
        c.nodes
            .iter_mut()
            .for_each(|node| drop(node.sh("rm -f /var/spool/pbs/aux/*")));
        before.holds(&mut c);
        let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
        let says = "the classic scripts do not attach tasks that TM starts";
        assert!(text.contains(says), "{text}");
        assert_eq!(code, Ended::Code(i32::from(!config.is_empty())), "{text}");
    }
}
