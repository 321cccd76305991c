//! A double of `nvidia-cuda-mps-control` and, under that name, of `nvidia-cuda-mps-server`: as
//! recorded of driver 580, with its texts, exit codes and times. A `node.toml` is in its directory,
//! that of a simulated node.

mod clients;
mod commands;
mod daemon;
mod hang;
mod log;
mod partitions;
mod quit;
mod server;
mod servers;
mod session;
mod settings;
mod start;

use std::process::ExitCode;

use tests::double::node::Node;

const USAGE: &str = include_str!("usage.txt");

fn main() -> ExitCode {
    if let Some(ended) = hang::as_told() {
        return ended;
    }
    let node = match Node::of_this_program() {
        Ok(node) => node,
        Err(why) => {
            eprintln!("fake-mps-control: {why}");
            return ExitCode::from(3);
        }
    };
    let exe = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    if exe.ends_with("nvidia-cuda-mps-server") {
        return server::run(node);
    }
    let (mut foreground, mut background, mut partitioned) = (false, false, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "-f" | "--forground" => foreground = true,
            "-d" | "--daemon" => background = true,
            // Documented: "-S or --static-partitioning - Start daemon with static partitioning mode
            // enabled" (MPS guide 615, Legacy MPS v2 Interface). Recorded on 580: an unknown
            // option.
            "-S" | "--static-partitioning" if node.is.has_partitions() => partitioned = true,
            "-M" | "--multiuser-server" | "-q" | "--ready-devices" => {}
            "-h" | "--help" => {
                print!("{}", USAGE);
                return ExitCode::SUCCESS;
            }
            option if option.starts_with('-') => {
                print!("Unrecognized option  \n{}", USAGE);
                return ExitCode::SUCCESS;
            }
            _ => {}
        }
    }
    match (foreground, background) {
        (true, _) => start::foreground(node, partitioned),
        (false, true) => start::background(node, partitioned),
        (false, false) => session::run(),
    }
}
