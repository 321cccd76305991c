//! A small test runner: the bed is shared by a group's cells, which libtest's harness cannot do without a static that is
//! never dropped. A bed mostly waits, so several stand at once; what one cell says is shown as one piece.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use tests::beside::Work;
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
pub struct Tally(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: usize,
    passed: usize,
    failed: Vec<String>,
}

/// The beds of the groups' cells whose names hold one of `words`. They have these claims beside their own.
pub fn beds<'a>(groups: &'a [Group], claims: &[&str], words: &[String], tally: &'a Tally) -> Vec<Work<'a>> {
    let selected = |group: &Group, cell: &str| {
        let name = format!("{}::{cell}", group.name);
        words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
    };
    let mut beds = Vec::new();
    for group in groups {
        let cells: Vec<_> = group
            .cells
            .iter()
            .filter(|(name, _)| selected(group, name))
            .collect();
        tally.there_are(group.cells.len());
        match (group.needs)() {
            _ if cells.is_empty() => {}
            Some(why) => println!("skipped: slurm {}: {why}", group.name),
            None => beds.push(Work {
                claims: [
                    (group.options)().claims(),
                    claims.iter().map(|&claim| claim.to_owned()).collect(),
                ]
                .concat(),
                run: Box::new(move || tally.of_bed(group.name, || run_group(group, &cells, tally))),
            }),
        }
    }
    beds
}

fn run_group(group: &Group, cells: &[&Cell], tally: &Tally) {
    let context = match bring_up(group) {
        Ok(context) => context,
        Err(error) => {
            for (name, _) in cells {
                let why = anyhow!("the bed does not come up: {error:#}");
                note(tally, group, name, Instant::now(), Err(why), "");
            }
            return;
        }
    };
    for (name, cell) in cells {
        let started = Instant::now();
        let outcome = guarded(|| cell(&context)).and_then(|()| quiet(&context));
        let said = match outcome {
            Ok(()) => String::new(),
            Err(_) => recover(&context),
        };
        note(tally, group, name, started, outcome, &said);
    }
    let started = Instant::now();
    let outcome = guarded(|| teardown(context));
    note(tally, group, "the bed leaves nothing", started, outcome, "");
}

fn bring_up(group: &Group) -> Result<Context> {
    let mut bed = Bed::create((group.options)())?;
    let simulated = (group.prepare)(&mut bed)?;
    if let Err(error) = bed.start() {
        bail!("{error:#}\n{}", logs(&bed));
    }
    let [user, other] = bed.users();
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

/// Makes the bed usable for the next cell after a failure; what the daemons said.
fn recover(context: &Context) -> String {
    let said = logs(&context.bed);
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
    said
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

fn note(tally: &Tally, group: &Group, name: &str, started: Instant, outcome: Result<()>, said: &str) {
    let name = format!("{}::{}", group.name, name.replace(' ', "_"));
    tally.note(&name, started, outcome, said);
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts cells, chosen or not.
    pub fn there_are(&self, cells: usize) {
        self.counts().all += cells;
    }

    /// Runs the cells of a bed; a panic outside of them is a failure of this bed's and of no other's.
    pub fn of_bed(&self, name: &str, cells: impl FnOnce()) {
        let started = Instant::now();
        let run = || {
            cells();
            Ok(())
        };
        if let Err(error) = guarded(run) {
            self.note(&format!("{name}::the_bed"), started, Err(error), "");
        }
    }

    /// Notes how a cell ended, and shows it below what was `said` meanwhile: in one piece, whatever the other beds show.
    pub fn note(&self, name: &str, started: Instant, outcome: Result<()>, said: &str) {
        let seconds = started.elapsed().as_secs_f64();
        let mut counts = self.counts();
        if !said.is_empty() {
            println!("{}", said.trim_end());
        }
        match outcome {
            Ok(()) => {
                counts.passed += 1;
                println!("test {name} ... ok ({seconds:.1} s)");
            }
            Err(error) => {
                println!("test {name} ... FAILED ({seconds:.1} s)\n{error:#}");
                counts.failed.push(format!("{name}\n{error:#}"));
            }
        }
    }

    /// Prints the failures and libtest's summary line.
    pub fn end(&self, started: Instant) -> ExitCode {
        let counts = self.counts();
        for failure in &counts.failed {
            println!("\n---- {failure}");
        }
        let filtered = counts.all.saturating_sub(counts.passed + counts.failed.len());
        println!(
            "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {:.2}s",
            if counts.failed.is_empty() { "ok" } else { "FAILED" },
            counts.passed,
            counts.failed.len(),
            started.elapsed().as_secs_f64()
        );
        if counts.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
