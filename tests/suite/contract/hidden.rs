//! A daemon that cannot open the device files of other GPUs, as root starts a job's: it answers as
//! before.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use tests::run::chmod;

use crate::bench::{Bench, Daemon, GpuFact, not_verified, nvidia};
use crate::client::{Client, VISIBLE, mounted, of_first_gpu, uuids};

/// Mounts the file with mode 0000 over the others, as `mpsd/sys/src/spawn/exec.rs` does.
const HIDES: &str =
    "mount --make-rslave /; for file in $HIDDEN; do mount --bind $CLOSED $file; done; exec \"$@\"";

struct Node {
    bench: Arc<Bench>,
    files: Vec<PathBuf>,
    room: TempDir,
}

fn device(uuid: &str) -> PathBuf {
    let all = fs::read_dir("/proc/driver/nvidia/gpus")
        .expect("the driver's list")
        .flatten();
    let mut texts = all.flat_map(|entry| fs::read_to_string(entry.path().join("information")));
    let own = texts.find(|text| text.contains(uuid)).expect("the GPU");
    let mut lines = own.lines();
    let minor = lines.find_map(|line| line.strip_prefix("Device Minor:"));
    format!("/dev/nvidia{}", minor.expect("its minor number").trim()).into()
}

impl Node {
    /// The subject with so many GPUs; none if the machine has fewer.
    fn with_gpus(count: usize) -> Option<Self> {
        let room =
            TempDir::with_prefix_in("hidden-", "/var/tmp").expect("/var/tmp takes a directory");
        chmod(room.path(), 0o755);
        let file = |gpu: usize| room.path().join(format!("nvidia{gpu}"));
        for gpu in 0..count {
            fs::write(file(gpu), "").expect("it is ours");
            chmod(&file(gpu), 0o666);
        }
        let bench = Bench::with(|builder| {
            builder.gpus(count, "NVIDIA H200").describe(|node| {
                let all = node.gpu.iter_mut().enumerate();
                all.for_each(|(number, gpu)| gpu.device = Some(file(number)));
            })
        });
        if bench.gpus.len() < count {
            not_verified(&format!("{count} GPUs"));
            return None;
        }
        let of = |(number, gpu): (usize, &GpuFact)| match nvidia() {
            true => device(&gpu.uuid),
            false => file(number),
        };
        let files = bench.gpus.iter().enumerate().map(of).collect();
        Some(Self { bench, files, room })
    }

    fn uuid(&self, gpu: usize) -> String {
        self.bench.gpus[gpu].uuid.clone()
    }

    /// Root starts a program of the user's that opens no device file but those of `seen`.
    fn hiding(&self, seen: &[usize], env: &[String]) -> Vec<String> {
        let closed = self.room.path().join("closed");
        fs::write(&closed, "").expect("it is ours");
        chmod(&closed, 0);
        let files = self.files.iter().enumerate();
        let others = files.filter(|(gpu, _)| !seen.contains(gpu));
        let others: Vec<String> = others.map(|(_, file)| file.display().to_string()).collect();
        let hidden = format!("HIDDEN={}", others.join(" "));
        let closed = format!("CLOSED={}", closed.display());
        let first = ["/usr/bin/env", &hidden, &closed];
        let words = [&first, &mounted(HIDES)[..], &["/usr/bin/env"]].concat();
        let words = words.into_iter().map(str::to_owned);
        words.chain(env.iter().cloned()).collect()
    }

    fn daemon(&self, seen: &[usize]) -> Daemon {
        let uuids: Vec<String> = seen.iter().map(|gpu| self.uuid(*gpu)).collect();
        let words = self.hiding(seen, &[format!("{VISIBLE}={}", uuids.join(","))]);
        let mut daemon = self.bench.directories();
        daemon.start_through(&words.iter().map(String::as_str).collect::<Vec<_>>());
        daemon
    }

    fn hidden(&self, client: Client, seen: &[usize]) -> Client {
        let words = self.hiding(seen, &[]);
        client.through(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

#[test]
fn a_daemon_that_cannot_open_the_first_gpu_shows_the_second_by_uuid_and_as_index_0() {
    let Some(node) = Node::with_gpus(2) else {
        return;
    };
    let daemon = node.daemon(&[1]);
    let [foreign, uuid] = [node.uuid(0), node.uuid(1)];
    for variable in [None, Some("0"), Some(uuid.as_str())] {
        let one = Ok(vec![uuid.clone()]);
        assert_eq!(daemon.client().sees(variable), one, "{variable:?}");
    }
    for variable in ["1", &foreign] {
        let seen = daemon.client().sees(Some(variable));
        assert_eq!(seen, Err(100), "{variable}");
    }
}

#[test]
fn its_limits_hold_by_uuid_and_by_index_0_and_its_clients_are_listed() {
    let Some(node) = Node::with_gpus(2) else {
        return;
    };
    let uuid = node.uuid(1);
    for (name, holds) in [("0", true), ("1", false), (uuid.as_str(), true)] {
        let daemon = node.daemon(&[1]);
        daemon.say(&format!("set_default_device_pinned_mem_limit {name} 5G"));
        daemon.say("set_default_active_thread_percentage 25");
        let server = daemon.start_server();
        let client = daemon.client().on_first_gpu().holding(20).hold();
        let limited = of_first_gpu(&client.record, "free_mib") <= 5120;
        assert_eq!(limited, holds, "limit by {name}");
        assert!(of_first_gpu(&client.record, "sms") < u64::from(node.bench.gpus[1].sms));
        let list = daemon.say(&format!("get_client_list {server}")).stdout;
        assert_eq!(list, format!("{}\n", client.pid()));
        assert!(daemon.say("ps").stdout.contains(&uuid[..22]));
    }
}

#[test]
fn a_client_that_cannot_open_the_other_gpu_either_is_served() {
    let Some(node) = Node::with_gpus(2) else {
        return;
    };
    let daemon = node.daemon(&[1]);
    let client = node.hidden(daemon.client(), &[1]);
    assert_eq!(client.sees(None), Ok(vec![node.uuid(1)]));
}

#[test]
fn two_gpus_of_three_are_served_side_by_side() {
    let Some(node) = Node::with_gpus(3) else {
        return;
    };
    let daemon = node.daemon(&[0, 2]);
    let uuids = [node.uuid(0), node.uuid(2)];
    assert_eq!(daemon.client().sees(None), Ok(uuids.to_vec()));
    for (index, uuid) in uuids.into_iter().enumerate() {
        let seen = daemon.client().sees(Some(&index.to_string()));
        assert_eq!(seen, Ok(vec![uuid]), "{index}");
    }
}

/// What holds the others back is the file, and no variable.
#[test]
fn a_program_does_not_see_a_gpu_that_it_cannot_open() {
    let Some(node) = Node::with_gpus(2) else {
        return;
    };
    let outcome = node.hidden(Client::new(&node.bench), &[1]).run();
    assert_eq!(uuids(outcome.record()), [node.uuid(1)]);
}
