//! `cargo run -p tests --bin mutations [-- WORD...]`: which tests notice a fault in the product?
//!
//! Each row of `tests/mutations.toml` is one fault, and so is each condition of the files that it
//! lists, turned round. All are built at once into a copy of the checkout, each behind a number:
//! building each alone would take hours. The number is in a file, because the programs of a node
//! have no variables of ours. Words choose faults by their text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;

const ROWS: &str = "tests/mutations.toml";

/// Longest time for the tests of one mutation: one that hangs is noticed, too.
const LONGEST: Duration = Duration::from_secs(900);

#[derive(clap::Parser)]
struct Options {
    /// Build the mutations and run none
    #[arg(long)]
    build: bool,
    /// Run all tests of a fault, not only until a command has noticed it
    #[arg(long)]
    all: bool,
    /// Run the rows that have one of these words in their file, text or tests
    words: Vec<String>,
}

#[derive(serde::Deserialize)]
struct Rows {
    mutation: Vec<Mutation>,
    conditions: Vec<Conditions>,
}

/// Each `if` in the files of a folder that is on one line, has no `let`, and is once in its file.
#[derive(serde::Deserialize)]
struct Conditions {
    folder: String,
    tests: Vec<String>,
}

impl Conditions {
    fn mutations(&self, file: &str, text: &str) -> Vec<Mutation> {
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = product.lines().filter_map(|line| {
            let at = line.find("if ").filter(|_| line.ends_with(" {"))?;
            let head = line[..at].trim();
            let old = &line[at..];
            let fits = head.is_empty() || head == "} else";
            let fits = fits && !old.contains("let ") && text.matches(old).count() == 1;
            fits.then(|| Mutation {
                what: format!("the other way round: {}", old.trim_end_matches(" {")),
                file: file.to_owned(),
                old: old.to_owned(),
                new: String::new(),
                tests: self.tests.clone(),
            })
        });
        lines.collect()
    }
}

#[derive(serde::Deserialize)]
struct Mutation {
    what: String,
    file: String,
    /// An expression or statements, once in the file; `if CONDITION {` is turned round.
    old: String,
    #[serde(default)]
    new: String,
    /// The words of `cargo test` that could notice, one command each, the quickest first.
    tests: Vec<String>,
}

impl Mutation {
    /// An expression stays one; statements are put into a block.
    fn switched(&self, number: usize) -> String {
        let (old, new) = (self.old.trim_end(), self.new.trim_end());
        let condition = old.strip_prefix("if ");
        if let Some(condition) = condition.and_then(|old| old.strip_suffix(" {")) {
            return format!("if mutated({number}) != ({condition}) {{");
        }
        let switched = format!("if mutated({number}) {{ {new} }} else {{ {old} }}");
        match old.ends_with([';', '}']) {
            true => switched,
            false => format!("({switched})"),
        }
    }

    fn meets(&self, other: &Self) -> bool {
        let (one, other_text) = (&self.old, &other.old);
        self.file == other.file && (one.contains(other_text) || other_text.contains(one))
    }

    fn has_word(&self, words: &[String]) -> bool {
        let texts = [&self.what, &self.file].into_iter().chain(&self.tests);
        let mut texts = texts.flat_map(|text| words.iter().map(move |word| text.contains(word)));
        words.is_empty() || texts.any(|found| found)
    }
}

/// A copy of the checkout with all mutations, and the file that switches one on.
struct Tree {
    root: PathBuf,
    switch: PathBuf,
}

impl Tree {
    fn of(checkout: &Path) -> Result<Self> {
        let root = checkout.join("target/mutations");
        fs::create_dir_all(&root)?;
        // Where a job's user, too, can read it.
        let name = root.display().to_string().replace('/', "-");
        let switch = Path::new("/var/tmp").join(format!("mutation{name}"));
        Ok(Self { root, switch })
    }

    fn write(&self, checkout: &Path, listed: &str, rows: &[Mutation]) -> Result<()> {
        let mut mutated: BTreeMap<&str, String> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let text = match mutated.remove(row.file.as_str()) {
                Some(text) => text,
                None => fs::read_to_string(checkout.join(&row.file))
                    .with_context(|| format!("cannot read '{}'", row.file))?,
            };
            let found = text.matches(&row.old).count();
            let (file, what) = (&row.file, &row.what);
            ensure!(found == 1, "{file}: '{what}': {found} places, not 1");
            let text = text.replacen(&row.old, &row.switched(index + 1), 1);
            mutated.insert(&row.file, text);
        }
        for text in mutated.values_mut() {
            text.push_str(&self.function());
        }
        for file in listed.lines() {
            let text = match mutated.remove(file) {
                Some(text) => text.into_bytes(),
                None => match fs::read(checkout.join(file)) {
                    Ok(bytes) => bytes,
                    Err(_) => continue,
                },
            };
            let copy = self.root.join(file);
            // What is the same stays, so that cargo builds only what is not.
            if fs::read(&copy).is_ok_and(|there| there == text) {
                continue;
            }
            fs::create_dir_all(copy.parent().context("no folder")?)?;
            fs::write(&copy, text)?;
            let mode = fs::metadata(checkout.join(file))?.permissions().mode();
            fs::set_permissions(&copy, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    fn function(&self) -> String {
        format!(
            "\nfn mutated(number: u32) -> bool {{
    static ON: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::fs::read_to_string({:?}).ok()?.trim().parse().ok();
    *ON.get_or_init(|| read().unwrap_or_default()) == number
}}\n",
            self.switch
        )
    }

    fn build(&self) -> Result<()> {
        let built = self.cargo("build --workspace --all-targets").status()?;
        ensure!(built.success(), "the mutations cannot be built");
        Ok(())
    }

    fn cargo(&self, words: &str) -> Command {
        let mut command = Command::new("timeout");
        command.arg(format!("{}", LONGEST.as_secs())).arg("cargo");
        command.args(words.split_whitespace());
        command.current_dir(&self.root);
        command.env("CARGO_TARGET_DIR", self.root.join("target"));
        command
    }

    /// The tests that fail with mutation `number`; 0 is none.
    fn failures(&self, number: usize, tests: &str) -> Result<BTreeSet<String>> {
        fs::write(&self.switch, number.to_string())?;
        let mut command = self.cargo(&format!("test --no-fail-fast {tests}"));
        let done = command.output()?;
        let printed = String::from_utf8_lossy(&done.stdout);
        let failed = printed.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("test ")?.split_once(" ... FAILED")?;
            Some(name.to_owned())
        });
        let mut failed: BTreeSet<String> = failed.collect();
        if !done.status.success() && failed.is_empty() {
            failed.insert(format!("'{tests}' ends with {}", done.status));
        }
        // A word that names no test would let every mutation survive.
        let ran = printed.lines().any(|line| line.starts_with("test "));
        ensure!(number > 0 || ran, "'cargo test {tests}' runs no test");
        Ok(failed)
    }

    /// A test that fails without a fault can notice none.
    fn pass_without_fault(&self, tests: &str) -> Result<()> {
        let failed = Vec::from_iter(self.failures(0, tests)?).join(" ");
        ensure!(
            failed.is_empty(),
            "'cargo test {tests}' fails without a fault: {failed}"
        );
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.switch);
    }
}

fn output(command: &mut Command) -> Result<String> {
    let done = command.output()?;
    ensure!(done.status.success(), "{command:?} failed");
    Ok(String::from_utf8(done.stdout)?)
}

fn rows(listed: &str) -> Result<Vec<Mutation>> {
    let mut rows: Rows = toml::from_str(&fs::read_to_string(ROWS)?)?;
    let is_product = |file: &&str| file.ends_with(".rs") && !file.contains("test");
    for file in listed.lines().filter(is_product) {
        let mut folders = rows.conditions.iter();
        if let Some(folder) = folders.find(|one| file.starts_with(&one.folder)) {
            let mut conditions = folder.mutations(file, &fs::read_to_string(file)?);
            conditions.retain(|one| !rows.mutation.iter().any(|row| row.meets(one)));
            rows.mutation.extend(conditions);
        }
    }
    Ok(rows.mutation)
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let checkout = std::env::current_dir()?;
    let listed = "ls-files --cached --others --exclude-standard";
    let listed = output(Command::new("git").args(listed.split(' ')))?;
    let rows = rows(&listed)?;
    let tree = Tree::of(&checkout)?;
    tree.write(&checkout, &listed, &rows)?;
    tree.build()?;
    if options.build {
        return Ok(ExitCode::SUCCESS);
    }
    let mut tried = BTreeSet::new();
    let mut survivors = 0;
    for (index, row) in rows.iter().enumerate() {
        if !row.has_word(&options.words) {
            continue;
        }
        let started = Instant::now();
        let mut noticed = BTreeSet::new();
        for tests in &row.tests {
            if tried.insert(tests) {
                tree.pass_without_fault(tests)?;
            }
            noticed.extend(tree.failures(index + 1, tests)?);
            if !noticed.is_empty() && !options.all {
                break;
            }
        }
        survivors += usize::from(noticed.is_empty());
        if noticed.is_empty() {
            noticed.insert("SURVIVED".to_owned());
        }
        let verdict = Vec::from_iter(noticed).join(" ");
        let (number, seconds) = (index + 1, started.elapsed().as_secs());
        let Mutation { file, what, .. } = row;
        println!("{number} {file}: {what} ({seconds} s)\n    {verdict}");
    }
    println!("{survivors} survived");
    Ok(match survivors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
