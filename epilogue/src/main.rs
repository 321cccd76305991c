//! `mps-epilogue`: takes a job's MPS away when it has ended.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(epilogue::main())
}
