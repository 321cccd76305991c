//! The corpus of `tests/scripts/`: job scripts that know nothing of us, and how three runs of one
//! are compared. The run without us is the oracle: in a site's `auto` the script does the same, and
//! with a request of its own it does the same or its user reads one line of ours.

pub mod batch;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// What a script may take longer in `auto`, on a machine that also runs other tests.
const LONGER_S: u64 = 10;

const EXITED: &str = ": Exited with exit code ";

/// Lines by chance: srun's while the steps before it are still ending, and a shell's that writes to
/// a control program which has found no daemon and ended.
const BY_CHANCE: [&str; 4] = [
    "echo: I/O error",
    "step creation temporarily disabled",
    "step creation still disabled",
    "Step created for",
];

/// The stand-ins of programs that scripts call beside `cuda-app`, the double of a CUDA program.
pub const STAND_INS: [&str; 3] = ["apptainer", "mpirun", "ssh"];

#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub text: String,
    /// Of its `#SBATCH` line, without its GPUs.
    pub words: Vec<String>,
    pub gpus: u32,
    pub tasks: u32,
    pub by_root: bool,
    asked: Asked,
}

/// What a script with a request of its own may do but the same as without us.
#[derive(Clone, Debug)]
enum Asked {
    Nothing,
    /// Its user reads a line with these words.
    Told(String),
    /// Its programs end with this error of CUDA, which `mpsctl explain` knows.
    Error(String),
    /// It sees what MPS is.
    Any,
}

/// How a run of a script ended, without what differs between two runs of the same job.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub code: String,
    pub said: String,
    pub seconds: u64,
    /// The UUIDs of the node's GPUs, in its order.
    pub gpus: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Three {
    pub without: Outcome,
    pub auto: Outcome,
    pub asked: Outcome,
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

pub fn all() -> Result<Vec<Script>> {
    let files = std::fs::read_dir(folder())?.flatten();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "sh"));
    files.sort();
    files.iter().map(|file| Script::read(file)).collect()
}

impl Script {
    fn read(file: &Path) -> Result<Script> {
        let name = file.file_stem().context("no name")?.to_string_lossy();
        Script::parse(&name, &std::fs::read_to_string(file)?)
    }

    pub fn parse(name: &str, text: &str) -> Result<Script> {
        let header = |key: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(key));
            lines.map(str::trim).next().map(str::to_owned)
        };
        let missing = || format!("'{name}' lacks a line of its header");
        header("# Seen:").with_context(missing)?;
        let told = header("# --mps:").with_context(missing)?;
        let words = header("#SBATCH ").with_context(missing)?;
        let value = |key: &str| {
            let found = words.split(' ').find_map(|word| word.strip_prefix(key));
            let number = found.and_then(|value| value.parse().ok());
            number.with_context(missing)
        };
        let (gpus, tasks) = (value("--gres=gpu:")?, value("--ntasks=")?);
        let others = words.split(' ').filter(|word| !word.starts_with("--gres"));
        Ok(Script {
            words: others.map(str::to_owned).collect(),
            gpus,
            tasks,
            by_root: header("# By: root").is_some(),
            asked: Asked::parse(&told)
                .with_context(|| format!("'{name}' does not say what --mps does"))?,
            name: name.to_owned(),
            text: text.to_owned(),
        })
    }

    pub fn is_for_slurm(&self) -> bool {
        !self.text.contains("PBS_")
    }

    pub fn is_for_pbs(&self) -> bool {
        let of_slurm = ["srun", "SLURM", "--array"];
        !self.by_root && !of_slurm.iter().any(|word| self.text.contains(word))
    }

    /// Whether it looks at the numbers of GPUs.
    pub fn counts_gpus(&self) -> bool {
        self.gpus > 1
    }

    /// The error names every difference.
    pub fn check(&self, three: &Three) -> Result<()> {
        let auto = self.check_auto(&three.without, &three.auto);
        let both = [auto, self.asked(three)].into_iter();
        let wrong = both.filter_map(|found| Some(found.err()?.to_string()));
        let wrong = wrong.collect::<Vec<_>>().join("\n");
        let story = three.without.story();
        ensure!(wrong.is_empty(), "{wrong}\nwithout us: {story}");
        Ok(())
    }

    pub fn check_auto(&self, without: &Outcome, auto: &Outcome) -> Result<()> {
        let same = without.code == auto.code && without.exactly()? == auto.exactly()?;
        ensure!(same, "in auto it differs: {}", auto.story());
        if without.under_mps()? > 0 {
            let (own, said) = (without.daemons()? == auto.daemons()?, &auto.said);
            ensure!(own, "in auto its programs use another MPS: {said}");
        }
        let [took, usual] = [auto, without].map(|outcome| outcome.seconds);
        let is_quick = took <= usual + LONGER_S;
        ensure!(is_quick, "in auto it takes {took} s, without us {usual} s");
        Ok(())
    }

    fn asked(&self, three: &Three) -> Result<()> {
        let (without, asked) = (&three.without, &three.asked);
        let same = without.code == asked.code && without.roughly()? == asked.roughly()?;
        let programs = asked.programs()?;
        if same && programs.iter().all(|program| program["under_mps"] == true) {
            return Ok(());
        }
        let programs = programs.iter();
        let mut errors = programs.filter_map(|program| program["error"].as_str());
        let right = match &self.asked {
            Asked::Nothing => false,
            Asked::Told(words) => asked.said.lines().any(|line| line.contains(words)),
            Asked::Error(number) => errors.any(|error| error.starts_with(number)),
            Asked::Any => true,
        };
        let told = format!("{:?} expected: {}", self.asked, asked.story());
        ensure!(right, "with --mps it differs, {told}");
        Ok(())
    }
}

impl Asked {
    fn parse(text: &str) -> Option<Asked> {
        match text.split_once(' ') {
            None if text == "same" => Some(Asked::Nothing),
            Some(("error", _)) => Some(Asked::Error(format!("{text} "))),
            Some(("any:", _)) => Some(Asked::Any),
            _ => {
                let words = text.strip_prefix('\'')?.strip_suffix('\'')?;
                Some(Asked::Told(words.to_owned()))
            }
        }
    }
}

impl Outcome {
    pub fn under_mps(&self) -> Result<usize> {
        let mut programs = self.programs()?;
        programs.retain(|program| program["under_mps"] == true);
        Ok(programs.len())
    }

    /// Of each program the pipe directory of its MPS.
    fn daemons(&self) -> Result<Vec<String>> {
        let mut daemons = Vec::new();
        for program in self.programs()? {
            let (is_under, pipe) = (&program["under_mps"], &program["pipe_directory"]);
            daemons.push(format!("{is_under} {pipe}"));
        }
        daemons.sort();
        Ok(daemons)
    }

    fn programs(&self) -> Result<Vec<Value>> {
        let lines = self.said.lines().filter(|line| line.starts_with('{'));
        let parse = |line| serde_json::from_str(line).with_context(|| format!("no record: {line}"));
        lines.map(parse).collect()
    }

    fn gpus_of(&self, program: &Value) -> Vec<String> {
        let gpus = program["gpus"].as_array().into_iter().flatten();
        let number = |gpu: &Value| {
            let uuid = &gpu["uuid"];
            let at = self.gpus.iter().position(|gpu| *uuid == gpu.as_str());
            at.map_or_else(|| uuid.to_string(), |at| format!("GPU {at}"))
        };
        gpus.map(number).collect()
    }

    fn lines(&self, program: impl Fn(&Value) -> String) -> Result<Vec<String>> {
        let others = self.said.lines().filter(|line| !line.starts_with('{'));
        let others = others.filter(|line| !BY_CHANCE.iter().any(|chance| line.contains(chance)));
        let (ends, others): (Vec<&str>, Vec<&str>) = others.partition(|line| line.contains(EXITED));
        let mut lines: Vec<String> = others.into_iter().map(str::to_owned).collect();
        // srun tells several tasks in one line if they end together.
        let codes = ends.iter().filter_map(|line| line.split(EXITED).nth(1));
        for code in codes.collect::<BTreeSet<_>>() {
            lines.push(format!("srun: tasks exited with {code}"));
        }
        lines.extend(self.programs()?.iter().map(program));
        lines.sort();
        Ok(lines)
    }

    /// Each line, and for each program its GPUs in their order, and the list that it was given.
    fn exactly(&self) -> Result<Vec<String>> {
        self.lines(|program| {
            let (gpus, list) = (self.gpus_of(program), &program["visible"]);
            format!("program: {gpus:?} of {list}; {}", program["error"])
        })
    }

    /// The same without the list, and without the order of the GPUs.
    fn roughly(&self) -> Result<Vec<String>> {
        self.lines(|program| {
            let gpus: BTreeSet<String> = self.gpus_of(program).into_iter().collect();
            format!("program: {gpus:?}; {}", program["error"])
        })
    }

    pub fn story(&self) -> String {
        let lines = self.exactly().unwrap_or_else(|_| vec![self.said.clone()]);
        let mut counted: Vec<(String, usize)> = Vec::new();
        for line in lines {
            match counted.last_mut().filter(|(last, _)| *last == line) {
                Some((_, count)) => *count += 1,
                None => counted.push((line, 1)),
            }
        }
        let line = |(line, count): &(String, usize)| format!("\n  {count} x {line}");
        let lines: String = counted.iter().map(line).collect();
        format!("exit {}, {} s{lines}", self.code, self.seconds)
    }
}
