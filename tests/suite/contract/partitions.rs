//! Static partitions: documented, verified nowhere. The double has them; NVIDIA's program is tried
//! if it has them.

use crate::bench::{Bench, Daemon, PATIENCE, not_verified, nvidia};
use crate::processes::USER;

const VARIABLE: &str = "CUDA_MPS_SM_PARTITION";

/// A subject that has them; `None` if NVIDIA's program lists no `-S`.
fn with_partitions() -> Option<Bench> {
    if !nvidia() {
        let with = |node: &mut tests::double::node::Description| {
            node.driver_version = "590.44.01".to_owned()
        };
        return Some(Bench::of_double(|builder| builder.describe(with)));
    }
    let bench = Bench::new();
    if !knows_option(&bench) {
        not_verified("driver 590");
        return None;
    }
    Some(bench)
}

fn knows_option(bench: &Bench) -> bool {
    let help = bench.control(USER, &["-h"], &[], "");
    help.out.contains("--static-partitioning")
}

fn daemon(bench: &Bench) -> Daemon<'_> {
    let mut daemon = bench.directories();
    daemon.start_so(&[], |command| command.arg("-S"));
    daemon
}

#[track_caller]
fn add(daemon: &Daemon, chunks: u32) -> (String, String) {
    let gpu = &daemon.bench.gpus[0].uuid;
    let said = daemon.say(&format!("sm_partition add {gpu} {chunks}")).out;
    let at = said.find("GPU-").unwrap_or_else(|| panic!("{said}"));
    let name = said[at..]
        .split_whitespace()
        .next()
        .expect("a name")
        .to_owned();
    let id = name
        .strip_prefix(&format!("{gpu}/"))
        .expect("an id")
        .to_owned();
    (name, id)
}

fn row(daemon: &Daemon, id: &str) -> Option<(u32, u32, String)> {
    let listing = daemon.say("lspart").out;
    let has_id = |line: &&str| line.split_whitespace().any(|word| word == id);
    let line = listing.lines().find(has_id)?;
    let words: Vec<&str> = line
        .split_whitespace()
        .filter(|word| *word != "-")
        .collect();
    let clients = words.get(4).copied().unwrap_or_default().to_owned();
    Some((
        words.get(2)?.parse().ok()?,
        words.get(3)?.parse().ok()?,
        clients,
    ))
}

/// Recorded on 580.
#[test]
fn a_daemon_before_static_partitions_refuses_the_option() {
    let bench = Bench::new();
    if knows_option(&bench) {
        return not_verified("a driver before 590");
    }
    for arguments in [&["-f", "-S"][..], &["-S"]] {
        let directories = bench.directories();
        let refused = bench.control(USER, arguments, &directories.env(), "");
        assert!(
            refused.out.starts_with("Unrecognized option"),
            "{refused:?}"
        );
        let stays = directories.pipe.join("control").exists();
        assert!(!stays, "{refused:?}");
    }
}

#[test]
fn a_partition_is_listed_with_its_chunks_and_a_client_has_its_multiprocessors() {
    let Some(bench) = with_partitions() else {
        return;
    };
    let daemon = daemon(&bench);
    let (name, id) = add(&daemon, 2);
    let (chunks, sms, clients) = row(&daemon, &id).expect("it is listed");
    assert_eq!((chunks, sms % 2), (2, 0));
    assert_ne!(clients, "Yes");
    let record = daemon.client().env(VARIABLE, &name).run();
    assert_eq!(record.record()["sms"], sms, "{record:?}");
    // A percentage has no effect then.
    let client = daemon.client().env(VARIABLE, &name);
    let record = client.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1").run();
    assert_eq!(record.record()["sms"], sms, "{record:?}");
}

#[test]
fn a_client_without_a_partition_gets_no_context() {
    let Some(bench) = with_partitions() else {
        return;
    };
    let daemon = daemon(&bench);
    let (name, _) = add(&daemon, 2);
    assert_eq!(daemon.client().run().error(), Some(915));
    let wrong = name.replace('/', "/x");
    assert_eq!(
        daemon.client().env(VARIABLE, &wrong).run().error(),
        Some(915)
    );
}

#[test]
fn two_partitions_differ_and_no_more_chunks_are_given_than_there_are() {
    let Some(bench) = with_partitions() else {
        return;
    };
    let daemon = daemon(&bench);
    let ((_, one), (_, other)) = (add(&daemon, 1), add(&daemon, 1));
    assert_ne!(one, other);
    let gpu = &bench.gpus[0].uuid;
    let refused = daemon.say(&format!("sm_partition add {gpu} 1000"));
    assert!(!refused.out.contains(&format!("{gpu}/")), "{refused:?}");
    let why = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION";
    assert!(refused.out.contains(why), "{refused:?}");
    assert_eq!(refused.code(), 0);
}

#[test]
fn a_partition_stays_while_it_has_clients_and_goes_when_it_is_removed() {
    let Some(bench) = with_partitions() else {
        return;
    };
    let daemon = daemon(&bench);
    let (name, id) = add(&daemon, 2);
    let holding = daemon.client().env(VARIABLE, &name).holding(20).hold();
    assert_eq!(row(&daemon, &id).expect("it is listed").2, "Yes");
    let remove = format!("sm_partition rm {} {id}", bench.gpus[0].uuid);
    daemon.say(&remove);
    assert!(row(&daemon, &id).is_some(), "it has a client");
    drop(holding);
    let gone = || {
        daemon.say(&remove);
        row(&daemon, &id).is_none()
    };
    assert!(tests::double::look::wait_until(PATIENCE, gone));
}
