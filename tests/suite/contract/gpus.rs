//! Which GPUs a client sees behind a daemon that sees only some of them.

use crate::bench::Bench;
use crate::client::{VISIBLE, of_first_gpu};

fn two(bench: &Bench) -> [String; 2] {
    [0, 1].map(|n: usize| bench.gpus[n].uuid.clone())
}

#[test]
fn behind_a_daemon_of_one_gpu_none_its_uuid_and_index_0_work_and_index_1_fails_with_100() {
    let bench = Bench::new();
    let uuid = bench.gpus[0].uuid.clone();
    let daemon = bench.daemon_with(&[(VISIBLE, &uuid)]);
    let one = Ok(vec![uuid.clone()]);
    for variable in [None, Some(uuid.as_str()), Some("0")] {
        assert_eq!(daemon.client().sees(variable), one, "{variable:?}");
    }
    assert_eq!(daemon.client().sees(Some("1")), Err(100));
}

#[test]
fn a_daemon_confined_to_the_second_gpu_renumbers_it() {
    let Some(bench) = Bench::with_two_gpus() else {
        return;
    };
    let [foreign, uuid] = two(&bench);
    // CUDA cuts a foreign name off if it comes last.
    let [first, last] = [format!("{uuid},{foreign}"), format!("{foreign},{uuid}")];
    for confined in [uuid.as_str(), "1"] {
        let daemon = bench.daemon_with(&[(VISIBLE, confined)]);
        for variable in [None, Some("0"), Some(&uuid), Some(&first)] {
            let one = Ok(vec![uuid.clone()]);
            assert_eq!(daemon.client().sees(variable), one, "{variable:?}");
        }
        for variable in ["1", &foreign, &last] {
            let seen = daemon.client().sees(Some(variable));
            assert_eq!(seen, Err(100), "{variable}");
        }
    }
}

#[test]
fn the_order_of_a_daemons_gpus_is_that_of_the_bus_whatever_it_was_told() {
    let Some(bench) = Bench::with_two_gpus() else {
        return;
    };
    let [first, second] = two(&bench);
    let daemon = bench.daemon_with(&[(VISIBLE, &format!("{second},{first}"))]);
    assert_eq!(daemon.client().sees(None), Ok(vec![first.clone(), second]));
    assert_eq!(daemon.client().sees(Some("0")), Ok(vec![first]));
}

#[test]
fn a_memory_limit_by_index_counts_in_the_daemons_numbering() {
    let Some(bench) = Bench::with_two_gpus() else {
        return;
    };
    let [_, uuid] = two(&bench);
    for (name, holds) in [("0", true), ("1", false), (uuid.as_str(), true)] {
        let daemon = bench.daemon_with(&[(VISIBLE, &uuid)]);
        daemon.say(&format!("set_default_device_pinned_mem_limit {name} 5G"));
        let outcome = daemon.client().run();
        let limited = of_first_gpu(outcome.record(), "free_mib") <= 5120;
        assert_eq!(limited, holds, "limit by {name}");
    }
}

#[test]
fn limits_of_two_gpus_hold_side_by_side_and_a_client_that_names_an_unseen_one_is_free_of_both() {
    let Some(bench) = Bench::with_two_gpus() else {
        return;
    };
    let [first, second] = two(&bench);
    let daemon = bench.daemon();
    daemon.say(&format!(
        "set_default_device_pinned_mem_limit {first} 2G\nset_default_device_pinned_mem_limit {second} 5G"
    ));
    // Whole GiB, because the context takes half of one.
    let free = |memory: &str, visible: &str| -> Vec<u64> {
        let mut client = daemon.client().env(VISIBLE, visible);
        if !memory.is_empty() {
            client = client.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory);
        }
        let outcome = client.run();
        let gpus = outcome.record()["gpus"].as_array().unwrap().iter();
        gpus.map(|g| g["free_mib"].as_u64().unwrap() / 1024)
            .collect()
    };
    let one = format!("{first}=1G");
    let both = format!("{one},{second}=1G");
    assert_eq!(free("", "0,1"), [1, 4]);
    assert_eq!(free(&one, "0,1"), [0, 4]);
    assert_eq!(free(&both, "0,1"), [0, 0]);
    assert!(free(&both, &second)[0] > 100);
}
