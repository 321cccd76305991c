//! A double of a CUDA program: attaches as recorded to the MPS of its environment, or runs without,
//! and writes a record.

mod attach;
mod bare;
mod record;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tests::double::node::{MIB, Node};
use tests::double::wire::CudaError;

use self::attach::Running;

/// Attaches to the MPS of its environment, or runs without.
#[derive(Debug, Parser)]
#[command(name = "cuda-client-double")]
pub struct Options {
    #[arg(long)]
    node: PathBuf,
    #[arg(long)]
    gpu: Option<usize>,
    /// MiB to allocate (failing is error 2); '--alloc=CAP' finds out how much can be, and frees it
    #[arg(long)]
    alloc: Option<u64>,
    #[arg(long, default_value = "0", value_parser = seconds)]
    hold: Duration,
    /// Launch kernels while holding, and notice at once when the server has gone
    #[arg(long)]
    busy: bool,
    #[arg(long)]
    fault: bool,
    /// Compute with others on several GPUs, as ranks of NCCL do
    #[arg(long)]
    paired: bool,
    #[arg(long)]
    record: Option<PathBuf>,
    /// The record is always JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|e| format!("{e}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    let options = Options::parse();
    match Node::open(&options.node) {
        Ok(node) => run(&node, &options),
        Err(why) => {
            eprintln!("cuda-client-double: {why}");
            ExitCode::from(64)
        }
    }
}

fn run(node: &Node, options: &Options) -> ExitCode {
    let begin = Instant::now();
    let failed =
        |error: &CudaError| record::failed(options.record.as_deref(), &node.is.name, error, 3);
    let mut running = match attach::attach(node, options.gpu, options.paired) {
        Ok(running) => running,
        Err(error) => return failed(&error),
    };
    std::thread::sleep(Duration::from_millis(node.is.times.client));
    // The probe's own spelling: '--alloc=CAP' is one word.
    let finds = std::env::args().any(|word| word.starts_with("--alloc="));
    let cap = options.alloc.filter(|_| finds);
    let allocatable = cap.map(|cap| find(&mut running, cap));
    if let Some(mib) = options.alloc.filter(|_| !finds)
        && let Err(error) = running.allocate(mib * MIB)
    {
        return failed(&error);
    }
    let (file, took) = (options.record.as_deref(), begin.elapsed());
    record::write(file, node, &running, allocatable, took);
    if options.fault {
        let _ = running.tell("FAULT");
    }
    let until = Instant::now() + options.hold;
    // A program that computes nothing notices only at its end that its server is gone.
    let step = match options.busy {
        true => Duration::from_millis(5),
        false => options.hold,
    };
    // An error stays with its context; the first one is the program's.
    let mut held = Ok(());
    while !options.hold.is_zero() && held.is_ok() {
        let left = until.saturating_duration_since(Instant::now());
        running.sleep(step.min(left), options.busy);
        if options.busy {
            held = running.tell("LAUNCH");
        }
        if left.is_zero() {
            break;
        }
    }
    let ended = held.and_then(|()| running.tell("LAUNCH"));
    let _ = running.tell("END");
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn find(running: &mut Running, cap: u64) -> u64 {
    let mut mib = 0;
    while mib + 64 <= cap && running.allocate(64 * MIB).is_ok() {
        mib += 64;
    }
    running.free(mib * MIB);
    mib
}
