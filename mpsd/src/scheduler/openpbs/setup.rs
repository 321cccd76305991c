//! `mpsctl pbs` in an OpenPBS: our hook, or the classic scripts. The hook is a file under `state_dir` that is imported
//! through qmgr and read back.

use crate::scheduler::pbs::scripts::{calls_us, config_option, consequence, place_scripts, unattached};
use crate::scheduler::pbs::{InstallOptions, Installation, MOST_CONF, Product, Script, attribute};
use crate::scheduler::setup::CheckLine::{self, Fail, Pass, Warn};
use crate::scheduler::setup::{SetupContext, VerbReport, make_directory};
use crate::sys::deadline::Deadline;
use mpsd_core::config::{GpusUnknown, Settings, WarnOrRefuse};
use mpsd_core::job::Scheduler;
use mpsd_core::text::one_line;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) static SCRIPTS: [Script; 2] = [
    Script {
        names: &["prologue"],
        text: include_str!("../../../../etc/pbs/openpbs/prologue"),
        program: "mps-prologue",
        lines: [
            "PROGRAM --scheduler openpbs \"$@\" </dev/null || exit $?",
            "# (near its end, after everything that can fail)",
        ],
    },
    Script {
        names: &["epilogue"],
        text: include_str!("../../../../etc/pbs/openpbs/epilogue"),
        program: "mps-epilogue",
        lines: [
            "PROGRAM --scheduler openpbs \"$@\" </dev/null",
            "# (near its beginning, whatever the rest does)",
        ],
    },
];

pub(crate) static PRODUCT: Product = Product {
    scheduler: Scheduler::OpenPbs,
    title: "OpenPBS or PBS Professional",
    homes: ["/var/spool/pbs", "/var/spool/PBS"],
    commands: &["/opt/pbs/bin", "/usr/bin", "/opt/pbs/sbin"],
    conf: Some("/etc/pbs.conf"),
    alarm_s: 30,
    early_s: 0,
    note_option: "-C",
    no_note: "",
    online_option: "-r",
    comments: false,
    scripts: &SCRIPTS,
    install: |pbs, options, ctx, report| match options.classic {
        true => place_classic(pbs, ctx, report),
        false => place_hook(pbs, options, ctx, report),
    },
    uninstall,
    check_hook,
    check_tasks: |pbs, hooked, ctx| {
        let missing = "the classic scripts do not attach tasks that TM starts";
        let remedy = "'mpsctl pbs install' puts our hook there";
        (!hooked && has_classic(pbs)).then(|| unattached(missing, remedy, ctx))
    },
    absent_script: |shown| {
        Warn(format!(
            "no '{shown}': neither hook nor script; run 'mpsctl pbs install'"
        ))
    },
};

const NAME: &str = "mpsd";
const CGROUPS: &str = "pbs_cgroups";
/// What the hook gives our programs beyond their own deadline, to end by themselves. Seconds.
const GRACE_S: u64 = 5;
/// What the hook's alarm leaves beyond both of our programs: a failed begin cleans up behind itself. Seconds.
const ALARM_MARGIN_S: u64 = 10;
/// After pbs_cgroups (100): its file names the job's GPUs.
const ORDER: u32 = 110;
/// How long a deleted hook may keep its name, and how often we look. Moms that are up remove theirs within seconds.
const PENDING: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(1);
const EVENTS: &str = "execjob_begin,execjob_launch,execjob_end,execjob_abort";
const HOOK: &str = include_str!("../../../../etc/pbs/hooks/mpsd.py");
const FILLED_IN: &str = "# filled in by";
/// What qmgr says: to root of a node that is no manager; of a deleted hook, which keeps its name until every mom has removed
/// its copy; and of no hook, in any case (docs/facts/pbs.md#hooks-of-openpbs). The last is our word for a mom without a copy.
const DENIED: &str = "unauthorized to access hooks";
const PENDING_DELETE: &str = "is pending delete";
const NO_HOOK: &str = "hook not found";
const NOT_AT_THE_MOM: &str = "hook not found at the mom";

const NAME_GPUS: &str = "qmgr -c 'export hook pbs_cgroups application/x-config default' >cgroups.json; \
     (in cgroups.json: \"devices\": { \"enabled\": true, and \"nvidia-smi\": its path where that is not /usr/bin/nvidia-smi); \
     qmgr -c 'import hook pbs_cgroups application/x-config default cgroups.json'; \
     qmgr -c 'set hook pbs_cgroups enabled = True'";

fn place_classic(pbs: &Installation, ctx: &SetupContext<'_>, report: &mut VerbReport) -> Result<(), String> {
    place_scripts(pbs, ctx, report)?;
    let left = consequence(ctx);
    report.did(format!(
        "tasks that TM starts are not attached by the classic scripts: {left}"
    ));
    report.incomplete |= ctx.settings.pbs.unattached_tasks == WarnOrRefuse::Refuse;
    Ok(())
}

fn place_hook(
    pbs: &Installation,
    options: &InstallOptions,
    ctx: &SetupContext<'_>,
    report: &mut VerbReport,
) -> Result<(), String> {
    let ask = |line: &str| pbs.qmgr(line, ctx.host);
    let shown = || ask(&format!("list hook {NAME}"));
    let (file, body, alarm) = (hook_file(ctx), render(ctx), alarm_s(ctx));
    make_directory(ctx.settings.paths.state(), 0o711)?;
    report.write(&file, body.as_bytes(), 0o644, "")?;
    let events = [EVENTS, "queuejob"][..1 + usize::from(options.queuejob)].join(",");
    let attributes = [
        ("event", format!("\"{events}\"")),
        ("order", ORDER.to_string()),
        ("alarm", alarm.to_string()),
        ("enabled", "True".to_owned()),
    ];
    let before = shown();
    let mut commands = Vec::new();
    if before.is_err() {
        commands.push(format!("create hook {NAME}"));
    }
    let file = file.display();
    commands.push(format!("import hook {NAME} application/x-python default {file}"));
    commands.extend(
        attributes
            .iter()
            .map(|(name, value)| format!("set hook {NAME} {name} = {value}")),
    );
    if before.is_ok_and(|shown| has(&shown, &attributes))
        && exported(pbs, ctx).as_deref() == Ok(body.trim_end())
    {
        report.did(format!("hook '{NAME}' is as it should be: {events}"));
    } else {
        match carry_out(&commands, &ask).map(|()| shown()) {
            Ok(Ok(text)) if has(&text, &attributes) => report.did(format!(
                "imported hook '{NAME}': {events}, order {ORDER}, alarm {alarm} s; moms have it within seconds"
            )),
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

fn uninstall(pbs: &Installation, ctx: &SetupContext<'_>, report: &mut VerbReport) -> Result<(), String> {
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
    let file = hook_file(ctx);
    if file.exists() {
        report.remove(&file)?;
    }
    Ok(())
}

/// How long the hook waits for one of our programs: at least as long as one with a broken configuration takes. Seconds.
fn limit_s(ctx: &SetupContext<'_>) -> u64 {
    ctx.settings.deadline.max(Settings::usual().deadline).as_secs() + GRACE_S
}

fn alarm_s(ctx: &SetupContext<'_>) -> u64 {
    2 * limit_s(ctx) + ALARM_MARGIN_S
}

fn hook_file(ctx: &SetupContext<'_>) -> PathBuf {
    ctx.settings.paths.state().join("mpsd.py")
}

fn render(ctx: &SetupContext<'_>) -> String {
    let values = [
        ("PROGRAMS", json!(ctx.programs.display().to_string())),
        ("OPTIONS", json!(config_option(ctx))),
        ("LIMIT_S", json!(limit_s(ctx))),
        (
            "LOOK_AGAIN",
            json!(ctx.settings.paths.look_again().display().to_string()),
        ),
    ];
    let filled = |line: &str| {
        let value = values.iter().find(|(key, _)| line.split(' ').next() == Some(key));
        value.map_or_else(
            || format!("{line}\n"),
            |(key, value)| format!("{key} = {value}\n"),
        )
    };
    HOOK.lines().map(filled).collect()
}

/// Whether a hook that qmgr shows has these attributes; its events may stand in any order.
fn has(shown: &str, attributes: &[(&str, String)]) -> bool {
    let set = |list: &str| -> BTreeSet<String> {
        let words = list.trim_matches('"').split(',');
        words.map(|word| word.trim().to_lowercase()).collect()
    };
    let is =
        |(name, value): &(&str, String)| attribute(shown, name).is_some_and(|own| set(&own) == set(value));
    attributes.iter().all(is)
}

/// All of qmgr's commands; from the first one again while the server deletes the hook that was there before.
fn carry_out(commands: &[String], ask: &dyn Fn(&str) -> Result<String, String>) -> Result<(), String> {
    let end = Deadline::after(PENDING);
    loop {
        match commands.iter().try_for_each(|line| ask(line).map(|_| ())) {
            Err(why) if why.contains(PENDING_DELETE) && end.sleep(POLL) => {}
            done => return done,
        }
    }
}

fn is_enabled(shown: &str) -> bool {
    shown.to_lowercase().contains("enabled = true")
}

fn has_classic(pbs: &Installation) -> bool {
    calls_us(&pbs.mom_priv().join("prologue"))
}

fn moms_copy(pbs: &Installation, name: &str, kind: &str) -> PathBuf {
    pbs.mom_priv().join("hooks").join(format!("{name}.{kind}"))
}

/// A hook as qmgr shows it. If root of this node may not ask qmgr, as the mom's own copy says it: `NAME=VALUE` lines
/// without those that have the default (read: hook.c; enabled, and an alarm of 30 s). An error is qmgr's, or [`NOT_AT_THE_MOM`].
fn shown(pbs: &Installation, name: &str, ctx: &SetupContext<'_>) -> Result<String, String> {
    let asked = pbs.qmgr(&format!("list hook {name}"), ctx.host);
    if !asked.as_ref().is_err_and(|why| why.contains(DENIED)) {
        return asked;
    }
    let copy = moms_copy(pbs, name, "HK");
    let text = ctx
        .host
        .text(&copy, MOST_CONF)?
        .filter(|_| copy.with_extension("PY").is_file());
    let text = text.ok_or(NOT_AT_THE_MOM)?;
    let value = |name: &str, default| {
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        format!("{name} = {}\n", values.next().unwrap_or(default))
    };
    Ok(value("enabled", "true") + &value("alarm", "30"))
}

fn exported(pbs: &Installation, ctx: &SetupContext<'_>) -> Result<String, String> {
    let body = pbs.qmgr(
        &format!("export hook {NAME} application/x-python default"),
        ctx.host,
    )?;
    Ok(body.trim_end().to_owned())
}

fn check_hook(pbs: &Installation, ctx: &SetupContext<'_>, all: &mut Vec<CheckLine>) -> bool {
    let hooked = check_ours(pbs, ctx, all);
    let classic = has_classic(pbs);
    if hooked || classic {
        all.push(check_gpus(pbs, ctx));
    }
    // docs/facts/pbs.md#hooks-of-openpbs
    if !hooked && classic && shown(pbs, CGROUPS, ctx).is_ok_and(|text| is_enabled(&text)) {
        all.push(Fail(
            "pbs_cgroups is enabled, and PBS then runs no classic epilogue: a job's MPS stays until mpsd-reconcile.timer; use \
             our hook: 'mpsctl pbs uninstall', then 'mpsctl pbs install'"
                .to_owned(),
        ));
    }
    hooked
}

fn check_ours(pbs: &Installation, ctx: &SetupContext<'_>, all: &mut Vec<CheckLine>) -> bool {
    let needed = alarm_s(ctx);
    let text = match shown(pbs, NAME, ctx) {
        Ok(text) => text.to_lowercase(),
        Err(why) if !why.to_lowercase().contains(NO_HOOK) => {
            all.push(Warn(format!(
                "hook '{NAME}' not seen ({why}); run 'mpsctl pbs install' as a manager"
            )));
            return false;
        }
        Err(_) if has_classic(pbs) => return false,
        Err(why) => {
            let fail = match why == NOT_AT_THE_MOM {
                false => format!(
                    "PBS has no hook '{NAME}': jobs run without MPS; run 'mpsctl pbs install' as a manager on the server's host"
                ),
                true => format!(
                    "this mom has no hook '{NAME}': jobs run without MPS; 'mpsctl pbs install' runs once, on the server's host, and \
                     its moms have it within seconds"
                ),
            };
            all.push(Fail(fail));
            return false;
        }
    };
    let alarm = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("alarm = ")?.trim().parse().ok());
    let alarm = alarm.filter(|alarm: &u64| *alarm < needed);
    let set = |what| format!("qmgr -c 'set hook {NAME} {what}'");
    all.push(match (is_enabled(&text), alarm) {
        (false, _) => Fail(format!(
            "hook '{NAME}' is not enabled: {}",
            set("enabled = True".to_owned())
        )),
        (true, Some(seconds)) => Fail(format!(
            "hook '{NAME}' is killed after {seconds} s, before our own deadline: {}",
            set(format!("alarm = {needed}"))
        )),
        (true, None) => Pass(format!("hook '{NAME}' is enabled")),
    });
    if is_enabled(&text) {
        all.extend(check_moms_copy(pbs, ctx));
    }
    true
}

/// The copy of the mom that runs here is what its jobs get. The server's list shows neither a copy that never arrived nor
/// one that stayed when the hook was imported again.
fn check_moms_copy(pbs: &Installation, ctx: &SetupContext<'_>) -> Option<CheckLine> {
    let copy = moms_copy(pbs, NAME, "PY");
    let shown = copy.display();
    let remedy = "its server sends it again when the mom is restarted";
    let Some(text) = ctx.host.text(&copy, MOST_CONF).ok()? else {
        // A mom removes its lock when it ends.
        return pbs.mom_priv().join("mom.lock").exists().then(|| {
            Fail(format!(
                "no '{shown}': this mom has no hook '{NAME}', and its jobs run without MPS; {remedy}"
            ))
        });
    };
    match exported(pbs, ctx) {
        Ok(body) if is_this_version(&body) && body != text.trim_end() => Some(Warn(format!(
            "'{shown}' is another version's hook than the server's; {remedy}"
        ))),
        Ok(body) if is_this_version(&body) => None,
        Err(_) if is_this_version(&text) => None,
        _ => Some(Warn(format!(
            "'{shown}' is another version's hook than this mpsctl's: 'mpsctl pbs install' on the server's host, once all nodes are \
             upgraded; its moms have it within seconds"
        ))),
    }
}

/// The hook is not an installed file: an upgrade leaves the old one in place.
fn is_this_version(text: &str) -> bool {
    let key = |line: &str| line.split(' ').next().map(str::to_owned);
    let is_alike =
        |(its, ours): (&str, &str)| its == ours || ours.contains(FILLED_IN) && key(its) == key(ours);
    text.lines().count() == HOOK.lines().count() && text.lines().zip(HOOK.lines()).all(is_alike)
}

/// Whether jobs here learn which GPUs are theirs: a stock server counts GPUs and names none.
fn check_gpus(pbs: &Installation, ctx: &SetupContext<'_>) -> CheckLine {
    let missing = match shown(pbs, CGROUPS, ctx) {
        Ok(text) if !is_enabled(&text) => "pbs_cgroups is not enabled".to_owned(),
        Ok(_) => match cgroups_names_gpus(pbs, ctx) {
            Ok(true) => return Pass("pbs_cgroups names each job's GPUs".to_owned()),
            Ok(false) => "pbs_cgroups leaves GPUs out (devices, discover_gpus)".to_owned(),
            Err(why) => format!("the configuration of pbs_cgroups is not known ({why})"),
        },
        Err(why) if why.to_lowercase().contains(NO_HOOK) => "there is no hook pbs_cgroups".to_owned(),
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

/// Whether pbs_cgroups, as configured, finds GPUs and writes them into its file (read: pbs_cgroups.PY).
fn cgroups_names_gpus(pbs: &Installation, ctx: &SetupContext<'_>) -> Result<bool, String> {
    let text = match pbs.qmgr(
        &format!("export hook {CGROUPS} application/x-config default"),
        ctx.host,
    ) {
        Err(why) if why.contains(DENIED) => ctx
            .host
            .text(&moms_copy(pbs, CGROUPS, "CF"), MOST_CONF)?
            .unwrap_or_default(),
        other => other?,
    };
    let config: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let on = |value: &Value, unset: bool| value.as_bool().unwrap_or(unset);
    Ok(on(&config["cgroup"]["devices"]["enabled"], false) && on(&config["discover_gpus"], true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_filled_in_and_nothing_else_changes() {
        let text = render(&crate::scheduler::testing::context(
            "/opt/m/bin",
            Some("/etc/a \"b\".toml"),
        ));
        let changed: Vec<&str> = text
            .lines()
            .filter(|line| !HOOK.lines().any(|other| other == *line))
            .collect();
        let expected = [
            "PROGRAMS = \"/opt/m/bin\"",
            "OPTIONS = [\"--config\",\"/etc/a \\\"b\\\".toml\"]",
            "LOOK_AGAIN = \"/run/mpsd/look-again\"",
            "LIMIT_S = 25",
        ];
        assert_eq!(changed, expected);
    }
}
