//! The tables of the request's options and of `mpsctl explain`, as roff for the man pages and as Markdown for the guide.

use anyhow::{Context as _, Result};
use mpsd::cli::explain::{TROUBLES, Trouble};
use mpsd::job::advice::RULES;
use mpsd_core::request::{Key, Row};

use crate::settings::escape;

/// What stands before each table of the guide, and behind it.
const OPTIONS: &str =
    "<!-- What may be asked for: written by `cargo xtask texts` from mpsd/core/src/request/options.rs -->\n";
const ERRORS: &str = "<!-- Errors: written by `cargo xtask texts` from mpsd/src/cli/explain.toml -->\n";
const ADVICE: &str = "<!-- Advice: written by `cargo xtask texts` from mpsd/src/job/advice.rs -->\n";
const END: &str = "<!-- end -->\n";

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

/// Its name, with CUDA's numbers.
pub fn title(row: &Trouble) -> String {
    let codes: Vec<String> = row.codes.iter().map(ToString::to_string).collect();
    match codes.is_empty() {
        true => row.name.clone(),
        false => format!("{} ({})", row.name, codes.join(", ")),
    }
}
