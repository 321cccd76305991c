//! `mps-runner`: `mpsctl sweep` and `mpsctl pack`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(runner::main())
}
