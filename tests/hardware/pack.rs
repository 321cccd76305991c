//! `mpsctl pack -n auto` against fixed numbers of commands at once: OpenMM simulations of unlike
//! length.

use std::fs;
use std::time::Duration;

use ::tests::child;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::job::Job;
use crate::load::Dynamics;
use crate::result::{Section, hundredths};
use crate::site::{self, Gpu, Run};

/// Steps of the commands, repeated.
const STEPS: [u32; 8] = [10_000, 3_000, 19_000, 6_000, 3_000, 19_000, 6_000, 10_000];
const COMMANDS: usize = 64;
/// Commands at once on each GPU, and how many of all run. The slow ones run only a part, and their
/// time is scaled.
const FIXED: [(u32, usize); 4] = [(4, 16), (8, COMMANDS), (16, COMMANDS), (24, COMMANDS)];
/// One at a time on one GPU.
const SINGLE: usize = 4;
const SHARE: &str = "auto";
/// How much longer '-n auto' may take than the best fixed number.
const NEAR: f64 = 1.05;
const LONGEST: Duration = Duration::from_secs(180);

/// A number at once: its name, `-n`, and the commands that run.
struct Mode {
    name: String,
    number: String,
    commands: usize,
}

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let home = run.place.user_dir("pack")?;
    let Some(dynamics) = Dynamics::prepare(section, run, &home)? else {
        return Ok(());
    };
    let gpus: Vec<&Gpu> = run.gpus.iter().collect();
    let fixed = |(each, commands): (u32, usize)| Mode {
        name: format!("{each} on each GPU"),
        number: (each as usize * gpus.len()).to_string(),
        commands,
    };
    let mode = |name: &str, number: &str, commands| Mode {
        name: name.to_owned(),
        number: number.to_owned(),
        commands,
    };
    // The first one also fills OpenMM's cache of compiled kernels.
    let mut modes = vec![mode("one at a time", "1", SINGLE)];
    modes.extend(FIXED.map(fixed));
    modes.push(mode("auto", "auto", COMMANDS));
    let job = Job::named(&run.place, run.gpu(), "7004.srv")?.on(&gpus);
    job.begin(section, "", "MPS=true")?;
    let mut rows = Vec::new();
    for (place, mode) in modes.iter().enumerate() {
        eprintln!("hardware: pack, {}", mode.name);
        let told = packed(run, &job, &dynamics, mode, place)?;
        let all = told["succeeded"].as_u64() == Some(mode.commands as u64);
        section.check(
            format!("{}: all succeeded", mode.name),
            all,
            told.to_string(),
        );
        let seconds = told["seconds"].as_f64().context("seconds")?;
        let scaled = seconds * COMMANDS as f64 / mode.commands as f64;
        rows.push(json!({
            "name": mode.name,
            "commands": mode.commands,
            "seconds": hundredths(seconds),
            "seconds_of_all": hundredths(scaled),
            "most_at_once": told["most_at_once"],
            "at_once": told["at_once"],
            "memory_mib": told["memory_mib"],
        }));
        section.fact(
            &mode.name,
            format!(
                "{scaled:.1} s ({} commands took {seconds:.1} s)",
                mode.commands
            ),
        );
    }
    job.end(section, "")?;
    let time = |row: &Value| row["seconds_of_all"].as_f64().unwrap_or(f64::INFINITY);
    let [single, fixed @ .., auto] = &rows[..] else {
        return Ok(());
    };
    let best = fixed.iter().map(time).fold(f64::INFINITY, f64::min);
    let auto = time(auto);
    ensure!(best > 0.0, "no time");
    for (name, most) in [
        (
            format!("-n auto within {NEAR} of the best fixed number"),
            best * NEAR,
        ),
        (
            "-n auto is quicker than 8 on each GPU".to_owned(),
            time(&fixed[1]),
        ),
        (
            "-n auto is quicker than one at a time".to_owned(),
            time(single),
        ),
    ] {
        section.check(name, auto < most, format!("{auto:.1} s, {most:.1} s"));
    }
    let title = format!(
        "{COMMANDS} OpenMM commands of {STEPS:?} steps, --threads {SHARE}, {} × {}",
        gpus.len(),
        run.gpu().name
    );
    let told = json!({"title": title, "gpus": gpus.len(), "rows": rows});
    run.keep("pack.json", &format!("{told:#}\n"))?;
    Ok(fs::remove_dir_all(&home)?)
}

/// What `mpsctl pack --json` says of this mode.
fn packed(
    run: &Run,
    job: &Job<'_>,
    dynamics: &Dynamics,
    mode: &Mode,
    place: usize,
) -> Result<Value> {
    let home = run.place.run.join("pack");
    let [python, script, _, input, _] = &dynamics.command;
    let line = |steps: &u32| format!("{python} {script} steps {input} {steps}\n");
    let lines: String = STEPS.iter().cycle().take(mode.commands).map(line).collect();
    let file = home.join(format!("{place}.txt"));
    fs::write(&file, lines)?;
    let mut command = job.user_mpsctl(site::home_env(&run.place, &home))?;
    command
        .args(["pack", "--json", "--threads", SHARE, "-n", &mode.number])
        .arg(&file);
    let ran = child::run(command.current_dir(&home), "", LONGEST)?;
    eprint!("{}", ran.stderr);
    let results = home.join(format!("{place}.txt.results"));
    run.keep(
        &format!("pack-{place}.joblog"),
        &fs::read_to_string(results.join("joblog"))?,
    )?;
    let last = fs::read_to_string(results.join("1.out")).unwrap_or_default();
    eprint!("hardware: the first says: {last}");
    serde_json::from_str(&ran.stdout).with_context(|| ran.story())
}
