//! A small test runner: the bed is shared by a group's cells, which libtest's harness cannot do without a static that is
//! never dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use tests::slurm::{Bed, Options, Simulated, User};

/// How long the bed may take to become quiet after a cell.
const QUIET: Duration = Duration::from_secs(30);

/// A cell's name and what it does.
pub type Cell = (&'static str, fn(&Context) -> Result<()>);

/// Cells that share one bed.
pub struct Group {
    /// Name before the `::`.
    pub name: &'static str,
    /// What their bed is like.
    pub options: fn() -> Options,
    /// Puts into the created bed what it needs before the daemons start.
    pub prepare: fn(&mut Bed) -> Result<Option<Simulated>>,
    /// Why this machine cannot run them, if it cannot.
    pub needs: fn() -> Option<String>,
    /// The cells, in order.
    pub cells: &'static [Cell],
}

/// What a cell works with.
pub struct Context {
    /// The running cluster.
    pub bed: Bed,
    /// Its simulated nodes, where the product is installed.
    pub simulated: Option<Simulated>,
    /// The user that submits.
    pub user: User,
    /// Another one.
    pub other: User,
}

/// What the cells came to.
#[derive(Default)]
pub struct Tally {
    /// How many cells there are, chosen or not.
    pub all: usize,
    passed: usize,
    failed: Vec<String>,
}

/// Runs the groups' cells whose names hold one of `words`.
pub fn run(groups: &[Group], words: &[String], tally: &mut Tally) {
    let selected = |group: &Group, cell: &str| {
        let name = format!("{}::{cell}", group.name);
        words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
    };
    for group in groups {
        let cells: Vec<_> = group
            .cells
            .iter()
            .filter(|(name, _)| selected(group, name))
            .collect();
        tally.all += group.cells.len();
        match (group.needs)() {
            _ if cells.is_empty() => {}
            Some(why) => println!("skipped: slurm {}: {why}", group.name),
            None => run_group(group, &cells, tally),
        }
    }
}

fn run_group(group: &Group, cells: &[&Cell], tally: &mut Tally) {
    let context = match bring_up(group) {
        Ok(context) => context,
        Err(error) => {
            for (name, _) in cells {
                note(
                    tally,
                    group,
                    name,
                    Instant::now(),
                    Err(anyhow!("the bed does not come up: {error:#}")),
                );
            }
            return;
        }
    };
    for (name, cell) in cells {
        let started = Instant::now();
        let outcome = guarded(|| cell(&context)).and_then(|()| quiet(&context));
        if outcome.is_err() {
            recover(&context);
        }
        note(tally, group, name, started, outcome);
    }
    let started = Instant::now();
    let outcome = guarded(|| teardown(context));
    note(tally, group, "the bed leaves nothing", started, outcome);
}

fn bring_up(group: &Group) -> Result<Context> {
    let mut bed = Bed::create((group.options)())?;
    let simulated = (group.prepare)(&mut bed)?;
    if let Err(error) = bed.start() {
        bail!("{error:#}\n{}", logs(&bed));
    }
    let [user, other] = User::pair()?;
    Ok(Context {
        bed,
        simulated,
        user,
        other,
    })
}

fn guarded(cell: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(cell)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(anyhow!(
            "panicked: {}",
            text.or_else(|| panic.downcast_ref().copied())
                .unwrap_or("(no text)")
        ))
    })
}

/// The look after every cell.
fn quiet(context: &Context) -> Result<()> {
    let bed = &context.bed;
    bed.wait_idle(QUIET).context("after the cell")?;
    bed.wait_clean(Duration::from_secs(5))?;
    context.simulated.as_ref().map_or(Ok(()), Simulated::check_idle)
}

/// Makes the bed usable for the next cell after a failure, and shows what the daemons said.
fn recover(context: &Context) {
    println!("{}", logs(&context.bed));
    let _ = context
        .bed
        .root(&["scancel", "--full", "--signal=KILL", "--state=RUNNING"]);
    let _ = context.bed.root(&["scancel", "-u", &context.user.name]);
    let _ = context.bed.root(&["scancel", "-u", &context.other.name]);
    for node in context.bed.nodes() {
        if context
            .bed
            .node_state(&node)
            .is_ok_and(|state| state.state.contains("DRAIN"))
        {
            let _ = context.bed.resume(&node);
        }
    }
    let _ = context.bed.wait_idle(QUIET);
}

fn teardown(context: Context) -> Result<()> {
    let dirs = [context.bed.dir().to_owned(), context.bed.run_dir().to_owned()];
    let forced = context.bed.end()?;
    if !forced.is_empty() {
        bail!("the teardown had to use force: {}", forced.join("; "));
    }
    match dirs.iter().find(|dir| dir.exists()) {
        Some(dir) => bail!("'{}' is still there", dir.display()),
        None => Ok(()),
    }
}

fn logs(bed: &Bed) -> String {
    let mut text = String::new();
    let Ok(entries) = std::fs::read_dir(bed.dir().join("log")) else {
        return text;
    };
    for entry in entries.filter_map(Result::ok) {
        if entry.path().extension().is_some() {
            continue;
        }
        let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(25)..];
        text.push_str(&format!("== {}\n{}\n", entry.path().display(), tail.join("\n")));
    }
    text
}

fn note(tally: &mut Tally, group: &Group, name: &str, started: Instant, outcome: Result<()>) {
    tally.note(
        &format!("{}::{}", group.name, name.replace(' ', "_")),
        started,
        outcome,
    );
}

impl Tally {
    /// Notes how a cell ended, and shows it.
    pub fn note(&mut self, name: &str, started: Instant, outcome: Result<()>) {
        let seconds = started.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("test {name} ... ok ({seconds:.1} s)");
            }
            Err(error) => {
                println!("test {name} ... FAILED ({seconds:.1} s)\n{error:#}");
                self.failed.push(format!("{name}\n{error:#}"));
            }
        }
    }

    /// Prints the failures and libtest's summary line.
    pub fn end(&self, started: Instant) -> ExitCode {
        for failure in &self.failed {
            println!("\n---- {failure}");
        }
        let filtered = self.all.saturating_sub(self.passed + self.failed.len());
        println!(
            "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {:.2}s",
            if self.failed.is_empty() { "ok" } else { "FAILED" },
            self.passed,
            self.failed.len(),
            started.elapsed().as_secs_f64()
        );
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
