//! A file system with a file that never answers one kind of request. Not even SIGKILL ends a
//! process that waits for it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
pub const FILE: &str = "file";
/// Opcodes (linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const ENOSYS: i32 = 38;
/// Bytes before a request's own.
const HEADER: usize = 40;
const ROOT: u64 = 1;
/// For this many seconds the kernel need not ask again.
const VALID: u64 = 3600;
pub const LENGTH: u64 = 4096;

/// When it is dropped, each waiting process gets an error.
#[derive(Debug)]
pub struct Hung {
    at: PathBuf,
    server: Option<JoinHandle<()>>,
    asked: Arc<AtomicBool>,
}

impl Hung {
    /// As user `uid` mounts it; its file can never be opened. In a mount namespace of this thread
    /// no other process sees it. Fails if the kernel has no FUSE.
    pub fn over(at: &Path, uid: u32) -> std::io::Result<Self> {
        Self::withholding(OPEN, at, uid)
    }

    /// A mapping that was written to waits at its end, with the lock of its process's memory map
    /// held (Linux, `fs/fuse/file.c`, `fuse_vma_close`).
    pub fn over_writes(at: &Path, uid: u32) -> std::io::Result<Self> {
        Self::withholding(WRITE, at, uid)
    }

    pub fn over_reads(at: &Path, uid: u32) -> std::io::Result<Self> {
        Self::withholding(READ, at, uid)
    }

    pub fn over_changes(at: &Path, uid: u32) -> std::io::Result<Self> {
        Self::withholding(SETATTR, at, uid)
    }

    /// As [`Hung::over_reads`], served by a thread of the waiting process, which gets the device,
    /// for example as standard input. After the first read no other process has it.
    pub fn over_own_reads(at: &Path, uid: u32) -> std::io::Result<(Self, File)> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let its = device.try_clone()?;
        let hung = Self::serving(device, (READ, true), at, uid)?;
        Ok((hung, its))
    }

    fn withholding(withheld: u32, at: &Path, uid: u32) -> std::io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        Self::serving(device, (withheld, false), at, uid)
    }

    fn serving(device: File, how: (u32, bool), at: &Path, uid: u32) -> std::io::Result<Self> {
        let fd = device.as_raw_fd();
        // Only processes of the account's group have access.
        let account = users::get_user_by_uid(uid);
        let group = account.map_or(uid, |account| account.primary_group_id());
        let options = format!("fd={fd},rootmode=40000,user_id={uid},group_id={group}");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("hung"), at, Some("fuse"), flags, Some(&*options))?;
        let asked = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&asked);
        let server = std::thread::spawn(move || serve(device, uid, how, &told));
        Ok(Self {
            at: at.to_owned(),
            server: Some(server),
            asked,
        })
    }

    pub fn holds_somebody(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Forced: this cuts the connection, and so ends every wait.
        let _ = umount2(&self.at, MntFlags::MNT_FORCE);
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn serve(mut device: File, uid: u32, (withheld, leaves): (u32, bool), asked: &AtomicBool) {
    let mut request = vec![0_u8; 1 << 17];
    // Reading the device fails when the connection is cut.
    while let Ok(length) = device.read(&mut request) {
        if length < HEADER {
            continue;
        }
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| request[at + byte]));
        let (error, body) = match word(4) {
            INIT => (0, greeting()),
            LOOKUP => {
                let entry = numbers(&[ROOT + 1, 0, VALID, VALID, 0]);
                (0, [entry, attr(ROOT + 1, uid)].concat())
            }
            GETATTR => {
                let node = u64::from_ne_bytes(request[16..24].try_into().unwrap_or_default());
                (0, [numbers(&[VALID, 0]), attr(node, uid)].concat())
            }
            opcode if opcode == withheld => {
                asked.store(true, Ordering::Release);
                match leaves {
                    true => return,
                    false => continue,
                }
            }
            // `fuse_open_out`: no handle, no flag.
            OPEN => (0, vec![0; 16]),
            READ => (0, vec![0; word(HEADER + 16).min(LENGTH as u32) as usize]),
            FORGET | INTERRUPT => continue,
            _ => (-ENOSYS, Vec::new()),
        };
        let [length, error] = [16 + body.len() as i32, error].map(i32::to_ne_bytes);
        let _ = device.write_all(&[&length[..], &error, &request[8..16], &body].concat());
    }
}

fn greeting() -> Vec<u8> {
    let mut body = vec![0_u8; 64];
    body[0..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

fn attr(node: u64, uid: u32) -> Vec<u8> {
    let (mode, length): (u32, u64) = match node {
        ROOT => (0o40_755, 0),
        _ => (0o100_644, LENGTH),
    };
    let shorts = [0, 0, 0, mode, 1, uid, uid, 0, 4096, 0].map(u32::to_ne_bytes);
    let longs = numbers(&[node, length, length / 512, 0, 0, 0]);
    [longs, shorts.concat()].concat()
}

fn numbers(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|number| number.to_ne_bytes()).collect()
}
