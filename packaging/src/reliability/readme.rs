//! `cargo xtask readme`: the figures of README and docs/, from the files that recorded runs wrote. A test compares them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use toml::Table;

use super::figures::{self, Figures};
use super::gain;
use super::plot;
use super::several;
use super::speed;
use crate::cargo;

/// The pages that have figures.
const PAGES: [&str; 3] = ["README.md", "docs/measured.md", "docs/seen.md"];
/// What stands before and behind the lines of a block; its name follows the first.
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

/// `readme`'s options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Change nothing; fail where a page has other figures than the results
    #[arg(long)]
    check: bool,
}

/// Writes the figures, or compares them.
pub fn run(options: &Options) -> Result<()> {
    let root = cargo::root()?;
    if options.check { check(&root) } else { write(&root) }
}

/// Records what a run said as section `name`, and in the pages.
pub fn publish(figures: &Figures, root: &Path, name: &str) -> Result<()> {
    figures.record(root, name)?;
    write(root)
}

/// Puts the figures of the recorded runs into the pages, and draws the plot.
fn write(root: &Path) -> Result<()> {
    for page in PAGES {
        let file = root.join(page);
        fs::write(&file, filled(root, page, &text(root, page)?)?)
            .with_context(|| format!("cannot write '{}'", file.display()))?;
    }
    for (name, drawn) in plots(root)? {
        let file = root.join(name);
        fs::write(&file, drawn).with_context(|| format!("cannot write '{}'", file.display()))?;
    }
    Ok(())
}

fn check(root: &Path) -> Result<()> {
    for page in PAGES {
        same_lines(page, &text(root, page)?, &filled(root, page, &text(root, page)?)?)?;
    }
    for (name, drawn) in plots(root)? {
        same_lines(name, &text(root, name)?, &drawn)?;
    }
    Ok(())
}

/// The plots: file and text.
fn plots(root: &Path) -> Result<[(&'static str, String); 2]> {
    let (_, several) = openmm_on_several(root)?;
    let (_, openmm) = newest_json(root, "-openmm.json")?;
    let drawn = |plot: plot::Plot, result: &Value, (names, rows): plot::Bars| -> Result<_> {
        let title = result["title"].as_str().context("no title")?;
        let title = format!("{title}: simulated ns a day, all processes together");
        Ok((plot.file, plot.svg(&title, &names, &rows)))
    };
    Ok([
        drawn(plot::THROUGHPUT, &openmm, gain::bars(&openmm)?)?,
        drawn(plot::SEVERAL, &several, several::bars(&several)?)?,
    ])
}

fn text(root: &Path, name: &str) -> Result<String> {
    fs::read_to_string(root.join(name)).with_context(|| format!("cannot read '{name}'"))
}

fn same_lines(name: &str, is: &str, ought: &str) -> Result<()> {
    let differing = is.lines().zip(ought.lines()).find(|(is, ought)| is != ought);
    match differing {
        None if is == ought => Ok(()),
        None => bail!("{name} is not whole: run 'cargo xtask readme'"),
        Some((is, ought)) => {
            bail!("{name} says '{is}', the results say '{ought}': run 'cargo xtask readme'")
        }
    }
}

/// `text`, that of `page`, with every block as the results have it.
fn filled(root: &Path, page: &str, text: &str) -> Result<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after
            .split_once(" -->\n")
            .with_context(|| format!("{page}: a block of figures has no name"))?;
        let (_, after) = after
            .split_once(END)
            .with_context(|| format!("{page}: the figures '{name}' do not end"))?;
        let block = match name {
            "hardware" => hardware(root)?,
            "speed" => {
                let name = whole_run(root)?;
                speed::block(&name, &table(root, &name)?)?
            }
            "gain" => brought(root)?,
            "several" => several_gpus(root)?,
            "openmm-several" => {
                let (name, result) = openmm_on_several(root)?;
                several::openmm(&name, &result)?
            }
            "openmm-most" => several::most(&openmm_on_several(root)?.1)?,
            "pytorch" => {
                let (name, result) = newest_json(root, "-pytorch.json")?;
                gain::inference(&name, &result)?
            }
            name if name.starts_with("seen ") => seen(root, &name["seen ".len()..])?,
            "srun" => srun(root)?,
            "reliability" => reliability(root)?,
            other => bail!("{page}: there are no figures '{other}'"),
        };
        filled.push_str(&format!("{before}{BEGIN}{name} -->\n{block}{END}"));
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The newest run of all parts on one GPU.
fn whole_run(root: &Path) -> Result<String> {
    newest(root, "tests/hardware/results", |name| {
        name.ends_with(".toml")
            && !["-contract.toml", "-devices.toml", "-many.toml", "-recipes.toml"]
                .iter()
                .any(|end| name.ends_with(end))
    })
}

/// What one run on a GPU measured.
fn hardware(root: &Path) -> Result<String> {
    let name = whole_run(root)?;
    let result = table(root, &name)?;
    if value(&result, &["checks_failed"])?.as_integer() != Some(0) {
        bail!("'{name}': checks failed");
    }
    let gpu = string(&result, &["machine", "gpu_0"])?;
    let gpu = gpu
        .split(' ')
        .take_while(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join(" ");
    let driver = string(&result, &["machine", "driver"])?;
    let driver = driver.split('.').next().unwrap_or(driver);
    let times = |name: &str| speed::median_of(string(&result, &["times", name])?);
    let ratio = value(&result, &["times", "ratio_of_medians"])?
        .as_float()
        .context("no ratio")?;
    let pairs = value(&result, &["times", "pairs"])?
        .as_integer()
        .context("no pairs")?;
    let multiprocessors = same(&result, "multiprocessors of each client are ")?;
    let all = outside(&result)?;
    let memory = same(&result, "each client may allocate ")?;
    let contract = string(&result, &["contract", "output"])?;
    let [tried, two, documented] = beliefs(contract);
    Ok(format!(
        "One {gpu}, driver {driver}, everything in one run (`{name}`):\n\n\
         | what | figure |\n\
         |---|---|\n\
         | control daemon and server by the shortest possible means | {floor:.0} ms |\n\
         | `mps-prologue` from its start to the proof, {pairs} interleaved pairs | {prologue:.0} ms, {ratio:.2} of that |\n\
         | `mps-epilogue`, everything gone and proved | {epilogue:.0} ms |\n\
         | `mps-prologue` of a job that did not ask | {not_asked:.1} ms |\n\
         | multiprocessors that each of eight clients sees at 25 % | {multiprocessors} of {all} |\n\
         | memory that each may allocate under `MPS_MEM=4G` | {memory} MiB |\n\
         | facts about NVIDIA's control daemon, tested on it, {two} of them on two GPUs (`…-x2-contract.toml`) | {tried}, none wrong; \
         {documented} more (compute modes, a fatal fault, MIG and others) are known from the manual only |\n",
        floor = times("floor_ms_spread")?,
        prologue = times("prologue_ms_spread")?,
        epilogue = times("epilogue_ms_spread")?,
        not_asked = times("not_asked_ms_spread")?,
    ))
}

/// What MPS brought to two programs on a GPU.
fn brought(root: &Path) -> Result<String> {
    let sweep = |end| newest_json(root, end);
    let [openmm, kernels] = [sweep("-openmm.json")?, sweep("-kernels.json")?];
    let (_, alone) = sweep("-openmm-alone.json")?;
    gain::block((&openmm.0, &openmm.1), (&kernels.0, &kernels.1), &alone)
}

/// What a program wrote in front of a real GPU: a section of what the hardware suite kept.
fn seen(root: &Path, section: &str) -> Result<String> {
    let name = newest(root, "tests/hardware/results", |name| name.ends_with("-seen.txt"))?;
    let all = text(root, &name)?;
    let mut sections = all
        .split("=== ")
        .map(|part| part.split_once('\n').unwrap_or_default());
    let found = sections.find(|(title, _)| *title == section);
    let (_, written) = found.with_context(|| format!("'{name}' has no section '{section}'"))?;
    Ok(format!("```text\n{}\n```\n", written.trim()))
}

/// What OpenMM brought on several GPUs: the file, and what it has.
fn openmm_on_several(root: &Path) -> Result<(String, Value)> {
    newest_json(root, "-several.json")
}

fn newest_json(root: &Path, end: &str) -> Result<(String, Value)> {
    let name = newest(root, "tests/hardware/results", |name| name.ends_with(end))?;
    let text = fs::read_to_string(root.join(&name)).with_context(|| format!("cannot read '{name}'"))?;
    let value = serde_json::from_str(&text).with_context(|| format!("'{name}'"))?;
    Ok((name, value))
}

/// What jobs on all GPUs of a host cost one another.
fn several_gpus(root: &Path) -> Result<String> {
    let name = newest(root, "tests/hardware/results", |name| {
        name.ends_with("-many.toml")
    })?;
    let result = table(root, &name)?;
    let many = value(&result, &["many"])?
        .as_table()
        .context("no section 'many'")?;
    several::block(&name, many)
}

/// Beliefs of the contract suite that the vendor's program was held to, how many of them need two GPUs, and how many
/// stand in the manual only.
fn beliefs(output: &str) -> [usize; 3] {
    let tests = output
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    // The double's own faults, and what nobody has verified, are no beliefs that were tested.
    let tested: Vec<_> = tests
        .filter(|(name, _)| !name.starts_with("doubles::") && !name.starts_with("unverified::"))
        .filter(|(_, end)| !end.contains("needs driver"))
        .collect();
    let two = tested.iter().filter(|(_, end)| end.contains("needs two GPUs"));
    let documented = output.matches("contract: documented, not verified: ");
    [tested.len(), two.count(), documented.count()]
}

/// What the plugin costs srun.
fn srun(root: &Path) -> Result<String> {
    let name = newest(root, "tests/slurm/results", |name| {
        name.ends_with("-bench-srun.json")
    })?;
    let text = fs::read_to_string(root.join(&name)).with_context(|| format!("cannot read '{name}'"))?;
    let bench: Value = serde_json::from_str(&text).with_context(|| format!("'{name}'"))?;
    let at = |place: &str| {
        bench
            .pointer(place)
            .with_context(|| format!("'{name}' has no '{place}'"))
    };
    let ms = |place: &str| {
        at(place)?
            .as_f64()
            .with_context(|| format!("'{place}' is no number"))
    };
    let words = |place: &str| {
        at(place)?
            .as_str()
            .with_context(|| format!("'{place}' is no text"))
    };
    let slurm = words("/slurm")?.rsplit(' ').next().unwrap_or_default();
    let release = slurm.rsplit_once('.').map_or(slurm, |(release, _)| release);
    let mut lines = format!(
        "Slurm {release}, simulated GPUs, {} cores, medians of interleaved pairs (`cargo xtask bench srun`; `{name}`):\n\n\
         | `srun true` | without the plugin | with it |\n\
         |---|---|---|\n",
        at("/cpus")?,
    );
    let settings = at("/settings")?.as_array().context("no settings")?;
    for setting in 0..settings.len() {
        let at_setting = |key: &str| format!("/settings/{setting}/{key}");
        let how = match words(&at_setting("prolog_flags"))? {
            "" | "none" => format!(
                "no `PrologFlags`, {} pairs: slurmd runs its own programs for any plugin's prolog and epilog",
                at(&at_setting("pairs"))?
            ),
            flags => format!("`PrologFlags={flags}`, {} pairs", at(&at_setting("pairs"))?),
        };
        let against = bench.pointer(&at_setting("against")).and_then(Value::as_str);
        let how = match against {
            Some("an empty plugin") => format!("{how}; without ours, but with a plugin that does nothing"),
            _ => how,
        };
        lines.push_str(&format!(
            "| {how} | {:.0} ms | {:.0} ms |\n",
            ms(&at_setting("without/median"))?,
            ms(&at_setting("with/median"))?
        ));
    }
    lines.push_str(&format!(
        "\n`srun --mps true` takes {:.0} ms where the tasks wait for the server (`wait = \"task\"`), {:.0} ms where the prolog does.\n",
        ms("/mps/wait_task/median")?,
        ms("/mps/wait_prolog/median")?
    ));
    Ok(lines)
}

/// How much was tried to make a job leave something behind.
fn reliability(root: &Path) -> Result<String> {
    let figures = table(root, figures::FILE)?;
    let count = |section: &str, name: &str| -> Result<i64> {
        value(&figures, &[section, name])?
            .as_integer()
            .with_context(|| format!("'{section}.{name}' is no count"))
    };
    let matrices = |name: &str| count("matrices", name);
    let rows = [
        (
            "crash points of the prologue, and pairs of them with crash points of the epilogue, on a node in memory".to_owned(),
            matrices("crash_points")? + matrices("crash_point_pairs")?,
        ),
        (
            "calls that fail, of either, on a node in memory".to_owned(),
            matrices("failed_calls")?,
        ),
        (
            "kills of real processes: prologue, epilogue, `mpsd`, control daemon, server, in every phase".to_owned(),
            matrices("real_kills")?,
        ),
        (
            "faults: a control daemon, server or NVML that hangs, lies or dies; a fatal GPU error; nothing left on the node"
                .to_owned(),
            matrices("faults")?,
        ),
        (
            format!(
                "jobs in one soak: {} at once on 8 simulated GPUs, with random kills",
                count("soak", "at_once")?
            ),
            count("soak", "cycles")?,
        ),
        (
            "fuzz executions, over the seven places where foreign text comes in".to_owned(),
            count("fuzz", "executions")?,
        ),
    ];
    let lost = count("soak", "lost")? + count("soak", "different")?;
    if lost != 0 {
        bail!("'{}': the soak lost {lost}", figures::FILE);
    }
    let mut lines = "| Tried | how many | lost |\n|---|---|---|\n".to_owned();
    for (what, number) in rows {
        lines.push_str(&format!("| {what} | {} | 0 |\n", with_commas(number)));
    }
    Ok(lines)
}

/// The last of a folder's files by name, which begin with their date; its path from the root.
fn newest(root: &Path, folder: &str, is_one: impl Fn(&str) -> bool) -> Result<String> {
    let entries = fs::read_dir(root.join(folder)).with_context(|| format!("cannot read '{folder}'"))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = names.filter(|name| is_one(name)).max();
    let newest = newest.with_context(|| format!("no result in '{folder}'"))?;
    Ok(format!("{folder}/{newest}"))
}

fn table(root: &Path, name: &str) -> Result<Table> {
    let file: PathBuf = root.join(name);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read '{name}'"))?;
    toml::from_str(&text).with_context(|| format!("'{name}'"))
}

fn value<'a>(table: &'a Table, path: &[&str]) -> Result<&'a toml::Value> {
    let (last, sections) = path.split_last().context("no key")?;
    let mut table = table;
    for section in sections {
        table = table
            .get(*section)
            .and_then(toml::Value::as_table)
            .with_context(|| format!("no section '{section}'"))?;
    }
    table
        .get(*last)
        .with_context(|| format!("no '{}'", path.join(".")))
}

fn string<'a>(table: &'a Table, path: &[&str]) -> Result<&'a str> {
    value(table, path)?
        .as_str()
        .with_context(|| format!("'{}' is no text", path.join(".")))
}

/// The number that every client of the job said, in the check whose name begins so: `[Some(32), Some(32)]`.
fn same(result: &Table, check: &str) -> Result<u64> {
    let checks = value(result, &["job", "checks"])?
        .as_array()
        .context("no checks")?;
    let seen = checks
        .iter()
        .find(|found| {
            found
                .get("name")
                .and_then(toml::Value::as_str)
                .is_some_and(|name| name.starts_with(check))
        })
        .and_then(|found| found.get("seen")?.as_str())
        .with_context(|| format!("no check '{check}'"))?;
    let mut numbers: Vec<u64> = seen
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers.dedup();
    match numbers[..] {
        [number] => Ok(number),
        _ => bail!("'{check}': the clients differ: {seen}"),
    }
}

/// The multiprocessors that a client outside MPS sees.
fn outside(result: &Table) -> Result<u64> {
    let client: Value = serde_json::from_str(string(result, &["outside_mps", "bare_client"])?)?;
    client
        .pointer("/gpus/0/sms")
        .and_then(Value::as_u64)
        .context("the client outside MPS says no multiprocessors")
}

/// `14,562`
fn with_commas(number: i64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|part| std::str::from_utf8(part).ok())
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_figures_of_the_recorded_runs() {
        let root = cargo::root().unwrap();
        check(&root).unwrap();
        let all = PAGES.map(|page| text(&root, page).unwrap());
        let blocks = all.each_ref().map(|text| text.matches(BEGIN).count());
        assert_eq!(blocks, [2, 7, 4], "a page lost a block");
        // Another figure, and one that was cut, are found.
        for (number, is, other) in [
            (0, "none wrong", "few wrong"),
            (1, " ms |", " ns |"),
            (1, "| 0 |\n", "| 1 |\n"),
        ] {
            let (page, right) = (PAGES[number], &all[number]);
            let wrong = right.replacen(is, other, 1);
            assert_ne!(&wrong, right, "'{is}'");
            assert_eq!(
                &filled(&root, page, &wrong).unwrap(),
                right,
                "'{is}' is put right"
            );
            assert!(same_lines(page, &wrong, right).is_err());
        }
        assert!(filled(&root, PAGES[1], &all[1].replacen(END, "", 7)).is_err());
        assert!(
            filled(
                &root,
                PAGES[1],
                &all[1].replacen("figures: srun", "figures: other", 1)
            )
            .is_err()
        );
    }

    #[test]
    fn beliefs_are_counted_without_the_doubles_own() {
        let output = "test p::v ... contract: not verified here, needs driver 590: p::v\nok\n\
                      test a::x ... ok\ntest a::y ... contract: not verified here, needs two GPUs: a::y\nok\n\
                      test doubles::z ... ok\ntest unverified::u ... contract: documented, not verified: one\n\
                      contract: documented, not verified: two\nok\ntest result: ok. 4 passed\n";
        assert_eq!(beliefs(output), [2, 1, 2]);
    }

    #[test]
    fn numbers_are_read_and_written_as_people_do() {
        assert_eq!(with_commas(7), "7");
        assert_eq!(with_commas(22_610_146), "22,610,146");
        assert_eq!(
            speed::median_of("median 264.91 ms, quartiles 1 to 2").unwrap(),
            264.91
        );
        assert!(speed::median_of("264.91 ms").is_err());
    }
}
