//! `mpsctl`: see [`mpsd::cli::mpsctl`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(mpsd::cli::mpsctl::main())
}
