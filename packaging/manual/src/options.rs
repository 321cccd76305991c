//! What a job may ask for, out of the table of the request's options: the flags of spank_mps(8), the account tokens of
//! mpsctl(1), the table in the quick start.

use anyhow::{Context as _, Result};
use mpsd_core::request::{Key, Row};

use crate::settings::escape;

/// Around the table in the quick start.
const BEGIN: &str =
    "<!-- What may be asked for: written by `cargo xtask texts` from mpsd/core/src/request/options.rs -->\n";
const END: &str = "<!-- end -->\n";

fn rows() -> impl Iterator<Item = &'static Row> {
    Key::ALL.into_iter().map(Key::row)
}

/// Slurm's flags.
pub fn flags() -> String {
    let flag = |row: &Row| {
        let (open, close) = if row.bare.is_some() { ("[", "]") } else { ("", "") };
        let name = escape(&row.flag());
        format!(
            ".TP\n.B \\-\\-{name}\\fR{open}=\\fI{}\\fR{close}\n{}",
            row.value,
            meaning(row)
        )
    };
    rows().map(flag).collect()
}

/// The account tokens, with the word in the resource of OpenPBS.
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
    rows().map(token).collect()
}

/// The help line and what the manual adds, as one paragraph.
fn meaning(row: &Row) -> String {
    let mut help = row.help.to_owned();
    help[..1].make_ascii_uppercase();
    let mut text = format!("{help}.\n");
    if !row.more.is_empty() {
        text += &format!("{}\n", row.more);
    }
    bold(&escape(&text))
}

/// What stands between backquotes in bold.
fn bold(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let part = |(n, part): (usize, &str)| {
        if n % 2 == 1 {
            format!("\\fB{part}\\fR")
        } else {
            part.to_owned()
        }
    };
    parts.map(part).collect()
}

/// `page` with the table as the options say.
///
/// # Errors
/// It has no place for the table.
pub fn in_page(page: &str) -> Result<String> {
    let parts = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.context("docs/quick-start.md has no place for the table of options")?;
    let mut table = "| Slurm | PBS account token | value |\n|---|---|---|\n".to_owned();
    for row in rows() {
        let (flag, token, value) = (row.flag(), row.token(), row.value);
        let given = if row.bare.is_some() {
            format!("[={value}]")
        } else {
            format!("={value}")
        };
        table += &format!("| `--{flag}{given}` | `{token}={value}` | {} |\n", row.help);
    }
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_becomes_a_flag_and_a_token() {
        assert!(flags().starts_with(".TP\n.B \\-\\-mps\\fR[=\\fIMODE\\fR]\nGive the job its own"));
        assert!(flags().contains("`") == tokens().contains("`") && !flags().contains('`'));
        let threads = ".B MPS_THREADS\\fR=\\fIP\\fR, \\fBmps=...+threads=\\fIP\nActive thread percentage";
        assert!(tokens().contains(threads), "{}", tokens());
        assert!(flags().contains("\\fBbelow\\-normal\\fR.\n"));
    }

    #[test]
    fn the_quick_start_has_the_options_of_the_table() {
        let page = include_str!("../../../docs/quick-start.md");
        assert!(in_page(page).unwrap() == page, "run 'cargo xtask texts'");
    }
}
