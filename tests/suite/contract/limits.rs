//! Which limits a client gets.

use serde_json::Value;
use tests::double::visible::multiprocessors;

use crate::bench::{Bench, Daemon};
use crate::client::{limited_to, of_first_gpu, under_mps, unlimited};

pub const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
pub const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

fn client(daemon: &Daemon, name: &str, value: &str) -> Value {
    let outcome = daemon.client().env(name, value).allocating().run();
    let record = outcome.record().clone();
    assert!(under_mps(&record), "{record}");
    record
}

#[test]
fn a_percentage_leaves_an_even_number_of_multiprocessors_and_a_client_can_only_lower_it() {
    let bench = Bench::new();
    let all = bench.gpus[0].sms;
    let daemon = bench.daemon();
    daemon.say("set_default_active_thread_percentage 25");
    for (name, value, percent) in [
        ("NOTHING", "", 25.0),
        (THREADS, "10", 10.0),
        (THREADS, "50", 25.0),
        (THREADS, "7.5", 7.5),
        (THREADS, "1", 1.0),
        (THREADS, "abc", 25.0),
        (THREADS, "0", 25.0),
        (THREADS, "150", 25.0),
    ] {
        let record = client(&daemon, name, value);
        let expected = u64::from(multiprocessors(all, percent));
        assert_eq!(of_first_gpu(&record, "sms"), expected, "{THREADS}={value}");
    }
}

#[test]
fn of_a_limit_by_index_and_one_by_uuid_the_one_named_first_wins_whatever_is_set_later() {
    let bench = Bench::new();
    let set =
        |name: &str, value: &str| format!("set_default_device_pinned_mem_limit {name} {value}\n");
    let uuid = bench.gpus[0].uuid.as_str();
    let threads = "set_default_active_thread_percentage 25\n";
    for (lines, mib) in [
        (set(uuid, "3G"), 3072),
        (set("0", "3G"), 3072),
        (set(uuid, "4G") + &set("0", "3G"), 4096),
        (set("0", "3G") + &set(uuid, "4G"), 3072),
        (set("0", "5G") + &set(uuid, "4G") + &set("0", "3G"), 3072),
        (
            set(uuid, "5G") + &set("0", "4G") + &set(uuid, "3G") + &set("0", "4G"),
            3072,
        ),
    ] {
        let daemon = bench.daemon();
        daemon.say(&format!("{threads}{lines}"));
        let record = client(&daemon, "NOTHING", "");
        assert!(limited_to(&record, mib), "{lines}: {record}");
    }
}

#[test]
fn a_client_may_tighten_its_memory_limit_in_three_spellings_but_not_widen_it() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let uuid = &bench.gpus[0].uuid;
    daemon.say(&format!(
        "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit {uuid} 3G"
    ));
    for (value, mib) in [
        ("0=1G".to_owned(), 1024),
        (format!("{uuid}=1G"), 1024),
        ("0=1GB".to_owned(), 1024),
        ("0=5G".into(), 3072),
    ] {
        let record = client(&daemon, MEMORY, &value);
        assert!(limited_to(&record, mib), "{MEMORY}={value}: {record}");
    }
}

#[test]
fn a_client_that_asks_nonsense_or_names_a_gpu_it_does_not_see_is_free_of_every_memory_limit() {
    let daemon = Daemon::new();
    daemon.say("set_default_device_pinned_mem_limit 0 3G");
    for value in [
        "garbage",
        "7=1G",
        "GPU-00000000-0000-0000-0000-000000000000=1G",
    ] {
        let record = client(&daemon, MEMORY, value);
        assert!(unlimited(&record), "{MEMORY}={value}: {record}");
    }
}

#[test]
fn a_client_may_name_its_limit_in_mib_without_a_unit_and_fails_if_it_leaves_no_room_for_a_context()
{
    let daemon = Daemon::new();
    daemon.say("set_default_active_thread_percentage 25");
    let record = client(&daemon, MEMORY, "0=1024");
    assert!(limited_to(&record, 1024), "{record}");
    let outcome = daemon.client().env(MEMORY, "0=3X").run();
    assert_eq!(outcome.error(), Some(2), "{:?}", outcome.ended);
}
