//! What the plugin costs a job that did not ask: `srun true` with and without it, in turn, on the
//! same Slurm. Half-way the two nodes change places. Without PrologFlags slurmd runs its own
//! programs for any plugin's prolog, so the other side has a plugin that does nothing. Milliseconds.

use std::time::SystemTime;

use anyhow::Result;
use serde_json::{Value, json};
use tests::samples::{in_turn, median, milliseconds, quantile};
use tests::slurm::{Bed, Options, PLUGIN, Product, program_beside, stamp};

use crate::LIMIT;

const WARM_UP: usize = 5;

/// What the other side loads: no plugin, or one with a prolog and an epilog that do nothing.
const NOTHING: &str = "no plugin";
const EMPTY: &str = "an empty plugin";

pub fn run(pairs: usize) -> Result<Value> {
    let (mut settings, mut slurm) = (Vec::new(), String::new());
    for (flags, against) in [("Alloc,Contain", NOTHING), ("", NOTHING), ("", EMPTY)] {
        let [with, without] = measure(flags, against, pairs, &mut slurm)?;
        let both = with.iter().zip(&without);
        let differences: Vec<f64> = both.map(|(with, without)| with - without).collect();
        let (difference, ratio) = (median(&differences), median(&with) / median(&without));
        let name = if flags.is_empty() { "none" } else { flags };
        println!(
            "PrologFlags {name:<14} {against}: {:6.1} ms   with {:6.1} ms   difference {difference:+5.1} ms   ratio {ratio:.3}   \
             ({} pairs)",
            median(&without),
            median(&with),
            differences.len()
        );
        settings.push(json!({
            "prolog_flags": flags, "against": against, "pairs": differences.len(), "difference_median": difference,
            "ratio": ratio, "without": figures(&without), "with": figures(&with),
        }));
    }
    let plugin_bytes = program_beside(PLUGIN)?.metadata()?.len();
    println!("plugin {} KiB", plugin_bytes / 1024);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(json!({
        "taken_at": SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs(),
        "slurm": slurm, "kernel": kernel.trim(), "plugin_bytes": plugin_bytes, "settings": settings,
    }))
}

fn figures(samples: &[f64]) -> Value {
    let quartiles = [quantile(samples, 0.25), quantile(samples, 0.75)];
    json!({"median": median(samples), "quartiles": quartiles, "samples": samples})
}

fn measure(flags: &str, against: &str, pairs: usize, slurm: &mut String) -> Result<[Vec<f64>; 2]> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for (plain, half) in [("node2", pairs.div_ceil(2)), ("node1", pairs / 2)] {
        let mut bed = Bed::create(Options {
            prolog_flags: flags.into(),
            plain_nodes: vec![plain.into()],
            ..Options::default()
        })?;
        if against == EMPTY {
            let empty = bed.dir().join("empty.so");
            std::fs::copy(program_beside("libcontainer_double.so")?, &empty)?;
            stamp::write(&empty, stamp::installed()?)?;
            bed.options_mut().plain_stack_lines = vec![format!("optional {}", empty.display())];
        }
        let (run, dir) = (bed.run_dir().display(), bed.dir().display());
        let config = format!("run_dir = \"{run}/%n\"\nstate_dir = \"{dir}/mpsd/%n\"\n");
        Product::install(&mut bed, &config)?;
        bed.start()?;
        let version = bed.root(&["sinfo", "--version"])?.success()?.stdout;
        *slurm = version.trim().to_owned();
        pairs_on(&bed, plain, WARM_UP)?;
        let times = pairs_on(&bed, plain, half)?;
        with.extend(&times[0]);
        without.extend(&times[1]);
        bed.wait_idle(LIMIT)?;
        bed.wait_clean(LIMIT)?;
        bed.end()?;
    }
    Ok([with, without])
}

fn pairs_on(bed: &Bed, plain: &str, pairs: usize) -> Result<Vec<Vec<f64>>> {
    let [user, _] = bed.users();
    let loaded = if plain == "node1" { "node2" } else { "node1" };
    let plain_conf = bed.plain_conf();
    let without = [("SLURM_CONF", plain_conf.as_str())];
    let sides: [(&str, &[(&str, &str)]); 2] = [(loaded, &[]), (plain, &without)];
    in_turn(&sides, pairs, |(node, env), _| {
        let took = bed.time(&user, &["srun", "-w", node, "true"], env, LIMIT)?;
        Ok(milliseconds(took))
    })
}
