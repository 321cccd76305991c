//! What takes each millisecond of a begin and an end: by the shortest possible means, as a job, and
//! under a real Slurm.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tests::child;
use ::tests::samples::{in_turn, milliseconds, rounded};
use ::tests::slurm::{Bed, User};
use anyhow::{Context as _, Result, bail};
use runner::sweep::plot::{self, Bar};

use crate::bench::PLAIN;
use crate::job::Job;
use crate::result::Section;
use crate::site::Run;
use crate::watch::{Mark, Watch};
use crate::{first, slurm};

const ROUNDS: usize = 5;
const SRUN: Duration = Duration::from_secs(60);
/// Between begin and end, to keep them apart.
const PAUSE: Duration = Duration::from_millis(150);
/// Lines of the log without a meaning for times.
const NOISE: [&str; 5] = [
    "Accepting connection...",
    "NEW UI",
    "UI closed",
    "User did not send valid credentials",
    "To connect CUDA applications",
];
/// Longest name in a picture.
const NAME: usize = 46;

const SERVER: &str = "nvidia-cuda-mps-server";
const CONTROL: &str = "nvidia-cuda-mps-control";

/// A begin and an end, what was seen of them, and the command's output.
struct Life {
    marks: Vec<Mark>,
    /// When the end was begun, milliseconds since the watch began.
    end: f64,
    first_kernel: Option<f64>,
}

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    lives(section, run, &ALONE, |case| case.live(run, None))?;
    let mut options = slurm::options(vec![run.number as u32]);
    options.cpus = 16;
    slurm::on_bed(section, run, options, |section, bed, user| {
        lives(section, run, &BESIDE_SLURM, |case| {
            case.live(run, Some((bed, user)))
        })
    })
}

/// One life of a server, and what may decide how long its end takes.
#[derive(Debug, Clone, Copy)]
enum Case {
    /// NVIDIA's programs alone, ended so long after they are ready.
    ByHand(Duration),
    /// The same in a new cgroup below the one of Slurm's jobs' daemons.
    InCgroup,
    /// As a job of a scheduler that runs our programs.
    Job,
    Srun(&'static [&'static str]),
}

/// As long as `srun true` lives.
const IDLE: Duration = Duration::from_millis(600);

const ALONE: [(&str, Case); 4] = [
    ("by_hand", Case::ByHand(PAUSE)),
    ("by_hand_idle", Case::ByHand(IDLE)),
    ("by_hand_at_once", Case::ByHand(Duration::ZERO)),
    ("job", Case::Job),
];
const BESIDE_SLURM: [(&str, Case); 8] = [
    ("by_hand_beside_slurm", Case::ByHand(PAUSE)),
    ("by_hand_at_once_beside_slurm", Case::ByHand(Duration::ZERO)),
    ("by_hand_in_cgroup", Case::InCgroup),
    ("job_beside_slurm", Case::Job),
    ("srun_true", Case::Srun(&["true"])),
    ("srun_sleep", Case::Srun(&["sleep", "0.5"])),
    ("srun_one_kernel", Case::Srun(&["-n1"])),
    ("srun_eight_ranks", Case::Srun(&["-n8"])),
];

impl Case {
    fn live(self, run: &Run, slurm: Option<(&Bed, &User)>) -> Result<Life> {
        match (self, slurm) {
            (Self::ByHand(pause), _) => by_hand(run, pause),
            (Self::InCgroup, _) => in_cgroup(|| by_hand(run, PAUSE)),
            (Self::Job, _) => job(run),
            (Self::Srun(words), Some((bed, user))) => srun(run, bed, user, words),
            (Self::Srun(_), None) => bail!("no Slurm runs"),
        }
    }
}

fn lives(
    section: &mut Section,
    run: &Run,
    cases: &[(&str, Case)],
    live: impl Fn(Case) -> Result<Life>,
) -> Result<()> {
    let lives = in_turn(cases, ROUNDS, |(_, case), _| live(*case))?;
    for ((name, _), lives) in cases.iter().zip(&lives) {
        tell(section, run, name, lives)?;
    }
    Ok(())
}

/// Does `work` in a cgroup beside those of Slurm's jobs.
fn in_cgroup<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let group = Path::new("/sys/fs/cgroup/system.slice/mpsd.service/by-hand");
    fs::create_dir_all(group)?;
    let done = within(group, work)?;
    fs::remove_dir(group)?;
    Ok(done)
}

/// Does `work` in this cgroup.
pub fn within<T>(group: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(own.context("no cgroup v2")?.trim_start_matches('/'));
    let enter = |group: &Path| fs::write(group.join("cgroup.procs"), "0");
    enter(group)?;
    let done = work();
    enter(&own)?;
    done
}

fn by_hand(run: &Run, pause: Duration) -> Result<Life> {
    let watch = Watch::start(&run.place.run)?;
    let daemon = run.place.daemon(&run.gpu().uuid, "floor0")?;
    child::pause(pause)?;
    let end = now(&watch);
    daemon.quit()?;
    Ok(Life {
        marks: watch.stop()?,
        end,
        first_kernel: None,
    })
}

fn job(run: &Run) -> Result<Life> {
    let job = Job::named(&run.place, run.gpu(), "6200.srv")?;
    let watch = Watch::start(&run.place.run)?;
    job.prologue(PLAIN)?.success()?;
    child::pause(PAUSE)?;
    let end = now(&watch);
    job.epilogue()?.success()?;
    Ok(Life {
        marks: watch.stop()?,
        end,
        first_kernel: None,
    })
}

fn srun(run: &Run, bed: &Bed, user: &User, tasks: &[&str]) -> Result<Life> {
    let load = run.place.staged("cuda-load")?.display().to_string();
    let mut words = vec!["--gres=gpu:1", "--mps"];
    words.extend(tasks);
    if tasks[0].starts_with('-') {
        words.extend([&*load, "--after", "0", "--seconds", "0"]);
    }
    let watch = Watch::start(&run.place.run)?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let ran = bed.srun(user, &words, SRUN)?.success()?;
    let end = now(&watch);
    bed.wait_idle(SRUN)?;
    let last = first::ends(&ran.stdout).into_iter().reduce(f64::max);
    Ok(Life {
        marks: watch.stop()?,
        end,
        first_kernel: last.map(|last| rounded((last - began) * 1e3)),
    })
}

fn now(watch: &Watch) -> f64 {
    milliseconds(watch.began.elapsed())
}

/// When the last of these processes ended.
fn ended(marks: &[Mark], program: &str) -> Option<f64> {
    let is_end = |mark: &&Mark| mark.who.starts_with(program) && mark.what.starts_with("has ended");
    marks.iter().rfind(is_end).map(|mark| mark.at)
}

/// When `quit` was sent. By hand no log is read, and it is sent first.
fn quit(life: &Life) -> f64 {
    let said = life.marks.iter().rfind(|mark| mark.what == "Cmd:quit");
    said.map_or(life.end, |mark| mark.at)
}

fn tell(section: &mut Section, run: &Run, name: &str, lives: &[Life]) -> Result<()> {
    let since_quit = |program| {
        let ends = lives
            .iter()
            .filter_map(|life| Some(ended(&life.marks, program)? - quit(life)));
        ends.map(rounded).collect::<Vec<f64>>()
    };
    section.times(&format!("{name}_server_ends_ms"), &since_quit(SERVER));
    section.times(&format!("{name}_control_ends_ms"), &since_quit(CONTROL));
    let Some(life) = lives.last() else {
        return Ok(());
    };
    let mut marks = life.marks.clone();
    marks.retain(|mark| !NOISE.iter().any(|noise| mark.what.starts_with(noise)));
    let mark = |at, who: &str, what: &str| Mark {
        at,
        who: who.into(),
        what: what.into(),
    };
    marks.push(mark(
        life.end,
        "harness",
        if name.starts_with("srun") {
            "srun has returned"
        } else {
            "end begins"
        },
    ));
    marks.extend(
        life.first_kernel
            .map(|at| mark(at, "client", "first kernel has ended")),
    );
    marks.sort_by(|one, other| one.at.total_cmp(&other.at));
    let lines = marks
        .iter()
        .map(|mark| format!("{:8.1} {}: {}", mark.at, mark.who, mark.what));
    section.fact(
        &format!("{name}_marks"),
        lines.collect::<Vec<_>>().join("\n"),
    );
    run.keep(
        &format!("timeline-{}.svg", name.replace('_', "-")),
        &picture(name, &marks),
    )
}

/// Each mark with the time to the next one.
fn picture(name: &str, marks: &[Mark]) -> String {
    let kinds = ["files", "NVIDIA's log", "nvidia", "mps", "client"];
    let next = marks.iter().skip(1).map(|mark| mark.at);
    let bars = marks.iter().zip(next).map(|(mark, next)| {
        let name = format!("{}: {}", mark.who, mark.what);
        let kind = kinds.iter().position(|kind| mark.who.starts_with(kind));
        Bar {
            name: name.chars().take(NAME).collect(),
            from: mark.at,
            to: next,
            said: format!("{:.1}", next - mark.at),
            kind: kind.map_or(0, |kind| kind + 1),
            begins: false,
        }
    });
    let bars: Vec<Bar> = bars.collect();
    let title = format!(
        "{}: milliseconds from each mark to the next",
        name.replace('_', " ")
    );
    plot::bars(&[&title], &bars, plot::SMALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_counts_from_the_quit_to_the_last_end() {
        let mark = |at, who: &str, what: &str| Mark {
            at,
            who: who.into(),
            what: what.into(),
        };
        let marks = vec![
            mark(5.0, CONTROL, "has ended (7)"),
            mark(300.0, "NVIDIA's log", "Cmd:quit"),
            mark(390.0, SERVER, "has ended (8)"),
            mark(391.0, CONTROL, "has ended (6)"),
        ];
        assert_eq!(ended(&marks, CONTROL), Some(391.0));
        assert_eq!(ended(&marks, "mpsd"), None);
        assert!(picture("a_job", &marks).contains("90.0"));
        let life = Life {
            marks,
            end: 290.0,
            first_kernel: None,
        };
        assert_eq!(quit(&life), 300.0);
    }
}
