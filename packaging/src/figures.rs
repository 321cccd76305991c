//! Figures of README and docs/measured.md are not older than the code that they measure.

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use crate::cargo;
use crate::command::{command, wrote};

const PAGES: [&str; 2] = ["README.md", "docs/measured.md"];
/// What a start and an end do.
const START_AND_END: &[&str] = &[
    "prologue/src",
    "epilogue/src",
    "mpsd/src/job/begin.rs",
    "mpsd/src/job/bounds.rs",
    "mpsd/src/job/planned.rs",
    "mpsd/src/job/end.rs",
    "mpsd/src/job/undo.rs",
    "mpsd/src/daemon/start.rs",
    "mpsd/src/daemon/stop.rs",
    "mpsd/src/node/launch.rs",
    "mpsd/src/node/nvml.rs",
    "mpsd/src/node/worker.rs",
];
/// The end of a result's name, and the code that it measures; none: the figures are NVIDIA's own,
/// of programs under any MPS.
const MEASURED: [(&str, &[&str]); 23] = [
    // A whole run.
    ("nvidia-h100", START_AND_END),
    ("nvidia-h200", START_AND_END),
    ("pairs", START_AND_END),
    ("sight", START_AND_END),
    ("timeline", START_AND_END),
    ("timeline-job", START_AND_END),
    ("first-kernel", START_AND_END),
    ("many", START_AND_END),
    ("shared", &["mpsd/src/job/shared.rs"]),
    ("pack", &["mpsd/runner/src/pack"]),
    ("report", &["mpsd/src/daemon/usage.rs"]),
    ("bench-srun", &["spank/src", "mpsd/core/src/plugin_line.rs"]),
    (
        "bench-unasked",
        &["prologue/src", "epilogue/src", "mpsd/core/src/request"],
    ),
    ("bench-scale", &[]),
    ("openmm", &[]),
    ("kernels", &[]),
    ("convolution", &[]),
    ("stream", &[]),
    ("several", &[]),
    ("pytorch", &[]),
    ("programs", &[]),
    ("contract", &[]),
    ("recipes", &[]),
];

/// By days: code that changed on the day of its figure does not count.
///
/// # Errors
/// Names each figure that is older than its code, or of no known kind.
pub fn are_young() -> Result<()> {
    let root = cargo::root()?;
    let shallow = wrote(command("git", "rev-parse --is-shallow-repository").current_dir(&root))?;
    ensure!(
        shallow.trim() == "false",
        "this clone is shallow: it does not tell when code was last changed"
    );
    let mut old = Vec::new();
    for page in PAGES {
        for (day, name) in results(&fs::read_to_string(root.join(page))?) {
            let code = code_of(&name)
                .with_context(|| format!("{page}: '{name}' is in no row of {}", file!()))?;
            if code.is_empty() {
                continue;
            }
            let mut log = command("git", "log -1 --format=%cs --");
            let changed = wrote(log.args(code).current_dir(&root))?;
            let changed = changed.trim();
            ensure!(
                !changed.is_empty(),
                "nothing is known of {}",
                code.join(", ")
            );
            if changed > &*day {
                old.push(format!(
                    "{page}: '{name}' is of {day}, its code of {changed}"
                ));
            }
        }
    }
    match old.is_empty() {
        true => Ok(()),
        false => bail!("measure again: {}", old.join("; ")),
    }
}

fn code_of(name: &str) -> Option<&'static [&'static str]> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let ends = |end: &str| {
        let rest = stem.strip_suffix(end);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
    };
    let longest = MEASURED.iter().filter(|(end, _)| ends(end));
    let longest = longest.max_by_key(|(end, _)| end.len());
    longest.map(|(_, code)| *code)
}

/// The day and the name of each result that a page names; `…-x2.toml` is of the day of the result
/// before it.
fn results(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for name in page.split('`').skip(1).step_by(2) {
        let full = name.strip_prefix("tests/");
        let full = full.and_then(|name| name.split_once("/results/"));
        let dated = full.and_then(|(_, name)| name.split_at_checked("2026-11-27".len()));
        if let Some((day, rest)) = dated {
            found.push((day.to_owned(), rest.trim_start_matches('-').to_owned()));
        } else if let (Some(rest), Some((day, _))) = (name.strip_prefix("…-"), found.last()) {
            found.push((day.clone(), rest.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_results_with_their_days() {
        let page = "a (`tests/hardware/results/2026-11-26-nvidia-h100-pairs.toml`; `…-x2-pack.json`) `mpsctl`";
        let named = results(page);
        let named: Vec<(&str, &str)> = named.iter().map(|(day, name)| (&**day, &**name)).collect();
        assert_eq!(
            named,
            [
                ("2026-11-26", "nvidia-h100-pairs.toml"),
                ("2026-11-26", "x2-pack.json")
            ]
        );
        assert_eq!(code_of("nvidia-h100-pairs.toml"), Some(START_AND_END));
        assert_eq!(code_of("nvidia-h200-openmm.json"), Some(&[][..]));
        assert_eq!(code_of("nvidia-h200-unheard.json"), None);
    }

    #[test]
    fn each_figure_of_the_pages_is_of_a_known_kind_and_each_code_is_there() {
        let root = cargo::root().unwrap();
        for page in PAGES {
            let named = results(&fs::read_to_string(root.join(page)).unwrap());
            assert!(!named.is_empty(), "{page}");
            let unknown = named.iter().filter(|(_, name)| code_of(name).is_none());
            assert_eq!(
                unknown.collect::<Vec<_>>(),
                Vec::<&(String, String)>::new(),
                "{page}"
            );
        }
        let mut code = MEASURED.iter().flat_map(|(_, code)| *code);
        assert_eq!(code.find(|path| !root.join(path).exists()), None);
    }
}
