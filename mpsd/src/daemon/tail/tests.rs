use super::*;
use std::io::Write;

#[test]
fn lines_come_once_whole_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut tail) = Tail::create(dir.path()).unwrap();
    writer.write_all(b"one\ntw").unwrap();
    assert_eq!(tail.lines(), ["one"]);
    writer.write_all(b"o\n").unwrap();
    writer.write_all(&[b'x'; 10_000]).unwrap();
    writer.write_all(b"\n").unwrap();
    let lines = tail.lines();
    assert_eq!(lines[0], "two");
    assert_eq!(lines[1].len(), LONGEST_LINE);
    assert!(tail.lines().is_empty());
}

#[test]
fn a_link_or_a_fifo_in_its_place_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join(CONTROL_LOG)).unwrap();
    assert!(Tail::create(dir.path()).is_err());
    let dir = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&dir.path().join(CONTROL_LOG), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(Tail::create(dir.path()).is_err());
}
