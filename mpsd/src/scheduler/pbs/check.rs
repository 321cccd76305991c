//! `mpsctl pbs check`: what pbs_mom demands of our files, what draining needs, what the time limits leave us.

use super::files;
use super::setup::Surroundings;
use crate::scheduler::finding::Finding;
use crate::scheduler::openpbs::hook;
use crate::scheduler::pbs::{Installation, same_node};
use crate::scheduler::torque::starter;
use crate::scheduler::{Host, Scheduler};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// What the mom's limit must leave above our own deadline, for the start of our programs and the drain.
const MARGIN: Duration = Duration::from_secs(2);

pub(super) fn check(pbs: &Installation, around: &Surroundings, host: &dyn Host) -> Vec<Finding> {
    let mut all = vec![Finding::Good(format!(
        "{} with its mom in '{}'",
        pbs.scheduler,
        pbs.mom_priv().display()
    ))];
    all.extend(
        ["mps-prologue", "mps-epilogue", "mpsctl"].map(|name| program(&around.programs.join(name), host)),
    );
    let hooked =
        pbs.scheduler == Scheduler::OpenPbs && hook_state(pbs, hook::alarm_s(around), host, &mut all);
    for (name, _, _) in files::scripts(pbs.scheduler) {
        all.push(script(&pbs.mom_priv().join(name), pbs.scheduler, hooked));
    }
    if !hooked {
        all.push(time_limit(pbs, around, host));
    }
    all.push(operators(pbs, around, host));
    if pbs.scheduler == Scheduler::Torque {
        all.push(starter::check(pbs, around, host));
    } else if !hooked && files::calls_us(&pbs.mom_priv().join("prologue")) {
        all.push(starter::unattached(
            "the classic scripts do not attach tasks that TM starts",
            around,
        ));
    }
    all
}

fn program(path: &Path, host: &dyn Host) -> Finding {
    let shown = path.display();
    if host.executable(path) {
        Finding::Good(format!("'{shown}'"))
    } else {
        Finding::Wrong(format!(
            "'{shown}' is not there, not executable, not root's, or others may write it"
        ))
    }
}

/// Whether our hook is there; says so.
fn hook_state(pbs: &Installation, needed: u64, host: &dyn Host, all: &mut Vec<Finding>) -> bool {
    let text = match hook::ask(pbs, host, &format!("list hook {}", hook::NAME)) {
        Ok(text) => text.to_lowercase(),
        Err(why) => {
            all.push(Finding::Better(format!(
                "hook '{}' not seen ({why}); run 'mpsctl pbs install' as a manager",
                hook::NAME
            )));
            return false;
        }
    };
    if !text.contains("enabled = true") {
        all.push(Finding::Wrong(format!(
            "hook '{0}' is not enabled: qmgr -c 'set hook {0} enabled = True'",
            hook::NAME
        )));
        return true;
    }
    let alarm = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("alarm = ")?.trim().parse::<u64>().ok());
    all.push(match alarm {
        Some(seconds) if seconds < needed => {
            let set = format!("qmgr -c 'set hook {} alarm = {}'", hook::NAME, needed);
            Finding::Wrong(format!(
                "hook '{}' is killed after {seconds} s, before our own deadline: {set}",
                hook::NAME
            ))
        }
        _ => Finding::Good(format!("hook '{}' is enabled", hook::NAME)),
    });
    true
}

/// Owner root, a regular file (a link to one is fine), u+rx, not writable by group and others; a missing file counts
/// as success for the mom (recorded), so nothing else would tell.
fn script(path: &Path, scheduler: Scheduler, hooked: bool) -> Finding {
    let shown = path.display();
    let Ok(about) = fs::metadata(path) else {
        return if hooked {
            Finding::Good(format!("no '{shown}': the hook does it"))
        } else if scheduler == Scheduler::OpenPbs {
            Finding::Better(format!(
                "no '{shown}': neither hook nor script; run 'mpsctl pbs install'"
            ))
        } else {
            Finding::Wrong(format!(
                "no '{shown}': jobs run without MPS; run 'mpsctl pbs install'"
            ))
        };
    };
    let mode = about.mode();
    if !about.is_file() || about.uid() != 0 || mode & 0o022 != 0 || mode & 0o500 != 0o500 {
        let what = format!(
            "'{shown}' has owner {} and mode {:04o}",
            about.uid(),
            mode & 0o7777
        );
        let harm = "the mom refuses it and requeues every job";
        return Finding::Wrong(format!("{what}: {harm}; chown root and chmod 0500"));
    }
    match (
        files::owner(path) == files::Owner::Ours,
        files::calls_us(path),
        hooked,
    ) {
        (true, _, true) => Finding::Better(format!(
            "'{shown}' is ours and the hook does the same; 'mpsctl pbs uninstall' and install again"
        )),
        (true, _, false) => Finding::Good(format!("'{shown}' is ours")),
        (false, true, _) => Finding::Good(format!("'{shown}' is the site's own and calls us")),
        (false, false, true) => Finding::Good(format!("'{shown}' is the site's own")),
        (false, false, false) => Finding::Wrong(format!(
            "'{shown}' is the site's own and does not call us; see 'mpsctl pbs install'"
        )),
    }
}

fn time_limit(pbs: &Installation, around: &Surroundings, host: &dyn Host) -> Finding {
    let (limit, ours) = (pbs.mom_limit(host), around.deadline);
    let early = if pbs.scheduler == Scheduler::Torque {
        " (Torque fires 10 s before $prologalarm)"
    } else {
        ""
    };
    let text = format!(
        "the mom kills a prologue after {} s{early}, our deadline is {} s",
        limit.as_secs(),
        ours.as_secs()
    );
    if limit >= ours + MARGIN {
        Finding::Good(text)
    } else {
        let more = if pbs.scheduler == Scheduler::Torque { 10 } else { 0 } + (ours + MARGIN).as_secs();
        Finding::Wrong(format!(
            "{text}: set '$prologalarm {more}' in '{}'",
            pbs.mom_priv().join("config").display()
        ))
    }
}

/// Draining needs root of this node among the server's operators or managers; Torque's pbsnodes says nothing when not.
fn operators(pbs: &Installation, around: &Surroundings, host: &dyn Host) -> Finding {
    let node = around.site.node.clone().unwrap_or_else(|| host.name());
    let line = format!("qmgr -c 'set server operators += root@{node}'");
    match hook::ask(pbs, host, "list server") {
        Err(why) => Finding::Better(format!(
            "the server's operators are not known ({why}); draining needs {line}"
        )),
        Ok(text) if may_drain(&text, &node) => {
            Finding::Good(format!("root@{node} may take the node offline"))
        }
        Ok(_) => Finding::Wrong(format!("root@{node} may not take the node offline: {line}")),
    }
}

fn may_drain(server: &str, node: &str) -> bool {
    // Root on the server's own host needs no word of it.
    let first = server.lines().find_map(|line| line.strip_prefix("Server "));
    if crate::scheduler::pbs_status(server, "server_host")
        .as_deref()
        .or(first)
        .is_some_and(|host| same_node(host.trim(), node))
    {
        return true;
    }
    let lists =
        ["operators", "managers"].map(|name| crate::scheduler::pbs_status(server, name).unwrap_or_default());
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
