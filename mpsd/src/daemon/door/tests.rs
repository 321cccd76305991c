use super::*;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::mpsc::channel;

/// A process of the user's may be in `mpsd`'s place, and a connection to a full backlog waits for ever.
#[test]
fn a_full_backlog_keeps_nobody() {
    let log = tempfile::tempdir().unwrap();
    let path = log.path().join(NAME);
    let own = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(own.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&own, Backlog::new(1).unwrap()).unwrap();
    let waiting: Vec<_> = std::iter::from_fn(|| session::connect(&path).ok()).collect();
    assert!(!waiting.is_empty());
    let daemon = Daemon {
        log: log.path().to_owned(),
        gpus: Vec::new(),
        pipe: PathBuf::new(),
        threads: None,
        memory: Vec::new(),
        priority: None,
        partitions: Vec::new(),
    };
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(ask(&[daemon], &ClientLimits::default(), TIME)));
    let answer = told.recv_timeout(Duration::from_secs(5));
    let answer = answer
        .expect("an answer")
        .expect_err("nobody takes it")
        .to_string();
    assert!(answer.contains("mpsd cannot be asked: "), "{answer}");
}
