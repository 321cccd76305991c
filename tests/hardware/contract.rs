//! The contract suite against NVIDIA's control daemon: the same tests as against the double.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::child;
use crate::result::Section;
use crate::site::{self, Place};

/// Name of the test program in the package.
pub const PROGRAM: &str = "contract";

/// Runs the suite and records how each belief came out.
pub fn run(section: &mut Section, place: &Place) -> Result<()> {
    let mut command = Command::new(place.staged(PROGRAM)?);
    command
        .current_dir("/")
        .env("MPS_SUBJECT", "nvidia")
        .args(["--test-threads=1", "--nocapture"]);
    if let Ok(control) = site::program("nvidia-cuda-mps-control") {
        command.env("MPS_CONTROL", control);
    }
    command
        .env("MPS_PROBE", place.bin("mps-probe"))
        .env("MPS_USER", &place.user.name);
    let ran = child::run(&mut command, "", Duration::from_secs(420))?;
    let summary = ran
        .stdout
        .lines()
        .rfind(|line| line.starts_with("test result:"))
        .unwrap_or("no summary");
    section.fact("summary", summary);
    section.fact("seconds", (ran.wall.as_secs_f64() * 10.0).round() / 10.0);
    section.fact("output", format!("{}{}", ran.stdout, ran.stderr));
    section.check(
        "contract suite with MPS_SUBJECT=nvidia",
        ran.code == Some(0) && summary.contains(": ok."),
        summary,
    );
    Ok(())
}
