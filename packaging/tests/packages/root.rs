//! A copy of a system to install into: an overlay in the mount namespace of one thread, which ends
//! with the thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{open_to_all, said, target};

#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    emulator: Option<PathBuf>,
}

/// The files for which the kernel starts the emulator: ELF, 64 bits, little endian, machine 183, a
/// program or a library (binfmt_misc: `Documentation/admin-guide/binfmt-misc.rst`). `F` opens the
/// emulator now, so that it is found within the system.
const ARM_FILES: [&str; 2] = [
    r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
];
/// Mounts the list of such files at its first argument, adds the second to it, and becomes the rest
/// in that system.
const EMULATE: &str =
    r#"mount -t binfmt_misc none "$1"; printf %s "$2" >"$1/register"; shift 2; exec chroot "$@""#;

impl Root {
    /// Hands a copy of this machine's system, with its devices and processes, to `body`, in a
    /// thread of its own.
    pub fn with(name: &str, body: impl FnOnce(&Root) + Send + 'static) {
        Root::over(Path::new("/"), name, |root| {
            root.mount("proc", "/proc", Some("proc"), MsFlags::empty());
            root.mount("/dev", "/dev", None, MsFlags::MS_BIND);
            body(root);
        });
    }

    /// A copy of a system for arm64 with this machine's processes. `emulator`, a file in it, runs
    /// the programs of commands in the copy alone: each has a user namespace and a list of its own
    /// (Linux 6.7).
    pub fn emulated(
        lower: &Path,
        emulator: &str,
        name: &str,
        body: impl FnOnce(&Root) + Send + 'static,
    ) {
        let emulator = Some(lower.join(emulator));
        Root::over(lower, name, move |root| {
            root.mount("proc", "/proc", Some("proc"), MsFlags::empty());
            let path = root.path.clone();
            body(&Root { path, emulator });
        });
    }

    /// A copy of the system in `lower`, files alone, in a thread of its own.
    pub fn over(lower: &Path, name: &str, body: impl FnOnce(&Root) + Send + 'static) {
        let place = target(&format!("root-{name}"));
        fs::create_dir_all(&place).unwrap();
        let lower = lower.to_owned();
        let thread = std::thread::spawn(move || body(&Root::make(&lower, &place)));
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn make(lower: &Path, place: &Path) -> Root {
        const NONE: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        let (tmpfs, overlay) = (Some("tmpfs"), Some("overlay"));
        mount(tmpfs, place, tmpfs, MsFlags::empty(), Some("mode=755")).unwrap();
        for part in ["upper", "work", "root", "formats"] {
            fs::create_dir(place.join(part)).unwrap();
        }
        open_to_all(&place.join("upper"));
        let (lower, at, path) = (lower.display(), place.display(), place.join("root"));
        let options = format!("lowerdir={lower},upperdir={at}/upper,workdir={at}/work");
        mount(overlay, &path, overlay, MsFlags::empty(), Some(&*options)).unwrap();
        let emulator = None;
        Root { path, emulator }
    }

    fn mount(&self, from: &str, to: &str, kind: Option<&str>, flags: MsFlags) {
        mount(Some(from), &self.at(to), kind, flags, None::<&str>).unwrap();
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[track_caller]
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("'{path}': {error}"))
    }

    pub fn take(&self, from: &Path) -> String {
        let to = format!("/root/{}", from.file_name().unwrap().to_str().unwrap());
        fs::create_dir_all(self.at("/root")).unwrap();
        fs::copy(from, self.at(&to)).unwrap();
        to
    }

    pub fn output(&self, line: &str) -> Output {
        self.try_words(&["sh", "-ec", line])
    }

    pub fn try_words(&self, words: &[&str]) -> Output {
        let mut command = self.chroot();
        command.arg(&self.path).args(words);
        command.current_dir("/").env_clear().envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LC_ALL", "C.UTF-8"),
            ("DEBIAN_FRONTEND", "noninteractive"),
        ]);
        command.output().unwrap()
    }

    fn chroot(&self) -> Command {
        let Some(emulator) = &self.emulator else {
            return Command::new("chroot");
        };
        let formats = self.path.with_file_name("formats");
        let [magic, mask] = ARM_FILES;
        let entry = format!(":arm64:M::{magic}:{mask}:{}:F", emulator.display());
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command.args(["sh", "-ec", EMULATE, "sh"]);
        command.arg(formats).arg(entry);
        command
    }

    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {}", said(&output));
        said(&output)
    }
}
