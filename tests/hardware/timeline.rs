//! What takes each millisecond of a begin and an end.

use std::time::Duration;

use ::tests::samples::{in_turn, milliseconds, rounded};
use anyhow::Result;

use crate::job::PLAIN;
use crate::runner::Scene;
use crate::times::{By, Life, Side};
use crate::watch::{Mark, Watch};

const ROUNDS: usize = 5;
/// Between begin and end, to keep them apart.
const PAUSE: Duration = Duration::from_millis(150);
const NO_PAUSE: Duration = Duration::ZERO;
/// Lines of the log without a meaning for times.
const NOISE: [&str; 5] = [
    "Accepting connection...",
    "NEW UI",
    "UI closed",
    "User did not send valid credentials",
    "To connect CUDA applications",
];
const SERVER: &str = "nvidia-cuda-mps-server";
const CONTROL: &str = "nvidia-cuda-mps-control";

const ALONE: [(&str, By, Duration); 2] =
    [("by_hand", By::Hand, PAUSE), ("job", By::Job(PLAIN), PAUSE)];
const SRUN: &str = "--gres=gpu:1 --mps";
const BESIDE_SLURM: [(&str, By, Duration); 7] = [
    ("by_hand_beside_slurm", By::Hand, PAUSE),
    ("by_hand_at_once_beside_slurm", By::Hand, NO_PAUSE),
    ("job_beside_slurm", By::Job(PLAIN), PAUSE),
    (
        "srun_true",
        By::Srun("--gres=gpu:1 --mps true", 0),
        NO_PAUSE,
    ),
    (
        "srun_sleep",
        By::Srun("--gres=gpu:1 --mps sleep 0.5", 0),
        NO_PAUSE,
    ),
    ("srun_one_kernel", By::Srun(SRUN, 1), NO_PAUSE),
    ("srun_eight_ranks", By::Srun(SRUN, 8), NO_PAUSE),
];

pub fn alone(scene: &mut Scene<'_>) -> Result<()> {
    lives(scene, &ALONE)
}

pub fn beside_slurm(scene: &mut Scene<'_>) -> Result<()> {
    lives(scene, &BESIDE_SLURM)
}

struct Seen {
    marks: Vec<Mark>,
    /// When the end was begun, milliseconds since the watch began.
    end: f64,
    first_kernel: Option<f64>,
}

fn lives(scene: &mut Scene<'_>, cases: &[(&str, By, Duration)]) -> Result<()> {
    let seen = in_turn(cases, ROUNDS, |(_, by, rest), round| {
        let watch = Watch::start(&scene.run.place.run)?;
        let began = watch.began;
        let life: Life = scene.live(&Side::new("", *by).after(*rest), round)?;
        Ok(Seen {
            marks: watch.stop()?,
            end: milliseconds(life.end - began),
            first_kernel: life.first_kernel,
        })
    })?;
    for ((name, ..), lives) in cases.iter().zip(&seen) {
        tell(scene, name, lives)?;
    }
    Ok(())
}

fn ended(marks: &[Mark], program: &str) -> Option<f64> {
    let is_end = |mark: &&Mark| mark.who.starts_with(program) && mark.what.starts_with("has ended");
    marks.iter().rfind(is_end).map(|mark| mark.at)
}

/// When `quit` was sent. By hand no log is read, and it is sent first.
fn quit(life: &Seen) -> f64 {
    let said = life.marks.iter().rfind(|mark| mark.what == "Cmd:quit");
    said.map_or(life.end, |mark| mark.at)
}

fn tell(scene: &mut Scene<'_>, name: &str, lives: &[Seen]) -> Result<()> {
    for (what, program) in [("server", SERVER), ("control", CONTROL)] {
        let took = |life: &Seen| Some(rounded(ended(&life.marks, program)? - quit(life)));
        let ends: Vec<f64> = lives.iter().filter_map(took).collect();
        let name = format!("{name}_{what}_ends_ms");
        scene.section.times(&name, &ends);
    }
    let Some(life) = lives.last() else {
        return Ok(());
    };
    let mut marks = life.marks.clone();
    marks.retain(|mark| !NOISE.iter().any(|noise| mark.what.starts_with(noise)));
    let end = match name.starts_with("srun") {
        true => "srun has returned",
        false => "end begins",
    };
    marks.push(Mark::new(life.end, "harness", end));
    let kernel = life.first_kernel;
    marks.extend(kernel.map(|at| Mark::new(at, "client", "first kernel has ended")));
    marks.sort_by(|one, other| one.at.total_cmp(&other.at));
    let line = |mark: &Mark| format!("{:8.1} {}: {}", mark.at, mark.who, mark.what);
    let lines: Vec<String> = marks.iter().map(line).collect();
    scene.fact(&format!("{name}_marks"), lines.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_counts_from_the_quit_to_the_last_end() {
        let marks = vec![
            Mark::new(5.0, CONTROL, "has ended (7)"),
            Mark::new(300.0, "NVIDIA's log", "Cmd:quit"),
            Mark::new(390.0, SERVER, "has ended (8)"),
            Mark::new(391.0, CONTROL, "has ended (6)"),
        ];
        assert_eq!(ended(&marks, CONTROL), Some(391.0));
        assert_eq!(ended(&marks, "mpsd"), None);
        let (end, first_kernel) = (290.0, None);
        let life = Seen {
            marks,
            end,
            first_kernel,
        };
        assert_eq!(quit(&life), 300.0);
    }
}
