//! The command line of `mpsctl`.

use super::attach::{self, Caller};
use super::doctor::Doctor;
use super::env::{Env, Shell};
use super::examples;
use super::exec::Exec;
use super::explain::Explain;
use super::metrics::Metrics;
use super::plan::PlanVerb;
use super::report::ReportVerb;
use super::selftest::Selftest;
use super::site::{self, Advertise, ConfigVerb, inventory};
use super::status::Status;
use super::terminal::{say, say_checks, say_json};
use super::waiting::{idle, waiting};
use super::{NAME, complain};
use batch::{Host, ThisHost};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use mpsd::cli::or_directories;
use mpsd::cli::reconcile::{Reconcile, ReconcileReport, Undrain};
use mpsd::cli::words::words;
use mpsd::job::outcome::UNCOUNTED;
use mpsd_core::config::{DEFAULT_PATH, Settings, directories_alone};
use mpsd_core::failure::EXIT_NODE;
use mpsd_core::{Failure, Undetermined};
use mpsd_sys::priority;
use setup::ADMIN_VERBS;
use setup::{SetupContext, VerbError, VerbReport, must_be_root};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user's and the administrator's tool for jobs with an NVIDIA MPS of their own.
///
/// Exit status: 0 done; 1 refused, or something is left to do; 2 this node could not do it. With
/// --json a failure is an object too, with the keys error and exit_status, beside the line on
/// standard error.
#[derive(Debug, Parser)]
#[command(name = "mpsctl", version = mpsd::cli::version())]
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
    /// Without MPS it prints nothing, but --job then fails. If the job's MPS was refused or did
    /// not start, it says why on standard error and prints 'false', so that the eval fails too.
    /// With --container it then prints an option that no runtime knows.
    Env(Env),
    /// Run a program attached to the job's MPS, with its rank's limits
    ///
    /// Lists by rank and MPS=per-gpu need the launcher's local rank: OMPI_COMM_WORLD_LOCAL_RANK,
    /// MPI_LOCALRANKID, PALS_LOCAL_RANKID or SLURM_LOCALID.
    Exec(Exec),
    /// Show a job's MPS as it is now: daemons, limits, and each GPU with its clients
    ///
    /// In a job: that job, and whether the calling task is under MPS, and why. As root: all jobs of
    /// the node. Exit status: 0 under MPS, or up; 1 not; 2 unknown. It does not show how busy a GPU
    /// is: NVML counts all clients together.
    Status(Status),
    /// Run 1, 2, 4, 8 copies of a program with the job's MPS and without, and say what does best
    Sweep(ForRunner),
    /// Run the commands of a file on the job's GPUs under its MPS, as many at once as do best
    Pack(ForRunner),
    /// Print the reports of jobs that have ended on this node
    ///
    /// With a job: for root, and until the node's next boot for the job's user (the last 32 jobs).
    /// Without: those of all jobs, for root; nothing if there are none. What the job's own mpsd
    /// observed (clients, lost servers) is marked, because a process of the job's user wrote it.
    Report(ReportVerb),
    /// Run a small MPS job through this site's scheduler, as an ordinary user, and check what it
    /// got
    ///
    /// Submits a job that asks for MPS, half a GPU's threads and 1 GiB, and runs mps-probe in it.
    /// The job is canceled if it is late or the selftest is interrupted. Exit status: 0 all lines
    /// are OK; 2 a FAIL.
    Selftest(Selftest),
    /// Print numbers about MPS on this node for Prometheus (root)
    ///
    /// Jobs, clients, memory and use by job and GPU, GPUs without a client and drains now; failed
    /// starts, ends, advice and times since the first job. With --textfile it writes the file that
    /// node_exporter reads; mpsd-metrics.timer does so every minute. It asks no process of a user.
    /// Exit status: 2 if NVML or the counters cannot be read; the rest is printed.
    Metrics(Metrics),
    /// Print what root would do here for a job, and do none of it
    ///
    /// Takes the arguments of mps-prologue; or, without a scheduler, --user, --request (as
    /// MPS=true,MPS_THREADS=25) and --gpus.
    Plan(Box<PlanVerb>),
    /// Take down what remains of jobs that their scheduler no longer has, and deliver or lift our
    /// own drains (root)
    ///
    /// mpsd-reconcile.timer runs it, and mpsd-boot.service with --boot. It leaves a job alone if
    /// the scheduler does not answer. Exit status: 2 if something remains that should not.
    Reconcile(Reconcile),
    /// Lift our own drain of this node after a clean check (root)
    ///
    /// NVML answers, the GPUs are there, run_dir is as jobs need it, and no process of a job that is
    /// gone is left. It never lifts a drain with another reason.
    Undrain(Undrain),
    /// Say whether jobs with MPS run on this node, and wait for their end (root)
    ///
    /// The packages ask it before they are removed, because a running job's end needs our files.
    /// Exit status: 0 none runs; 1 some do, and are named.
    Idle {
        /// Wait this long for the jobs with MPS that run on this node
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        wait: u64,
    },
    /// The configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Check what this host needs to give jobs an MPS, one line each, with what to do
    ///
    /// Checks the configuration, our programs, the driver, directories, cgroups, units, remains of
    /// jobs, and the scheduler's set-up. As root it makes a cgroup like a job's and removes it; it
    /// changes nothing else. FAIL: root has proved it, and no user can cause it. WARN: it could be
    /// better, a user may have caused it, or it could not be checked now. Exit status: 0 no FAIL; 2
    /// a FAIL.
    Doctor(Doctor),
    /// Explain a CUDA error under MPS, a log, or how a program fares under MPS
    ///
    /// Explains each known trouble of a log once, with its first line. Needs neither a job nor a
    /// GPU.
    Explain(Explain),
    /// Print the lines that make this node offer shares of its GPUs
    Advertise(Advertise),
}

/// The words of a verb that `mps-runner` reads: the program that root calls needs no
/// progress bars.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
struct ForRunner {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// The command line's definition: for help, manual pages and completions alike.
pub fn command() -> clap::Command {
    let command =
        Arguments::command().subcommands(ADMIN_VERBS.iter().map(|verbs| (verbs.command)()));
    examples::added(with_json(command), "")
}

/// Verbs without `--json`: their output is for a shell, Prometheus or a hook, or it is another
/// program's.
const WITHOUT_JSON: [&str; 4] = ["env", "exec", "metrics", "request"];
const JSON: &str = "--json";

fn with_json(verb: clap::Command) -> clap::Command {
    if verb.has_subcommands() {
        return verb.mut_subcommands(with_json);
    }
    let has_it = verb.get_arguments().any(|arg| arg.get_id() == "json");
    if has_it || WITHOUT_JSON.contains(&verb.get_name()) {
        return verb;
    }
    let flag = Arg::new("json").long("json").action(ArgAction::SetTrue);
    verb.arg(flag.help("One JSON object"))
}

fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, below)) => wants_json(below),
        None => matches!(matches.try_get_one("json"), Ok(Some(true))),
    }
}

pub fn main() -> u8 {
    let mut json = false;
    parse_and_run(&mut json).unwrap_or_else(|failure| {
        tell(&failure, json);
        failure.code
    })
}

/// Prints a line on standard error, and an object if that was asked for.
pub fn tell(VerbError { line, code }: &VerbError, json: bool) {
    complain(NAME, line);
    if json {
        say_json(&error_json(line, i32::from(*code)));
    }
}

fn error_json(line: &str, code: i32) -> serde_json::Value {
    serde_json::json!({"error": line, "exit_status": code})
}

/// Says on standard output what its reader needs to know of an unreadable command line.
pub fn say_usage_error(error: &clap::Error, code: i32) {
    say(Env::of_unread(std::env::args_os()));
    let mut own = std::env::args_os().take_while(|word| word != "--");
    if own.any(|word| word == JSON) {
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        let words = first.split_whitespace();
        let words: Vec<&str> = words.skip_while(|word| *word == "error:").collect();
        say_json(&error_json(&words.join(" "), code));
    }
}

/// `json` becomes whether a failure is an object too.
fn parse_and_run(json: &mut bool) -> Result<u8, VerbError> {
    let words = words()?;
    let matches = match command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp && is_help_of_runner(&words) => {
            return Err(become_runner()?);
        }
        Err(error) => {
            if error.use_stderr() {
                say_usage_error(&error, error.exit_code());
            }
            error.exit()
        }
    };
    *json = wants_json(&matches);
    let json = *json;
    if let Some((name, below)) = matches.subcommand()
        && let Some(verbs) = ADMIN_VERBS
            .iter()
            .find(|verbs| (verbs.command)().get_name() == name)
        && let Some(config) = below.get_one::<PathBuf>("config")
    {
        let node = below.subcommand().map(|(_, verb)| verb);
        let node = node.and_then(|verb| verb.try_get_one::<String>("node").ok()?);
        let run = |context: &SetupContext<'_>| (verbs.run)(below, context);
        let report = with_context(config, &host_or(node), run)?;
        return Ok(print_report(&report, json));
    }
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    run(arguments.verb, &arguments.config, json)
}

fn run(verb: Verb, config: &Path, json: bool) -> Result<u8, VerbError> {
    const ALL_JOURNALS: &str = "it reads the journals of all jobs";
    match verb {
        Verb::Env(verb) => Ok(env(config, &verb)),
        Verb::Exec(verb) => {
            let mut caller = Caller::this(config, verb.job.as_deref());
            caller.main = verb.is_main(&attach::own_variable);
            match verb.run(&caller)? {}
        }
        Verb::Status(verb) => {
            Ok(verb.run(&Caller::this(config, verb.job.as_deref()), &mpsd_program()?)?)
        }
        Verb::Sweep(_) | Verb::Pack(_) => Err(become_runner()?),
        Verb::Report(verb) => verb.run(&settings(config, &host_or(verb.node.as_ref()))?),
        Verb::Selftest(verb) => Ok(verb.run(&Caller::this(config, None), &programs()?)?),
        Verb::Metrics(verb) => {
            let node = host_or(verb.node.as_ref());
            let settings = settings_for_root(config, &node, "metrics", ALL_JOURNALS)?;
            Ok(verb.run(&settings, self::settings(config, &node).is_ok())?)
        }
        Verb::Plan(verb) => {
            print(&verb.run(config, &mpsd_program()?, &attach::own_variable, json)?)
        }
        Verb::Reconcile(verb) => {
            let (name, why) = match verb.dry_run {
                true => ("reconcile --dry-run", ALL_JOURNALS),
                false => ("reconcile", "it changes the node"),
            };
            let node = host_or(verb.node.as_ref());
            let settings = settings_for_root(config, &node, name, why)?;
            let usable = Settings::load(config, &node).is_ok();
            print_remains(&verb.run(&settings, &node, usable)?, json)
        }
        Verb::Undrain(verb) => {
            let node = host_or(verb.node.as_ref());
            let settings = settings_for_root(config, &node, "undrain", "it changes the node")?;
            print_remains(&verb.run(&settings, &node)?, json)
        }
        Verb::Idle { wait } => {
            let why = "it reads the jobs' directories";
            let settings = settings_for_root(config, &host_or(None), "idle", why)?;
            Ok(idle(&settings, wait, json)?)
        }
        Verb::Config(ConfigVerb::Check { file }) => {
            let report = site::check(file.as_deref(), config, &ThisHost.name());
            Ok(print_report(&report, json))
        }
        Verb::Config(ConfigVerb::Show { node }) => {
            print(&site::show(&host_or(node.as_ref()), config, json)?)
        }
        Verb::Doctor(verb) => {
            if nix::unistd::geteuid().is_root() {
                priority::raise();
            }
            let node = host_or(verb.node.as_ref());
            with_context(config, &node, |context| {
                Ok(verb.print(&verb.check(&node, context)))
            })
        }
        Verb::Explain(verb) => print(&verb.run(json)?),
        Verb::Advertise(verb) => {
            print(&verb.run(config, &ThisHost.name(), &mpsd_program()?, json)?)
        }
    }
}

/// `help sweep`, which clap answers by itself.
fn is_help_of_runner(words: &[OsString]) -> bool {
    let mut pairs = words.windows(2);
    pairs.any(|pair| pair[0] == "help" && (pair[1] == "sweep" || pair[1] == "pack"))
}

/// Turns this process into `mps-runner` with the same words; returns only on failure.
fn become_runner() -> Result<VerbError, Failure> {
    let program = programs()?.join("mps-runner");
    let error = Command::new(&program)
        .args(std::env::args_os().skip(1))
        .exec();
    let (program, code) = (program.display(), EXIT_NODE);
    let line = format!("cannot run '{program}': {error}; install the package mpsd again");
    Ok(VerbError { line, code })
}

fn print(text: &str) -> Result<u8, VerbError> {
    say(text);
    Ok(0)
}

fn print_report(report: &VerbReport, json: bool) -> u8 {
    match json {
        true => say_json(&report.json()),
        false => report.lines.iter().for_each(|line| say_checks(line)),
    }
    report.exit_code()
}

fn print_remains(report: &ReconcileReport, json: bool) -> Result<u8, VerbError> {
    report.print(json);
    Ok(if report.incomplete { EXIT_NODE } else { 0 })
}

fn host_or(node: Option<&String>) -> String {
    node.cloned().unwrap_or_else(|| ThisHost.name())
}

fn settings_for_root(
    config: &Path,
    node: &str,
    verb: &str,
    why: &str,
) -> Result<Settings, Failure> {
    must_be_root(verb, why)?;
    priority::raise();
    let read = settings(config, node);
    Ok(or_directories(NAME, read, config, node))
}

fn env(config: &Path, verb: &Env) -> u8 {
    let mut caller = Caller::this(config, verb.job.as_deref());
    (caller.main, caller.first) = (verb.main, verb.first);
    // JSON is for the hook of OpenPBS. It writes the warnings, one line, into the job's error file,
    // and does not count a failed try that only the node can have caused.
    let hook = verb.shell == Shell::Json;
    match verb.run(&caller) {
        Ok(text) => {
            let warnings = caller.warnings_of_job();
            if verb.main && hook && !warnings.is_empty() {
                complain(NAME, &warnings.join("; "));
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
    let what = "the directory of this program";
    let mut exe = std::env::current_exe().map_err(|e| Undetermined::new(what, e.to_string()))?;
    exe.pop();
    Ok(exe)
}

fn mpsd_program() -> Result<PathBuf, Failure> {
    Ok(programs()?.join("mpsd"))
}

/// The settings of `node`; the defaults if the usual file does not exist.
fn settings(config: &Path, node: &str) -> Result<Settings, Failure> {
    if config == Path::new(DEFAULT_PATH) && !config.exists() {
        return Ok(Settings::usual());
    }
    Ok(Settings::load(config, node)?)
}

fn with_context<T>(
    config: &Path,
    node: &str,
    verb: impl FnOnce(&SetupContext<'_>) -> Result<T, VerbError>,
) -> Result<T, VerbError> {
    let programs = programs()?;
    let (settings, broken) = match settings(config, node) {
        Ok(settings) => (settings, None),
        Err(failure) => (directories_alone(config, node), Some(failure)),
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
        standing: &waiting,
    })
}
