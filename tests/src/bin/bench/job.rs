//! What our own part of a job costs, against the floor. Another build (`--beside`) can take part.
//! This build also takes part with everything that watches a job at work.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::double::look::wait_until;
use tests::double::{NodeDouble, copy_program};
use tests::floor::Daemon;
use tests::place::{Place, Running};
use tests::samples::{in_turn, median, milliseconds, quantile, rounded};
use tests::stage::{USER, as_user};

use crate::{GPU, LIMIT};

/// `nvmlInit` there, and from `start_server` to Ready: recorded.
const NVML_MS: u64 = 25;
const READY_MS: u64 = 250;
/// The compute mode stays, as on a borrowed machine.
const KEPT: &str = "compute_mode = \"keep\"\n";

/// What is measured, by name; milliseconds.
type Times = BTreeMap<&'static str, Vec<f64>>;

pub fn run(rounds: usize, beside: Option<&Path>) -> Result<Value> {
    let ours = Side::of(place(None)?);
    let watched = Side {
        watched: true,
        ..Side::of(place(None)?)
    };
    watched
        .place
        .configure(&format!("{KEPT}[defaults]\nreport = true\n"));
    let sharing = Side {
        sharing: true,
        ..Side::of(place(None)?)
    };
    sharing
        .place
        .configure(&format!("{KEPT}shared_gpus = true\n"));
    let beside = beside
        .map(|dir| place(Some(dir)))
        .transpose()?
        .map(Side::of);
    let sides = [&ours, &watched, &sharing]
        .into_iter()
        .chain(&beside)
        .map(Some);
    let cases: Vec<Option<&Side>> = [None].into_iter().chain(sides).collect();
    let results = in_turn(&cases, rounds, |case, _| match case {
        Some(side) => job(side),
        None => by_hand(&ours.place),
    })?;
    let all: Vec<Times> = results.into_iter().map(joined).collect();
    let floor = &all[0];
    let report = json!({
        "simulated": format!("{GPU}: nvmlInit {NVML_MS} ms, a server ready after {READY_MS} ms"),
        "rounds": rounds,
        "floor": spreads(floor),
        "ours": against(&all[1], floor),
        "watched": watched_against(&all[2], &all[1], floor),
        "shared": spreads(&all[3]),
        "beside": all.get(4).map(|times| against(times, floor)),
    });
    println!("{report:#}");
    Ok(report)
}

struct Side {
    place: Place,
    /// A process asks for the metrics while its job begins.
    watched: bool,
    /// A second job of the user joins its MPS and leaves it.
    sharing: bool,
}

impl Side {
    fn of(place: Place) -> Self {
        Self {
            place,
            watched: false,
            sharing: false,
        }
    }

    fn scrape(&self) -> Result<Option<Running>> {
        let page = || {
            let mut command = self.place.command("mpsctl");
            command
                .arg("metrics")
                .stdout(Stdio::null())
                .spawn()
                .map(Running)
        };
        Ok(self.watched.then(page).transpose()?)
    }
}

fn place(programs: Option<&Path>) -> Result<Place> {
    let node = NodeDouble::builder().gpus(1, GPU).times(|times| {
        times.nvml = NVML_MS;
        times.server_ready = (READY_MS, READY_MS);
    });
    let place = Place::new(node, KEPT);
    for name in ["mps-prologue", "mps-epilogue", "mpsd"] {
        let Some(from) = programs.map(|dir| dir.join(name)) else {
            break;
        };
        let to = place.program(name);
        std::fs::remove_file(&to)?;
        copy_program(&from, &to).with_context(|| format!("cannot copy '{}'", from.display()))?;
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(place)
}

fn job(side: &Side) -> Result<Times> {
    let mut times = Times::new();
    let place = &side.place;
    let mut took = |name, ran: tests::stage::Ran| -> Result<()> {
        ensure!(ran.code == Some(0), "{name}: {ran:?}");
        times.entry(name).or_default().push(milliseconds(ran.took));
        Ok(())
    };
    let scrape = side.scrape()?;
    took("prologue_ms", place.torque_on_gpu_0("700.srv", "MPS=true"))?;
    if let Some(mut scrape) = scrape {
        ensure!(scrape.0.wait()?.success(), "the numbers cannot be had");
    }
    if side.sharing {
        took("join_ms", place.torque_on_gpu_0("702.srv", "MPS=true"))?;
        took("leave_ms", place.strict_end("702.srv"))?;
    }
    took("epilogue_ms", place.strict_end("700.srv"))?;
    let as_before = wait_until(LIMIT, || place.difference().is_empty());
    ensure!(as_before, "{:?}", place.difference());
    Ok(times)
}

/// NVIDIA's daemon and server by the shortest possible means.
fn by_hand(place: &Place) -> Result<Times> {
    let mut times = Times::new();
    let dir = tempfile::tempdir()?;
    let user = users::get_user_by_name(USER).context("no such user")?.uid();
    std::os::unix::fs::chown(dir.path(), Some(user), None)?;
    let control = || {
        let mut command = as_user(USER, place.node.control());
        command.env_clear();
        command.env("CUDA_MPS_PIPE_DIRECTORY", dir.path());
        command.env("CUDA_MPS_LOG_DIRECTORY", dir.path());
        command.env("CUDA_VISIBLE_DEVICES", &place.node.uuids()[0]);
        command
    };
    let pipe = dir.path().to_owned();
    let start = format!("start_server -uid {user}\n");
    let daemon = Daemon::start(control, pipe.clone(), &pipe, &start)?;
    let mut took = |name, time| times.entry(name).or_default().push(milliseconds(time));
    took("start_ms", daemon.ready);
    took("quit_ms", daemon.quit()?.0);
    Ok(times)
}

fn joined(rounds: Vec<Times>) -> Times {
    let mut all = Times::new();
    for (name, values) in rounds.into_iter().flatten() {
        all.entry(name).or_default().extend(values);
    }
    all
}

fn spreads(times: &Times) -> Value {
    let one = |(name, values): (&&str, &Vec<f64>)| {
        let at = |part: f64| rounded(quantile(values, part));
        let spread = json!({"median": at(0.5), "quartiles": [at(0.25), at(0.75)]});
        ((*name).to_owned(), spread)
    };
    times
        .iter()
        .map(one)
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn against(times: &Times, floor: &Times) -> Value {
    let ratio = |of: &str, to: &str| rounded(median(&times[of]) / median(&floor[to]));
    let mut told = spreads(times);
    told["prologue_times_the_floor"] = ratio("prologue_ms", "start_ms").into();
    told["epilogue_times_the_floor"] = ratio("epilogue_ms", "quit_ms").into();
    told
}

/// What each step costs more than without a watch: the median of the rounds' differences, and its
/// part of the step.
fn watched_against(times: &Times, plain: &Times, floor: &Times) -> Value {
    let mut told = against(times, floor);
    for step in plain.keys() {
        let pairs = times[step].iter().zip(&plain[step]);
        let more: Vec<f64> = pairs.map(|(watched, plain)| watched - plain).collect();
        let more = median(&more);
        let part = rounded(more / median(&plain[step]));
        told[format!("{step}_more")] = json!({"median_ms": rounded(more), "part": part});
    }
    told
}
