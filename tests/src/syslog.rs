//! What the suite's programs write into the node's log, heard by one test alone.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::mount::{MsFlags, mount};

use crate::scarcity::Small;

/// Longest line that is kept. Bytes.
const LONGEST: usize = 2048;

/// The node's log of this thread and of what it starts.
#[derive(Debug)]
pub struct Syslog {
    socket: UnixDatagram,
    _room: Small,
}

impl Syslog {
    /// Lays a `/dev` with a log over the machine's, of which `room`, an empty directory, keeps the difference. The thread gets a
    /// mount namespace of its own, as with [`Small::over`].
    pub fn hear(room: &Path) -> Self {
        let small = Small::over(room, 64, 0o700);
        let [upper, work] = ["upper", "work"].map(|name| room.join(name));
        for dir in [&upper, &work] {
            fs::create_dir(dir).expect("directory");
        }
        let options = format!(
            "lowerdir=/dev,upperdir={},workdir={}",
            upper.display(),
            work.display()
        );
        let none = MsFlags::empty();
        mount(Some("dev"), "/dev", Some("overlay"), none, Some(options.as_str())).expect("an overlay");
        let _ = fs::remove_file("/dev/log");
        let socket = UnixDatagram::bind("/dev/log").expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        Self { socket, _room: small }
    }

    /// The lines since the last call, each with its severity and its program's name.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut bytes = [0; LONGEST];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            lines.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        lines
    }
}
