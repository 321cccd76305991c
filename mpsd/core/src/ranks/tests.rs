use super::*;
use crate::gpu::GpuUuid;

fn gpus(cpus: &[&str]) -> Vec<RecordGpu> {
    let gpu = |(index, cpus): (u32, &&str)| RecordGpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
        cpus: Some((*cpus).to_owned()),
    };
    (0..).zip(cpus).map(gpu).collect()
}

/// The GPU of each task with these CPUs, by rank.
fn closest_to(gpus: &[RecordGpu], launcher: &str, tasks: &[&str]) -> String {
    let all: Vec<&RecordGpu> = gpus.iter().collect();
    let of = u32::try_from(tasks.len()).ok();
    let place = |(local, own): (u32, &&str)| {
        let cpus = Cpus {
            own: (*own).to_owned(),
            of_launcher: launcher.to_owned(),
        };
        let place = place_of(How::Closest, Rank { local, of }, &cpus, &all).unwrap();
        place.to_string()
    };
    (0..).zip(tasks).map(place).collect()
}

#[test]
fn cpus_are_listed_as_the_kernel_does() {
    let first_and_last = [0x8000_0000_0000_000f, 0b101];
    assert_eq!(list(&first_and_last), "0-3,63-64,66");
    assert_eq!(parse("0-3,63-64,66").len(), 7);
    assert_eq!((list(&[]), list(&[0])), (String::new(), String::new()));
    for odd in ["", "x", "3-", "4-1", "0-4294967295", "-1"] {
        assert!(parse(odd).is_empty(), "{odd}");
    }
}

#[test]
fn a_task_is_bound_to_the_gpu_of_its_socket() {
    let two = gpus(&["0-3", "4-7"]);
    assert_eq!(closest_to(&two, "0-7", &["4-5", "0-1", "6-7", "2-3"]), "1010");
    // More of its cores are near the second.
    assert_eq!(closest_to(&two, "0-7", &["3-5"]), "1");
}

#[test]
fn gpus_of_one_socket_are_shared_evenly() {
    let four = gpus(&["0-7", "0-7", "8-15", "8-15"]);
    // Bound to cores, rank after rank and from socket to socket.
    let cores = ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"];
    assert_eq!(closest_to(&four, "0-15", &cores), "01012323");
    let turns = ["0-1", "8-9", "2-3", "10-11", "4-5", "12-13", "6-7", "14-15"];
    assert_eq!(closest_to(&four, "0-15", &turns), "02130213");
    // The job has only some of the cores.
    assert_eq!(closest_to(&four, "4-11", &["4-5", "6-7", "8-9", "10-11"]), "0123");
    // Both threads of a core.
    let threads = gpus(&["0-3,16-19", "0-3,16-19", "4-7,20-23", "4-7,20-23"]);
    assert_eq!(
        closest_to(&threads, "0-7,16-23", &["0,16", "1,17", "2,18", "3,19"]),
        "0101"
    );
    // Bound to sockets only: by rank, whichever way the ranks were dealt out.
    assert_eq!(closest_to(&four, "0-15", &["0-7", "8-15", "0-7", "8-15"]), "0312");
    assert_eq!(closest_to(&four, "0-15", &["0-7", "0-7", "8-15", "8-15"]), "0132");
}

#[test]
fn where_all_gpus_are_as_near_the_ranks_are_shared_in_blocks() {
    let flat = gpus(&["0-7", "0-7"]);
    assert_eq!(closest_to(&flat, "0-7", &["0-1", "2-3", "4-5", "6-7"]), "0011");
    let two = gpus(&["0-3", "4-7"]);
    assert_eq!(closest_to(&two, "0-7", &["0-7", "0-7", "0-7", "0-7"]), "0011");
    // Cores of neither socket.
    assert_eq!(closest_to(&two, "0-15", &["8-11", "12-15"]), "01");
}
