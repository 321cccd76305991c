//! One simulated node of a PBS cluster: its own files, host name and process numbers, and an agent inside that starts
//! programs exactly as a mom does.
//!
//! `mom-node node DIR NAME` makes the namespaces, `mom-node init DIR NAME` is process 1 in them, and
//! `mom-node exec` turns itself into the program that an order names. When its standard input ends the node ends,
//! with everything in it: a test that dies leaves nothing.

mod agent;
mod launch;
mod root;
mod running;

use nix::sched::{CloneFlags, unshare};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.get(1..).unwrap_or_default() {
        ["node", dir, name] => node(dir, name),
        ["init", dir, name] => root::build(dir, name).and_then(|()| agent::serve()),
        ["exec", order] => launch::become_program(order),
        _ => Err("mom-node node DIR NAME".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("mom-node: {why}");
            ExitCode::from(125)
        }
    }
}

/// A new process number space takes in only children, so the agent is one.
fn node(dir: &str, name: &str) -> Result<(), String> {
    let spaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC;
    unshare(spaces).map_err(|e| format!("no namespaces for a simulated node: {e}; run as root"))?;
    let status = Command::new("/proc/self/exe").args(["init", dir, name]).status();
    let status = status.map_err(|e| format!("cannot start the agent: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the agent ended with {status}"))
    }
}
