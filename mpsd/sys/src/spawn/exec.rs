//! The child's half of a start, between fork and exec: nothing here allocates or takes a lock.

use crate::confine::Confinement;
use crate::raw::{self, Pointers, of_rustix};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::{CStr, CString, OsString};
use std::io::IoSlice;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

/// A program to start, with umask 0077, in `/`, default signals, no other descriptors, no
/// protection from the OOM killer; by default on `/dev/null`, of the caller's identity and session.
#[derive(Debug, Default)]
pub struct Spawn {
    /// Absolute: there is no search path.
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub identity: Option<Identity>,
    /// A session of its own, so that a kill of the caller's group or terminal does not reach it.
    pub session: bool,
    pub cgroup: Option<OwnedFd>,
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Further descriptors, each with its number there (3 or more).
    pub inherit: Vec<(OwnedFd, RawFd)>,
    /// Raises the soft limit of open files to this, or to the hard limit if that is lower.
    pub nofile: Option<u64>,
    pub confinement: Option<Confinement>,
    /// If this program may not hide these files, [`super::Child::unhidden`] says why.
    pub hidden: Option<Hidden>,
}

/// Files that a program, and all that it starts, cannot open, in a mount namespace of its own. Its
/// caller's later mounts appear there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Those that are gone meanwhile do not matter.
    pub files: Vec<PathBuf>,
    /// The file that lies over each of them. Nobody but root may open it.
    pub behind: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, all of them and no others.
    pub groups: Vec<u32>,
}

type FailedStep = (&'static str, Errno);

#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub spawn: &'a Spawn,
    pub program: CString,
    pub arguments: Pointers,
    pub environment: Pointers,
    pub hidden: Option<(CString, Vec<CString>)>,
    /// The identity's groups, and room to read them back and see one too many.
    pub groups: Vec<Gid>,
    pub found_groups: Vec<nix::libc::gid_t>,
}

#[derive(Debug)]
pub(super) struct ChildDescriptors {
    pub standard: [RawFd; 3],
    pub inherit: Vec<(RawFd, RawFd)>,
    /// Those numbers, sorted, and at the end room for the report's.
    pub keep: Vec<RawFd>,
    /// `cgroup.procs` of the cgroup to enter; `None` also if the child is born in it.
    pub cgroup: Option<RawFd>,
    pub report: RawFd,
    pub unhidden: Option<Errno>,
}

pub(super) fn run(plan: &mut Plan<'_>, fds: &mut ChildDescriptors) -> ! {
    // The report moves above every number of the program's, so that no descriptor replaces it.
    let above = fds.keep.iter().copied().max().unwrap_or(2).max(2) + 1;
    let report = match raw::duplicate_above(fds.report, above) {
        Ok(fd) => fd,
        Err(errno) => give_up(fds.report, (DESCRIPTORS, errno)),
    };
    fds.report = report;
    if let Err(failed) = steps(plan, fds, above) {
        give_up(report, failed);
    }
    if let Some(errno) = fds.unhidden {
        let mut words = [UNHIDDEN; 5];
        words[1..].copy_from_slice(&(errno as i32).to_ne_bytes());
        let _ = nix::unistd::write(raw::borrow(report), &words);
    }
    // From here on a closed pipe means that exec succeeded, or that the child died in it.
    let _ = nix::unistd::write(raw::borrow(report), &[REACHED]);
    let errno = raw::exec(&plan.program, &plan.arguments, &plan.environment);
    give_up(report, ("it cannot be executed", errno))
}

/// The child writes this before exec.
const REACHED: u8 = b'!';
/// The child writes this before the number of the error for which its files are not hidden.
const UNHIDDEN: u8 = b'h';
/// The child writes this before the number and the words of a failure.
const FAILED: u8 = b'-';
const DESCRIPTORS: &str = "its descriptors cannot be set up";

fn give_up(report: RawFd, (step, errno): FailedStep) -> ! {
    let number = (errno as i32).to_ne_bytes();
    let words = [&[FAILED][..], &number, step.as_bytes()].map(IoSlice::new);
    // If even this fails, the parent sees a child that ended without a word.
    let _ = rustix::io::writev(raw::borrow(report), &words);
    raw::exit_now(127)
}

/// The error behind this first byte, and the rest of the child's words.
fn error_in(words: &[u8], first: u8) -> Option<(Errno, &[u8])> {
    let (number, rest) = words.strip_prefix(&[first])?.split_first_chunk()?;
    Some((Errno::from_raw(i32::from_ne_bytes(*number)), rest))
}

/// Why nothing is hidden from the child, and the rest of its words.
pub(super) fn unhidden(words: &[u8]) -> (Option<Errno>, &[u8]) {
    error_in(words, UNHIDDEN).map_or((None, words), |(errno, rest)| (Some(errno), rest))
}

/// The step that failed, if the child's words hold one, and why.
pub(super) fn failure(words: &[u8]) -> Option<(String, Errno)> {
    let words = words.strip_prefix(&[REACHED]).unwrap_or(words);
    let (errno, step) = error_in(words, FAILED)?;
    Some((String::from_utf8_lossy(step).into_owned(), errno))
}

fn at(step: &'static str) -> impl FnOnce(Errno) -> FailedStep {
    move |errno| (step, errno)
}

fn steps(plan: &mut Plan<'_>, fds: &mut ChildDescriptors, above: RawFd) -> Result<(), FailedStep> {
    raw::reset_signals().map_err(at("signals cannot be reset"))?;
    if plan.spawn.session {
        nix::unistd::setsid().map_err(at("no session of its own (setsid)"))?;
    }
    if let Some(cgroup) = fds.cgroup {
        nix::unistd::write(raw::borrow(cgroup), b"0").map_err(at("it cannot enter its cgroup"))?;
    }
    descriptors(fds, above).map_err(at(DESCRIPTORS))?;
    reset_out_of_memory_score().map_err(at("its out-of-memory score cannot be reset"))?;
    if let Some(nofile) = plan.spawn.nofile {
        raise_open_files(nofile).map_err(at("its limit of open files cannot be set"))?;
    }
    nix::sys::stat::umask(Mode::S_IRWXG | Mode::S_IRWXO);
    nix::unistd::chdir(c"/").map_err(at("'/' cannot be entered"))?;
    if let Some((behind, files)) = &plan.hidden {
        fds.unhidden = hide(behind, files).err();
    }
    if let Some(identity) = &plan.spawn.identity {
        // Now, while the child still has the right to do it.
        if plan.spawn.confinement.is_some() {
            raw::empty_bounding_set().map_err(at("its capabilities cannot be bounded"))?;
        }
        become_user(identity, &plan.groups)?;
        prove(identity, &mut plan.found_groups).map_err(at("the former identity is not gone"))?;
    }
    let confinement = plan.spawn.confinement.as_ref();
    let entered = confinement.map_or(Ok(()), Confinement::enter);
    entered.map_err(at("it cannot be confined (seccomp)"))
}

/// The kernel keeps a user from uncovering them: in a namespace of theirs these mounts are locked
/// (mount_namespaces(7)).
fn hide(behind: &CStr, files: &[CString]) -> Result<(), Errno> {
    let none = None::<&CStr>;
    // Below ENOENT is a device that is gone.
    nix::sys::stat::lstat(behind)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, c"/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    for file in files {
        match mount(Some(behind), file.as_c_str(), none, MsFlags::MS_BIND, none) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Copies every source to a high number first: its own number may be the target of another.
fn descriptors(fds: &mut ChildDescriptors, above: RawFd) -> Result<(), Errno> {
    let inherited = fds.inherit.iter_mut().map(|(source, _)| source);
    for source in fds.standard.iter_mut().chain(inherited) {
        *source = raw::duplicate_above(*source, above)?;
    }
    let inherited = fds.inherit.iter().copied();
    for (source, target) in fds.standard.into_iter().zip(0..).chain(inherited) {
        raw::duplicate_to(source, target)?;
    }
    if let Some(last) = fds.keep.last_mut() {
        *last = fds.report;
    }
    raw::close_all_except(&fds.keep);
    Ok(())
}

/// Resets only a negative score: a site that sets a positive score for its jobs wants it.
fn reset_out_of_memory_score() -> Result<(), Errno> {
    let file = c"/proc/self/oom_score_adj";
    let score = match nix::fcntl::open(file, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        // No /proc, or the caller may not write: an ordinary user has no protection to lose.
        Err(Errno::ENOENT | Errno::EACCES) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let mut first = [0u8; 1];
    nix::unistd::read(&score, &mut first)?;
    if first == *b"-" {
        nix::unistd::write(&score, b"0")?;
    }
    Ok(())
}

fn raise_open_files(nofile: u64) -> Result<(), Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let goal = nofile.min(hard);
    match goal > soft {
        true => setrlimit(Resource::RLIMIT_NOFILE, goal, hard),
        false => Ok(()),
    }
}

/// Without the C library, which would change other threads too. EAGAIN: too many of the user's.
fn become_user(identity: &Identity, groups: &[Gid]) -> Result<(), FailedStep> {
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    let at = |step| move |errno| (step, of_rustix(errno));
    set_thread_groups(groups).map_err(at("its groups cannot be set"))?;
    set_thread_res_gid(gid, gid, gid).map_err(at("its group cannot be set"))?;
    set_thread_res_uid(uid, uid, uid).map_err(at("its user cannot be set"))
}

fn prove(identity: &Identity, found_groups: &mut [nix::libc::gid_t]) -> Result<(), Errno> {
    let ids = nix::unistd::getresuid()?;
    let gids = nix::unistd::getresgid()?;
    let uids = [ids.real, ids.effective, ids.saved].map(nix::unistd::Uid::as_raw);
    let gids = [gids.real, gids.effective, gids.saved].map(nix::unistd::Gid::as_raw);
    // Several groups too many give EINVAL.
    let count = raw::groups_into(found_groups)?;
    let groups = found_groups.get(..count).unwrap_or_default();
    if uids != [identity.uid; 3] || gids != [identity.gid; 3] || groups != identity.groups {
        return Err(Errno::EPERM);
    }
    if identity.uid == 0 {
        return Ok(());
    }
    raw::drop_capabilities().map_err(of_rustix)?;
    let root = Uid::ROOT;
    let regains_user = set_thread_res_uid(root, root, root).is_ok()
        || set_thread_res_uid(None, root, None).is_ok();
    // A child could also regain a group with more power than the user's own.
    let regains_group =
        || identity.gid != 0 && set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).is_ok();
    match regains_user || regains_group() {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}
