//! The tables of the request's options, of programs and of `mpsctl explain`, as roff for the man
//! pages and as Markdown for the guide.

use std::cmp::Ordering;

use anyhow::{Context as _, Result};
use mpsd::cli::troubles::{TROUBLES, Trouble};
use mpsd_core::advice::RULES;
use mpsd_core::programs::{KnownProgram, PROGRAMS};
use mpsd_core::request::{Key, Row};
use mpsd_core::text::list;
use serde_json::Value;

use crate::settings::escape;

/// The lines before and after each table of the guide.
const OPTIONS: &str = "<!-- What may be asked for: written by `cargo xtask texts` from mpsd/core/src/request/options.rs -->\n";
const ERRORS: &str =
    "<!-- Errors: written by `cargo xtask texts` from mpsd/src/cli/troubles.toml -->\n";
const ADVICE: &str =
    "<!-- Advice: written by `cargo xtask texts` from mpsd/core/src/advice.rs -->\n";
const ALL_PROGRAMS: &str =
    "<!-- Programs: written by `cargo xtask texts` from mpsd/core/src/programs.toml -->\n";
const FIGURES: &str =
    "<!-- Figures: written by `cargo xtask texts` from the runs that programs.toml names -->\n";
const END: &str = "<!-- end -->\n";
/// Results of runs on real GPUs, which programs.toml names.
pub const RESULTS: &str = "tests/hardware/results";

/// `page` with `text` between the line `begin` and the next end.
fn filled(page: &str, begin: &str, text: &str) -> Result<String> {
    let parts = page.split_once(begin);
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let none = || format!("no place for a table: '{}'", begin.trim_end());
    let (before, after) = parts.with_context(none)?;
    Ok(format!("{before}{begin}{text}{END}{after}"))
}

fn options() -> impl Iterator<Item = &'static Row> {
    Key::ALL.into_iter().map(Key::row)
}

/// Around a value that may be left out.
fn brackets(row: &Row) -> (&'static str, &'static str) {
    row.bare.map_or(("", ""), |_| ("[", "]"))
}

/// Slurm's flags.
pub fn flags() -> String {
    let flag = |row: &Row| {
        let (open, close) = brackets(row);
        let (name, value, meaning) = (escape(&row.flag()), row.value, meaning(row));
        format!(".TP\n.B \\-\\-{name}\\fR{open}=\\fI{value}\\fR{close}\n{meaning}")
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
        let (token, value, meaning) = (row.token(), row.value, meaning(row));
        format!(".TP\n.B {token}\\fR=\\fI{value}\\fR, \\fB{word}\\fI{value}\n{meaning}")
    };
    options().map(token).collect()
}

/// The help line and the manual's addition, as one paragraph. Text between backquotes becomes bold.
fn meaning(row: &Row) -> String {
    let mut text = format!("{}.\n", sentence(row.help));
    if !row.more.is_empty() {
        text += &format!("{}\n", row.more);
    }
    let text = escape(&text);
    let parts = text.split('`').enumerate();
    let bold = |(n, part)| match n % 2 {
        1 => format!("\\fB{part}\\fR"),
        _ => String::from(part),
    };
    parts.map(bold).collect()
}

/// The quick start with the table of options in it.
pub fn in_quick_start(page: &str) -> Result<String> {
    let mut table = "| Slurm | PBS, in the account string | value |\n|---|---|---|\n".to_owned();
    for row in options() {
        let (flag, token, value, help) = (row.flag(), row.token(), row.value, row.help);
        let (open, close) = brackets(row);
        table += &format!("| `--{flag}{open}={value}{close}` | `{token}={value}` | {help} |\n");
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

/// The guide's page of troubleshooting with the errors in it, each below a heading, so that a search
/// leads to it.
pub fn in_troubleshooting(page: &str) -> Result<String> {
    let error = |row: &Trouble| {
        let (title, source) = (title(row), &row.source);
        format!(
            "\n### {title}\n\n{} ([source](facts/{source})).\n\n**Remedy:** {}.\n",
            sentence(&row.cause),
            row.remedy
        )
    };
    filled(page, ERRORS, &String::from_iter(TROUBLES.iter().map(error)))
}

fn sentence(text: &str) -> String {
    let mut text = text.to_owned();
    text[..1].make_ascii_uppercase();
    text
}

/// The guide's page of reports with the rules of advice in it.
pub fn in_report(page: &str) -> Result<String> {
    let rules = RULES.iter();
    let lines = rules.map(|rule| format!("| `{}` | {} | {} |\n", rule.name, rule.when, rule.why));
    let table = format!(
        "| rule | when | why |\n|---|---|---|\n{}",
        String::from_iter(lines)
    );
    filled(page, ADVICE, &table)
}

/// The page of programs with what is known of each, and the figures of the runs: name and text of
/// each.
pub fn in_programs(page: &str, runs: &[(&String, String)]) -> Result<String> {
    let line = |row: &KnownProgram| {
        let title = format!("{} {}", row.name, row.version);
        let ours = match row.ours.is_empty() {
            true => String::new(),
            false => format!("; we {}", row.ours),
        };
        let needs = format!("{}{ours}", row.needs).replace('|', "\\|");
        format!(
            "| [{}](facts/{}) | {}: {} | {needs} |\n",
            title.trim_end(),
            row.source,
            row.under,
            row.seen
        )
    };
    let programs = PROGRAMS.program.iter().filter(|row| !row.needs.is_empty());
    let lines: String = programs.map(line).collect();
    let head = "| program | under MPS | needs |\n|---|---|---|\n";
    let page = filled(page, ALL_PROGRAMS, &format!("{head}{lines}"))?;
    filled(&page, FIGURES, &figures(runs)?)
}

/// A line for each program that ran, with its rate under MPS divided by that without. The last run
/// that has it counts.
fn figures(runs: &[(&String, String)]) -> Result<String> {
    let mut text = String::new();
    let mut rows: Vec<Value> = Vec::new();
    for (name, run) in runs {
        let mut run: Value = serde_json::from_str(run).with_context(|| format!("'{name}'"))?;
        let own = run["programs"].as_array_mut().map(std::mem::take);
        let own = own.unwrap_or_default();
        let rounds = own.iter().map(|row| windows(row, "four", "without").len());
        let rounds = rounds.max();
        text += &format!(
            "- {}, driver {}: {} windows of {} s a figure, in turn (`{RESULTS}/{name}`)\n",
            run["gpu"].as_str().unwrap_or_default(),
            run["driver"].as_str().unwrap_or_default(),
            rounds.unwrap_or_default(),
            run["window_s"]
        );
        for row in own {
            match rows.iter_mut().find(|known| known["name"] == row["name"]) {
                Some(known) if has_run(&row) => *known = row,
                Some(_) => {}
                None => rows.push(row),
            }
        }
    }
    text += "\n| program | version | with four ranks | one rank, `--mps` | four, `--mps` | four, `--mps-threads=auto` |\n\
             |---|---|---|---|---|---|\n";
    let (ran, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| has_run(row));
    let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_owned();
    let mut differ = Vec::new();
    for row in ran {
        let version = row["version"].as_str().unwrap_or_default();
        let cells = [("one", "mps"), ("four", "mps"), ("four", "auto")].map(|(of, mode)| {
            let part = row["of_without"][format!("{of}_{mode}")].as_f64();
            let part = part.map_or_else(String::new, |part| format!("{part:.2}"));
            match compared(row, of, mode) {
                Some(Ordering::Less) => format!("**{part}**"),
                _ => part,
            }
        });
        let is_refused = row["answers"]["mps"][0].is_string();
        let fares = match compared(row, "four", "mps") {
            _ if is_refused => "refused",
            Some(Ordering::Less) => "loses",
            Some(Ordering::Greater) => "gains",
            _ => "works",
        };
        match (&row["same"]["mps"], &row["same"]["auto"]) {
            (Value::Bool(true), Value::Bool(true)) => {}
            (Value::Bool(true), _) => differ.push(format!("{} with `auto`", name(row))),
            _ if is_refused => {}
            _ => differ.push(name(row)),
        }
        let [one, four, auto] = cells;
        text += &format!(
            "| {} | {version} | {fares} | {one} | {four} | {auto} |\n",
            name(row)
        );
    }
    if !differ.is_empty() {
        text += &format!("\nOther answers: {}.\n", differ.join("; "));
    }
    let others: Vec<String> = others.into_iter().map(name).collect();
    if !others.is_empty() {
        text += &format!("\nNot measured: {}.\n", others.join("; "));
    }
    Ok(text)
}

/// Whether the program computed something without MPS. If not, its failures tell nothing of MPS.
fn has_run(row: &Value) -> bool {
    row["answers"]["without"][0].is_array()
}

fn windows(row: &Value, of: &str, mode: &str) -> Vec<f64> {
    let all = row[of]["per_second"][mode].as_array().into_iter().flatten();
    all.filter_map(Value::as_f64).collect()
}

/// How each window under MPS compares with each without; `None` if they overlap, so that the median
/// says little.
fn compared(row: &Value, of: &str, mode: &str) -> Option<Ordering> {
    let (under, without) = (windows(row, of, mode), windows(row, of, "without"));
    let mut pairs = under
        .iter()
        .flat_map(|a| without.iter().map(|b| a.total_cmp(b)));
    let first = pairs.next()?;
    pairs.all(|other| other == first).then_some(first)
}

/// Its name, with CUDA's numbers.
pub fn title(row: &Trouble) -> String {
    match &*list(&row.codes) {
        "" => row.name.clone(),
        codes => format!("{} ({codes})", row.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_line_of_the_last_run_that_has_it() {
        let program = |name: &str, mps: [f64; 2], same: &str| {
            format!(
                r#"{{"name": "{name}", "version": "{name} 1", "of_without": {{"four_mps": 2.114}}, "same": {same},
                 "answers": {{"without": [[1.0]], "mps": [[1.0]]}}, "four": {{"per_second": {{"without": [2, 3], "mps": {mps:?}}}}}}}"#
            )
        };
        let both = r#"{"mps": true, "auto": true}"#;
        let auto = r#"{"mps": true, "auto": false}"#;
        let first = [
            program("a", [4.0, 5.0], both),
            program("b", [1.0, 1.0], both),
            program("twice", [4.0, 5.0], both),
            program("kept", [4.0, 5.0], auto),
            r#"{"name": "c", "not_run": "the time was over"}"#.to_owned(),
        ];
        let second = [
            program("twice", [2.5, 5.0], both),
            r#"{"name": "kept", "not_run": "the time was over"}"#.to_owned(),
            r#"{"name": "d", "answers": {"without": ["no module"]}, "same": {"mps": true, "auto": true}}"#.to_owned(),
            r#"{"name": "e", "answers": {"without": [[1]], "mps": ["(811)"]}, "same": {"mps": false, "auto": false}}"#.to_owned(),
            program("f", [4.0, 5.0], r#"{"mps": false, "auto": true}"#),
        ];
        let run = |window: f64, programs: &[String]| {
            let programs = programs.join(",");
            let head = format!(r#""gpu": "G", "driver": "1", "window_s": {window}"#);
            format!(r#"{{{head}, "programs": [{programs}]}}"#)
        };
        let [one, two] = ["1.json", "2.json"].map(str::to_owned);
        let runs = [(&one, run(0.6, &first)), (&two, run(0.4, &second))];
        let text = figures(&runs).unwrap();
        for line in [
            "- G, driver 1: 2 windows of 0.6 s a figure, in turn (`tests/hardware/results/1.json`)\n",
            "- G, driver 1: 2 windows of 0.4 s a figure, in turn (`tests/hardware/results/2.json`)\n",
            "| a | a 1 | gains |  | 2.11 |  |\n",
            "| b | b 1 | loses |  | **2.11** |  |\n",
            "| twice | twice 1 | works |  | 2.11 |  |\n",
            "| kept | kept 1 | gains |  | 2.11 |  |\n",
            "| e |  | refused |  |  |  |\n",
            "\nOther answers: kept with `auto`; f.\n",
            "\nNot measured: c; d.\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert_eq!(text.matches("| twice |").count(), 1, "{text}");
    }
}
