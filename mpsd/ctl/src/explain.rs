//! `mpsctl explain`: explains a CUDA error, a program, or the lines of a log.

use super::terminal::{width, wrap};
use mpsd::cli::troubles::{TROUBLES, Trouble};
use mpsd_core::programs::{KnownProgram, PROGRAMS};
use mpsd_core::text::{list, nearest, one_line, or_meant};
use mpsd_core::{Failure, Refusal, Undetermined};
use nix::fcntl::OFlag;
use serde::Serialize;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Longest part of a log that is read, bytes.
const LOG_BYTES: u64 = 64 << 20;
/// Longest part of a line that is searched, bytes; and shown, characters.
const LINE_BYTES: usize = 4096;
const SHOWN: usize = 160;
const FACTS: &str = "/usr/share/doc/mpsd/facts";
/// How programs write the number of a CUDA error.
const BEFORE_CODE: [&str; 7] = [
    "cuda error",
    "cuda error:",
    "cuda error code",
    "cuda error code:",
    "cuda driver error",
    "cuda runtime error",
    "which got error",
];

#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    trouble: &'static Trouble,
    /// The log's first line about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<String>,
    more_lines: usize,
}

impl Explained {
    fn of(trouble: &'static Trouble, line: Option<String>) -> Self {
        Self {
            trouble,
            line,
            more_lines: 0,
        }
    }
}

#[derive(Debug, Serialize)]
struct Found {
    troubles: Vec<Explained>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<&'static KnownProgram>,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Explain {
    /// A CUDA error, by its number (806), its name (cudaErrorMpsRpcFailure) or what a program says;
    /// a program (jax); the file of a log; or '-' for standard input. What a log has first comes
    /// first. Without it all that is known
    #[arg(value_name = "CODE|TEXT|PROGRAM|LOGFILE|-")]
    pub what: Vec<OsString>,
}

impl Explain {
    /// The text to print. Fails if the argument is neither known nor a file (refusal), or the file
    /// cannot be read (undetermined).
    pub fn run(&self, json: bool) -> Result<String, Failure> {
        let found = self.find()?;
        if json {
            return Ok(format!("{}\n", json!(found)));
        }
        let mut text: String = found.troubles.iter().map(paragraph).collect();
        text.extend(found.programs.iter().map(|program| of_program(program)));
        if text.is_empty() {
            let what = one_line(&self.what().to_string_lossy(), SHOWN);
            let read = match what.as_str() {
                "-" => "standard input".to_owned(),
                file => format!("'{file}'"),
            };
            return Ok(format!("no known error in {read}\n"));
        }
        Ok(text)
    }

    /// The words as one: a text needs no quotes.
    fn what(&self) -> PathBuf {
        self.what.join(OsStr::new(" ")).into()
    }

    fn find(&self) -> Result<Found, Failure> {
        if self.what.is_empty() {
            let all = TROUBLES.iter().map(|trouble| Explained::of(trouble, None));
            return Ok(Found {
                troubles: all.collect(),
                programs: PROGRAMS.program.iter().collect(),
            });
        }
        let what = &self.what();
        if self.what.len() > 1 && self.what.iter().all(|word| Path::new(word).exists()) {
            let several = Refusal::new(
                "several files",
                "one at a time",
                "cat FILES | mpsctl explain -",
            );
            return Err(several.into());
        }
        let word = what.to_string_lossy();
        let mut programs = Vec::new();
        let troubles = if let Some(trouble) = named(&word) {
            vec![Explained::of(trouble, None)]
        } else if let Some(program) = PROGRAMS.named(&word) {
            programs.push(program);
            Vec::new()
        } else if word == "-" || what.exists() {
            let log = if word == "-" {
                read(io::stdin())
            } else {
                open(what).and_then(read)
            };
            let what = || format!("'{}'", one_line(&word, SHOWN));
            of_log(&log.map_err(|why| Undetermined::new(what(), why.to_string()))?)
        } else {
            let trouble = of_line(&word).or_else(|| of_part(&word));
            vec![Explained::of(trouble.ok_or_else(|| unknown(&word))?, None)]
        };
        Ok(Found { troubles, programs })
    }
}

fn named(word: &str) -> Option<&'static Trouble> {
    let word = word.to_ascii_lowercase();
    let number = word.strip_prefix("error").unwrap_or(&word).trim_start();
    let number = number.strip_prefix("code").unwrap_or(number);
    if let Ok(code) = number.trim_start_matches(':').trim().parse::<u32>() {
        let mut all = TROUBLES.iter();
        return all.find(|trouble| trouble.codes.contains(&code));
    }
    let is_named = |trouble: &&Trouble| {
        trouble.words.contains(&word) || trouble.name.eq_ignore_ascii_case(&word)
    };
    TROUBLES.iter().find(is_named)
}

fn unknown(word: &str) -> Refusal {
    let allowed = "one of those that 'mpsctl explain' lists, or a file; of a job: 'mpsctl report JOB | mpsctl explain -'; \
                   'mpsctl sweep' measures any program";
    let words = PROGRAMS.program.iter().flat_map(|program| &program.words);
    let meant = nearest(word, words.map(String::as_str));
    let why = or_meant("no known error or program, and no file", meant);
    Refusal::new(format!("'{}'", one_line(word, SHOWN)), why, allowed)
}

/// Opens a regular file: a FIFO or a terminal might never end.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let why = "it is no regular file; give what it says on standard input: mpsctl explain -";
    Err(io::Error::other(why))
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
    let numbered = |code: &u32| {
        let mut before = BEFORE_CODE.iter();
        before.any(|before| has_word(&lower, &format!("{before} {code}")))
    };
    let says = |trouble: &&Trouble| {
        trouble.words.iter().any(|word| has_word(&lower, word))
            || trouble.codes.iter().any(numbered)
    };
    TROUBLES.iter().find(says)
}

/// The trouble of which `text` is a part of what programs write, as CUDA's own "out of memory".
/// Not for a log: the kernel also writes "Out of memory".
fn of_part(text: &str) -> Option<&'static Trouble> {
    let text = text.trim().to_ascii_lowercase();
    let is_its = |trouble: &&Trouble| trouble.words.iter().any(|word| has_word(word, &text));
    // Fewer words could be part of any error's text.
    let is_long = text.split_whitespace().count() >= 3;
    TROUBLES.iter().filter(|_| is_long).find(is_its)
}

/// Whether `word` occurs by itself, not inside another word (`FAULT` in `default`).
fn has_word(line: &str, word: &str) -> bool {
    let apart = |c: Option<char>| !c.is_some_and(|c| c.is_ascii_alphanumeric());
    line.match_indices(word).any(|(at, _)| {
        apart(line[..at].chars().next_back()) && apart(line[at + word.len()..].chars().next())
    })
}

/// The log's order stays: the client that failed first tells the cause. What any job's log has
/// comes last.
fn of_log(lines: &[String]) -> Vec<Explained> {
    let mut all: Vec<Explained> = Vec::new();
    for line in lines {
        let Some(trouble) = of_line(line) else {
            continue;
        };
        let is_its = |found: &&mut Explained| std::ptr::eq(found.trouble, trouble);
        match all.iter_mut().find(is_its) {
            Some(found) => found.more_lines += 1,
            None => all.push(Explained::of(trouble, Some(one_line(line, SHOWN)))),
        }
    }
    all.sort_by_key(|found| found.trouble.usual);
    all
}

fn paragraph(found: &Explained) -> String {
    let trouble = found.trouble;
    let codes = trouble
        .codes
        .iter()
        .map(|code| format!("CUDA error {code}"));
    let codes = match &*list(codes) {
        "" => String::new(),
        codes => format!(" ({codes})"),
    };
    let line = found.line.as_ref().map(|line| match found.more_lines {
        0 => format!("  line:   {line}\n"),
        more => format!("  line:   {line} (and {more} more)\n"),
    });
    let line = line.unwrap_or_default();
    let source = format!("{FACTS}/{}", trouble.source);
    let parts = [
        ("cause:", &*trouble.cause),
        ("remedy:", &trouble.remedy),
        ("source:", &source),
    ];
    format!(
        "{}{codes}\n{line}{}",
        trouble.name,
        parts.map(part).concat()
    )
}

fn of_program(program: &KnownProgram) -> String {
    let title = format!("{} {}", program.name, program.version);
    let ran = match program.ran.as_str() {
        "" => "read about, not run",
        ran => ran,
    };
    let parts = [
        ("MPS:", &*format!("{}; {}", program.under, program.seen)),
        ("needs:", &program.needs),
        ("we do:", &program.ours),
        ("ran:", ran),
        ("source:", &format!("{FACTS}/{}", program.source)),
    ];
    let said = parts.into_iter().filter(|(_, text)| !text.is_empty());
    let said: String = said.map(part).collect();
    format!("{}\n{said}", title.trim_end())
}

fn part((what, text): (&str, &str)) -> String {
    let text = wrap(&format!("  {what:<8}{text}"), 10, width());
    format!("{text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVIDIA's programs wrote.
    const TRANSCRIPT: &str = include_str!("../../../docs/facts/mps-580-transcript.txt");

    fn explained(what: &str) -> Result<String, Failure> {
        let what = what.split(' ').map(OsString::from).collect();
        Explain { what }.run(false)
    }

    /// A number, the name after `cudaError`, and the one after `CUDA_ERROR_`.
    const ERRORS: &str = "\
2 MemoryAllocation OUT_OF_MEMORY
46 DevicesUnavailable DEVICE_UNAVAILABLE
100 NoDevice NO_DEVICE
304 OperatingSystem OPERATING_SYSTEM
700 IllegalAddress ILLEGAL_ADDRESS
710 Assert ASSERT
714 HardwareStackError HARDWARE_STACK_ERROR
715 IllegalInstruction ILLEGAL_INSTRUCTION
716 MisalignedAddress MISALIGNED_ADDRESS
717 InvalidAddressSpace INVALID_ADDRESS_SPACE
718 InvalidPc INVALID_PC
719 LaunchFailure LAUNCH_FAILED
802 SystemNotReady SYSTEM_NOT_READY
803 SystemDriverMismatch SYSTEM_DRIVER_MISMATCH
804 CompatNotSupportedOnDevice COMPAT_NOT_SUPPORTED_ON_DEVICE
805 MpsConnectionFailed MPS_CONNECTION_FAILED
806 MpsRpcFailure MPS_RPC_FAILURE
807 MpsServerNotReady MPS_SERVER_NOT_READY
808 MpsMaxClientsReached MPS_MAX_CLIENTS_REACHED
809 MpsMaxConnectionsReached MPS_MAX_CONNECTIONS_REACHED
810 MpsClientTerminated MPS_CLIENT_TERMINATED
811 CdpNotSupported CDP_NOT_SUPPORTED";

    #[test]
    fn every_error_of_mps_is_known_by_number_and_by_both_names() {
        for row in ERRORS.lines() {
            let (code, names) = row.split_once(' ').unwrap();
            let (runtime, driver) = names.split_once(' ').unwrap();
            let text = explained(code).unwrap();
            assert!(text.contains(&format!("CUDA error {code}")), "{text}");
            for name in [
                format!("cudaError{runtime}"),
                format!("CUDA_ERROR_{driver}"),
            ] {
                assert_eq!(explained(&name).unwrap(), text);
            }
        }
        assert!(explained("999").is_err());
    }

    fn table(text: &str) -> impl Iterator<Item = (&str, &str)> {
        text.lines().map(|line| line.split_once(" = ").unwrap())
    }

    const SAID: &str = "\
GPU busy (CUDA error 46) = all CUDA-capable devices are busy or unavailable
GPU busy = CUDA-capable device(s) is/are busy or unavailable
GPU busy = RuntimeError: Cuda driver error 46
out of memory under a limit = CUDA error: out of memory
out of memory under a limit = cuda runtime error (2) : out of memory
no GPU behind this daemon = RuntimeError: No CUDA GPUs are available
GPU busy = openmm.OpenMMException: No compatible CUDA device is available
GPU busy = OpenMMException: The requested CUDA device could not be loaded
no GPU behind this daemon = Cannot run bonded interactions on a GPU because no GPU is detected.
out of memory under a limit = OOM when allocating tensor with shape[512,512] and type float on GPU:0
out of memory under a limit = Out of memory allocating 8,000 bytes (allocated so far: 512 bytes).
out of memory under a limit = RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`
the driver, not MPS = Error 803: system has unsupported display driver / cuda driver combination
the driver, not MPS = Error 804: forward compatibility was attempted on non supported HW
a fatal GPU error = CUDA error: an illegal memory access was encountered
a fatal GPU error = CUDA error: device-side assert triggered
a fatal GPU error = RuntimeError: CUDA error: unspecified launch failure
no plugin on this host = srun: unrecognized option '--mps-treads=auto'
valid credentials = [x Control 1] User did not send valid credentials
a daemon of another user = [x Control 1] Failed to start server using uid 1002
a fatal GPU error = [x Server 5] Client 8349 caused a fatal error on its device
a fatal GPU error = [x Control 5] Server status: FAULT
NCCL: several ranks on one GPU = Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
NCCL: several ranks on one GPU = NCCL WARN Multiple Ranks are using the same GPU/Partition.
out of memory under a limit = CUDA out of memory. Tried to allocate
Nsight Compute = ==PROF== Connected to process 4711 (/home/alice/simulate)
Nsight Compute = ==ERROR== Profiling is not supported with Multi-Process Server (MPS) enabled on device 0.";

    #[test]
    fn what_programs_print_is_explained_as_an_argument_as_in_a_log() {
        for (name, said) in table(SAID) {
            let text = explained(said).unwrap();
            assert!(text.starts_with(name), "{said}: {text}");
            let in_log = of_log(&read(format!("x\n{said}\n").as_bytes()).unwrap());
            assert_eq!(in_log.len(), 1, "{said}");
            assert!(text.starts_with(&in_log[0].trouble.name), "{said}");
        }
        for other in [
            "Out of memory: Killed process 811 (python3)",
            "Segmentation fault (core dumped)",
            "srun: unrecognized option '--gpu'",
            "cc1plus: out of memory allocating 65536 bytes after a total of 400 bytes",
            "get_default_client_priority",
            "status 806 of 900 done",
        ] {
            assert!(of_line(other).is_none(), "{other}");
        }
        let ours = "slurmstepd-n1: error: mps: job 64: not started on n1: --mps-mem=9G: above; allowed: at most 8G";
        assert!(explained(ours).unwrap().starts_with("no MPS for this job"));
    }

    const PARTS: &str = "\
out of memory under a limit = out of memory
out of memory under a limit = Out Of Memory
out of memory under a limit = out of memory allocating
GPU busy = busy or unavailable
connection refused = CUDA error: 805
GPU busy = error code 46
GPU busy = error: 46
a client without a context = client 24587 got no context; 48 others had one
out of memory under a limit =  on Pe 8 (node17 device 0 pci 0:7:0): out of memory
out of memory under a limit = Kokkos ERROR: Cuda memory space failed to allocate 405.6 MiB
out of memory under a limit = CUDA backend failed to initialize: INTERNAL: no supported devices found for platform CUDA.
a rank's number is no GPU's = openmm.OpenMMException: Illegal value for DeviceIndex: 1
0 clients = but torch.cuda.is_available() is False
wrong pid namespace = OS call failed or operation not supported on this OS";

    #[test]
    fn an_argument_may_be_a_part_of_what_programs_print() {
        for (name, said) in table(PARTS) {
            let text = explained(said).unwrap();
            assert!(text.starts_with(name), "{said}: {text}");
        }
        for other in ["cuda error", "the server", "error", "of", ""] {
            assert!(explained(other).is_err(), "{other}");
        }
        // The crate's folder has both.
        let several = explained("Cargo.toml src").unwrap_err().to_string();
        assert!(several.starts_with("several files"), "{several}");
    }

    #[test]
    fn what_was_read_in_vain_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let said = explained(path).unwrap();
        assert_eq!(said, format!("no known error in '{path}'\n"));
    }

    #[test]
    fn a_program_is_known_by_its_names() {
        let jax = ("JAX, Flax jax 0.11.2\n  MPS:    works; ", "programs.md");
        let nccl = ("NCCL (PyTorch DDP), several ranks", "mps-control.md");
        for (name, (begin, facts)) in [
            ("JAX", jax),
            ("jax, flax", jax),
            ("DDP", nccl),
            ("torchrun", nccl),
            ("torch.distributed", nccl),
            ("NCCL", nccl),
        ] {
            let source = format!("source: /usr/share/doc/mpsd/facts/{facts}#");
            let text = explained(name).unwrap();
            assert!(text.starts_with(begin) && text.contains(&source), "{text}");
        }
    }

    #[test]
    fn every_source_is_a_section_of_the_facts() {
        for row in TROUBLES.iter() {
            let (file, section) = row.source.split_once('#').unwrap();
            let path = format!("{}/../../docs/facts/{file}", env!("CARGO_MANIFEST_DIR"));
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
    fn a_log_is_explained_in_its_order_and_what_any_log_has_comes_last() {
        const LOGS: &str = "\
a fatal GPU error 0, server not ready 0 = server is not ready, push client to pending list / Server status: FAULT
the server died 1, GPU busy 0 = CUDA driver error 806 / CUDA driver error 46 / CUDA driver error 806
GPU busy 0, the server died 0 = CUDA driver error 46 / CUDA driver error 806
a fatal GPU error 0, valid credentials 0, the server lost a client 0 = User did not send valid credentials / recevie command with status 806 / CUDA error 700";
        for (expected, log) in table(LOGS) {
            let log = log.replace(" / ", "\n");
            let found = of_log(&read(log.as_bytes()).unwrap());
            let told = found.iter();
            let told = told.map(|found| format!("{} {}", found.trouble.name, found.more_lines));
            assert_eq!(told.collect::<Vec<_>>().join(", "), expected, "{log}");
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
        // The transcript has no fatal error.
        assert!(!text.contains("a fatal GPU error"), "{text}");
        let healthy = |line: &&str| line.contains("set_default_") || line.contains("NEW SERVER");
        for line in TRANSCRIPT.lines().filter(healthy) {
            assert!(of_line(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_line_is_made_fit_for_a_terminal_and_a_long_one_does_not_hide_the_next() {
        let found = of_log(&["\x1b[2J Duplicate GPU detected".to_owned()]);
        assert!(paragraph(&found[0]).contains("?[2J Duplicate"), "{found:?}");
        assert!(of_log(&[]).is_empty());
        let long = format!("{}\nDuplicate GPU detected\n", "x".repeat(100_000));
        assert_eq!(read(long.as_bytes()).unwrap(), ["Duplicate GPU detected"]);
    }
}
