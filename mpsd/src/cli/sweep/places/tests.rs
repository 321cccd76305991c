//! Where copies run, from the record.

use super::*;
use mpsd_core::JobId;
use mpsd_core::record::{Daemon, RecordDevice, RecordGpu, State};

fn places(names: DeviceNames, gpus: usize) -> Places {
    let uuid = |number: usize| GpuUuid::parse(&format!("GPU-0000000{number}")).unwrap();
    let mut record = Record::closed(JobId::parse("7").unwrap(), 1000, State::Ready, String::new());
    let all: Vec<GpuUuid> = (1..=gpus).map(uuid).collect();
    record.names = Some(names);
    record.gpus = (2..)
        .zip(&all)
        .map(|(index, uuid)| RecordGpu {
            index,
            uuid: uuid.clone(),
            cpus: None,
        })
        .collect();
    // The node has another GPU before the job's.
    record.devices = (0..=gpus)
        .map(|n| RecordDevice {
            uuid: uuid(n),
            file: "/dev/null".into(),
        })
        .collect();
    record.daemons = vec![Daemon {
        gpus: all.clone(),
        pipe: "/p".into(),
        log: "/l".into(),
        threads: None,
        memory: Vec::new(),
        priority: None,
        partitions: Vec::new(),
    }];
    let task = Task {
        counted: Some((0..=gpus).map(uuid).collect()),
        ..Task::default()
    };
    Places {
        with_mps: Some((record, task)),
        gpus: all.iter().map(ToString::to_string).collect(),
        nowhere: "/run/mpsd/jobs/none".into(),
        inherited: Vec::new(),
    }
}

fn visible(places: &Places, clients: u32, way: Way) -> Vec<String> {
    let all = places.environments(clients, way).unwrap();
    all.iter()
        .map(|changes| value(changes, VISIBLE_DEVICES).unwrap_or_default())
        .collect()
}

#[test]
fn copies_are_bound_in_turn_with_mps_and_without() {
    let places = places(DeviceNames::Uuid, 2);
    let (one, two) = ("GPU-00000001", "GPU-00000002");
    let auto = Way::Mps(Share::Auto);
    assert_eq!(visible(&places, 3, auto), [one, two, one]);
    assert_eq!(visible(&places, 3, Way::Without), [one, two, one]);
    let share = |clients, way| {
        let all = places.environments(clients, way).unwrap();
        value(&all[0], THREADS)
    };
    assert_eq!(share(8, auto).as_deref(), Some("50"), "four on each GPU");
    assert_eq!(share(8, Way::Mps(Share::None)), None);
    let without = places.environments(1, Way::Without).unwrap().remove(0);
    let pipe = value(&without, PIPE_DIRECTORY);
    assert_eq!(
        pipe.as_deref(),
        Some("/run/mpsd/jobs/none"),
        "a daemon of the site's is not met either"
    );
    let removed = |name| {
        without
            .iter()
            .any(|change| change.name == name && change.value.is_none())
    };
    assert!(
        [THREADS, MEMORY, LOG_DIRECTORY, JOB].into_iter().all(removed),
        "{without:?}"
    );
}

#[test]
fn a_program_that_reads_numbers_gets_numbers_without_mps_too() {
    let places = places(DeviceNames::Ordinal, 2);
    assert_eq!(
        visible(&places, 2, Way::Mps(Share::None)),
        ["0", "1"],
        "the daemon's own"
    );
    assert_eq!(
        visible(&places, 2, Way::Without),
        ["1", "2"],
        "as CUDA counts without it"
    );
}

#[test]
fn a_job_with_a_share_of_its_own_is_refused() {
    let (mut record, _) = places(DeviceNames::Uuid, 1).with_mps.unwrap();
    assert!(unlimited(&record).is_ok());
    record.rank_threads = vec!["30".parse().unwrap(), "70".parse().unwrap()];
    let why = unlimited(&record).unwrap_err().to_string();
    assert!(
        why.contains("30 %") && why.contains("no share of its own"),
        "{why}"
    );
}
