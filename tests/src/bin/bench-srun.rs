//! What the plugin costs a job that did not ask for it: `srun true` with and without it, in turn, on the same Slurm.
//!
//! One node's slurmd is started with the plugin and the other's without; the commands likewise. Half-way the two nodes
//! change places, so that nothing but the plugin differs. Without PrologFlags, where slurmd runs programs of its own for any
//! plugin's prolog, the same against nodes with a plugin that does nothing. Then the same for `srun --mps true` on simulated nodes, with
//! `slurm.wait` "task" against "prolog". Started by `cargo xtask bench srun`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use clap::Parser;
use serde::Serialize;
use tests::samples::{in_turn, milliseconds, quantile};
use tests::slurm::{Bed, Options, PLUGIN, Product, Simulated, program_beside, stamp};

/// Longest that one `srun true` may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Rounds before the first that counts, on each side.
const WARM_UP: u32 = 5;

/// What the other side loads.
const NOTHING: &str = "no plugin";
const EMPTY: &str = "an empty plugin";

#[derive(Parser)]
struct Arguments {
    /// Pairs to measure with each setting of PrologFlags.
    #[arg(long, default_value_t = 100)]
    pairs: u32,
    /// Where the result goes.
    #[arg(long)]
    out: PathBuf,
}

/// All times in milliseconds.
#[derive(Serialize)]
struct Report {
    /// Seconds since 1970.
    taken_at: u64,
    slurm: String,
    cpus: usize,
    kernel: String,
    plugin_bytes: u64,
    settings: Vec<Setting>,
    mps: Waits,
}

/// What a user waits for: `srun --mps true` on simulated nodes, whose server is ready after 106 to 263 ms as recorded.
#[derive(Serialize)]
struct Waits {
    pairs: usize,
    wait_task: Figures,
    wait_prolog: Figures,
}

#[derive(Serialize)]
struct Setting {
    prolog_flags: String,
    /// What the other node's slurmd and command load: nothing, or a plugin with a prolog and an epilog that do nothing.
    against: &'static str,
    pairs: usize,
    without: Figures,
    with: Figures,
    /// Median of the pairs' differences.
    difference_median: f64,
    /// Median with, divided by the median without.
    ratio: f64,
}

#[derive(Serialize)]
struct Figures {
    median: f64,
    quartiles: [f64; 2],
    samples: Vec<f64>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-srun: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut settings = Vec::new();
    let mut slurm = String::new();
    for (flags, against) in [("Alloc,Contain", NOTHING), ("", NOTHING), ("", EMPTY)] {
        let setting = measure(flags, against, arguments.pairs, &mut slurm)?;
        let name = if flags.is_empty() { "none" } else { flags };
        println!(
            "PrologFlags {name:<14} {against}: {:6.1} ms   with {:6.1} ms   difference {:+5.1} ms   ratio {:.3}   ({} pairs)",
            setting.without.median,
            setting.with.median,
            setting.difference_median,
            setting.ratio,
            setting.pairs
        );
        settings.push(setting);
    }
    let mps = measure_waits(arguments.pairs.div_ceil(4))?;
    println!(
        "srun --mps true             wait=task {:6.1} ms   wait=prolog {:6.1} ms   ({} pairs)",
        mps.wait_task.median, mps.wait_prolog.median, mps.pairs
    );
    let report = Report {
        taken_at: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_secs(),
        slurm,
        cpus: std::thread::available_parallelism()?.get(),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
        plugin_bytes: program_beside(PLUGIN)?.metadata()?.len(),
        settings,
        mps,
    };
    if let Some(dir) = arguments.out.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(&arguments.out, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write '{}'", arguments.out.display()))?;
    println!(
        "plugin {} KiB; all samples in '{}'",
        report.plugin_bytes / 1024,
        arguments.out.display()
    );
    Ok(())
}

fn measure(flags: &str, against: &'static str, pairs: u32, slurm: &mut String) -> Result<Setting> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for plain in ["node2", "node1"] {
        let options = Options {
            prolog_flags: flags.into(),
            plain_nodes: vec![plain.into()],
            ..Options::default()
        };
        let mut bed = Bed::create(options)?;
        if against == EMPTY {
            let empty = bed.dir().join("empty.so");
            std::fs::copy(program_beside("libcontainer_stub.so")?, &empty)?;
            stamp::write(&empty, stamp::installed()?)?;
            bed.options_mut().plain_stack_lines = vec![format!("optional {}", empty.display())];
        }
        let config = format!(
            "run_dir = \"{}/%n\"\nstate_dir = \"{}/mpsd/%n\"\n",
            bed.run_dir().display(),
            bed.dir().display()
        );
        Product::install(&mut bed, &config)?;
        bed.start()?;
        *slurm = bed
            .root(&["sinfo", "--version"])?
            .success()?
            .stdout
            .trim()
            .to_owned();
        pairs_on(&bed, plain, WARM_UP)?;
        let half = if plain == "node2" {
            pairs.div_ceil(2)
        } else {
            pairs / 2
        };
        let times = pairs_on(&bed, plain, half)?;
        with.extend(&times[0]);
        without.extend(&times[1]);
        bed.wait_idle(LIMIT)?;
        bed.wait_clean(LIMIT)?;
        bed.end()?;
    }
    let mut differences: Vec<f64> = with
        .iter()
        .zip(&without)
        .map(|(with, without)| with - without)
        .collect();
    differences.sort_by(f64::total_cmp);
    let (with, without) = (Figures::of(with), Figures::of(without));
    Ok(Setting {
        prolog_flags: flags.into(),
        against,
        pairs: differences.len(),
        difference_median: quantile(&differences, 0.5),
        ratio: with.median / without.median,
        with,
        without,
    })
}

/// Times of the loaded node, and of the plain one.
fn pairs_on(bed: &Bed, plain: &str, pairs: u32) -> Result<Vec<Vec<f64>>> {
    let [user, _] = bed.users();
    let loaded = if plain == "node1" { "node2" } else { "node1" };
    let plain_conf = bed.plain_conf();
    let without = [("SLURM_CONF", plain_conf.as_str())];
    let sides: [(&str, &[(&str, &str)]); 2] = [(loaded, &[]), (plain, &without)];
    in_turn(&sides, pairs as usize, |(node, env), _| {
        let took = bed.time(&user, &["srun", "-w", node, "true"], env, LIMIT)?;
        Ok(milliseconds(took))
    })
}

fn measure_waits(pairs: u32) -> Result<Waits> {
    let (mut task, mut prolog) = (Vec::new(), Vec::new());
    for waits in ["node1", "node2"] {
        let mut bed = Bed::create(Options::default())?;
        let [user, _] = bed.users();
        let extra = format!("[[node]]\nhosts = \"{waits}\"\n[node.slurm]\nwait = \"prolog\"\n");
        let _simulated = Simulated::install(&mut bed, &extra, |node| node)?;
        bed.start()?;
        for _ in 0..pairs.div_ceil(2) {
            for node in ["node1", "node2"] {
                let argv = ["srun", "--mps", "-w", node, "--gres=gpu:1", "true"];
                let took = milliseconds(bed.time(&user, &argv, &[], LIMIT)?);
                if node == waits {
                    prolog.push(took)
                } else {
                    task.push(took)
                }
                bed.wait_idle(LIMIT)?;
            }
        }
        bed.wait_clean(LIMIT)?;
        bed.end()?;
    }
    Ok(Waits {
        pairs: task.len(),
        wait_task: Figures::of(task),
        wait_prolog: Figures::of(prolog),
    })
}

impl Figures {
    fn of(samples: Vec<f64>) -> Figures {
        Figures {
            median: quantile(&samples, 0.5),
            quartiles: [quantile(&samples, 0.25), quantile(&samples, 0.75)],
            samples,
        }
    }
}
