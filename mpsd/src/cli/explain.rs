//! `mpsctl explain`: explains a CUDA error, or the lines of a log.

use super::terminal::{width, wrap};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, Refusal, Undetermined};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Longest part of a log that is read, bytes.
const LOG_BYTES: u64 = 64 << 20;
/// Longest part of a line that is searched, bytes; and shown, characters.
const LINE_BYTES: usize = 4096;
const SHOWN: usize = 160;

/// One thing that goes wrong under MPS.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// A short name, as a heading.
    pub name: String,
    /// Numbers of CUDA errors that mean it.
    #[serde(default)]
    pub codes: Vec<u32>,
    #[serde(skip_serializing)]
    words: Vec<String>,
    /// Why it happens.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// The section of `docs/facts` that has it.
    pub source: String,
}

/// The table of `explain.toml`.
pub static TROUBLES: LazyLock<Vec<Trouble>> = LazyLock::new(|| {
    #[derive(Default, Deserialize)]
    struct Table {
        trouble: Vec<Trouble>,
    }
    let table: Table = toml::from_str(include_str!("explain.toml")).unwrap_or_default();
    table.trouble
});

/// A trouble, and where a log has it.
#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    trouble: &'static Trouble,
    /// The log's first line about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<String>,
    /// Further lines about it.
    more_lines: usize,
}

impl Explained {
    fn of(trouble: &'static Trouble) -> Self {
        Self {
            trouble,
            line: None,
            more_lines: 0,
        }
    }
}

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
    pub fn run(&self, json: bool) -> Result<String, Failure> {
        let found = self.find()?;
        Ok(match json {
            true => format!("{}\n", json!({"troubles": found})),
            false if found.is_empty() => "nothing in it is known here\n".to_owned(),
            false => found.iter().map(paragraph).collect(),
        })
    }

    fn find(&self) -> Result<Vec<Explained>, Failure> {
        let Some(what) = &self.what else {
            return Ok(TROUBLES.iter().map(Explained::of).collect());
        };
        let word = what.to_string_lossy();
        if let Some(trouble) = named(&word) {
            return Ok(vec![Explained::of(trouble)]);
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

fn named(word: &str) -> Option<&'static Trouble> {
    if let Ok(code) = word.parse::<u32>() {
        return TROUBLES.iter().find(|trouble| trouble.codes.contains(&code));
    }
    let word = word.to_ascii_lowercase();
    let is_named =
        |trouble: &&Trouble| trouble.words.contains(&word) || trouble.name.eq_ignore_ascii_case(&word);
    TROUBLES.iter().find(is_named)
}

fn unknown(word: &str) -> Refusal {
    let codes = TROUBLES.iter().flat_map(|trouble| &trouble.codes);
    let codes: Vec<String> = codes.map(ToString::to_string).collect();
    Refusal::new(
        format!("'{}'", one_line(word, SHOWN)),
        "neither an error that is known here nor a file",
        format!("{}; the name of such an error; a file; '-'", codes.join(", ")),
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

fn read(from: impl Read) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut from = BufReader::new(from.take(LOG_BYTES));
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        line.truncate(LINE_BYTES);
        let text = String::from_utf8_lossy(&line);
        if of_line(&text).is_some() {
            lines.push(text.trim_end().to_owned());
        }
        line.clear();
    }
    Ok(lines)
}

fn of_line(line: &str) -> Option<&'static Trouble> {
    let lower = line.to_ascii_lowercase();
    let says = |trouble: &&Trouble| trouble.words.iter().any(|word| has_word(&lower, word));
    TROUBLES.iter().find(says)
}

/// Whether `word` occurs by itself, not inside another word (`FAULT` in `default`).
fn has_word(line: &str, word: &str) -> bool {
    let apart = |c: Option<char>| !c.is_some_and(|c| c.is_ascii_alphanumeric());
    line.match_indices(word)
        .any(|(at, _)| apart(line[..at].chars().next_back()) && apart(line[at + word.len()..].chars().next()))
}

fn of_log(lines: &[String]) -> Vec<Explained> {
    let of = |trouble: &'static Trouble| {
        let is_its = |line: &&String| of_line(line).is_some_and(|found| std::ptr::eq(found, trouble));
        let mut all = lines.iter().filter(is_its);
        Some(Explained {
            line: Some(one_line(all.next()?, SHOWN)),
            more_lines: all.count(),
            trouble,
        })
    };
    TROUBLES.iter().filter_map(of).collect()
}

fn paragraph(found: &Explained) -> String {
    let trouble = found.trouble;
    let codes = trouble.codes.iter().map(|code| format!("CUDA error {code}"));
    let codes = match codes.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        codes => format!(" ({codes})"),
    };
    let line = found.line.as_ref().map(|line| match found.more_lines {
        0 => format!("  line:   {line}\n"),
        more => format!("  line:   {line} (and {more} more)\n"),
    });
    let line = line.unwrap_or_default();
    let width = width();
    let part = |what: &str, text: &str| wrap(&format!("  {what:<8}{text}"), 10, width);
    let cause = part("cause:", &trouble.cause);
    let remedy = part("remedy:", &trouble.remedy);
    let source = part("source:", &format!("docs/facts/{}", trouble.source));
    format!("{}{codes}\n{line}{cause}\n{remedy}\n{source}\n", trouble.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVIDIA's programs wrote.
    const TRANSCRIPT: &str = include_str!("../../../docs/facts/mps-580-transcript.txt");

    fn explained(what: &str) -> Result<String, Failure> {
        let what = Some(what.into());
        Explain { what }.run(false)
    }

    #[test]
    fn every_error_of_mps_is_known_by_number_and_by_both_names() {
        for (code, runtime, driver) in [
            (46, "DevicesUnavailable", "DEVICE_UNAVAILABLE"),
            (100, "NoDevice", "NO_DEVICE"),
            (805, "MpsConnectionFailed", "MPS_CONNECTION_FAILED"),
            (806, "MpsRpcFailure", "MPS_RPC_FAILURE"),
            (807, "MpsServerNotReady", "MPS_SERVER_NOT_READY"),
            (808, "MpsMaxClientsReached", "MPS_MAX_CLIENTS_REACHED"),
            (809, "MpsMaxConnectionsReached", "MPS_MAX_CONNECTIONS_REACHED"),
            (810, "MpsClientTerminated", "MPS_CLIENT_TERMINATED"),
        ] {
            let text = explained(&code.to_string()).unwrap();
            assert!(text.contains(&format!("CUDA error {code}")), "{text}");
            let names = [format!("cudaError{runtime}"), format!("CUDA_ERROR_{driver}")];
            assert_eq!(names.map(|name| explained(&name).unwrap()), [text.clone(), text]);
        }
        let refused = explained("811").unwrap_err().to_string();
        assert!(refused.contains("nor a file; allowed: 46, 100, "), "{refused}");
    }

    #[test]
    fn every_source_is_a_section_of_the_facts() {
        for row in TROUBLES.iter() {
            let (file, section) = row.source.split_once('#').unwrap();
            let path = format!("{}/../docs/facts/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let anchor = |title: &str| title.to_lowercase().replace([',', '\'', '.'], "");
            let mut titles = text.lines().filter_map(|line| line.strip_prefix("## "));
            let is_there = titles.any(|title| anchor(title).replace(' ', "-") == section);
            assert!(is_there, "{row:?}");
            let lower = |word: &String| *word == word.to_ascii_lowercase();
            assert!(row.words.iter().all(lower), "{}", row.name);
        }
    }

    #[test]
    fn the_vendors_own_lines_are_explained_and_its_healthy_ones_are_not() {
        let lines = read(TRANSCRIPT.as_bytes()).unwrap();
        let text: String = of_log(&lines).iter().map(paragraph).collect();
        for name in [
            "out of memory under a limit (CUDA error 2)\n",
            "the server died (CUDA error 806)\n",
            "server not ready (CUDA error 807)\n",
            "client ended by terminate_client (CUDA error 810)\n",
            "no daemon\n",
            "a second daemon\n",
            "  line:   CLIENT spin error 806 cudaErrorMpsRpcFailure (and ",
        ] {
            assert!(text.contains(name), "{name} is not in {text}");
        }
        // Nothing fatal was provoked.
        assert!(!text.contains("a fatal GPU error"), "{text}");
        let healthy = |line: &&str| line.contains("set_default_") || line.contains("NEW SERVER");
        for line in TRANSCRIPT.lines().filter(healthy) {
            assert!(of_line(line).is_none(), "{line}");
        }
    }

    #[test]
    fn lines_of_logs_and_programs_are_found_and_made_fit_for_a_terminal() {
        const LINES: &str = "\
valid credentials = [x Control 1] User did not send valid credentials
a daemon of another user = [x Control 1] Failed to start server using uid 1002
GPU busy = CUDA error: all CUDA-capable devices are busy or unavailable
a fatal GPU error = [x Server 5] Client 8349 caused a fatal error on its device
a fatal GPU error = [x Control 5] Server status: FAULT
NCCL: several ranks on one GPU = Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
NCCL: several ranks on one GPU = NCCL WARN Multiple Ranks are using the same GPU/Partition.
out of memory under a limit = CUDA out of memory. Tried to allocate
Nsight Compute = ==PROF== Connected to process 4711 (/home/alice/simulate)
nothing = get_default_client_priority
nothing = status 806 of 900 done";
        for (name, line) in LINES.lines().map(|line| line.split_once(" = ").unwrap()) {
            let found = of_line(line).map_or("nothing", |trouble| &trouble.name);
            assert_eq!(found, name, "{line}");
        }
        let found = of_log(&["\x1b[2J Duplicate GPU detected".to_owned()]);
        assert!(paragraph(&found[0]).contains("?[2J Duplicate"), "{found:?}");
        assert!(of_log(&[]).is_empty());
        let long = format!("{}\nDuplicate GPU detected\n", "x".repeat(100_000));
        assert_eq!(read(long.as_bytes()).unwrap(), ["Duplicate GPU detected"]);
    }
}
