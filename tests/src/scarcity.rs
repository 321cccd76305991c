//! A small file system over a directory, seen by this thread and the processes that it starts, by nobody else.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// A page: what the smallest file takes of a tmpfs.
const PAGE: usize = 4096;
const NOTHING: Option<&str> = None;
/// The file that takes all room.
const BALLAST: &str = ".ballast";

/// A tmpfs over a directory in a mount namespace of this thread's own; dropped, it is gone.
#[derive(Debug)]
pub struct Small {
    at: PathBuf,
}

impl Small {
    /// Puts one of `pages` pages over `at`, which keeps its mode. The thread gets a mount namespace of its own: call it
    /// in a thread that ends with the test ([`alone`]).
    pub fn over(at: &Path, pages: usize, mode: u32) -> Self {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        mount(
            NOTHING,
            "/",
            NOTHING,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            NOTHING,
        )
        .expect("private mounts");
        let options = format!("size={},mode={mode:o}", pages * PAGE);
        mount(
            Some("small"),
            at,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .expect("a tmpfs");
        Self { at: at.to_owned() }
    }

    /// Takes all room but `pages`; what was taken before is given back first.
    pub fn leave(&self, pages: usize) {
        let ballast = self.at.join(BALLAST);
        let _ = fs::remove_file(&ballast);
        let mut file = fs::File::create(&ballast).expect("ballast");
        let mut taken = 0;
        while file.write_all(&[0; PAGE]).is_ok() {
            taken += 1;
        }
        assert!(taken >= pages, "only {taken} pages are free, not {pages}");
        file.set_len(((taken - pages) * PAGE) as u64).expect("room");
    }

    /// Gives all room back.
    pub fn free(&self) {
        let _ = fs::remove_file(self.at.join(BALLAST));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Runs `test` in a thread of its own: a mount namespace belongs to a thread.
pub fn alone(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let done = scope.spawn(test).join();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}
