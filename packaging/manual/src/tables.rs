//! The tables of the request's options, of programs and of `mpsctl explain`, as roff for the man pages and as Markdown for the guide.

use anyhow::{Context as _, Result};
use mpsd::cli::explain::{TROUBLES, Trouble};
use mpsd::job::advice::RULES;
use mpsd_core::programs::{KnownProgram, PROGRAMS};
use mpsd_core::request::{Key, Row};
use serde_json::Value;

use crate::settings::escape;

/// What stands before each table of the guide, and behind it.
const OPTIONS: &str =
    "<!-- What may be asked for: written by `cargo xtask texts` from mpsd/core/src/request/options.rs -->\n";
const ERRORS: &str = "<!-- Errors: written by `cargo xtask texts` from mpsd/src/cli/explain.toml -->\n";
const ADVICE: &str = "<!-- Advice: written by `cargo xtask texts` from mpsd/src/job/advice.rs -->\n";
const ALL_PROGRAMS: &str =
    "<!-- Programs: written by `cargo xtask texts` from mpsd/core/src/programs.toml -->\n";
const FIGURES: &str =
    "<!-- Figures: written by `cargo xtask texts` from the run that programs.toml names -->\n";
const END: &str = "<!-- end -->\n";
/// Results of runs on real GPUs, which programs.toml names.
pub const RESULTS: &str = "tests/hardware/results";

/// `page` with `text` between the line `begin` and the next end.
fn filled(page: &str, begin: &str, text: &str) -> Result<String> {
    let parts = page
        .split_once(begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.with_context(|| format!("no place for a table: '{}'", begin.trim_end()))?;
    Ok(format!("{before}{begin}{text}{END}{after}"))
}

fn options() -> impl Iterator<Item = &'static Row> {
    Key::ALL.into_iter().map(Key::row)
}

/// Slurm's flags.
pub fn flags() -> String {
    let flag = |row: &Row| {
        let (open, close) = if row.bare.is_some() { ("[", "]") } else { ("", "") };
        let (name, value) = (escape(&row.flag()), row.value);
        format!(
            ".TP\n.B \\-\\-{name}\\fR{open}=\\fI{value}\\fR{close}\n{}",
            meaning(row)
        )
    };
    options().map(flag).collect()
}

/// The tokens of the account string, with the word in the resource of OpenPBS.
pub fn tokens() -> String {
    let token = |row: &Row| {
        let word = match row.name {
            "" => "mps=".to_owned(),
            name => format!("mps=...+{name}="),
        };
        let (token, value) = (row.token(), row.value);
        format!(
            ".TP\n.B {token}\\fR=\\fI{value}\\fR, \\fB{word}\\fI{value}\n{}",
            meaning(row)
        )
    };
    options().map(token).collect()
}

/// The help line and what the manual adds, as one paragraph, with what stands between backquotes in bold.
fn meaning(row: &Row) -> String {
    let mut text = format!("{}.\n", row.help);
    text[..1].make_ascii_uppercase();
    if !row.more.is_empty() {
        text += &format!("{}\n", row.more);
    }
    let text = escape(&text);
    let parts = text.split('`').enumerate();
    let bold = |(n, part)| {
        if n % 2 == 1 {
            format!("\\fB{part}\\fR")
        } else {
            String::from(part)
        }
    };
    parts.map(bold).collect()
}

/// The quick start with the table of options in it.
pub fn in_quick_start(page: &str) -> Result<String> {
    let mut table = "| Slurm | PBS, in the account string | value |\n|---|---|---|\n".to_owned();
    for row in options() {
        let (flag, token, value) = (row.flag(), row.token(), row.value);
        let (open, close) = if row.bare.is_some() { ("[", "]") } else { ("", "") };
        table += &format!(
            "| `--{flag}{open}={value}{close}` | `{token}={value}` | {} |\n",
            row.help
        );
    }
    filled(page, OPTIONS, &table)
}

/// The errors of CUDA and MPS, a paragraph each.
pub fn errors() -> String {
    let paragraph = |row: &Trouble| {
        let (title, cause, remedy) = (escape(&title(row)), escape(&row.cause), escape(&row.remedy));
        format!(".TP\n.B {title}\nCause: {cause}.\nRemedy: {remedy}.\n")
    };
    TROUBLES.iter().map(paragraph).collect()
}

/// The guide's page of troubleshooting with the table of errors in it.
pub fn in_troubleshooting(page: &str) -> Result<String> {
    let line = |row: &Trouble| {
        let [title, cause, remedy] =
            [&*title(row), &row.cause, &row.remedy].map(|cell| cell.replace('|', "\\|"));
        format!("| [{title}](facts/{}) | {cause} | {remedy} |\n", row.source)
    };
    let lines: String = TROUBLES.iter().map(line).collect();
    filled(
        page,
        ERRORS,
        &format!("| what | cause | remedy |\n|---|---|---|\n{lines}"),
    )
}

/// The guide's page of reports with the rules of advice in it.
pub fn in_report(page: &str) -> Result<String> {
    let rules = RULES.iter();
    let lines: String = rules
        .map(|rule| format!("| `{}` | {} | {} |\n", rule.name, rule.when, rule.why))
        .collect();
    filled(
        page,
        ADVICE,
        &format!("| rule | when | why |\n|---|---|---|\n{lines}"),
    )
}

/// The page of programs with what is known of each, and the figures of the run `result`, if the table names one.
pub fn in_programs(page: &str, result: Option<&str>) -> Result<String> {
    let line = |row: &KnownProgram| {
        let title = format!("{} {}", row.name, row.version);
        let ran = match &row.result {
            Some(result) => format!("{}: `{RESULTS}/{result}`", row.ran),
            None if row.ran.is_empty() => "read".to_owned(),
            None => row.ran.clone(),
        };
        let [needs, ours] = [&row.needs, &row.ours].map(|text| text.replace('|', "\\|"));
        format!(
            "| [{}](facts/{}) | {}: {} | {needs} | {ours} | {ran} |\n",
            title.trim_end(),
            row.source,
            row.under,
            row.seen
        )
    };
    let lines: String = PROGRAMS.program.iter().map(line).collect();
    let head = "| program | under MPS | needs | what we do | ran |\n|---|---|---|---|---|\n";
    let page = filled(page, ALL_PROGRAMS, &format!("{head}{lines}"))?;
    let figures = match (result, &PROGRAMS.result) {
        (Some(text), Some(name)) => figures(text, name)?,
        _ => "The run with all figures has not been made yet.\n".to_owned(),
    };
    filled(&page, FIGURES, &figures)
}

/// A line for each program of the run: its rate under MPS, by that without.
fn figures(result: &str, name: &str) -> Result<String> {
    let result: Value = serde_json::from_str(result).with_context(|| format!("'{name}'"))?;
    let [gpu, driver] = ["gpu", "driver"].map(|key| result[key].as_str().unwrap_or_default());
    let mut text = format!(
        "{gpu}, driver {driver}, medians of short windows in turn (`{RESULTS}/{name}`), all ranks together:\n\n\
         | program | version | one rank, `--mps` | four ranks, `--mps` | four, `--mps-threads=auto` | answers |\n|---|---|---|---|---|---|\n"
    );
    for row in result["programs"].as_array().into_iter().flatten() {
        let part = |key: &str| {
            let part = row["of_without"][key].as_f64();
            part.map_or_else(String::new, |part| format!("{part:.2}"))
        };
        let [title, version] = ["name", "version"].map(|key| row[key].as_str().unwrap_or_default());
        let answers = match (&row["same"]["mps"], &row["same"]["auto"]) {
            (Value::Bool(true), Value::Bool(true)) => "the same",
            (Value::Null, _) | (_, Value::Null) => "not run",
            _ => "differ",
        };
        let [one, four, auto] = ["one_mps", "four_mps", "four_auto"].map(part);
        text += &format!("| {title} | {version} | {one} | {four} | {auto} | {answers} |\n");
    }
    Ok(text)
}

/// Its name, with CUDA's numbers.
pub fn title(row: &Trouble) -> String {
    let codes: Vec<String> = row.codes.iter().map(ToString::to_string).collect();
    match codes.is_empty() {
        true => row.name.clone(),
        false => format!("{} ({})", row.name, codes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_becomes_a_line_for_each_program() {
        let run = r#"{"gpu": "G", "driver": "1", "programs": [
            {"name": "a", "version": "a 1", "of_without": {"one_mps": 0.97, "four_mps": 2.114, "four_auto": null},
             "same": {"mps": true, "auto": true}},
            {"name": "b", "not_run": "the time was over"},
            {"name": "c", "version": "c 2", "of_without": {}, "same": {"mps": false, "auto": false}}]}"#;
        let text = figures(run, "r.json").unwrap();
        for line in [
            "G, driver 1, ",
            "| a | a 1 | 0.97 | 2.11 |  | the same |\n",
            "| b |  |  |  |  | not run |\n",
            "| c | c 2 |  |  |  | differ |\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
