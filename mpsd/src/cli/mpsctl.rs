//! The command line of `mpsctl`.

use super::attach::{self, Caller};
use super::doctor::{self, Doctor};
use super::env::{Env, Shell};
use super::examples;
use super::exec::Exec;
use super::explain::Explain;
use super::idle::Idle;
use super::metrics::Metrics;
use super::plan::PlanVerb;
use super::reconcile::{Reconcile, ReconcileReport, Undrain};
use super::report::ReportVerb;
use super::selftest::Selftest;
use super::set::Set;
use super::site::{Advertise, ConfigVerb, inventory};
use super::status::Status;
use super::support::{SupportBundle, SupportContext};
use super::sweep::Sweep;
use super::terminal::{say, say_checks};
use super::waiting::waiting;
use super::words::words;
use super::{NAME, complain};
use crate::job::outcome::UNCOUNTED;
use crate::scheduler::setup::{AdminVerbs, SetupContext, VerbError, VerbReport};
use crate::scheduler::{ADMIN_VERBS, Host, ThisHost};
use crate::sys::priority;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use mpsd_core::config::{Config, DEFAULT_PATH, Settings};
use mpsd_core::failure::EXIT_NODE;
use mpsd_core::{Failure, Refusal, Undetermined};
use std::path::{Path, PathBuf};

/// The user's and the administrator's tool for jobs with an NVIDIA MPS of their own.
///
/// Exit status: 0 done; 1 refused, or something is left to do; 2 this node could not do it.
#[derive(Debug, Parser)]
#[command(name = "mpsctl", version = super::version())]
struct Arguments {
    /// The configuration
    #[arg(long, global = true, value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the variables that attach a shell to its job's MPS: eval "$(mpsctl env)"
    ///
    /// Prints nothing outside a job and in a job without MPS. Where the job's MPS was refused or did not start, says why
    /// on standard error and prints 'false', so that the eval fails too; with --container an option that no runtime knows.
    Env(Env),
    /// Run a program attached to the job's MPS, with its rank's limits
    ///
    /// Lists by rank and MPS=per-gpu need the launcher's local rank: OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID,
    /// PALS_LOCAL_RANKID or SLURM_LOCALID.
    Exec(Exec),
    /// Show a job's MPS as it is now: daemons, limits, and each GPU with its clients
    ///
    /// In a job: of that job, and whether the calling task is under MPS, and why not. As root: of all jobs of the node.
    /// Exit status: 0 under MPS, or up; 1 not; 2 that cannot be told. How busy a GPU is, NVML tells of all clients together
    /// and of none alone: that is not shown.
    Status(Status),
    /// Give the clients of a running job other limits, within the site's ceilings
    ///
    /// For the job's owner, and root. NVIDIA's daemon gives them to clients that connect from now on: those that run keep theirs, and
    /// no command of it is for a single client. A rank's own limits still only lower them. What was set stands in the job's log,
    /// 'mpsctl status' and its report.
    Set(Set),
    /// Run 1, 2, 4, 8 copies of a program with the job's MPS and without, and say what does best
    ///
    /// Each copy sees one of the job's GPUs, in turn, and has its share of the threads from its start. Ask for the job with --mps
    /// alone: a client can only lower a share that the job has. Each run ends with all that its copies have started, and so does a
    /// sweep that is interrupted or killed.
    Sweep(Sweep),
    /// Print what root wrote down of a job that has ended on this node
    ///
    /// With a job: its reports, in words; for its own user, until the node's next boot, and for root. Without: a summary of all
    /// (root). What the job's own mpsd saw, clients and lost servers, is
    /// the word of a process of the job's user, and said to be.
    Report(ReportVerb),
    /// Try a job with MPS through this site's scheduler, as an ordinary user, and say what it got
    ///
    /// Submits a job that asks for MPS, half a GPU's threads and 1 GiB, and runs mps-probe in it. The job is cancelled if it is late
    /// or the selftest is interrupted. Exit status: 0 all lines are OK; 2 a FAIL.
    Selftest(Selftest),
    /// Print numbers about MPS on this node for Prometheus (root)
    ///
    /// Jobs, clients and memory by job and GPU, GPUs without a client, drains; and what has been counted since the first job:
    /// starts that failed, ends, times. With --textfile as the file that node_exporter reads; mpsd-metrics.timer does so every minute.
    /// No process of a user's is asked. Exit status: 2 where NVML or the counters cannot be read; the rest is there.
    Metrics(Metrics),
    /// Print what root would do here for a job, and do nothing of it
    ///
    /// Takes what mps-prologue takes; or, for a job that no scheduler tells of, --user, --request and --gpus.
    Plan(Box<PlanVerb>),
    /// Take down what jobs left that their scheduler no longer has here, and deliver or lift our own drains (root)
    ///
    /// Run by mpsd-reconcile.timer and, with --boot, by mpsd-boot.service. A job whose scheduler does not answer is left
    /// alone. Exit status: 2 when something is left that should not be.
    Reconcile(Reconcile),
    /// Lift our own drain of this node after a clean recheck (root)
    ///
    /// NVML answers, the GPUs are there, no process of a job that is gone is left. A drain with another's reason is
    /// never lifted.
    Undrain(Undrain),
    /// Say whether jobs with MPS run on this node, and wait for their end (root)
    ///
    /// Asked by the packages before they are removed, as a running job's end needs our files. Exit status: 0 none runs; 1 some
    /// do, and are named.
    Idle(Idle),
    /// The configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Say what keeps this host from giving jobs an MPS, one line each, with what to do
    ///
    /// Looks at the configuration, our programs, the driver, directories, cgroups, units, what jobs left, and the scheduler's
    /// set-up as its check does. As root it makes a cgroup as a job's and removes it; nothing else is changed. A WARN works and could
    /// be better, or could not be told now for want of memory or time. Exit status: 0 no FAIL; 2 a FAIL.
    Doctor(Doctor),
    /// Say in words what an error of CUDA's under MPS, or a log, tells: cause, remedy, source
    ///
    /// Of a log each thing that is known is told once, with its first line. Needs neither a job nor a GPU.
    Explain(Explain),
    /// Print the lines that make this node offer shares of its GPUs
    Advertise(Advertise),
    /// Pack what a report of a problem needs to say of this node into one file of root's (root)
    ///
    /// Versions, the configuration, what the checks say, and the last lines of our programs in the journal: at most 4 MiB. It has nothing of
    /// a job's files, and where our lines name a user the name is left out. Job ids are in it, and so is a request that was
    /// refused, as its user wrote it. A command that takes longer than 20 s is left out.
    SupportBundle(SupportBundle),
}

/// The command line's definition: for help, manual pages and completions alike.
pub fn command() -> clap::Command {
    let of_schedulers = ADMIN_VERBS.iter().map(|verbs| (verbs.command)());
    let command = Arguments::command().subcommands(of_schedulers);
    let command = WITH_JSON
        .iter()
        .fold(command, |command, verbs| with_json(command, verbs));
    examples::added(command, "")
}

/// Verbs that print one JSON object on demand; others that have it say more of theirs.
const WITH_JSON: [&[&str]; 7] = [
    &["advertise"],
    &["config", "check"],
    &["config", "show"],
    &["pbs", "check"],
    &["plan"],
    &["reconcile"],
    &["slurm", "check"],
];

fn with_json(command: clap::Command, verbs: &[&str]) -> clap::Command {
    let Some((first, below)) = verbs.split_first() else {
        let flag = Arg::new("json").long("json").action(ArgAction::SetTrue);
        return command.arg(flag.help("One JSON object"));
    };
    command.mut_subcommand(first, |verb| with_json(verb, below))
}

/// Whether the verb was asked for JSON.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, below)) => wants_json(below),
        None => matches!(matches.try_get_one("json"), Ok(Some(true))),
    }
}

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    parse_and_run().unwrap_or_else(|VerbError { line, code }| {
        complain(NAME, &line);
        code
    })
}

fn parse_and_run() -> Result<u8, VerbError> {
    let matches = command().try_get_matches_from(words()?).unwrap_or_else(|error| {
        if error.use_stderr() {
            say(Env::of_unread(std::env::args_os()));
        }
        error.exit()
    });
    let json = wants_json(&matches);
    if let Some((name, below)) = matches.subcommand()
        && let Some(verbs) = ADMIN_VERBS
            .iter()
            .find(|verbs| (verbs.command)().get_name() == name)
        && let Some(config) = below.get_one::<PathBuf>("config")
    {
        return Ok(print_report(&set_up(config, verbs, below)?, json));
    }
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    run(arguments.verb, &arguments.config, json)
}

fn run(verb: Verb, config: &Path, json: bool) -> Result<u8, VerbError> {
    let root = |node: Option<&str>, name| Root {
        config,
        node: node.map(str::to_owned),
        name,
        json,
    };
    match verb {
        Verb::Env(verb) => Ok(env(config, &verb)),
        Verb::Exec(verb) => {
            let main = verb.is_main(&attach::own_variable);
            match verb.run(&Caller::this(config, verb.job.as_deref(), main))? {}
        }
        Verb::Status(verb) => {
            let caller = Caller::this(config, verb.job.as_deref(), false);
            Ok(verb.run(&caller, &daemon()?)?)
        }
        Verb::Set(verb) => print(&verb.run(&Caller::this(config, verb.job.as_deref(), false))?),
        Verb::Sweep(verb) => {
            let caller = Caller::this(config, verb.job.as_deref(), false);
            verb.run(&caller, &daemon()?)
        }
        Verb::Report(verb) => Ok(verb.run(&settings(config, &host_or(verb.node.as_deref()))?)?),
        Verb::Selftest(verb) => Ok(verb.run(&Caller::this(config, None, false), &programs()?)?),
        Verb::Metrics(verb) => {
            must_be_root("metrics", "it reads the journals of all jobs")?;
            Ok(verb.run(&settings(config, &host_or(verb.node.as_deref()))?)?)
        }
        Verb::Plan(verb) => {
            let env = |name: &str| std::env::var(name).ok();
            print(&verb.run(config, &daemon()?, &env, json)?)
        }
        Verb::Reconcile(verb) => {
            let (name, why) = match verb.dry_run {
                true => ("reconcile --dry-run", "it reads the journals of all jobs"),
                false => ("reconcile", "it changes the node"),
            };
            let usable = Config::load(config).is_ok();
            let run = |settings: &Settings, name: &str| verb.run(settings, name, usable);
            root(verb.node.as_deref(), name).run(why, run)
        }
        Verb::Undrain(verb) => {
            let run = |settings: &Settings, name: &str| verb.run(settings, name);
            root(verb.node.as_deref(), "undrain").run("it changes the node", run)
        }
        Verb::Idle(verb) => {
            root(None, "idle").run("it reads the jobs' directories", |settings, _| verb.run(settings))
        }
        Verb::SupportBundle(verb) => {
            let mpsctl = programs()?.join(NAME);
            let run = |settings: &Settings, _: &str| {
                let (config, mpsctl) = (config, mpsctl.as_path());
                verb.run(&SupportContext {
                    host: &ThisHost,
                    config,
                    settings,
                    mpsctl,
                })
            };
            root(None, "support-bundle").run("it reads root's log", run)
        }
        Verb::Config(ConfigVerb::Check(verb)) => Ok(print_report(&verb.run(config), json)),
        Verb::Config(ConfigVerb::Show(verb)) => print(&verb.run(config, &ThisHost.name(), json)?),
        Verb::Doctor(verb) => {
            if nix::unistd::geteuid().is_root() {
                priority::raise();
            }
            let node = host_or(verb.node.as_deref());
            let lines = with_context(config, &node, |context| Ok(doctor::check(&node, context)))?;
            verb.print(&lines);
            Ok(doctor::exit_code(&lines))
        }
        Verb::Explain(verb) => print(&verb.run()?),
        Verb::Advertise(verb) => print(&verb.run(config, &ThisHost.name(), &daemon()?, json)?),
    }
}

fn print_report(report: &VerbReport, json: bool) -> u8 {
    match json {
        true => say(&format!("{}\n", report.json())),
        false => report.lines.iter().for_each(|line| say_checks(line)),
    }
    u8::from(report.incomplete)
}

fn print(text: &str) -> Result<u8, VerbError> {
    say(text);
    Ok(0)
}

fn host_or(node: Option<&str>) -> String {
    node.map_or_else(|| ThisHost.name(), str::to_owned)
}

fn must_be_root(verb: &str, why: &str) -> Result<(), Failure> {
    match nix::unistd::geteuid().is_root() {
        true => Ok(()),
        false => Err(Refusal::new(verb, why, "root").into()),
    }
}

/// A verb for root only.
struct Root<'a> {
    config: &'a Path,
    node: Option<String>,
    name: &'a str,
    json: bool,
}

impl Root<'_> {
    /// Runs it with the node's settings and name. An unreadable configuration must not keep the remains of a job: then
    /// the usual directories are used, and the journals have the rest.
    fn run(
        self,
        why: &str,
        verb: impl FnOnce(&Settings, &str) -> Result<ReconcileReport, Failure>,
    ) -> Result<u8, VerbError> {
        must_be_root(self.name, why)?;
        priority::raise();
        let node = host_or(self.node.as_deref());
        let settings = settings(self.config, &node).unwrap_or_else(|failure| {
            complain(NAME, &format!("{failure}; going on with the usual directories"));
            Settings::usual()
        });
        let report = verb(&settings, &node)?;
        say(&report.print(self.json));
        Ok(if report.incomplete { EXIT_NODE } else { 0 })
    }
}

fn env(config: &Path, verb: &Env) -> u8 {
    let caller = Caller::this(config, verb.job.as_deref(), verb.main);
    // JSON is for the hook of OpenPBS. It writes the warnings into the job's error file, and has a try not counted that
    // only the node can have failed.
    let hook = verb.shell == Shell::Json;
    match verb.run(&caller) {
        Ok(text) => {
            if verb.main && hook {
                caller.warnings().iter().for_each(|line| complain(NAME, line));
            }
            say(&text);
            0
        }
        Err(failure) => {
            say(verb.failure());
            complain(NAME, &failure.to_string());
            match failure.exit_code() {
                EXIT_NODE if hook && caller.failed_by_node() => UNCOUNTED,
                code => code,
            }
        }
    }
}

/// The directory of this program and of our others.
fn programs() -> Result<PathBuf, Failure> {
    let unknown = |why: String| Undetermined::new("the directory of this program", why);
    let exe = std::env::current_exe().map_err(|e| unknown(e.to_string()))?;
    let directory = exe.parent().ok_or_else(|| unknown("it has none".to_owned()))?;
    Ok(directory.to_path_buf())
}

/// The program `mpsd`.
fn daemon() -> Result<PathBuf, Failure> {
    Ok(programs()?.join("mpsd"))
}

/// The settings of `node`; the defaults if the usual file does not exist.
fn settings(config: &Path, node: &str) -> Result<Settings, Failure> {
    if config == Path::new(DEFAULT_PATH) && !config.exists() {
        return Ok(Settings::usual());
    }
    let read = Config::load(config).and_then(|file| file.for_node(node, &[]));
    Ok(read?)
}

/// Runs a verb of a scheduler's folder, with the settings of the node that it names.
fn set_up(config: &Path, verbs: &AdminVerbs, matches: &ArgMatches) -> Result<VerbReport, VerbError> {
    let verb = matches.subcommand().map(|(_, verb)| verb);
    let node = verb.and_then(|verb| verb.try_get_one::<String>("node").ok()?);
    let node = host_or(node.map(String::as_str));
    with_context(config, &node, |context| (verbs.run)(matches, context))
}

/// Runs an administrator's verb for `node`.
fn with_context<T>(
    config: &Path,
    node: &str,
    verb: impl FnOnce(&SetupContext<'_>) -> Result<T, VerbError>,
) -> Result<T, VerbError> {
    let programs = programs()?;
    let (settings, broken) = match settings(config, node) {
        Ok(settings) => (settings, None),
        Err(failure) => (Settings::usual(), Some(failure)),
    };
    verb(&SetupContext {
        config: (config != Path::new(DEFAULT_PATH)).then_some(config),
        settings,
        broken,
        programs: &programs,
        host: &ThisHost,
        inventory: &|node| {
            let nvml = self::settings(config, node)?.nvml;
            inventory(&programs.join("mpsd"), &nvml)
        },
        standing: &|settings| waiting(settings),
    })
}
