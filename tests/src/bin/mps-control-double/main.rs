//! A double of `nvidia-cuda-mps-control` and, under that name, of `nvidia-cuda-mps-server`: as
//! recorded of driver 580, with its texts, exit codes and times. A `node.toml` is in its directory,
//! that of a node's doubles.

mod clients;
mod commands;
mod daemon;
mod hang;
mod log;
mod quit;
mod server;
mod servers;
mod session;
mod settings;
mod start;

use std::process::ExitCode;

use tests::double::node::Node;

fn main() -> ExitCode {
    if let Some(ended) = hang::as_told() {
        return ended;
    }
    let node = match Node::of_this_program() {
        Ok(node) => node,
        Err(why) => {
            eprintln!("mps-control-double: {why}");
            return ExitCode::from(3);
        }
    };
    let exe = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    if exe.ends_with("nvidia-cuda-mps-server") {
        return server::run(node);
    }
    match std::env::args().nth(1).as_deref() {
        Some("-f") => start::foreground(node),
        Some("-d") => start::background(node),
        None => session::run(),
        Some(other) => panic!("no test needs '{other}'"),
    }
}
