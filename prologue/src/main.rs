//! `mps-prologue`: gives a job its MPS before it starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(prologue::main())
}
