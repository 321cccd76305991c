//! `mpsctl pbs check`: our programs and what `install` wrote, what draining needs, and what an
//! administrator is told of `auto_queues`.

use super::product::ProductVerbs;
use crate::verbs::CheckLine::{self, Fail, Pass, Warn};
use crate::verbs::SetupContext;
use batch::control::Controller;
use batch::pbs::control::PbsNode;
use batch::pbs::{Installation, attribute, same_node};

pub fn check(
    pbs: &Installation,
    verbs: &ProductVerbs,
    node: &str,
    ctx: &SetupContext<'_>,
) -> Vec<CheckLine> {
    let (scheduler, mom) = (pbs.product.scheduler, pbs.mom_priv());
    let mom = mom.display();
    let mut all = vec![Pass(format!("{scheduler} with its mom in '{mom}'"))];
    let programs = ["mps-prologue", "mps-epilogue", "mpsctl"];
    all.extend(programs.map(|name| CheckLine::program(&ctx.programs.join(name), ctx.host)));
    (verbs.check)(pbs, ctx, &mut all);
    all.push(operators(pbs, ctx));
    all.extend(old_note(pbs, node, ctx));
    // Programs of the other jobs could notice it.
    if !ctx.settings.pbs.auto_queues.is_empty() {
        let text = "a job of auto_queues has MPS only if its script names an MPI launcher, and it has all GPUs of the node or pbs_cgroups confines it to its own";
        all.push(Pass(text.to_owned()));
    }
    all
}

/// Draining needs root of this node among the server's operators or managers. Torque's pbsnodes is
/// silent if it is not.
fn operators(pbs: &Installation, ctx: &SetupContext<'_>) -> CheckLine {
    let host = &ctx.host.name();
    let line = format!("qmgr -c 'set server operators += root@{host}'");
    match pbs.qmgr("list server", ctx.host) {
        Err(why) => Warn(format!(
            "the server's operators are not known ({why}); draining needs {line}"
        )),
        Ok(text) if may_drain(&text, host) => {
            Pass(format!("root@{host} may take the node offline"))
        }
        Ok(_) => Fail(format!("root@{host} may not take the node offline: {line}")),
    }
}

/// Our note on a node in service is about a broken configuration, which this check could read.
fn old_note(pbs: &Installation, node: &str, ctx: &SetupContext<'_>) -> Option<CheckLine> {
    let name = ctx.settings.pbs.node.as_deref().unwrap_or_default();
    let status = PbsNode::new(pbs.clone(), name, ctx.host).status().ok()?;
    let is_ours = |note: &String| !status.drained && note.starts_with(batch::drain::PREFIX);
    let note = status.reason.filter(is_ours)?;
    let (option, none) = (pbs.product.note_option, pbs.product.no_note);
    let none = if none.is_empty() { "''" } else { none };
    Some(Warn(format!(
        "the node shows '{note}', which is over: pbsnodes {option} {none} {node}"
    )))
}

fn may_drain(server: &str, node: &str) -> bool {
    let name = server.lines().find_map(|line| line.strip_prefix("Server "));
    let servers_host = attribute(server, "server_host").or(name.map(str::to_owned));
    let matches = |host: &str| {
        let domain = host.strip_prefix("*.");
        host == "*" || same_node(host, node) || domain.is_some_and(|domain| node.ends_with(domain))
    };
    let lists = ["operators", "managers"].map(|name| attribute(server, name).unwrap_or_default());
    let mut users = lists.iter().flat_map(|list| list.split(','));
    servers_host.is_some_and(|host| same_node(host.trim(), node))
        || users.any(|user| user.trim().strip_prefix("root@").is_some_and(matches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;
    use batch::openpbs;
    use batch::testing::TextHost;

    #[test]
    fn an_operator_is_known_by_its_host_whatever_pbs_calls_the_node() {
        let pbs = Installation {
            product: &openpbs::PRODUCT,
            home: "/x".into(),
            commands: vec!["/x/bin".into()],
        };
        // Its name is nodeb.
        let text = "Server nodea\n    operators = root@nodeb\n";
        let host = TextHost::default().command("/x/bin/qmgr -c list server", 0, text);
        let ctx = SetupContext {
            host: &host,
            ..context("/x", None)
        };
        let all = check(&pbs, super::super::verbs(&pbs), "gpubox", &ctx);
        let may = Pass("root@nodeb may take the node offline".to_owned());
        assert!(all.contains(&may), "{all:?}");
    }

    #[test]
    fn operators_and_managers_by_host_and_wildcard() {
        let server = "Server vm\n    server_state = Active\n    operators = root@nodea,\n\troot@nodeb.example.org\n    managers = pbs@vm\n";
        for (server, node, may) in [
            (server, "nodea", true),
            (server, "nodeb", true),
            (server, "nodec", false),
            ("", "nodea", false),
            ("    managers = root@*\n", "nodec", true),
            ("    operators = alice@nodea\n", "nodea", false),
            ("Server nodea\n    server_state = Active\n", "nodea", true),
            ("Server pbs\n    server_host = nodea\n", "nodea", true),
            ("Server nodea\n    server_host = nodeb\n", "nodea", false),
        ] {
            assert_eq!(may_drain(server, node), may, "{node} in {server}");
        }
    }
}
