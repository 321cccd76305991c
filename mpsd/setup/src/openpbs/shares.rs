//! Shares of a GPU that OpenPBS counts. At a mom's start our hook makes a vnode of each GPU, with
//! one of the host's `ngpus` and all its `mps_shares`. The server alone knows them, so only the
//! hosts' own `ngpus` are remembered, in a file.

use super::moms::{CGROUPS, MomsHook, cgroups_names_gpus};
use crate::pbs::product::node;
use crate::verbs::CheckLine::{self, Fail, Pass};
use crate::verbs::{SetupContext, VerbReport};
use anyhow::{Error, Result};
use batch::openpbs::VNODE;
use batch::pbs::{Installation, MOST_CONF, attribute};
use mpsd_core::gpu::Mig;
use std::path::PathBuf;
use std::time::Duration;

const RESOURCES: [(&str, &str); 2] = [
    ("mps_shares", "type=long,flag=nh"),
    ("mps_gpu", "type=string_array,flag=h"),
];
const NGPUS: &str = "resources_available.ngpus";
const GPU: &str = "resources_available.mps_gpu";
const ASK: Duration = Duration::from_secs(10);
const REREAD: &str =
    "the mom of each node with GPUs takes it at its next start, or by SIGHUP; jobs continue";

fn file(ctx: &SetupContext<'_>) -> PathBuf {
    ctx.settings.paths.state().join("pbs-ngpus")
}

/// The server's nodes, a line of qmgr for each of their attributes.
fn nodes(pbs: &Installation, ctx: &SetupContext<'_>) -> Result<String> {
    let nodes = pbs.qmgr("print node @default", ctx.host);
    nodes.map_err(Error::msg)
}

fn is_there(pbs: &Installation, resource: &str, ctx: &SetupContext<'_>) -> bool {
    let list = format!("list resource {resource}");
    pbs.qmgr(&list, ctx.host).is_ok()
}

/// Makes the resources, and remembers which hosts have `ngpus` of their own.
pub fn install(
    pbs: &Installation,
    each: u32,
    ctx: &SetupContext<'_>,
    report: &mut VerbReport,
) -> Result<()> {
    for (name, kind) in RESOURCES {
        if is_there(pbs, name, ctx) {
            continue;
        }
        let create = format!("create resource {name} {kind}");
        match pbs.qmgr(&create, ctx.host) {
            Ok(_) => report.did(format!("created resource '{name}'")),
            Err(why) => report.left(format!(
                "no resource '{name}' ({why}); a manager of PBS runs: qmgr -c '{create}'"
            )),
        }
    }
    let known = ctx.host.text(&file(ctx), MOST_CONF).map_err(Error::msg)?;
    let known = known.unwrap_or_default();
    let mut own = known.clone();
    for line in nodes(pbs, ctx)?.lines() {
        let host = |line: &str| line.split(' ').nth(2).map(str::to_owned);
        let is_own = line.contains(NGPUS) && !line.contains(VNODE) && !line.ends_with("= 0");
        if is_own && !known.lines().any(|other| host(other) == host(line)) {
            own += &format!("{line}\n");
        }
    }
    report.write(&file(ctx), own.as_bytes(), 0o644, "")?;
    report.did(format!(
        "each GPU becomes a vnode with {each} mps_shares: {REREAD}"
    ));
    if let Some((line, _)) = scheduler(pbs, ctx) {
        report.did(line);
    }
    Ok(())
}

/// What the scheduler's configuration lacks, and whether it is on this host.
fn scheduler(pbs: &Installation, ctx: &SetupContext<'_>) -> Option<(String, bool)> {
    let path = pbs.home.join("sched_priv/sched_config");
    let text = ctx.host.configuration(&path, MOST_CONF).ok().flatten();
    let is_here = text.is_some();
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    let line = text.lines().find(|line| line.starts_with("resources:"));
    let counts = |line: &str| line.split([' ', ',', '"']).any(|word| word == "mps_shares");
    (!line.is_some_and(counts)).then(|| {
        let line = format!(
            "the scheduler counts mps_shares once 'resources:' of '{}' on its host lists it, as in \
             resources: \"ncpus, mem, ngpus, mps_shares\", and after a SIGHUP to it",
            path.display()
        );
        (line, is_here)
    })
}

/// Takes away what our hook and `install` made, once the hook is gone.
pub fn uninstall(
    pbs: &Installation,
    ctx: &SetupContext<'_>,
    report: &mut VerbReport,
) -> Result<()> {
    let path = file(ctx);
    let Some(own) = ctx.host.text(&path, MOST_CONF).map_err(Error::msg)? else {
        return Ok(());
    };
    let nodes = nodes(pbs, ctx)?;
    let created = nodes
        .lines()
        .filter_map(|line| line.strip_prefix("create node "));
    let names = created.filter_map(|line| line.split(' ').next());
    let (vnodes, others): (Vec<&str>, Vec<&str>) = names.partition(|name| name.contains(VNODE));
    let mut commands: Vec<String> = Vec::new();
    commands.extend(vnodes.iter().map(|name| format!("delete node {name}")));
    for name in others {
        let gpu = format!("{name} {GPU}");
        if nodes.contains(&format!("set node {gpu} = ")) {
            commands.push(format!("unset node {gpu}"));
            commands.push(format!("unset node {name} {NGPUS}"));
        }
    }
    commands.extend(own.lines().map(str::to_owned));
    // An earlier try may have deleted one of them.
    let there = RESOURCES
        .iter()
        .filter(|(name, _)| is_there(pbs, name, ctx));
    commands.extend(there.map(|(name, _)| format!("delete resource {name}")));
    let failed = commands.iter().filter_map(|line| {
        let why = pbs.qmgr(line, ctx.host).err()?;
        Some(format!("\n    qmgr -c '{line}' ({why})"))
    });
    let failed: String = failed.collect();
    if failed.is_empty() {
        report.did(format!(
            "deleted {} vnodes, and gave their hosts' ngpus back: restart the moms, which remember the vnodes until then",
            vnodes.len()
        ));
        return report.remove(&path);
    }
    report.left(format!(
        "not all of the GPUs' vnodes is taken back; 'mpsctl pbs uninstall' again once their jobs have ended and left the server's history, or a manager of PBS runs:{failed}"
    ));
    Ok(())
}

/// The GPUs of this node that become vnodes: none if pbs_cgroups gives them out by itself, because
/// it disregards the vnode of a job.
pub fn gpus(pbs: &Installation, ctx: &SetupContext<'_>) -> Result<Vec<String>> {
    let hook = MomsHook::read(pbs, CGROUPS, ctx)?;
    if hook.is_some_and(|hook| hook.enabled) && cgroups_names_gpus(pbs, ctx)? {
        return Ok(Vec::new());
    }
    let inventory = (ctx.inventory)(&node(ctx))?;
    let whole = inventory.gpus.iter().filter(|gpu| gpu.mig == Mig::Off);
    Ok(whole.map(|gpu| gpu.uuid.to_string()).collect())
}

/// Whether the server has a vnode for each GPU of this node; the error is why that is not known.
pub fn check(
    pbs: &Installation,
    each: u32,
    ctx: &SetupContext<'_>,
) -> Result<Vec<CheckLine>, String> {
    let unknown = |why| format!("the vnodes of this node's GPUs are not known ({why})");
    let gpus = gpus(pbs, ctx).map_err(unknown)?;
    if gpus.is_empty() {
        return Err("no GPU here has mps_shares: there is none, it is in MIG mode, or pbs_cgroups gives GPUs out (\"devices\")".to_owned());
    }
    let answer = pbs.run("pbsnodes", &["-H", &node(ctx)], ASK, ctx.host);
    let text = answer.and_then(|answer| answer.accepted("pbsnodes"));
    let text = text.map_err(|why| format!("the vnodes of this node are not known ({why})"))?;
    let vnodes: Vec<&str> = text.split("\n\n").collect();
    let has = |vnode: &&str| {
        attribute(vnode, "resources_available.mps_shares") == Some(each.to_string())
            && attribute(vnode, GPU).is_some()
            && !attribute(vnode, "state").is_some_and(|state| state.contains("Stale"))
    };
    let name = |vnode: &str| {
        vnode
            .trim_start()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let lacks = |uuid: &&String| {
        let mut its = vnodes
            .iter()
            .filter(|vnode| name(vnode).contains(uuid.as_str()));
        !its.any(has)
    };
    let is_twice = |vnode: &&&str| {
        !vnode.contains(VNODE) && attribute(vnode, NGPUS).is_some_and(|count| count != "0")
    };
    let twice = vnodes.iter().find(is_twice).map(|vnode| {
        let name = name(vnode);
        Fail(format!(
            "the server counts this node's GPUs twice: qmgr -c 'set node {name} {NGPUS} = 0'"
        ))
    });
    let uncounted = scheduler(pbs, ctx).filter(|(_, is_here)| *is_here);
    Ok(match gpus.iter().find(lacks) {
        Some(uuid) => vec![Fail(format!(
            "the server has no vnode of GPU {uuid} with {each} mps_shares: send the mom a SIGHUP, or restart it"
        ))],
        None => {
            let vnodes = format!("a vnode with {each} mps_shares");
            let vnodes = Pass(format!("each of {} GPUs is {vnodes}", gpus.len()));
            let uncounted = uncounted.map(|(line, _)| Fail(line));
            [Some(vnodes), twice, uncounted]
                .into_iter()
                .flatten()
                .collect()
        }
    })
}

/// What `mpsctl pbs vnodes` tells the hook.
pub fn told(pbs: &Installation, ctx: &SetupContext<'_>) -> Result<String> {
    Ok(serde_json::json!({ "gpus": gpus(pbs, ctx)? }).to_string())
}
