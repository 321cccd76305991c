//! A double of a CUDA program: attaches to the MPS of its environment, or runs without, exactly as the recording says,
//! and writes one record of what it got.

mod attach;
mod bare;
mod record;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use tests::double::node::{MIB, Node};

use self::attach::Running;

const HELP: &str = "\
fake-cuda-client --node DIR [options]
  --node DIR      the simulated node
  --gpu INDEX     open a context on this visible GPU only
  --alloc MIB     allocate so much (failing is error 2); --alloc=CAP finds out how much can be, and frees it
  --hold SECONDS  keep the context so long (decimals allowed)
  --busy          launch kernels while holding, and notice at once when the server has gone
  --fault         run a kernel that writes to an address that is none, before holding
  --record FILE   append the record to FILE as well as writing it to standard output
  --ignore-term   ignore SIGTERM
  --json          accepted; the record is always JSON
";

/// The command line.
#[derive(Debug, Default)]
pub struct Options {
    node: PathBuf,
    gpu: Option<usize>,
    alloc: Option<u64>,
    find: Option<u64>,
    hold: Duration,
    busy: bool,
    fault: bool,
    record: Option<PathBuf>,
    ignore_term: bool,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("fake-cuda-client: {why}\n{HELP}");
            return ExitCode::from(64);
        }
    };
    if options.ignore_term {
        // SAFETY: no handler is installed, only a disposition.
        let _ = unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) };
    }
    match Node::open(&options.node) {
        Ok(node) => run(&node, &options),
        Err(why) => {
            eprintln!("fake-cuda-client: {why}");
            ExitCode::from(64)
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("'{text}': {e}"));
        match argument.as_str() {
            "--node" => options.node = value()?.into(),
            "--gpu" => options.gpu = Some(number(value()?)? as usize),
            "--alloc" => options.alloc = Some(number(value()?)?),
            "--hold" => {
                let seconds: f64 = value()?.parse().map_err(|e| format!("--hold: {e}"))?;
                options.hold = Duration::try_from_secs_f64(seconds).map_err(|e| format!("--hold: {e}"))?;
            }
            "--busy" => options.busy = true,
            "--fault" => options.fault = true,
            "--record" => options.record = Some(value()?.into()),
            "--ignore-term" => options.ignore_term = true,
            "--json" => {}
            other => match other.strip_prefix("--alloc=") {
                Some(cap) => options.find = Some(number(cap.to_owned())?),
                None => return Err(format!("'{other}' is no option")),
            },
        }
    }
    if options.node.as_os_str().is_empty() {
        Err("--node is missing".into())
    } else {
        Ok(options)
    }
}

fn run(node: &Node, options: &Options) -> ExitCode {
    let begin = Instant::now();
    let mut running = match attach::attach(node, options.gpu) {
        Ok(running) => running,
        Err(error) => return record::failed(options.record.as_deref(), &node.is.name, &error, 3),
    };
    std::thread::sleep(Duration::from_millis(node.is.times.client));
    let allocatable = options.find.map(|cap| find(&mut running, cap));
    if let Some(mib) = options.alloc
        && let Err(error) = running.allocate(mib * MIB)
    {
        return record::failed(options.record.as_deref(), &node.is.name, &error, 3);
    }
    record::write(
        options.record.as_deref(),
        node,
        &running,
        allocatable,
        begin.elapsed(),
    );
    if options.fault {
        running.fault();
    }
    let until = Instant::now() + options.hold;
    // A program that computes nothing notices only at its end that its server has gone.
    let step = if options.busy {
        Duration::from_millis(5)
    } else {
        options.hold
    };
    // An error stays a context's: the first one is the program's.
    let mut held = Ok(());
    while !options.hold.is_zero() && held.is_ok() {
        let left = until.saturating_duration_since(Instant::now());
        held = running.sleep(step.min(left), options.busy);
        if left.is_zero() {
            break;
        }
    }
    match held.and_then(|()| running.launch()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => record::failed(options.record.as_deref(), &node.is.name, &error, 3),
    }
}

/// How much can be allocated up to a cap, in steps of 64 MiB.
fn find(running: &mut Running, cap: u64) -> u64 {
    let mut mib = 0;
    while mib + 64 <= cap && running.allocate(64 * MIB).is_ok() {
        mib += 64;
    }
    running.free(mib * MIB);
    mib
}
