//! `mpsctl pbs check`: what pbs_mom demands of our files, what draining needs, what the time limits leave us.

use super::control::PbsNode;
use super::files;
use super::installation::{Installation, same_node};
use super::qmgr::qmgr;
use super::status::status;
use super::verbs::OwnSteps;
use crate::scheduler::budget::MARGIN;
use crate::scheduler::control::Controller;
use crate::scheduler::ground::ground;
use crate::scheduler::setup::{CheckLine, SetupContext};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) fn check(steps: &dyn OwnSteps, pbs: &Installation, around: &SetupContext<'_>) -> Vec<CheckLine> {
    let (scheduler, mom) = (pbs.product.scheduler, pbs.mom_priv());
    let mut all = vec![CheckLine::Pass(format!(
        "{scheduler} with its mom in '{}'",
        mom.display()
    ))];
    let programs = ["mps-prologue", "mps-epilogue", "mpsctl"];
    all.extend(programs.map(|name| CheckLine::program(&around.programs.join(name), around.host)));
    all.extend(ground(&node_name(around), around));
    let hooked = steps.check_hook(pbs, around, &mut all);
    for (_, name) in files::named(steps.scripts()) {
        let path = mom.join(name);
        let found = fs::metadata(&path);
        all.push(match &found {
            Ok(about) => check_script(&path, about, hooked),
            Err(_) if hooked => CheckLine::Pass(format!("no '{}': the hook does it", path.display())),
            Err(_) => steps.check_absent(&path.display().to_string()),
        });
    }
    if !hooked {
        all.push(time_limit(pbs, around));
    }
    all.push(operators(pbs, around));
    all.extend(remark(pbs, around));
    all.extend(steps.check_tasks(pbs, hooked, around));
    all.extend((around.standing)(&around.settings));
    all
}

/// Owner root, a regular file (a link to one is fine), u+rx, not writable by group and others; a missing file counts
/// as success for the mom (recorded), so nothing else would tell.
fn check_script(path: &Path, about: &fs::Metadata, hooked: bool) -> CheckLine {
    let shown = path.display();
    let mode = about.mode();
    if !about.is_file() || about.uid() != 0 || mode & 0o022 != 0 || mode & 0o500 != 0o500 {
        let what = format!(
            "'{shown}' has owner {} and mode {:04o}",
            about.uid(),
            mode & 0o7777
        );
        let harm = "the mom refuses it and requeues every job";
        return CheckLine::Fail(format!("{what}: {harm}; chown root and chmod 0500"));
    }
    match (
        files::owner(path) == files::Owner::Ours,
        files::calls_us(path),
        hooked,
    ) {
        (true, _, true) => CheckLine::Warn(format!(
            "'{shown}' is ours and the hook does the same; 'mpsctl pbs uninstall' and install again"
        )),
        (true, _, false) => CheckLine::Pass(format!("'{shown}' is ours")),
        (false, true, _) => CheckLine::Pass(format!("'{shown}' is the site's own and calls us")),
        (false, false, true) => CheckLine::Pass(format!("'{shown}' is the site's own")),
        (false, false, false) => CheckLine::Fail(format!(
            "'{shown}' is the site's own and does not call us; see 'mpsctl pbs install'"
        )),
    }
}

fn time_limit(pbs: &Installation, around: &SetupContext<'_>) -> CheckLine {
    let (limit, ours) = (pbs.time_limit(around.host), around.settings.deadline);
    let early = match pbs.product.early_s {
        0 => String::new(),
        s => format!(" ({} fires {s} s before $prologalarm)", pbs.product.title),
    };
    let text = format!(
        "the mom kills a prologue after {} s{early}, our deadline is {} s",
        limit.as_secs(),
        ours.as_secs()
    );
    if limit >= ours + MARGIN {
        return CheckLine::Pass(text);
    }
    let needed = pbs.product.early_s + (ours + MARGIN).as_secs();
    let config = pbs.mom_config();
    CheckLine::Fail(format!(
        "{text}: set '$prologalarm {needed}' in '{}'",
        config.display()
    ))
}

/// This node's name in PBS, else the host's.
fn node_name(around: &SetupContext<'_>) -> String {
    let named = around.settings.pbs.node.clone();
    named.unwrap_or_else(|| around.host.name())
}

/// Draining needs root of this node among the server's operators or managers; Torque's pbsnodes says nothing when not.
fn operators(pbs: &Installation, around: &SetupContext<'_>) -> CheckLine {
    let node = node_name(around);
    let line = format!("qmgr -c 'set server operators += root@{node}'");
    match qmgr(pbs, "list server", around.host) {
        Err(why) => CheckLine::Warn(format!(
            "the server's operators are not known ({why}); draining needs {line}"
        )),
        Ok(text) if may_drain(&text, &node) => {
            CheckLine::Pass(format!("root@{node} may take the node offline"))
        }
        Ok(_) => CheckLine::Fail(format!("root@{node} may not take the node offline: {line}")),
    }
}

/// A note of ours on a node in service, from when the configuration could not be used: it can be now, or there were no check.
fn remark(pbs: &Installation, around: &SetupContext<'_>) -> Option<CheckLine> {
    let name = around.settings.pbs.node.as_deref().unwrap_or_default();
    let node = PbsNode::new(pbs.clone(), name, around.host);
    let shown = node.status().ok().filter(|shown| !shown.drained)?;
    let note = shown
        .reason
        .filter(|note| note.starts_with(&around.settings.drain.prefix))?;
    let (option, none) = (pbs.product.note_option, pbs.product.no_note);
    let none = if none.is_empty() { "''" } else { none };
    let node = node_name(around);
    Some(CheckLine::Warn(format!(
        "the node shows '{note}', which is over: pbsnodes {option} {none} {node}"
    )))
}

fn may_drain(server: &str, node: &str) -> bool {
    // Root on the server's own host needs no word of it.
    let first = server.lines().find_map(|line| line.strip_prefix("Server "));
    if status(server, "server_host")
        .as_deref()
        .or(first)
        .is_some_and(|host| same_node(host.trim(), node))
    {
        return true;
    }
    let lists = ["operators", "managers"].map(|name| status(server, name).unwrap_or_default());
    lists
        .iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .any(|who| match who.split_once('@') {
            Some(("root", host)) => {
                host == "*"
                    || same_node(host, node)
                    || host.strip_prefix("*.").is_some_and(|d| node.ends_with(d))
            }
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_and_managers_by_host_and_wildcard() {
        let server = "Server vm\n    server_state = Active\n    operators = root@nodea,\n\troot@nodeb.example.org\n    managers = pbs@vm\n";
        assert!(may_drain(server, "nodea") && may_drain(server, "nodeb"));
        assert!(!may_drain(server, "nodec") && !may_drain("", "nodea"));
        assert!(may_drain("    managers = root@*\n", "nodec"));
        assert!(!may_drain("    operators = alice@nodea\n", "nodea"));
        assert!(
            may_drain("Server nodea\n    server_state = Active\n", "nodea"),
            "the server's own host"
        );
        assert!(may_drain("Server pbs\n    server_host = nodea\n", "nodea"));
        assert!(!may_drain("Server nodea\n    server_host = nodeb\n", "nodea"));
    }
}
