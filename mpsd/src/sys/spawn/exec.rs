//! The child's half of a start, between fork and exec: nothing here allocates or takes a lock.

use crate::sys::confine::Confinement;
use crate::sys::raw::{self, Pointers};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::CString;
use std::os::fd::RawFd;

/// Who the program is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Real, effective and saved user id.
    pub uid: u32,
    /// Real, effective and saved group id.
    pub gid: u32,
    /// Supplementary groups, all of them and no others.
    pub groups: Vec<u32>,
}

/// A step that failed, in words for the message, and why.
pub(super) type Failed = (&'static str, Errno);

/// What the child does, ready made.
#[derive(Debug)]
pub(super) struct Plan {
    pub program: CString,
    pub arguments: Pointers,
    pub environment: Pointers,
    pub identity: Option<Identity>,
    pub session: bool,
    pub nofile: Option<u64>,
    pub confinement: Option<Confinement>,
}

/// The descriptors it needs, by the parent's numbers.
#[derive(Debug)]
pub(super) struct Wires {
    pub standard: [RawFd; 3],
    pub inherit: Vec<(RawFd, RawFd)>,
    /// `cgroup.procs` of the cgroup to enter; None also where the child is born in it.
    pub cgroup: Option<RawFd>,
    pub report: RawFd,
}

/// Memory for the child, taken before the fork.
#[derive(Debug)]
pub(super) struct Room {
    groups: Vec<Gid>,
    found: Vec<nix::libc::gid_t>,
    moved: Vec<RawFd>,
    keep: Vec<RawFd>,
}

impl Room {
    pub fn new(plan: &Plan, wires: &Wires) -> Self {
        let groups: Vec<_> = plan
            .identity
            .iter()
            .flat_map(|identity| &identity.groups)
            .map(|group| Gid::from_raw(*group))
            .collect();
        let mut keep: Vec<RawFd> = wires.inherit.iter().map(|(_, target)| *target).collect();
        keep.sort_unstable();
        keep.push(0); // the report's own place
        Self {
            found: vec![0; groups.len() + 1],
            groups,
            moved: vec![-1; wires.inherit.len()],
            keep,
        }
    }
}

/// Runs in the child and never returns: exec, or a report and an exit.
pub(super) fn run(plan: &Plan, wires: &Wires, room: &mut Room) -> ! {
    // The report moves above every number that the program is to have, so that nothing is put over it.
    let above = room.keep.iter().copied().max().unwrap_or(2).max(2) + 1;
    let report = match raw::duplicate_above(wires.report, above) {
        Ok(fd) => fd,
        Err(errno) => give_up(wires.report, (DESCRIPTORS, errno)),
    };
    if let Err(failed) = steps(plan, wires, room, report, above) {
        give_up(report, failed);
    }
    // From here on a closed pipe means exec, or a death in it.
    let _ = nix::unistd::write(raw::borrow(report), &[REACHED]);
    let errno = raw::exec(&plan.program, &plan.arguments, &plan.environment);
    give_up(report, ("it cannot be executed", errno))
}

/// What the child writes just before exec.
const REACHED: u8 = b'!';
/// What it writes before the number and the words of a failure.
const FAILED: u8 = b'-';
const DESCRIPTORS: &str = "its descriptors cannot be set up";

fn give_up(report: RawFd, (step, errno): Failed) -> ! {
    let mut words = [FAILED; 96];
    let number = (errno as i32).to_ne_bytes();
    let text = number.iter().chain(step.as_bytes());
    let length = words
        .iter_mut()
        .skip(1)
        .zip(text)
        .fold(1, |length, (word, byte)| {
            *word = *byte;
            length + 1
        });
    // Where even this fails the parent sees a child that ended without a word.
    let _ = nix::unistd::write(raw::borrow(report), words.get(..length).unwrap_or_default());
    raw::exit_now(127)
}

/// The failure that [`give_up`] wrote, if the child's words hold one: the step and why.
pub(super) fn failure(words: &[u8]) -> Option<(String, Errno)> {
    let words = words
        .strip_prefix(&[REACHED])
        .unwrap_or(words)
        .strip_prefix(&[FAILED])?;
    let (number, step) = words.split_first_chunk()?;
    let errno = Errno::from_raw(i32::from_ne_bytes(*number));
    Some((String::from_utf8_lossy(step).into_owned(), errno))
}

fn steps(plan: &Plan, wires: &Wires, room: &mut Room, report: RawFd, above: RawFd) -> Result<(), Failed> {
    let at = |step: &'static str| move |errno: Errno| (step, errno);
    raw::reset_signals().map_err(at("signals cannot be reset"))?;
    if plan.session {
        nix::unistd::setsid().map_err(at("no session of its own (setsid)"))?;
    }
    if let Some(cgroup) = wires.cgroup {
        nix::unistd::write(raw::borrow(cgroup), b"0").map_err(at("it cannot enter its cgroup"))?;
    }
    descriptors(wires, room, report, above).map_err(at(DESCRIPTORS))?;
    reset_out_of_memory_score().map_err(at("its out-of-memory score cannot be reset"))?;
    if let Some(wanted) = plan.nofile {
        raise_open_files(wanted).map_err(at("its limit of open files cannot be set"))?;
    }
    nix::sys::stat::umask(Mode::S_IRWXG | Mode::S_IRWXO);
    nix::unistd::chdir(c"/").map_err(at("'/' cannot be entered"))?;
    if let Some(identity) = &plan.identity {
        // While it may still be done.
        if plan.confinement.is_some() {
            raw::empty_bounding_set().map_err(at("its capabilities cannot be bounded"))?;
        }
        become_user(identity, room)?;
    }
    if let Some(confinement) = &plan.confinement {
        confinement
            .enter()
            .map_err(at("it cannot be confined (seccomp)"))?;
    }
    Ok(())
}

/// Sources are first copied out of the way, since the number of one may be the goal of another.
fn descriptors(wires: &Wires, room: &mut Room, report: RawFd, above: RawFd) -> Result<(), Errno> {
    let mut standard = wires.standard;
    for fd in &mut standard {
        *fd = raw::duplicate_above(*fd, above)?;
    }
    for (moved, (source, _)) in room.moved.iter_mut().zip(&wires.inherit) {
        *moved = raw::duplicate_above(*source, above)?;
    }
    for (source, target) in standard.into_iter().zip(0..) {
        raw::duplicate_to(source, target)?;
    }
    for (source, (_, target)) in room.moved.iter().zip(&wires.inherit) {
        raw::duplicate_to(*source, *target)?;
    }
    if let Some(last) = room.keep.last_mut() {
        *last = report;
    }
    raw::close_all_except(&room.keep);
    Ok(())
}

/// Only a negative score is touched: what a site sets on purpose for jobs is positive and stays.
fn reset_out_of_memory_score() -> Result<(), Errno> {
    let file = c"/proc/self/oom_score_adj";
    let score = match nix::fcntl::open(file, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        // No /proc, or a caller who may not write: an ordinary user has no protection to lose.
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

fn raise_open_files(wanted: u64) -> Result<(), Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let goal = wanted.min(hard);
    if goal > soft {
        setrlimit(Resource::RLIMIT_NOFILE, goal, hard)
    } else {
        Ok(())
    }
}

/// Groups, then group, then user; then the proof. EAGAIN for the user: they have too many processes. By the system calls
/// themselves: the C library's functions would ask all other threads to follow, and a forked child has none.
fn become_user(identity: &Identity, room: &mut Room) -> Result<(), Failed> {
    let at = |step: &'static str| move |errno: rustix::io::Errno| (step, of_nix(errno));
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    set_thread_groups(&room.groups).map_err(at("its groups cannot be set"))?;
    set_thread_res_gid(gid, gid, gid).map_err(at("its group cannot be set"))?;
    set_thread_res_uid(uid, uid, uid).map_err(at("its user cannot be set"))?;
    prove(identity, room).map_err(|errno| ("the former identity is not gone", errno))
}

fn of_nix(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

fn prove(identity: &Identity, room: &mut Room) -> Result<(), Errno> {
    let ids = nix::unistd::getresuid()?;
    let gids = nix::unistd::getresgid()?;
    let uids = [ids.real, ids.effective, ids.saved].map(nix::unistd::Uid::as_raw);
    let gids = [gids.real, gids.effective, gids.saved].map(nix::unistd::Gid::as_raw);
    if uids != [identity.uid; 3] || gids != [identity.gid; 3] {
        return Err(Errno::EPERM);
    }
    // One place more than expected: a group too many is seen, many too many are EINVAL.
    let count = raw::groups_into(&mut room.found)?;
    if room.found.get(..count) != Some(identity.groups.as_slice()) {
        return Err(Errno::EPERM);
    }
    if identity.uid == 0 {
        return Ok(());
    }
    raw::drop_capabilities().map_err(of_nix)?;
    let root = Uid::ROOT;
    if set_thread_res_uid(root, root, root).is_ok() || set_thread_res_uid(None, root, None).is_ok() {
        return Err(Errno::EPERM);
    }
    // A group with more power than the user's own could be regained as well.
    if identity.gid != 0 && set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).is_ok() {
        return Err(Errno::EPERM);
    }
    Ok(())
}
