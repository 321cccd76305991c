use super::*;
use mpsd_core::Paths;
use std::path::PathBuf;

/// A node of its own, and two journals of job 7: its first run's and its second's.
struct Place {
    settings: Settings,
    runs: [Journal; 2],
    _directory: tempfile::TempDir,
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
        let recorded = include_str!("../../job/recorded/journal-1.json");
        let first: Journal = serde_json::from_str(recorded).unwrap();
        let first = Journal {
            plan: Vec::new(),
            begun: 0,
            supervisor: None,
            proved: Vec::new(),
            starter: None,
            cgroup: None,
            daemons: Vec::new(),
            gpus: Vec::new(),
            ..first
        };
        let second = Journal {
            began: first.began + 1,
            ..first.clone()
        };
        let place = Self {
            settings,
            runs: [first, second],
            _directory: directory,
        };
        std::fs::create_dir_all(place.job()).unwrap();
        place
    }

    fn job(&self) -> PathBuf {
        self.settings.paths.job(&self.runs[0].job).directory().to_owned()
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
    run.take_down(&second.job, Some(first), "the scheduler has no such job");
    assert!(place.job().exists());
    run.take_down(&second.job, Some(second), "the scheduler has no such job");
    assert!(!place.job().exists(), "{:?}", run.report);
}
