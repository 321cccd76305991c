//! The man pages: one file each, generated parts between prose.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;

use crate::programs::{self, Program};
use crate::{settings, tables};

const SPANK: &str = include_str!("../../man/spank_mps.8");
const SETTINGS: &str = include_str!("../../man/mpsd.toml.5");
const SHIPPED: &str = include_str!("../../../etc/mpsd/mpsd.toml");
/// Lines of the prose that generated text replaces.
const KEYS: &str = ".\\\" KEYS\n";
const FLAGS: &str = ".\\\" FLAGS\n";
const TOKENS: &str = ".\\\" TOKENS\n";
const ERRORS: &str = ".\\\" ERRORS\n";

/// Every page by its file's name.
pub fn all() -> Result<BTreeMap<String, String>> {
    let mut pages = BTreeMap::new();
    for program in programs::all() {
        let file = format!("{}.{}", program.name, program.section);
        let mut prose = program.prose.to_owned();
        if program.name == "mpsctl" {
            prose = filled(&prose, TOKENS, &tables::tokens())?;
            prose = filled(&prose, ERRORS, &tables::errors())?;
        }
        pages.insert(file, page(&program, &prose)?);
    }
    let spank = filled(SPANK, FLAGS, &tables::flags())?;
    pages.insert("spank_mps.8".to_owned(), title("spank_mps", "8") + &spank);
    let settings = filled(SETTINGS, KEYS, &settings::to_roff(SHIPPED)?)?;
    let settings = title("mpsd.toml", "5") + &settings;
    pages.insert("mpsd.toml.5".to_owned(), settings);
    Ok(pages)
}

/// `prose` with `text` in the place of `line`.
fn filled(prose: &str, line: &str, text: &str) -> Result<String> {
    let parts = prose.split_once(line);
    let (before, after) = parts.with_context(|| format!("no line '{}'", line.trim_end()))?;
    Ok(format!("{before}{text}{after}"))
}

/// No date: the same sources give the same bytes on any day. Packages write that of their commit.
fn title(name: &str, section: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH \"{name}\" \"{section}\" \"\" \"mpsd {version}\" \"mpsd\"\n")
}

fn page(program: &Program, prose: &str) -> Result<String> {
    let mut text = title(program.name, program.section).into_bytes();
    let man = Man::new(program.command.clone());
    man.render_name_section(&mut text)?;
    // Only mps-prologue calls mpsd. Its page describes the whole product instead.
    let by_hand = program.name != "mpsd";
    if by_hand {
        man.render_synopsis_section(&mut text)?;
    }
    man.render_description_section(&mut text)?;
    let commands = programs::with_subcommands(&program.command);
    if by_hand {
        man.render_options_section(&mut text)?;
    }
    if commands.len() > 1 {
        text.extend(b".SH COMMANDS\n");
        for (name, command) in &commands[1..] {
            verb(name, command, &mut text)?;
        }
    }
    let mut text = String::from_utf8(text).context("clap_mangen wrote no text")?;
    text.push_str(prose);
    Ok(text)
}

/// One verb: a subsection with its usage, description and own options. The options of every verb
/// are at the page's beginning.
fn verb(name: &str, command: &Command, text: &mut Vec<u8>) -> Result<()> {
    text.extend(format!(".SS \"{name}\"\n").bytes());
    let named = command.clone().bin_name(name.to_owned());
    let mut named = named.display_name(name.to_owned());
    named.build();
    let usage = named.render_usage().to_string();
    let usage = usage
        .lines()
        .map(|line| line.trim_start_matches("Usage:").trim());
    let usage = usage.collect::<Vec<_>>().join("\n.br\n");
    let usage = usage.replace('-', "\\-");
    text.extend(format!("{usage}\n").bytes());
    for common in ["config", "help"] {
        if named.get_arguments().any(|arg| arg.get_id() == common) {
            named = named.mut_arg(common, |arg| arg.hide(true));
        }
    }
    let has_options = named.get_arguments().any(|arg| !arg.is_hide_set());
    let man = Man::new(named);
    let mut body = Vec::new();
    man.render_description_section(&mut body)?;
    if has_options {
        man.render_options_section(&mut body)?;
    }
    let body = String::from_utf8(body).context("clap_mangen wrote no text")?;
    // The verb's sections become paragraphs.
    for line in body.lines() {
        let is_title = line.starts_with(".SH ");
        text.extend(if is_title { ".PP" } else { line }.bytes());
        text.push(b'\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_key_and_error_is_on_its_pages() {
        let pages = all().unwrap();
        for row in mpsd_core::request::Key::ALL.map(mpsd_core::request::Key::row) {
            let flag = format!("\n.B \\-\\-{}\\fR", row.flag().replace('-', "\\-"));
            assert!(pages["spank_mps.8"].contains(&flag), "{flag}");
            let token = format!("\n.B {}\\fR", row.token());
            assert!(pages["mpsctl.1"].contains(&token), "{token}");
        }
        // An example follows. Its keys have no heading.
        let file = include_str!("../../../etc/mpsd/mpsd.toml");
        let (before, _) = file.split_once("#[[node]]").unwrap();
        let lines = before.lines().filter_map(|line| line.strip_prefix('#'));
        let keys = lines.filter_map(|line| Some(line.split_once(" = ")?.0));
        let keys = keys.filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase()));
        let keys: Vec<&str> = keys.collect();
        assert!(keys.len() > 25, "{keys:?}");
        for key in keys {
            let heading = format!(".B {} ", key.replace('-', "\\-"));
            assert!(pages["mpsd.toml.5"].contains(&heading), "{key}");
        }
        for row in mpsd::cli::troubles::TROUBLES.iter() {
            let heading = format!(".B {}\nCause: ", settings::escape(&tables::title(row)));
            assert!(pages["mpsctl.1"].contains(&heading), "{}", row.name);
        }
    }

    #[test]
    fn every_page_has_a_title_a_name_and_no_control_line_that_roff_would_drop() {
        let known =
            r#".TH .SH .SS .TP .PP .EX .EE .br .RS .RE .ie .el .IP .BR .RB .B .I .IR .nf .fi .\""#;
        let known: Vec<&str> = known.split(' ').collect();
        let pages = all().unwrap();
        assert_eq!(pages.len(), 7);
        for (file, text) in pages {
            assert!(text.starts_with(".TH \""), "{file}");
            assert!(text.contains("\n.SH NAME\n"), "{file}");
            for line in text.lines() {
                let word = line.split(' ').next().unwrap_or_default();
                let is_known = !word.starts_with('.') || known.contains(&word);
                assert!(is_known && !word.starts_with('\''), "{file}: '{line}'");
            }
        }
    }
}
