//! The node's log, which only one test hears.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::mount::{MsFlags, mount};

use crate::scarcity::Small;

const LONGEST: usize = 64 * 1024;

#[derive(Debug)]
pub struct Syslog {
    socket: UnixDatagram,
    _room: Small,
}

impl Syslog {
    /// In a `/dev` over the machine's, for this thread alone. `room` is an empty directory.
    pub fn hear(room: &Path) -> Self {
        Self::hear_at(room, "/dev", Path::new("/dev/log"))
    }

    /// The same with systemd's journal, in a `/run` laid over the machine's.
    pub fn hear_journal(room: &Path) -> Self {
        Self::hear_at(room, "/run", Path::new("/run/systemd/journal/socket"))
    }

    fn hear_at(room: &Path, top: &str, path: &Path) -> Self {
        let small = Small::over(room, 64, 0o700);
        let [upper, work] = ["upper", "work"].map(|name| room.join(name));
        for dir in [&upper, &work] {
            fs::create_dir(dir).expect("directory");
        }
        let (upper, work) = (upper.display(), work.display());
        let options = format!("lowerdir={top},upperdir={upper},workdir={work}");
        let none = MsFlags::empty();
        let laid = mount(Some("over"), top, Some("overlay"), none, Some(&*options));
        laid.expect("an overlay");
        fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
        let _ = fs::remove_file(path);
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        Self {
            socket,
            _room: small,
        }
    }

    pub fn fill(&self) {
        let own = self.socket.local_addr().expect("its address");
        let path = own.as_pathname().expect("its path");
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.set_nonblocking(true).expect("a socket");
        while sender.send_to(b"x", path).is_ok() {}
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut bytes = [0; LONGEST];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            lines.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        lines
    }
}
