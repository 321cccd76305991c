//! `mpsctl explain`: explains a CUDA error, or the lines of a log.

pub mod table;

use super::terminal::{width, wrap};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, Refusal, Undetermined};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use table::{ROWS, Row};

/// Longest part of a log that is read, bytes.
const MOST: u64 = 64 << 20;
/// Longest part of a line that is searched, bytes; and shown, characters.
const LINE: usize = 4096;
const SHOWN: usize = 160;

/// `mpsctl explain`.
#[derive(Debug, Clone, clap::Args)]
pub struct Explain {
    /// A CUDA error, by its number (806) or its name (cudaErrorMpsRpcFailure); the file of a log; or '-' for standard input. Without it
    /// all that is known
    #[arg(value_name = "CODE|LOGFILE|-")]
    pub what: Option<PathBuf>,
}

impl Explain {
    /// The text to print.
    ///
    /// # Errors
    /// It is neither known nor a file (refusal), or the file cannot be read (undetermined).
    pub fn run(&self) -> Result<String, Failure> {
        let Some(what) = &self.what else {
            return Ok(ROWS.iter().map(|row| paragraph(row, "")).collect());
        };
        let word = what.to_string_lossy();
        if let Some(row) = named(&word) {
            return Ok(paragraph(row, ""));
        }
        let read = match word.as_ref() {
            "-" => read(io::stdin()),
            _ if !what.exists() => return Err(unknown(&word).into()),
            _ => open(what).and_then(read),
        };
        let log =
            read.map_err(|e| Undetermined::new(format!("'{}'", one_line(&word, SHOWN)), e.to_string()))?;
        Ok(of_log(&log))
    }
}

/// The row of a number or a name.
fn named(word: &str) -> Option<&'static Row> {
    if let Ok(code) = word.parse::<u32>() {
        return ROWS.iter().find(|row| row.codes.contains(&code));
    }
    let word = word.to_ascii_lowercase();
    ROWS.iter()
        .find(|row| row.words.contains(&word.as_str()) || row.name.eq_ignore_ascii_case(&word))
}

fn unknown(word: &str) -> Refusal {
    let codes = ROWS.iter().flat_map(|row| row.codes).map(ToString::to_string);
    let allowed = format!(
        "{}; the name of such an error; a file; '-'",
        codes.collect::<Vec<_>>().join(", ")
    );
    Refusal::new(
        format!("'{}'", one_line(word, SHOWN)),
        "neither an error that is known here nor a file",
        allowed,
    )
}

/// Opens a regular file: a FIFO or a terminal might never end.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(
            "it is no regular file; give what it says on standard input: mpsctl explain -",
        )),
    }
}

/// The lines that tell something, each up to [`LINE`].
fn read(from: impl Read) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut from = BufReader::new(from.take(MOST));
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        line.truncate(LINE);
        let text = String::from_utf8_lossy(&line);
        if of_line(&text).is_some() {
            lines.push(text.trim_end().to_owned());
        }
        line.clear();
    }
    Ok(lines)
}

/// The row of a log's line, by its words.
fn of_line(line: &str) -> Option<&'static Row> {
    let lower = line.to_ascii_lowercase();
    let says = |row: &&Row| row.words.iter().any(|word| has_word(&lower, word));
    ROWS.iter().find(says)
}

/// Whether `word` occurs by itself, not inside another word (`FAULT` in `default`).
fn has_word(line: &str, word: &str) -> bool {
    let apart = |c: Option<char>| !c.is_some_and(|c| c.is_ascii_alphanumeric());
    line.match_indices(word)
        .any(|(at, _)| apart(line[..at].chars().next_back()) && apart(line[at + word.len()..].chars().next()))
}

/// One paragraph for each row, with its first line and the number of the others.
fn of_log(lines: &[String]) -> String {
    let mut text = String::new();
    for row in ROWS {
        let of_row = |line: &&String| of_line(line).is_some_and(|found| std::ptr::eq(found, row));
        let mut all = lines.iter().filter(of_row);
        if let Some(first) = all.next() {
            let more = match all.count() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            text += &paragraph(row, &format!("  line:   {}{more}\n", one_line(first, SHOWN)));
        }
    }
    match text.is_empty() {
        true => "nothing in it is known here\n".to_owned(),
        false => text,
    }
}

fn paragraph(row: &Row, line: &str) -> String {
    let codes = row.codes.iter().map(|code| format!("CUDA error {code}"));
    let codes = match codes.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        codes => format!(" ({codes})"),
    };
    let Row {
        name,
        cause,
        remedy,
        source,
        ..
    } = row;
    let width = width();
    let part = |what: &str, text: &str| wrap(&format!("  {what:<8}{text}"), 10, width);
    let source = part("source:", &format!("docs/facts/{source}"));
    let (cause, remedy) = (part("cause:", cause), part("remedy:", remedy));
    format!("{name}{codes}\n{line}{cause}\n{remedy}\n{source}\n")
}

#[cfg(test)]
mod tests;
