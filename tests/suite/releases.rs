//! Jobs that begin under a newer release and end under this one, as after a downgrade.

use std::collections::BTreeSet;
use std::fs;

use mpsd_core::request::Key;
use serde_json::{Value, json};
use tests::node_bed::{NodeBed, fast};
use tests::run::USER;

const JOB: &str = "10.srv";

fn read(bed: &NodeBed, name: &str) -> Value {
    let text = fs::read_to_string(bed.job(JOB).join(name)).expect(name);
    serde_json::from_str(&text).expect("JSON")
}

fn write(bed: &NodeBed, name: &str, value: &Value) {
    fs::write(bed.job(JOB).join(name), value.to_string()).expect(name);
}

#[test]
fn a_journal_of_a_release_to_come_is_left_alone_and_told_by_a_drain() {
    let bed = NodeBed::with_job(fast(1), "", JOB, "MPS=true", "0");
    let ours = read(&bed, "journal");
    let mut newer = ours.clone();
    newer["version"] = json!(2);
    newer["plan"]["effects"][0] = json!({"effect": "of-a-release-to-come"});
    write(&bed, "journal", &newer);
    bed.torque_end(JOB).complains("newer release");
    assert_eq!(read(&bed, "journal"), newer);
    // This release cannot end its MPS, so the node takes no other job until the newer release is
    // back.
    let drains = bed.take_drains();
    assert_eq!(drains.len(), 1, "{drains:?}");
    let told = drains[0].contains("written by a newer release");
    assert!(told, "{drains:?}");
    // A further field in a format of this number is allowed.
    let mut more = ours;
    more["of_a_release_to_come"] = json!({"any": ["thing"]});
    write(&bed, "journal", &more);
    bed.assert_ends_clean(JOB, "a further field");
}

#[test]
fn a_task_refuses_the_record_of_a_release_to_come_by_its_number() {
    let bed = NodeBed::with_job(fast(1), "", JOB, "MPS=true", "0");
    let mut newer = read(&bed, "record");
    newer["version"] = json!(2);
    newer["of_a_release_to_come"] = json!(true);
    write(&bed, "record", &newer);
    let refused = bed.mpsctl_as(USER, &["env", "--job", JOB], &[]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    refused.complains("record of version 2");
    refused.lacks("CUDA_MPS_PIPE_DIRECTORY");
    bed.assert_ends_clean(JOB, "a newer record");
}

/// srun, sbatch and salloc take an abbreviation that fits one option alone (getopt_long(3)).
/// `--mp`, for `--mpi`, is told in docs/slurm.md.
#[test]
fn no_abbreviation_of_slurms_own_options_but_mp_becomes_ambiguous() {
    let ours: Vec<String> = Key::ALL.into_iter().map(|key| key.row().flag()).collect();
    let table = include_str!("slurm-options.txt").lines();
    let rows = table.filter(|line| !line.starts_with('#'));
    let rows = rows.filter_map(|line| line.split_once(": "));
    let releases: Vec<(&str, Vec<&str>)> = rows
        .map(|(release, options)| (release, options.split(' ').collect()))
        .collect();
    let packaged = include_str!("../../packaging/src/package/layout.rs");
    let (_, packaged) = packaged
        .split_once("pub const SLURM")
        .expect("the releases");
    let (_, packaged) = packaged.split_once(';').expect("the releases");
    let (packaged, _) = packaged.split_once("];").expect("the releases");
    let packaged = packaged.split('"').skip(1).step_by(2);
    let known = releases.iter().map(|(release, _)| *release);
    assert!(known.eq(packaged), "each release that we package for");
    for (release, slurms) in &releases {
        assert!(slurms.len() > 100, "{release}: {}", slurms.len());
        let fits = |start: &str| {
            let all = slurms.iter();
            all.filter(|option| option.starts_with(start)).count()
        };
        let starts = ours
            .iter()
            .flat_map(|flag| (1..=flag.len()).map(|end| &flag[..end]));
        let is_broken = |start: &&str| fits(start) == 1 || slurms.contains(start);
        let broken: BTreeSet<&str> = starts.filter(is_broken).collect();
        assert_eq!(broken, BTreeSet::from(["mp"]), "{release}");
    }
}
