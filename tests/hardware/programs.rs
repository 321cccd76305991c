//! Real programs, one rank and four on a GPU, without MPS, with it, and with an automatic share of
//! the threads: whether each computes the same, and how fast. All ranks of a family live at once,
//! so that the modes take turns within seconds.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use ::tests::child::Running;
use ::tests::samples::median;
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::load::wheels;
use crate::result::Section;
use crate::runner::Scene;
use crate::site;

pub const RANKS: u32 = 4;
/// Its names of the modes, and the job of each but the first.
const PLAIN: &str = "without";
const MPS: (&str, &str) = ("mps", "7400.srv");
const AUTO: (&str, &str) = ("auto", "7401.srv");
/// The first ones are measured if time is short.
const FAMILIES: &str =
    "torch,cuda,dynamic,openmm,jax,jaxranks,arrays,tools,others,nvshmem,jaxplain";
/// The program that NVIDIA refuses under MPS, and its error.
const REFUSED: (&str, &str) = ("dynamic parallelism", "(811)");
/// How long the driver may exceed its budget, to end one program and its ranks.
const BEYOND: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, clap::Args)]
pub struct ProgramOptions {
    /// For 'programs': seconds after which the rest is recorded as not run
    #[arg(long, value_name = "SECONDS", default_value_t = 480)]
    budget: u64,
    /// For 'programs': length of each measurement, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.6)]
    window: f64,
    /// For 'programs': measurements of each program in each mode, in turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// For 'programs': what is run, in this order
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = FAMILIES)]
    families: Vec<String>,
}

pub fn programs(scene: &mut Scene<'_>) -> Result<()> {
    let run = scene.run;
    wheels(run, &site::python()?)?;
    let mut modes = vec![json!({"name": PLAIN, "before": [], "environment": {
        "CUDA_VISIBLE_DEVICES": run.gpu().uuid,
        "CUDA_MPS_PIPE_DIRECTORY": run.place.run.join("none"),
    }})];
    for (name, id) in [MPS, AUTO] {
        let mut exec = scene.job(id)?.user_mpsctl(BTreeMap::new())?;
        let before = words(exec.args(["exec", "--"]));
        modes.push(json!({"name": name, "before": before, "environment": {"PBS_JOBID": id}}));
    }
    let mut seen = drive(scene, &modes)?;
    seen["gpu"] = run.gpu().name.as_str().into();
    seen["driver"] = run.gpu().driver.as_str().into();
    seen["window_s"] = run.programs.window.into();
    judge(scene.section, &mut seen);
    scene.keep_json("programs", &seen)
}

fn words(command: &Command) -> Vec<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    words.collect()
}

/// NVIDIA's tools, with the options of a run.
const TOOLS: [(&str, &str); 3] = [
    ("compute-sanitizer", "--tool memcheck"),
    (
        "ncu",
        "--clock-control none --set none --metrics gpu__time_duration.sum --launch-count 1",
    ),
    ("cuda-gdb", "-batch -ex run --args"),
];

fn drive(scene: &Scene<'_>, modes: &[Value]) -> Result<Value> {
    let (run, home) = (scene.run, &scene.home);
    let options = &run.programs;
    let tools = TOOLS.iter().filter_map(|(name, options)| {
        let path = site::program(name).ok()?.display().to_string();
        let words = std::iter::once(&*path).chain(options.split(' '));
        Some(((*name).to_owned(), words.map(str::to_owned).collect()))
    });
    let tools: BTreeMap<String, Vec<String>> = tools.collect();
    let driver = run.place.staged("programs_driver.py")?;
    let spec = json!({
        "modes": modes,
        "home": home,
        "families": options.families,
        "budget": options.budget,
        "window": options.window,
        "rounds": options.rounds,
        "ranks": RANKS,
        "sources": driver.parent(),
        "nvcc": site::program("nvcc")?,
        "flags": ["-arch=native"],
        "tools": tools,
        "gpu": run.gpu().uuid,
        "shared": "/dev/shm",
    });
    let of_spec = run.place.dir.join("programs-spec.json");
    let result = home.join("result.json");
    fs::write(&of_spec, spec.to_string())?;
    let mut command = run.place.as_user(&site::python()?, &environment(scene));
    command.arg(&driver).args([&of_spec, &result]);
    let limit = Duration::from_secs(options.budget) + BEYOND;
    let ran = Running::start(command.current_dir(home), "")?.finish(limit);
    // It writes its results after each program.
    let text = fs::read_to_string(&result);
    let story = || match &ran {
        Ok(ran) => ran.story(),
        Err(e) => format!("{e:#}"),
    };
    let mut seen: Value = serde_json::from_str(&text.with_context(story)?).with_context(story)?;
    if !ran.as_ref().is_ok_and(|ran| ran.code == Some(0)) {
        seen["driver_ended"] = story().into();
    }
    Ok(seen)
}

/// Variables of all programs. Those that end in a slash are directories of the user's home.
/// Multicast over NVLink can put a host's GPUs out of service.
const ENVIRONMENT: &str = "\
XLA_PYTHON_CLIENT_PREALLOCATE=false
JAX_COMPILATION_CACHE_DIR=jax/
JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
TORCHINDUCTOR_CACHE_DIR=inductor/
TORCHINDUCTOR_COMPILE_THREADS=1
TRITON_CACHE_DIR=triton/
CUPY_CACHE_DIR=cupy/
NUMBA_CACHE_DIR=numba/
HF_HUB_OFFLINE=1
OMP_NUM_THREADS=1
PYTHONDONTWRITEBYTECODE=1
NCCL_NVLS_ENABLE=0
TORCH_SYMM_MEM_DISABLE_MULTICAST=1
NVSHMEM_DISABLE_NVLS=1
NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo
NVSHMEM_SYMMETRIC_SIZE=64M";

fn environment(scene: &Scene<'_>) -> BTreeMap<String, String> {
    let mut env = scene.env();
    let path = std::env::var("PATH").unwrap_or_default();
    env.insert("PATH".into(), format!("{path}:/usr/bin:/bin"));
    for (name, value) in ENVIRONMENT.lines().filter_map(|line| line.split_once('=')) {
        let value = match value.strip_suffix('/') {
            Some(directory) => scene.home.join(directory).display().to_string(),
            None => value.to_owned(),
        };
        env.insert(name.to_owned(), value);
    }
    env
}

/// What a mode brought, as medians: the rate of one rank and of four, divided by the rate without
/// MPS.
fn judge(section: &mut Section, seen: &mut Value) {
    if let Some(why) = seen["driver_ended"].as_str() {
        section.check("the driver ended by itself", false, why);
    }
    for (family, error) in seen["failed"].as_object().into_iter().flatten() {
        let name = format!("{family} driven to its end");
        section.check(name, false, error.to_string());
    }
    for (family, left) in seen["left"].as_object().into_iter().flatten() {
        section.fact(&format!("{family} left in /dev/shm"), left.to_string());
        let kinds = left.as_object().into_iter().flatten();
        let under_mps = kinds.filter(|(_, ranks)| ranks[PLAIN].is_null());
        let under_mps = under_mps.map(|(kind, ranks)| format!("{kind}: {ranks}"));
        let name = format!("{family} leaves no more in /dev/shm under MPS");
        section.none(name, &under_mps.collect::<Vec<_>>());
    }
    section.fact("seconds", seen["seconds"].to_string());
    for program in seen["programs"].as_array_mut().into_iter().flatten() {
        let name = program["name"].as_str().unwrap_or_default().to_owned();
        if let Some(why) = program["not_run"].as_str() {
            section.fact(&name, format!("not run: {why}"));
            continue;
        }
        let plain = program["answers"][PLAIN][0].clone();
        if let Some(error) = plain.as_str() {
            section.fact(&name, format!("left out: without MPS it says {error}"));
            continue;
        }
        for (mode, _) in [MPS, AUTO] {
            let (answers, same) = (program["answers"][mode].to_string(), &program["same"][mode]);
            let (what, good) = match name == REFUSED.0 {
                true => ("CUDA refuses it", answers.contains(REFUSED.1)),
                false => ("the same answers", same == &json!(true)),
            };
            section.check(format!("{name}, {mode}: {what}"), good, answers);
        }
        program["of_without"] = gains(program);
        section.fact(&name, told(program));
    }
    for tool in seen["tools"].as_array().into_iter().flatten() {
        let name = tool["name"].as_str().unwrap_or_default();
        section.fact(name, tool.to_string());
    }
}

fn gains(program: &Value) -> Value {
    let middle = |of: &str, mode: &str| {
        let figures = program[of]["per_second"][mode].as_array()?;
        let figures: Vec<f64> = figures.iter().filter_map(Value::as_f64).collect();
        (!figures.is_empty()).then(|| median(&figures))
    };
    let by = |of: &str, mode: &str| {
        let part = middle(of, mode)? / middle(of, PLAIN)?;
        part.is_finite().then(|| (part * 1000.0).round() / 1000.0)
    };
    json!({"one_mps": by("one", MPS.0), "four_mps": by("four", MPS.0), "four_auto": by("four", AUTO.0)})
}

fn told(program: &Value) -> String {
    let parts = [
        ("one_mps", "one rank"),
        ("four_mps", "four"),
        ("four_auto", "four with auto"),
    ];
    let told = parts.map(|(key, what)| format!("{what} {}", program["of_without"][key]));
    let version = program["version"].as_str().unwrap_or_default();
    format!("{version}; of the rate without MPS: {}", told.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_the_median_by_the_median_without_mps() {
        let rates = json!({"without": [10.0, 12.0, 11.0], "mps": [22.0, 21.0, 90.0], "auto": []});
        let gains = gains(&json!({"four": {"per_second": rates}}));
        let expected = json!({"one_mps": null, "four_mps": 2.0, "four_auto": null});
        assert_eq!(gains, expected);
    }
}
