//! A double of pyxis: a Slurm plugin that takes a task into namespaces, as the task's variable
//! `CONTAINER` says (pyxis_slurmstepd.c, `slurm_spank_task_init`). Its prolog and epilog do
//! nothing.

mod plugin;

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

use plugin::Spank;

unsafe extern "C" {
    fn spank_getenv(spank: Spank, name: *const c_char, buffer: *mut c_char, length: c_int)
    -> c_int;
    fn slurm_error(format: *const c_char, ...);
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_job_prolog(_: Spank, _: c_int, _: *const *const c_char) -> c_int {
    0
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_job_epilog(_: Spank, _: c_int, _: *const *const c_char) -> c_int {
    0
}

/// The forked child of a task, as the user.
///
/// # Safety
/// Slurm calls it with its own handle and the `count` words of plugstack.conf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    spank: Spank,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    let mut buffer = [0; 64];
    // SAFETY: the handle is this callback's, the buffer is as long as is said.
    let found = unsafe { spank_getenv(spank, c"CONTAINER".as_ptr(), buffer.as_mut_ptr(), 64) };
    if found != 0 {
        return 0;
    }
    // SAFETY: Slurm has ended it with a zero.
    let kind = unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy();
    // SAFETY: Slurm passes so many C strings.
    let words = unsafe { plugin::texts(count, words) };
    let of_kind = words.iter().filter_map(|word| word.split_once('='));
    let of_kind = of_kind.filter(|(of, _)| *of == kind);
    let hidden: Vec<&str> = of_kind.map(|(_, directory)| directory).collect();
    match enter(&hidden) {
        Ok(()) => 0,
        Err(error) => {
            let line = CString::new(format!("container: {error}")).unwrap_or_default();
            // SAFETY: both are C strings, the format takes one.
            unsafe { slurm_error(c"%s".as_ptr(), line.as_ptr()) };
            -1
        }
    }
}

/// A user namespace that maps the user, and a mount namespace without `hidden`.
fn enter(hidden: &[&str]) -> io::Result<()> {
    const NONE: Option<&str> = None;
    // A process that was root a moment ago may not write its own maps.
    nix::sys::prctl::set_dumpable(true)?;
    let (user, group) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    for directory in hidden {
        let tmpfs = Some("tmpfs");
        mount(Some("none"), *directory, tmpfs, MsFlags::empty(), NONE)?;
    }
    Ok(())
}
