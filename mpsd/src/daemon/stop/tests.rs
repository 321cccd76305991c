use super::*;
use std::os::unix::net::UnixListener;

#[test]
fn a_daemon_listens_until_it_has_gone_whether_its_socket_stays_or_not() {
    let directory = tempfile::tempdir().unwrap();
    assert!(!listens(directory.path()), "there is no socket");
    let listener = UnixListener::bind(directory.path().join("control")).unwrap();
    assert!(listens(directory.path()));
    drop(listener);
    assert!(!listens(directory.path()), "a socket that nobody listens at");
    let name = UnixAddr::new(&directory.path().join("other")).unwrap();
    let other = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap();
    nix::sys::socket::bind(other.as_raw_fd(), &name).unwrap();
    nix::sys::socket::listen(&other, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    std::fs::rename(directory.path().join("other"), directory.path().join("control")).unwrap();
    assert!(listens(directory.path()), "a socket of another type");
}
