//! A job in which an ordinary user runs `mpsctl sweep` or `mpsctl pack`.

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tests::double::look;
use tests::node_bed::{NodeBed, fast};
use tests::run::{Ran, USER, finish, uid_of};

pub const JOB: &str = "7.srv";

pub struct Bench {
    pub bed: NodeBed,
    verb: &'static str,
}

impl Bench {
    /// An empty account asks for nothing.
    pub fn new(verb: &'static str, gpus: usize, config: &str, account: &str) -> Self {
        let bed = NodeBed::new(fast(gpus), config);
        for dir in ["work", "peers"] {
            chown(bed.directory(dir), Some(uid_of(USER)), None).expect("chown");
        }
        let list: Vec<String> = (0..gpus).map(|gpu| gpu.to_string()).collect();
        bed.begin(JOB, account, &list.join(","));
        Self { bed, verb }
    }

    /// A path in the directory where the verb runs.
    pub fn work(&self, name: &str) -> PathBuf {
        self.bed.path("work").join(name)
    }

    pub fn script(&self, name: &str, text: &str) -> String {
        let file = self.work(name);
        tests::run::script(&file, text);
        file.display().to_string()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bed.mpsctl_of(USER);
        command.arg(self.verb).args(args).current_dir(self.work(""));
        command.envs([("PATH", "/usr/bin:/bin"), ("PBS_JOBID", JOB)]);
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args))
    }

    pub fn left(&self) -> Vec<String> {
        let work = self.bed.path("work");
        let shown = work.display().to_string();
        let is_left = |process: &look::Process| {
            let mut args = process.args.iter();
            let is_script = args.any(|arg| arg.contains(&shown));
            let is_script = is_script && !process.args.iter().any(|arg| arg == self.verb);
            process.exe.starts_with(&work) || process.exe == self.bed.node.client() || is_script
        };
        let all = look::processes().into_iter().filter(is_left);
        all.map(|process| format!("{process:?}")).collect()
    }

    #[track_caller]
    pub fn assert_none_left(&self, limit: Duration) {
        look::wait_until(limit, || self.left().is_empty());
        assert_eq!(self.left(), Vec::<String>::new());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.bed.torque_end(JOB);
    }
}
