//! Programs that run as a job's user: in the job's cgroup, confined, and with `mpsd`'s
//! specification.

use super::real::{RealNode, beside, groups_of};
use super::{devices, failure, site_directory, unless_scarce};
use crate::job::journal::ProcessRef;
use crate::job::spec::{REPORT_FD, SPEC_FD, Spec};
use crate::job::store::Store as _;
use crate::job::{Journal, User};
use mpsd_core::Failure;
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::paths::CLOSED;
use mpsd_core::text::one_line;
use mpsd_sys::Exit;
use mpsd_sys::cgroup::Cgroup;
use mpsd_sys::confine::Confinement;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::descriptors::{holding, read_line};
use mpsd_sys::files::{Dir, FileError};
use mpsd_sys::spawn::{Hidden, Identity, Spawn};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The server needs several for each of 48 clients. NVIDIA's guide asks for more than 1024.
const OPEN_FILES: u64 = 16_384;
const COMMAND_MS: u64 = 2_000;
const LONGEST_LINE: usize = 256 * 1024;
const NOTE_TIME: Duration = Duration::from_secs(2);
/// To end what a note's user has brought into its cgroup.
const AFTER_NOTE: Duration = Duration::from_millis(200);
/// Bytes.
const LONGEST_COMPLAINT: usize = 4096;

/// With `args`, `mpsd` only talks to the daemons that are there.
pub(super) fn with_spec(
    node: &RealNode,
    journal: &Journal,
    spec: &Spec,
    args: &[&str],
) -> Result<Spawn, Failure> {
    let text = serde_json::to_string(spec)
        .map_err(|e| Fault::new(Evidence::Storage, "specification", e.to_string()))?;
    let groups = match args {
        [] => groups_of(&journal.user, journal.gid),
        // The groups of the job's `mpsd`: this spares the directory service.
        _ => {
            let supervisor = journal.supervisor.and_then(ProcessRef::open);
            let groups = supervisor.and_then(|mpsd| mpsd.groups());
            groups.unwrap_or_else(|| vec![journal.gid])
        }
    };
    let mut spawn = node.as_user(journal, "mpsd", groups)?;
    spawn.args = args.iter().map(Into::into).collect();
    // The variable identifies `mpsd` without a cgroup if its starter died before journaling it.
    let first = journal.record().daemons.first();
    let pipe = first.map(|daemon| (PIPE_DIRECTORY.into(), daemon.pipe.clone().into()));
    spawn.env = pipe.into_iter().collect();
    spawn.nofile = Some(OPEN_FILES);
    let text = holding(text.as_bytes());
    let text = text.map_err(|e| Undetermined::new("mpsd's specification", e.desc()))?;
    spawn.inherit = vec![(text, SPEC_FD)];
    Ok(spawn)
}

/// Root does not talk to sockets that a user owns.
pub(super) fn ask_to_stop(node: &mut RealNode, journal: &Journal, deadline: Deadline) {
    let per_command = u64::try_from((deadline.remaining() / 3).as_millis()).unwrap_or(COMMAND_MS);
    let spec = Spec::to_ask(journal, per_command.min(COMMAND_MS));
    let spawn = with_spec(node, journal, &spec, &["--stop"]).ok();
    let Some(mut child) = spawn.and_then(|spawn| spawn.start(deadline).ok()) else {
        return;
    };
    if child.wait(deadline).is_none() {
        child.kill(Deadline::after_ms(200));
    }
}

impl RealNode {
    pub(super) fn as_user(
        &self,
        journal: &Journal,
        name: &str,
        groups: Vec<u32>,
    ) -> Result<Spawn, Failure> {
        let directory = |cgroup: Cgroup| {
            cgroup.directory().map_err(|e: FileError| {
                let evidence = unless_scarce(Evidence::Storage, e.errno());
                failure(evidence, "the job's cgroup", e.to_string())
            })
        };
        let cgroup = self.cgroup_of(journal).map(directory).transpose()?;
        if journal.cgroup.is_some() && cgroup.is_none() {
            let why = match self.is_cgroup_kept(journal) {
                true => "another process keeps the lock of the directory it is in",
                false => "it is gone",
            };
            return Err(Undetermined::new("the job's cgroup", why).into());
        }
        let user = (journal.uid(), journal.gid);
        let mut spawn = self.program_of(user, &beside(name)?, groups, cgroup);
        spawn.hidden = self.hidden_from(journal);
        Ok(spawn)
    }

    fn hidden_from(&self, journal: &Journal) -> Option<Hidden> {
        let files = devices::of_others(&journal.plan.minors);
        let directory =
            (!files.is_empty()).then(|| Dir::open(self.job_files(journal.job()).directory()))?;
        let directory = directory.ok()?;
        // An earlier start of this job may have made it.
        let _ = directory.create_file(CLOSED, 0);
        let behind = directory.path().join(CLOSED);
        Some(Hidden { files, behind })
    }

    /// Root starts each program of a user's like this. It gets the daemons' group before exec; the
    /// user's other processes lack it, so they can never debug it (ptrace(2), "Ptrace access mode
    /// checking").
    fn program_of(
        &self,
        (uid, gid): (u32, u32),
        program: &Path,
        groups: Vec<u32>,
        cgroup: Option<OwnedFd>,
    ) -> Spawn {
        let gid = match self.in_force.daemon_group {
            0 => gid,
            own => own,
        };
        Spawn {
            identity: Some(Identity { uid, gid, groups }),
            confinement: Some(Confinement::of_user()),
            session: true,
            cgroup,
            ..Spawn::new(program)
        }
    }

    /// Appends `line` to a file of the user's by `mpsd --note`, because the way to the file is the
    /// user's, and may block. No job's cgroup is left for it, so it gets one that ends with it.
    pub(super) fn append_as_user(
        &self,
        user: &User,
        file: &Path,
        line: &str,
    ) -> Result<(), String> {
        let paths = &self.settings.paths;
        let made = site_directory::make_cgroup(paths, &self.in_force.cgroup, &Cgroup::passing())?;
        let cgroup = made.map(|path| Cgroup::open(&path)).transpose();
        let cgroup = cgroup.map_err(|error| error.to_string())?.flatten();
        let written = self.run_note(user, file, line, cgroup.as_ref());
        if let Some(cgroup) = cgroup {
            let _ = cgroup.kill(Deadline::after(AFTER_NOTE));
            cgroup.wait_until_empty(Deadline::after(AFTER_NOTE));
            // Else the timer removes it.
            let _ = site_directory::remove_cgroup(&self.settings.paths, &cgroup);
        }
        written
    }

    fn run_note(
        &self,
        user: &User,
        file: &Path,
        line: &str,
        cgroup: Option<&Cgroup>,
    ) -> Result<(), String> {
        let cgroup = cgroup.map(Cgroup::directory).transpose();
        let cgroup = cgroup.map_err(|error| error.to_string())?;
        let groups = groups_of(&user.name, user.gid);
        let mut spawn = self.program_of((user.uid, user.gid), &self.mpsd, groups, cgroup);
        spawn.args = vec![
            "--note".into(),
            file.into(),
            "--group".into(),
            user.gid.to_string().into(),
        ];
        let line = format!("{line}\n");
        spawn
            .input(line.as_bytes())
            .map_err(|error| error.to_string())?;
        let ended = spawn.run(Deadline::after(NOTE_TIME), LONGEST_COMPLAINT);
        match ended.map_err(|error| error.to_string())? {
            ended if ended.exit == Exit::Code(0) => Ok(()),
            ended => Err(one_line(
                String::from_utf8_lossy(&ended.err).trim_end(),
                300,
            )),
        }
    }

    /// Its answer in one line, which the user could forge.
    pub fn ask_mpsd(&self, journal: &Journal, args: &[&str], limit: Duration) -> Option<Vec<u8>> {
        let deadline = Deadline::after(limit);
        let daemons = u32::try_from(journal.record().daemons.len().max(1)).unwrap_or(u32::MAX);
        let each = (limit * 3 / 4 / daemons).as_millis();
        let spec = Spec::to_ask(journal, u64::try_from(each).unwrap_or(u64::MAX));
        let (report, theirs) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let mut spawn = with_spec(self, journal, &spec, args).ok()?;
        spawn.inherit.push((theirs, REPORT_FD));
        let mut child = spawn.start(deadline).ok()?;
        let line = read_line(report.as_fd(), deadline, LONGEST_LINE)
            .ok()
            .flatten();
        child.kill(Deadline::after(Duration::from_millis(200)));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::node;
    use mpsd_core::config::Settings;
    use mpsd_sys::testing::{STRANGER, alone};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt as _;

    /// It leaves a process behind.
    const TELLS: &str = "#!/bin/sh\nsetsid /bin/sleep 60 </dev/null >/dev/null 2>&1 &\nexec >&2\n\
        echo $(grep -hE '^(Gid|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status) $(grep -c /of- /proc/self/cgroup) \"$@\"\nexit 1\n";

    /// `text` is run instead of mpsd, in a directory for everybody.
    fn node_with(name: &str, text: &str) -> (tempfile::TempDir, RealNode) {
        let place = tempfile::tempdir().unwrap();
        let mode = || PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.path(), mode()).unwrap();
        let mut node = node(place.path(), Duration::from_secs(60));
        node.mpsd = place.path().join(name);
        std::fs::write(&node.mpsd, text).unwrap();
        std::fs::set_permissions(&node.mpsd, mode()).unwrap();
        (place, node)
    }

    fn stranger() -> User {
        let name = "nobody-at-all".to_owned();
        let (uid, gid) = (STRANGER, STRANGER);
        User { name, uid, gid }
    }

    /// A job of the same user may see it from its first moment (`ptrace(2)`).
    #[test]
    fn a_note_is_written_by_nobody_whom_its_user_can_debug_in_a_cgroup_that_ends_with_it() {
        let _alone = alone();
        let (_place, node) = node_with("tells", TELLS);
        let told = node.append_as_user(&stranger(), Path::new("/its/output"), "why");
        let (group, none) = (Settings::usual().daemon_group, "0000000000000000");
        let expected = format!(
            "Gid: {group} {group} {group} {group} CapBnd: {none} NoNewPrivs: 1 Seccomp: 2 1 --note /its/output --group {STRANGER}"
        );
        assert_eq!(told, Err(expected));
        assert!(Cgroup::find(&Cgroup::passing()).is_none());
    }

    /// Whoever may open `/proc/PID/mem` may attach a debugger (proc_pid_mem(5)).
    #[test]
    fn a_process_of_its_user_that_lies_in_wait_never_gets_hold_of_a_note() {
        let _alone = alone();
        let lives = "#!/bin/sh\n/bin/sleep 0.3\n";
        let (place, node) = node_with("note", lives);
        let [control, seen, stop] = ["control", "seen", "stop"].map(|name| place.path().join(name));
        std::fs::copy(&node.mpsd, &control).unwrap();
        let attack = format!(
            "while [ ! -e {} ]; do for p in $(find /proc -maxdepth 1 -uid {STRANGER} -name '[0-9]*'); do \
             (exec 3<$p/mem) && may=opened || may=refused; read name <$p/comm && echo $may $name; done; done 2>/dev/null",
            stop.display()
        );
        let as_stranger = |program: &Path, args: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(args).uid(STRANGER).gid(STRANGER);
            command.stdout(std::fs::File::create(&seen).unwrap());
            command.spawn().unwrap()
        };
        let mut attacker = as_stranger(Path::new("/bin/sh"), &["-c", &attack]);
        let said = || std::fs::read_to_string(&seen).unwrap();
        let end = Deadline::after(Duration::from_secs(60));
        let tried = |said: &str| said.contains("refused note") && said.contains("opened control");
        while !tried(&said()) && !end.expired() {
            node.append_as_user(&stranger(), Path::new("/its/output"), "why")
                .unwrap();
            let mut control = std::process::Command::new(&control);
            control.uid(STRANGER).gid(STRANGER).status().unwrap();
        }
        std::fs::write(stop, "").unwrap();
        attacker.wait().unwrap();
        let said = said();
        assert!(tried(&said) && !said.contains("opened note"), "{said}");
    }
}
