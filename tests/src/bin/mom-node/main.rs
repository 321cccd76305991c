//! One node of a bed under PBS: its own files, host name and process numbers, and an agent
//! inside that starts programs exactly as a mom does.
//!
//! `mom-node node DIR NAME` makes the namespaces, `mom-node init DIR NAME` is process 1 in them,
//! and `mom-node exec` turns itself into an order's program. The node ends with its standard input,
//! and everything in it too. So a test that dies leaves nothing.

mod agent;
mod launch;
mod root;
mod running;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sched::{CloneFlags, unshare};
use root::Hierarchy;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.get(1..).unwrap_or_default() {
        ["node", dir, name] => node(dir, name),
        ["init", dir, name, cgroups] => {
            root::build(dir, name, cgroups).and_then(|()| agent::serve(cgroups))
        }
        ["exec", order] => launch::become_program(order),
        _ => Err(anyhow!("mom-node node DIR NAME")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("mom-node: {why:#}");
            ExitCode::from(125)
        }
    }
}

/// Only children can enter a new process number space, so the agent is one.
fn node(dir: &str, name: &str) -> Result<()> {
    let cgroups = Hierarchy::enter_all();
    let mut spaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWPID;
    spaces |= CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWCGROUP;
    let tops: Vec<&str> = cgroups.iter().map(|one| one.top).collect();
    let made = unshare(spaces).context("no namespaces for a simulated node; run as root");
    let mut agent = Command::new("/proc/self/exe");
    agent.args(["init", dir, name, &tops.join(",")]);
    let ran = made.and_then(|()| agent.status().context("cannot start the agent"));
    cgroups.into_iter().for_each(Hierarchy::leave);
    let status = ran?;
    ensure!(status.success(), "the agent ended with {status}");
    Ok(())
}
