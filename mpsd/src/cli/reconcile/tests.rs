use super::*;
use crate::node::testing::journal;
use crate::node::unbegun;
use mpsd_core::Paths;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A node of its own, and two journals of job 7: its first run's and its second's.
struct Place {
    settings: Settings,
    runs: [Journal; 2],
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state"));
        let settings = Settings {
            paths,
            cgroup: mpsd_core::config::Cgroup::None,
            ..Settings::usual()
        };
        let mut first = journal();
        first.plan.effects.clear();
        first.plan.record.daemons.clear();
        first.plan.record.gpus.clear();
        let first = Journal {
            effects_begun: 0,
            supervisor: None,
            proved: Vec::new(),
            starter: None,
            cgroup: None,
            ..first
        };
        let second = Journal {
            began_at: first.began_at + 1,
            ..first.clone()
        };
        let place = Self {
            settings,
            runs: [first, second],
            directory,
        };
        std::fs::create_dir_all(place.job()).unwrap();
        place
    }

    /// Its server forgets the job. `meanwhile` is what else happens when it is asked.
    fn forgetful(mut self, meanwhile: &str) -> Self {
        let qstat = self.directory.path().join("qstat");
        let body =
            format!("#!/bin/sh\n{meanwhile}\necho \"qstat: Unknown Job Id $2\" >&2\nexit 153\n");
        std::fs::write(&qstat, body).unwrap();
        std::fs::set_permissions(&qstat, std::fs::Permissions::from_mode(0o755)).unwrap();
        self.settings.pbs.home = Some(self.directory.path().to_owned());
        self.settings.pbs.exec = Some(self.directory.path().to_owned());
        self
    }

    fn job(&self) -> PathBuf {
        let paths = self.settings.paths.job(self.runs[0].job());
        paths.directory().to_owned()
    }

    fn begin(&self, journal: &Journal) {
        this_node(&self.settings).write_journal(journal).unwrap();
    }
}

#[test]
fn a_job_that_began_again_under_its_id_is_not_taken_down_for_its_first_run() {
    let place = Place::new();
    let [first, second] = &place.runs;
    place.begin(second);
    let mut run = Run::new(&place.settings, "n1");
    run.take_down(second.job(), Some(first), "the scheduler has no such job");
    assert!(place.job().exists());
    run.take_down(second.job(), Some(second), "the scheduler has no such job");
    assert!(!place.job().exists(), "{:?}", run.report);
}

/// It asks for its first run while the second begins.
#[test]
fn a_watching_process_takes_down_no_later_run_of_its_job() {
    for is_again in [false, true] {
        let place = Place::new();
        let second = place.runs[1].to_text().unwrap();
        std::fs::write(place.directory.path().join("second"), second).unwrap();
        let journal = place.job().join("journal");
        let (top, journal) = (place.directory.path().display(), journal.display());
        let begins_again = is_again.then(|| format!("cp {top}/second {journal}"));
        let meanwhile = begins_again.unwrap_or_default();
        let place = place.forgetful(&meanwhile);
        let first = &place.runs[0];
        place.begin(first);
        let ending = Ending {
            settings: &place.settings,
            scheduler: Scheduler::Torque,
            node: "n1",
        };
        unbegun::take_down(NAME, first.job(), &ending, Duration::from_secs(20));
        assert_eq!(place.job().exists(), is_again);
    }
}
