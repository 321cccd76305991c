//! A script of the corpus as a batch job of a Slurm bed.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Outcome, Script};
use crate::child::{Ran, until};
use crate::slurm::{Bed, User};

const COMMAND: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Place<'a> {
    pub bed: &'a Bed,
    pub user: User,
    pub node: String,
    /// The directory of `cuda-app` and NVIDIA's programs, first in PATH.
    pub bin: PathBuf,
    /// The UUIDs of the node's GPUs, in its order.
    pub gpus: Vec<String>,
    /// The node has no plugin, and so has its user.
    pub plain: bool,
    /// Of the submission, beside the script's own.
    pub words: String,
}

#[derive(Debug)]
pub struct Submitted<'a> {
    place: Place<'a>,
    /// Its working directory, in which its output is.
    dir: PathBuf,
    ran: Ran,
}

impl<'a> Place<'a> {
    pub fn submit(self, script: &Script) -> Result<Submitted<'a>> {
        let (bed, user) = (self.bed, &self.user);
        let dir = bed.home(user).join(&self.node).join(&script.name);
        fs::create_dir_all(&dir)?;
        chown(&dir, Some(user.uid), Some(user.gid))?;
        let file = dir.join("job.sh");
        fs::write(&file, &script.text)?;
        let path = format!("{}:{}", self.bin.display(), bed.environment(user)["PATH"]);
        let conf = bed.plain_conf();
        let mut env = vec![("PATH", path.as_str())];
        env.extend(self.plain.then_some(("SLURM_CONF", conf.as_str())));
        let (chdir, node, words) = (dir.display(), &self.node, &self.words);
        let line = format!("sbatch --parsable --output=out.%a --chdir={chdir} -w {node} {words}");
        let file = file.display().to_string();
        let own = script.words.iter().map(String::as_str);
        let argv: Vec<&str> = line.split(' ').chain(own).chain([file.as_str()]).collect();
        let ran = bed.spawn_with(user, &argv, &env)?.wait(COMMAND)?;
        Ok(Submitted {
            place: self,
            dir,
            ran,
        })
    }
}

impl Submitted<'_> {
    pub fn outcome(&self, longest: Duration) -> Result<Outcome> {
        let (bed, gpus) = (self.place.bed, self.place.gpus.clone());
        let id = self.ran.stdout.trim();
        if self.ran.code != Some(0) {
            return Ok(Outcome {
                code: "refused".into(),
                said: self.ran.said(),
                seconds: 0,
                gpus,
            });
        }
        let mut shown = String::new();
        let ended = until(longest, Duration::from_millis(300), || {
            let said = bed.said(&format!("scontrol -o show job {id}"));
            shown = said.unwrap_or_default();
            !shown.is_empty() && shown.lines().all(has_ended)
        })?;
        if !ended {
            let _ = bed.root(&["scancel", "--full", "--signal=KILL", id]);
            let _ = bed.root(&["scancel", id]);
        }
        let node = &self.place.node;
        let said = self.said()?.replace(node, "NODE").replace(id, "JOB");
        ensure!(ended, "job {id} of {node} does not end: {shown}\n{said}");
        let item = |key: &str| {
            let words = shown.split_whitespace();
            let found = words.filter_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.map(str::to_owned).collect::<Vec<_>>()
        };
        let times = item("RunTime");
        let longest = times.iter().map(|time| seconds(time)).max();
        Ok(Outcome {
            code: item("ExitCode").join(" "),
            said,
            seconds: longest.unwrap_or(0),
            gpus,
        })
    }

    fn said(&self) -> Result<String> {
        let files = fs::read_dir(&self.dir)?.flatten().map(|entry| entry.path());
        let outputs = files.filter(|file| file.file_stem().is_some_and(|stem| stem == "out"));
        let texts = outputs.map(|file| Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned()));
        texts.collect()
    }
}

fn has_ended(job: &str) -> bool {
    let states = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"];
    let is_in = |state: &str| job.contains(&format!("JobState={state} "));
    states.into_iter().any(is_in)
}

/// Of Slurm's `HH:MM:SS`.
fn seconds(time: &str) -> u64 {
    let parts = time.split(':').filter_map(|part| part.parse::<u64>().ok());
    parts.fold(0, |sum, part| sum * 60 + part)
}
