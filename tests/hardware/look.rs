//! The independent look: what `ps`, `find` and `nvidia-smi` see, before and after. It uses none of
//! the project's code.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tests::child;

use crate::result::Section;
use crate::site;

/// Processes of ours and NVIDIA's, files and cgroups, a line each, without [`KEPT`]. The harness and
/// the shell that called it have the same words in their paths.
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
find "$2" -mindepth 1 | grep -vE "^$2/mpsd(/($3))?\$" | sed 's/^/file /'
find /sys/fs/cgroup -mindepth 1 -maxdepth 5 -type d -printf 'cgroup %p\n'
cut -d' ' -f5 /proc/self/mountinfo | sed 's/^/mount /'
"#;

/// What the run directory keeps until the next boot: its directories, the GPUs' lock files, users'
/// reports.
const KEPT: &str = "jobs|shared|ledger|\\.ledger\\.lock|gpus(/GPU-[^/]*)?|reports(/.*)?";

/// What is there, and the processes that ended and were not collected: PID 1's duty if their parent
/// is gone.
fn look(run: &Path) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let mut command = Command::new(site::program("sh")?);
    command.args(["-c", LOOK, "sh", &std::process::id().to_string()]);
    let seen = child::run(command.arg(run).arg(KEPT), "", Duration::from_secs(20))?;
    let own = |line: &String| !line.starts_with("defunct ");
    let (mut lines, defunct): (BTreeSet<_>, _) =
        seen.stdout.lines().map(str::to_owned).partition(own);
    let apps = "--query-compute-apps=pid,process_name --format=csv,noheader";
    let apps = site::smi(&apps.split(' ').collect::<Vec<_>>())?;
    lines.extend(apps.lines().map(|app| format!("gpu process {app}")));
    let mode = |gpu: site::Gpu| format!("compute mode of {} is {}", gpu.uuid, gpu.mode);
    lines.extend(site::gpus()?.into_iter().map(mode));
    Ok((lines, defunct))
}

const SETTLED: Duration = Duration::from_secs(5);

/// Runs `act`, waits until the machine looks as before, and records the result.
pub fn unchanged(
    section: &mut Section,
    run: &Path,
    act: impl FnOnce(&mut Section) -> Result<()>,
) -> Result<()> {
    let (before, _) = look(run)?;
    act(section)?;
    let (mut left, mut defunct) = (Vec::new(), BTreeSet::new());
    child::until(SETTLED, Duration::from_millis(100), || {
        match look(run) {
            Ok((after, ended)) => {
                let new = after.difference(&before).map(|line| format!("new: {line}"));
                let gone = before.difference(&after);
                left = new
                    .chain(gone.map(|line| format!("gone: {line}")))
                    .collect();
                defunct = ended;
            }
            Err(e) => left = vec![format!("could not look: {e:#}")],
        }
        left.is_empty()
    })?;
    section.none("independent look (ps, ls, nvidia-smi)", &left);
    if !defunct.is_empty() {
        let defunct: Vec<String> = defunct.into_iter().collect();
        section.fact("ended_but_not_collected_by_pid_1", defunct.join("\n"));
    }
    Ok(())
}
