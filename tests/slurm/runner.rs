//! A small test runner. A group's cells share a bed. In libtest's harness only a static could hold
//! it, which is never dropped. Beds mostly wait, so several exist at once. A cell's output is shown
//! in one piece.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use tests::beside::Work;
use tests::double::Builder;
use tests::slurm::{Bed, Options, Simulated, User, Word, is_chosen_in};

const QUIET: Duration = Duration::from_secs(30);

pub type Cell = (&'static str, fn(&Context) -> Result<()>);

macro_rules! cells {
    ($($cell:path),* $(,)?) => { &[$((stringify!($cell), $cell as fn(&$crate::runner::Context) -> anyhow::Result<()>)),*] };
}
pub(crate) use cells;

#[derive(Clone, Copy)]
pub struct Group {
    pub name: &'static str,
    pub options: fn() -> Options,
    /// Lines of mpsd.toml.
    pub config: &'static str,
    /// The GPUs' doubles take no time; otherwise they take the recorded times.
    pub fast: bool,
    /// Puts into the new bed what else it needs before the daemons start.
    pub prepare: fn(&mut Bed, &mut Simulated) -> Result<()>,
    pub needs: fn() -> Option<String>,
    pub cells: &'static [Cell],
}

impl Group {
    /// Two nodes with the product and with two simulated GPUs each.
    pub const fn new(name: &'static str, cells: &'static [Cell]) -> Group {
        Group {
            name,
            options: Options::default,
            config: "",
            fast: false,
            prepare: |_, _| Ok(()),
            needs: || None,
            cells,
        }
    }

    pub const fn fast(name: &'static str, config: &'static str, cells: &'static [Cell]) -> Group {
        Group {
            config,
            fast: true,
            ..Group::new(name, cells)
        }
    }

    /// With `required` in plugstack.conf, for a group of the usual options: it replaces them.
    pub const fn required(self) -> Group {
        Group {
            options: || Options {
                word: Word::Required,
                ..Options::default()
            },
            ..self
        }
    }
}

/// Two servers on one GPU need a GPU that is not exclusive.
pub const KEEP: &str = "compute_mode = \"keep\"\n";

pub struct Context {
    pub bed: Bed,
    pub nodes: Simulated,
    pub user: User,
    pub other: User,
}

#[derive(Default)]
pub struct Tally(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: usize,
    passed: usize,
    failed: Vec<String>,
}

/// The beds of the groups' chosen cells. `claims` are added to their own.
pub fn beds<'a>(
    groups: &'a [Group],
    claims: &[&str],
    words: &[String],
    tally: &'a Tally,
) -> Vec<Work<'a>> {
    let mut beds = Vec::new();
    for group in groups {
        let mut cells = group.cells.to_vec();
        cells.retain(|(name, _)| is_chosen_in(words, group.name, name));
        tally.there_are(group.cells.len());
        match (group.needs)() {
            _ if cells.is_empty() => {}
            Some(why) => println!("skipped: slurm {}: {why}", group.name),
            None => {
                let mut all = (group.options)().claims();
                all.extend(claims.iter().map(ToString::to_string));
                beds.push(Work {
                    claims: all,
                    run: Box::new(move || {
                        tally.of_bed(group.name, || run_group(group, &cells, tally))
                    }),
                });
            }
        }
    }
    beds
}

fn run_group(group: &Group, cells: &[Cell], tally: &Tally) -> Result<()> {
    let mut bed = Bed::create((group.options)())?;
    let times = |node: Builder| if group.fast { node.fast() } else { node };
    let mut nodes = Simulated::install(&mut bed, group.config, times)?;
    (group.prepare)(&mut bed, &mut nodes)?;
    let context = Context::start_bed(bed, nodes)?;
    for (name, cell) in cells {
        let started = Instant::now();
        let outcome = guarded(|| cell(&context)).and_then(|()| quiet(&context));
        let said = match outcome {
            Ok(()) => String::new(),
            Err(_) => recover(&context),
        };
        tally.note(&format!("{}::{name}", group.name), started, outcome, &said);
    }
    let name = format!("{}::the_bed_leaves_nothing", group.name);
    tally.note(&name, Instant::now(), guarded(|| teardown(context)), "");
    Ok(())
}

impl Context {
    pub fn start_bed(bed: Bed, nodes: Simulated) -> Result<Context> {
        if let Err(error) = bed.start() {
            bail!("{error:#}\n{}", logs(&bed));
        }
        let [user, other] = bed.users();
        Ok(Context {
            bed,
            nodes,
            user,
            other,
        })
    }
}

fn guarded(cell: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(cell)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref().copied());
        Err(anyhow!("panicked: {}", text.unwrap_or("(no text)")))
    })
}

pub fn quiet(context: &Context) -> Result<()> {
    context.bed.wait_idle(QUIET).context("after the cell")?;
    context.bed.wait_clean(Duration::from_secs(5))?;
    context.nodes.check_idle()
}

/// Makes the bed usable for the next cell after a failure. Returns what the daemons said.
fn recover(context: &Context) -> String {
    let bed = &context.bed;
    let said = logs(bed);
    let _ = bed.root(&["scancel", "--full", "--signal=KILL", "--state=RUNNING"]);
    for user in [&context.user, &context.other] {
        let _ = bed.root(&["scancel", "-u", &user.name]);
    }
    for node in bed.nodes() {
        let state = bed.node_state(&node);
        if state.is_ok_and(|state| state.state.contains("DRAIN")) {
            let _ = bed.resume(&node);
        }
    }
    let _ = bed.wait_idle(QUIET);
    said
}

pub fn teardown(context: Context) -> Result<()> {
    let dirs = [context.bed.dir(), context.bed.run_dir()].map(Path::to_owned);
    let forced = context.bed.end()?;
    if !forced.is_empty() {
        bail!("the teardown had to use force: {}", forced.join("; "));
    }
    match dirs.iter().find(|dir| dir.exists()) {
        Some(dir) => bail!("'{}' is still there", dir.display()),
        None => Ok(()),
    }
}

pub fn logs(bed: &Bed) -> String {
    let mut text = String::new();
    for name in bed.nodes().iter().map(String::as_str).chain(["slurmctld"]) {
        let log = bed.log(name);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(25)..];
        text.push_str(&format!("== {name}\n{}\n", tail.join("\n")));
    }
    text
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn there_are(&self, cells: usize) {
        self.counts().all += cells;
    }

    /// Runs the cells of a bed. An error or a panic outside a cell fails only this bed.
    pub fn of_bed(&self, name: &str, cells: impl FnOnce() -> Result<()>) {
        let started = Instant::now();
        if let Err(error) = guarded(cells) {
            let name = format!("{name}::the_bed_comes_up");
            self.note(&name, started, Err(error), "");
        }
    }

    /// Notes how a cell ended, and shows it in one piece, after what was `said` meanwhile.
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

    pub fn end(&self, started: Instant) -> ExitCode {
        let counts = self.counts();
        for failure in &counts.failed {
            println!("\n---- {failure}");
        }
        let (passed, failed) = (counts.passed, counts.failed.len());
        let filtered = counts.all.saturating_sub(passed + failed);
        let result = if failed == 0 { "ok" } else { "FAILED" };
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {seconds:.2}s"
        );
        ExitCode::from(u8::from(failed > 0))
    }
}
