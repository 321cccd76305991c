//! The independent look: what `ps`, `find` and `nvidia-smi` see, before and after. It uses none of
//! the project's code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tests::child;

use crate::result::Section;
use crate::site::{self, Run};

/// Processes of ours and NVIDIA's, files and cgroups, a line each. Left out are this harness and
/// its callers, whose paths have the same words.
const LOOK: &str = r#"
ps -e -o pid=,ppid=,user=,stat=,args= | while read -r pid parent user state program rest; do
    case "$pid ${program##*/}" in
        "$1 "*) continue ;;
        *nvidia-cuda-mps*|*mpsd*|*mps-prologue*|*mps-epilogue*|*mps-probe*) ;;
        *) continue ;;
    esac
    case $state in Z*) kind=defunct ;; *) kind=process ;; esac
    echo "$kind $pid $parent $user $state $program $rest"
done
find /dev/shm /run /tmp /run/mpsd -mindepth 1 -maxdepth 1 -printf 'file %p\n'
find "$2" -mindepth 1 -printf 'file %p\n'
find /sys/fs/cgroup -mindepth 1 -maxdepth 5 -type d -printf 'cgroup %p\n'
cut -d' ' -f5 /proc/self/mountinfo | sed 's/^/mount /'
"#;

#[derive(Default)]
struct Look {
    lines: BTreeSet<String>,
    /// Processes that ended and were not collected: PID 1's duty if their parent is gone.
    defunct: Vec<String>,
}

impl Look {
    fn take(run: &Path) -> Result<Self> {
        let mut command = Command::new(site::program("sh")?);
        command.args(["-c", LOOK, "sh", &std::process::id().to_string()]);
        let seen = child::run(command.arg(run), "", Duration::from_secs(20))?;
        let own = |line: &&str| !line.starts_with("defunct ");
        let (lines, defunct): (Vec<&str>, Vec<&str>) = seen.stdout.lines().partition(own);
        let mut look = Self {
            lines: lines.into_iter().map(str::to_owned).collect(),
            defunct: defunct.into_iter().map(str::to_owned).collect(),
        };
        let apps = [
            "--query-compute-apps=pid,process_name",
            "--format=csv,noheader",
        ];
        let apps = site::smi(&apps)?;
        let apps = apps.lines().map(|app| format!("gpu process {app}"));
        look.lines.extend(apps);
        let mode = |gpu: site::Gpu| format!("compute mode of {} is {}", gpu.uuid, gpu.mode);
        look.lines.extend(site::gpus()?.into_iter().map(mode));
        Ok(look)
    }

    /// What is here now and was not `before`, and what is gone.
    fn against(&self, before: &Self) -> Vec<String> {
        let new = self.lines.difference(&before.lines);
        let gone = before.lines.difference(&self.lines);
        let new = new.map(|line| format!("new: {line}"));
        new.chain(gone.map(|line| format!("gone: {line}")))
            .collect()
    }
}

const SETTLED: Duration = Duration::from_secs(5);

/// Runs `act`, waits until the machine looks as before, and records the result. What the run
/// directory keeps between jobs by design does not count.
pub fn unchanged(
    section: &mut Section,
    all: &Run,
    act: impl FnOnce(&mut Section) -> Result<()>,
) -> Result<()> {
    let run = &all.place.run;
    let before = Look::take(run)?;
    act(section)?;
    let gpus = all.gpus.iter();
    let allowed: Vec<PathBuf> = gpus.flat_map(|gpu| kept(run, &gpu.uuid)).collect();
    // A user's copies of reports are limited, and the oldest are removed.
    let pruned = format!("gone: file {}/", run.join("mpsd/reports").display());
    let keeps = |line: &String| {
        let is = |path: &PathBuf| line.ends_with(&format!(" {}", path.display()));
        line.starts_with(&pruned) || allowed.iter().any(is)
    };
    let (mut left, mut defunct) = (Vec::new(), Vec::new());
    child::until(SETTLED, Duration::from_millis(100), || {
        match Look::take(run) {
            Ok(look) => {
                left = look.against(&before);
                left.retain(|line| !keeps(line));
                defunct = look.defunct;
                left.is_empty()
            }
            Err(e) => {
                left = vec![format!("could not look: {e:#}")];
                false
            }
        }
    })?;
    let seen = if left.is_empty() {
        "nothing left, nothing gone, compute mode as before".into()
    } else {
        left.join("; ")
    };
    section.check(
        "independent look (ps, ls, nvidia-smi)",
        left.is_empty(),
        seen,
    );
    if !defunct.is_empty() {
        section.fact("ended_but_not_collected_by_pid_1", defunct.join("\n"));
    }
    Ok(())
}

/// What the run directory keeps until the next boot: its directories, the GPU's lock file, users'
/// reports.
fn kept(run: &Path, gpu: &str) -> Vec<PathBuf> {
    let own = [
        "mpsd",
        "mpsd/jobs",
        "mpsd/shared",
        "mpsd/gpus",
        "mpsd/ledger",
        "mpsd/.ledger.lock",
        &format!("mpsd/gpus/{gpu}"),
    ]
    .map(|path| run.join(path));
    let mut all = own.to_vec();
    let mut reports = vec![run.join("mpsd/reports")];
    while let Some(path) = reports.pop() {
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        reports.extend(entries.map(|entry| entry.path()));
        all.push(path);
    }
    all
}
