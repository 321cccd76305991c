//! `mpsctl pbs` in an OpenPBS: our hook, a file under `state_dir` that is imported through qmgr and
//! read back.

mod moms;
pub mod shares;

use self::moms::{CGROUPS, MomsHook, cgroups_names_gpus, moms_copy};
use crate::pbs::product::{InstallOptions, ProductVerbs};
use crate::verbs::CheckLine::{self, Fail, Pass, Warn};
use crate::verbs::{SetupContext, VerbReport, make_directory};
use anyhow::{Error, Result};
use batch::openpbs::PRODUCT;
use batch::pbs::{Installation, MOST_CONF, attribute};
use mpsd_core::config::{GpusUnknown, Settings};
use mpsd_core::text::one_line;
use mpsd_sys::deadline::Deadline;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub static VERBS: ProductVerbs = ProductVerbs {
    product: &PRODUCT,
    install: place_hook,
    uninstall,
    check: check_hook,
};

const NAME: &str = "mpsd";
/// What the hook gives our programs beyond their own deadline, to end by themselves. Seconds.
const GRACE_S: u64 = 5;
/// What the hook's alarm leaves beyond both of our programs: a failed begin cleans up. Seconds.
const ALARM_MARGIN_S: u64 = 10;
/// After pbs_cgroups (100): its file names the job's GPUs.
const ORDER: u32 = 110;
/// How long a deleted hook may keep its name. Moms that are up remove theirs within seconds.
const PENDING: Duration = Duration::from_secs(30);
/// How long a new hook may take to its moms (seen: 4 s).
const ARRIVES: Duration = Duration::from_secs(20);
const EVENTS: &str = "execjob_begin,execjob_launch,execjob_end,execjob_abort";
const HOOK: &str = include_str!("../../../../etc/pbs/hooks/mpsd.py");
const SHARES: &str = "SHARES = ";
const MOVES: &str = "MOVES = 1";
/// qmgr's answers: to root of a node that is no manager; and about a deleted hook, which keeps its
/// name until every mom has removed its copy (docs/facts/pbs.md#hooks-of-openpbs).
const DENIED: &str = "unauthorized to access hooks";
const PENDING_DELETE: &str = "is pending delete";

const NAME_GPUS: &str = "qmgr -c 'export hook pbs_cgroups application/x-config default' >cgroups.json; \
     (in cgroups.json: \"devices\": { \"enabled\": true, and \"nvidia-smi\": its path where that is not /usr/bin/nvidia-smi); \
     qmgr -c 'import hook pbs_cgroups application/x-config default cgroups.json'; \
     qmgr -c 'set hook pbs_cgroups enabled = True'";

fn place_hook(
    pbs: &Installation,
    options: &InstallOptions,
    ctx: &SetupContext<'_>,
    report: &mut VerbReport,
) -> Result<()> {
    let ask = |line: &str| pbs.qmgr(line, ctx.host);
    let shown = || ask(&format!("list hook {NAME}"));
    let (file, alarm) = (hook_file(ctx), alarm_s(ctx));
    let placed = ctx.host.text(&file, MOST_CONF).map_err(Error::msg)?;
    let placed = placed.unwrap_or_default();
    let shares = options.shares.unwrap_or_else(|| shares_of(&placed));
    let moves = || placed.lines().any(|line| line == MOVES);
    let queuejob = options.queuejob.unwrap_or_else(moves);
    let body = render(ctx, shares, queuejob);
    make_directory(ctx.settings.paths.state(), 0o711)?;
    report.write(&file, body.as_bytes(), 0o644, "")?;
    let more = match (shares, queuejob) {
        (0, false) => "",
        (0, true) => ",queuejob",
        _ => ",queuejob,exechost_startup",
    };
    let events = format!("{EVENTS}{more}");
    if shares > 0 {
        shares::install(pbs, shares, ctx, report)?;
    }
    let attributes = [
        ("event", format!("\"{events}\"")),
        ("order", ORDER.to_string()),
        ("alarm", alarm.to_string()),
        ("enabled", "True".to_owned()),
    ];
    let export = format!("export hook {NAME} application/x-python default");
    let before = shown();
    let create = before.is_err().then(|| format!("create hook {NAME}"));
    let file = file.display();
    let import = format!("import hook {NAME} application/x-python default {file}");
    let set = |(name, value): &(_, String)| format!("set hook {NAME} {name} = {value}");
    let commands = create.into_iter().chain([import]);
    let commands: Vec<String> = commands.chain(attributes.iter().map(set)).collect();
    if before.is_ok_and(|shown| has(&shown, &attributes))
        && ask(&export).is_ok_and(|text| text.trim_end() == body.trim_end())
    {
        report.did(format!("hook '{NAME}' is as it should be: {events}"));
    } else {
        match carry_out(&commands, &ask).map(|()| shown()) {
            Ok(Ok(text)) if has(&text, &attributes) => {
                report.did(format!(
                    "imported hook '{NAME}': {events}, order {ORDER}, alarm {alarm} s; moms have it within seconds"
                ));
                await_mom(pbs, &body, ctx, report);
            }
            Ok(Ok(text)) => {
                let text = one_line(text.trim(), 200);
                report.left(format!("qmgr took the hook, but shows it otherwise: {text}"));
            }
            Ok(Err(why)) => report.left(format!("qmgr took the hook, but does not show it: {why}")),
            Err(why) if why.contains(PENDING_DELETE) => report.left(format!(
                "PBS deletes the hook '{NAME}' that was there before, for longer than {} s: a mom that is down keeps its copy; run \
                 this again once 'pbsnodes -a' shows them all up",
                PENDING.as_secs()
            )),
            Err(why) => {
                let lines: String = commands.iter().map(|line| format!("\n    qmgr -c '{line}'")).collect();
                report.left(format!("qmgr did not take the hook ({why}); a manager of PBS runs:{lines}"));
            }
        }
    }
    if ask("list resource mps").is_err() {
        report.did(
            "optional, so that accounts stay clean (qsub -l mps=on+threads=25), a manager of PBS runs:\n    \
             qmgr -c 'create resource mps type=string,flag=m'",
        );
    }
    Ok(())
}

/// The server's answer comes before the mom's copy: a check right after it would fail.
fn await_mom(pbs: &Installation, body: &str, ctx: &SetupContext<'_>, report: &mut VerbReport) {
    if !has_mom(pbs) {
        return;
    }
    let has_it = || {
        let hook = MomsHook::read(pbs, NAME, ctx).ok().flatten();
        hook.is_some_and(|hook| hook.enabled && hook.alarm_s == alarm_s(ctx))
            && moms_text(pbs, ctx).trim_end() == body.trim_end()
    };
    let end = Deadline::after(ARRIVES);
    while !has_it() {
        if !end.sleep(Duration::from_millis(200)) {
            let seconds = ARRIVES.as_secs();
            return report.left(format!(
                "the mom here has not got the hook within {seconds} s, or keeps another: until 'mpsctl pbs check' finds it, or the \
                 mom is restarted, jobs on this node run without MPS"
            ));
        }
    }
    report.did("the mom here has it");
}

/// The mom's copy of our hook; empty if it has none.
fn moms_text(pbs: &Installation, ctx: &SetupContext<'_>) -> String {
    let text = ctx.host.text(&moms_copy(pbs, NAME, "PY"), MOST_CONF);
    text.ok().flatten().unwrap_or_default()
}

/// A mom removes its lock when it ends.
fn has_mom(pbs: &Installation) -> bool {
    pbs.mom_priv().join("mom.lock").exists()
}

fn uninstall(pbs: &Installation, ctx: &SetupContext<'_>, report: &mut VerbReport) -> Result<()> {
    let delete = format!("delete hook {NAME}");
    match pbs.qmgr(&format!("list hook {NAME}"), ctx.host).map(|_| pbs.qmgr(&delete, ctx.host)) {
        Ok(Ok(_)) => report.did(format!(
            "deleted hook '{NAME}' on every node\njobs with MPS on other nodes cannot be seen from here: there 'mpsctl \
             reconcile' tells of them, and takes their MPS down after them"
        )),
        Ok(Err(why)) => {
            report.left(format!("cannot delete the hook ({why}); a manager of PBS runs: qmgr -c '{delete}'"));
        }
        Err(why) if why.contains(DENIED) && moms_copy(pbs, NAME, "HK").exists() => report.left(format!(
            "hook '{NAME}' can be deleted from the server's host alone: 'mpsctl pbs uninstall' there"
        )),
        Err(_) => {}
    }
    shares::uninstall(pbs, ctx, report)?;
    let file = hook_file(ctx);
    if file.exists() {
        report.remove(&file)?;
    }
    Ok(())
}

/// How long the hook waits for one of our programs: at least as long as one with a broken
/// configuration takes. Seconds.
fn limit_s(ctx: &SetupContext<'_>) -> u64 {
    let deadline = ctx.settings.deadline.max(Settings::usual().deadline);
    deadline.as_secs() + GRACE_S
}

fn alarm_s(ctx: &SetupContext<'_>) -> u64 {
    2 * limit_s(ctx) + ALARM_MARGIN_S
}

fn hook_file(ctx: &SetupContext<'_>) -> PathBuf {
    ctx.settings.paths.state().join("mpsd.py")
}

/// The shares of each GPU in the text of a hook; 0: none.
fn shares_of(body: &str) -> u32 {
    let mut lines = body.lines();
    let number = lines.find_map(|line| line.strip_prefix(SHARES)?.parse().ok());
    number.unwrap_or(0)
}

fn render(ctx: &SetupContext<'_>, shares: u32, queuejob: bool) -> String {
    let paths = &ctx.settings.paths;
    let shown = |path: &Path| json!(path.display().to_string());
    let values = [
        ("PROGRAMS", shown(ctx.programs)),
        ("OPTIONS", json!(ctx.config_option())),
        ("LIMIT_S", json!(limit_s(ctx))),
        ("AUTO_QUEUES", json!(ctx.settings.pbs.auto_queues)),
        ("JOBS", shown(&paths.jobs())),
        ("LOOK_AGAIN", shown(&paths.look_again())),
        ("SHARES", json!(shares)),
        ("MOVES", json!(u8::from(queuejob))),
    ];
    let filled = |line: &str| {
        let mut values = values.iter();
        match values.find(|(key, _)| line.split(' ').next() == Some(key)) {
            Some((key, value)) => format!("{key} = {value}\n"),
            None => format!("{line}\n"),
        }
    };
    HOOK.lines().map(filled).collect()
}

fn has(shown: &str, attributes: &[(&str, String)]) -> bool {
    let set = |list: &str| -> BTreeSet<String> {
        let words = list.trim_matches('"').split(',');
        words.map(|word| word.trim().to_lowercase()).collect()
    };
    attributes
        .iter()
        .all(|(name, value)| attribute(shown, name).is_some_and(|own| set(&own) == set(value)))
}

/// Runs qmgr's commands. Starts over while the server is still deleting the previous hook.
fn carry_out(
    commands: &[String],
    ask: &dyn Fn(&str) -> Result<String, String>,
) -> Result<(), String> {
    let end = Deadline::after(PENDING);
    loop {
        match commands.iter().try_for_each(|line| ask(line).map(|_| ())) {
            Err(why) if why.contains(PENDING_DELETE) && end.sleep(Duration::from_secs(1)) => {}
            done => return done,
        }
    }
}

fn check_hook(pbs: &Installation, ctx: &SetupContext<'_>, all: &mut Vec<CheckLine>) {
    match MomsHook::read(pbs, NAME, ctx) {
        Ok(Some(hook)) => {
            all.extend(check_ours(&hook, pbs, ctx));
            match shares_of(&moms_text(pbs, ctx)) {
                0 => all.push(check_gpus(pbs, ctx)),
                each => {
                    let lines = shares::check(pbs, each, ctx);
                    all.extend(lines.unwrap_or_else(|why| vec![Warn(why)]));
                }
            }
        }
        Ok(None) => all.push(match has_mom(pbs) {
            false => Warn(format!("no mom runs here, and it has no hook '{NAME}' yet")),
            true => Fail(format!(
                "this mom has no hook '{NAME}': jobs run without MPS; 'mpsctl pbs install' runs once, on the server's host, and its \
                 moms have it within seconds, or when they are restarted"
            )),
        }),
        Err(why) => all.push(Warn(format!("hook '{NAME}' not seen ({why})"))),
    }
}

fn check_ours(hook: &MomsHook, pbs: &Installation, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let (needed, seconds) = (alarm_s(ctx), hook.alarm_s);
    let set = format!("qmgr -c 'set hook {NAME}");
    if !hook.enabled {
        let text = format!("hook '{NAME}' is not enabled: {set} enabled = True'");
        return vec![Fail(text)];
    }
    let mut all = vec![match seconds < needed {
        true => Fail(format!(
            "hook '{NAME}' is killed after {seconds} s, before our own deadline: {set} alarm = {needed}'"
        )),
        false => Pass(format!("hook '{NAME}' is enabled")),
    }];
    let (body, wanted) = (moms_text(pbs, ctx), render(ctx, 0, false));
    let is_list = |line: &&str| line.starts_with("AUTO_QUEUES = ");
    if body.lines().find(is_list) != wanted.lines().find(is_list) {
        all.push(Warn(
            "the hook asks for the jobs of other queues than auto_queues of mpsd.toml here: 'mpsctl pbs install' again, on the \
             server's host, with the same auto_queues"
                .to_owned(),
        ));
    }
    let placed = ctx.host.text(&hook_file(ctx), MOST_CONF).ok().flatten();
    let is_older =
        |placed: String| is_this_version(&placed) && placed.trim_end() != body.trim_end();
    let older = match placed.is_some_and(is_older) {
        true => "the server's; its server sends it again when the mom is restarted",
        false if is_this_version(&body) => return all,
        false => {
            "this mpsctl's: 'mpsctl pbs install' on the server's host, once all nodes are upgraded; its moms have it within seconds"
        }
    };
    let copy = moms_copy(pbs, NAME, "PY");
    let text = format!(
        "'{}' is another version's hook than {older}",
        copy.display()
    );
    all.push(Warn(text));
    all
}

/// The hook is not an installed file: an upgrade leaves the old one in place.
fn is_this_version(text: &str) -> bool {
    let key = |line: &str| line.split(' ').next().map(str::to_owned);
    let is_alike = |(its, ours): (&str, &str)| {
        its == ours || ours.contains("# filled in by") && key(its) == key(ours)
    };
    text.lines().count() == HOOK.lines().count() && text.lines().zip(HOOK.lines()).all(is_alike)
}

/// Whether jobs here learn which GPUs are theirs: a stock server counts GPUs and names none.
fn check_gpus(pbs: &Installation, ctx: &SetupContext<'_>) -> CheckLine {
    let missing = match MomsHook::read(pbs, CGROUPS, ctx) {
        Ok(Some(hook)) if !hook.enabled => "pbs_cgroups is not enabled".to_owned(),
        Ok(Some(_)) => match cgroups_names_gpus(pbs, ctx) {
            Ok(true) => return Pass("pbs_cgroups names each job's GPUs".to_owned()),
            Ok(false) => "pbs_cgroups leaves GPUs out (devices, discover_gpus)".to_owned(),
            Err(why) => format!("the configuration of pbs_cgroups is not known ({why})"),
        },
        Ok(None) => "there is no hook pbs_cgroups".to_owned(),
        Err(why) => format!("pbs_cgroups not seen ({why})"),
    };
    let without = match ctx.settings.gpus_unknown {
        GpusUnknown::Refuse => "",
        GpusUnknown::WholeNodeIfExclusive => {
            " (gpus_unknown of mpsd.toml decides only for a job that asks for no ngpus)"
        }
    };
    Warn(format!(
        "{missing}: PBS counts GPUs and names none, so only a job with all of a node's GPUs, or alone on its node \
         (-l place=exclhost), has MPS, and any other is refused{without}; to name them: {NAME_GPUS}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_filled_in_and_nothing_else_changes() {
        let context = crate::testing::context("/opt/m/bin", Some("/etc/a \"b\".toml"));
        let text = render(&context, 16, true);
        let is_new = |line: &&str| !HOOK.lines().any(|other| other == *line);
        let changed: Vec<&str> = text.lines().filter(is_new).collect();
        let expected = [
            "AUTO_QUEUES = []",
            "JOBS = \"/run/mpsd/jobs\"",
            "LOOK_AGAIN = \"/run/mpsd/look-again\"",
            "SHARES = 16",
            "PROGRAMS = \"/opt/m/bin\"",
            "OPTIONS = [\"--config\",\"/etc/a \\\"b\\\".toml\"]",
            "LIMIT_S = 25",
            "MOVES = 1",
        ];
        assert_eq!(changed, expected);
    }
}
