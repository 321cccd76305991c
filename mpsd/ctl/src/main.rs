//! `mpsctl`: see [`ctl::mpsctl`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(ctl::mpsctl::main())
}
