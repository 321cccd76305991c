use super::*;
use crate::job::suspicion::{At, Suspect};
use crate::sys::process::ProcessId;
use mpsd_core::{JobId, Scheduler};

fn suspicion(pid: i32, since: u64) -> Suspicion {
    let start_time = 7;
    Suspicion {
        suspect: Suspect::Process(ProcessId { pid, start_time }),
        what: format!("mps-server {pid}"),
        since,
        at: At {
            job: JobId::parse("4711").unwrap(),
            scheduler: Scheduler::Slurm,
            node: "gpu1".to_owned(),
            uid: 1001,
            prefix: Some("mpsd:".to_owned()),
            slurm_conf: None,
            gpus: Vec::new(),
        },
    }
}

#[test]
fn what_is_suspected_is_kept_from_its_first_look_and_leaves_nothing_when_it_is_over() {
    let place = tempfile::tempdir().unwrap();
    let paths = Paths::new(place.path(), place.path());
    assert_eq!(all(&paths), []);
    let (one, two) = (suspicion(691, 100), suspicion(692, 101));
    add(&paths, &one);
    add(&paths, &two);
    let look_again = place.path().join("look-again");
    assert!(look_again.exists(), "the timer's path unit sees it");
    std::fs::remove_file(&look_again).unwrap();
    // Seen again too early: the first look counts, and another one is asked for.
    add(&paths, &suspicion(691, 130));
    assert_eq!(all(&paths), [one.clone(), two.clone()]);
    assert!(look_again.exists());
    remove(&paths, &one);
    assert_eq!(all(&paths), std::slice::from_ref(&two));
    remove(&paths, &two);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_none_of_ours_suspects_nobody() {
    let place = tempfile::tempdir().unwrap();
    let paths = Paths::new(place.path(), place.path());
    std::fs::write(place.path().join(FILE.0), "{").unwrap();
    assert_eq!(all(&paths), []);
    add(&paths, &suspicion(691, 100));
    assert_eq!(all(&paths).len(), 1);
}
