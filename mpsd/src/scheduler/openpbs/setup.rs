//! `mpsctl pbs` in an OpenPBS: our hook, a file in the lasting root that is imported through qmgr and read back, or the
//! classic scripts.

use super::product::PRODUCT;
use crate::scheduler::pbs::files::{self, Script, config_option};
use crate::scheduler::pbs::installation::{Installation, MOST_CONF, Product};
use crate::scheduler::pbs::qmgr::qmgr;
use crate::scheduler::pbs::status::status;
use crate::scheduler::pbs::verbs::{Install, OwnSteps, consequence, unattached};
use crate::scheduler::setup::{CheckLine, SetupContext, VerbReport, ensure, remove};
use crate::sys::deadline::Deadline;
use mpsd_core::config::{GpusUnknown, Settings, WarnOrRefuse};
use mpsd_core::text::one_line;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The classic scripts.
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

/// The hook's name in PBS.
pub(crate) const NAME: &str = "mpsd";
/// The hook of PBS that names a job's GPUs.
const CGROUPS: &str = "pbs_cgroups";
/// What the hook gives our programs beyond their own deadline, to end by themselves. Seconds.
const GRACE_S: u64 = 5;
/// What the hook's alarm leaves beyond both of our programs: a failed begin cleans up behind itself. Seconds.
const ALARM_MARGIN_S: u64 = 10;
/// After pbs_cgroups (100), whose file names the job's GPUs.
const ORDER: u32 = 110;
/// How long a deleted hook may keep its name, and how often it is looked at. Moms that are up take theirs away within seconds.
const PENDING: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(1);
const EVENTS: &str = "execjob_begin,execjob_launch,execjob_end,execjob_abort";
/// What the lines of the hook hold that an installation fills in.
const FILLED_IN: &str = "# filled in by";
const HOOK: &str = include_str!("../../../../etc/pbs/hooks/mpsd.py");

/// The steps of `mpsctl pbs` that are OpenPBS's own.
pub(crate) struct Steps;

impl OwnSteps for Steps {
    fn product(&self) -> &'static Product {
        &PRODUCT
    }

    fn scripts(&self) -> &'static [Script] {
        &SCRIPTS
    }

    fn install(
        &self,
        pbs: &Installation,
        options: &Install,
        around: &SetupContext<'_>,
    ) -> Result<VerbReport, String> {
        if !options.classic {
            return install(pbs, options, around);
        }
        let mut done = files::install(pbs, &SCRIPTS, around)?;
        let left = consequence(around);
        let text = format!("tasks that TM starts are not attached by the classic scripts: {left}");
        match around.settings.pbs.unattached_tasks {
            WarnOrRefuse::Refuse => done.left(text),
            WarnOrRefuse::Warn => done.did(text),
        }
        Ok(done)
    }

    fn uninstall(&self, pbs: &Installation, around: &SetupContext<'_>) -> Result<VerbReport, String> {
        let ask = |line: &str| qmgr(pbs, line, around.host);
        let mut done = VerbReport::default();
        match ask(&format!("list hook {NAME}")) {
            Ok(_) => match ask(&format!("delete hook {NAME}")) {
                Ok(_) => {
                    done.did(format!("deleted hook '{NAME}' on every node"));
                    done.did("jobs with MPS on other nodes cannot be seen from here: there 'mpsctl reconcile' tells of them, and takes their MPS down after them");
                }
                Err(why) => done.left(format!(
                    "cannot delete the hook ({why}); a manager of PBS runs: qmgr -c 'delete hook {NAME}'"
                )),
            },
            Err(why) if is_denied(&why) && moms_copy(pbs, NAME, "HK").exists() => done.left(format!(
                "hook '{NAME}' can be deleted from the server's host alone: 'mpsctl pbs uninstall' there"
            )),
            Err(_) => {}
        }
        let file = file(around);
        if file.exists() {
            remove(&file, &mut done)?;
        }
        Ok(done)
    }

    fn check_hook(&self, pbs: &Installation, around: &SetupContext<'_>, all: &mut Vec<CheckLine>) -> bool {
        let hooked = check(pbs, around, all);
        if hooked || has_classic(pbs) {
            all.push(check_gpus(pbs, around));
        }
        // docs/facts/pbs.md#hooks-of-openpbs
        let cgroups = || shown(pbs, CGROUPS, around).is_ok_and(|text| is_enabled(&text));
        if !hooked && has_classic(pbs) && cgroups() {
            all.push(CheckLine::Fail(
                "pbs_cgroups is enabled, and PBS then runs no classic epilogue: a job's MPS stays until mpsd-reconcile.timer; use \
                 our hook: 'mpsctl pbs uninstall', then 'mpsctl pbs install'"
                    .to_owned(),
            ));
        }
        hooked
    }

    fn check_tasks(&self, pbs: &Installation, hooked: bool, around: &SetupContext<'_>) -> Option<CheckLine> {
        let classic = !hooked && has_classic(pbs);
        classic.then(|| {
            let missing = "the classic scripts do not attach tasks that TM starts";
            unattached(missing, "'mpsctl pbs install' puts our hook there", around)
        })
    }

    fn check_absent(&self, shown: &str) -> CheckLine {
        CheckLine::Warn(format!(
            "no '{shown}': neither hook nor script; run 'mpsctl pbs install'"
        ))
    }
}

fn install(pbs: &Installation, options: &Install, around: &SetupContext<'_>) -> Result<VerbReport, String> {
    let ask = |line: &str| qmgr(pbs, line, around.host);
    let mut done = VerbReport::default();
    let file = file(around);
    let directory = around.settings.paths.state();
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o711).create(directory);
    made.map_err(|e| format!("cannot make '{}': {e}", directory.display()))?;
    let body = render(around)?;
    if ensure(&file, &body, 0o644)? {
        done.did(format!("wrote '{}'", file.display()));
    }
    let events = if options.queuejob {
        format!("{EVENTS},queuejob")
    } else {
        EVENTS.to_owned()
    };
    let list = || ask(&format!("list hook {NAME}"));
    let (before, alarm) = (list(), alarm_s(around));
    let commands = commands(&file, &events, alarm, before.is_err());
    if before.is_ok_and(|shown| is_as_wanted(&shown, &events, alarm))
        && exported(&ask).as_deref() == Ok(body.trim_end())
    {
        done.did(format!("hook '{NAME}' is as it should be: {events}"));
    } else {
        match carry_out(&commands, &ask) {
            Ok(()) => done.add(read_back(list(), &events, alarm)),
            Err(why) if is_pending(&why) => done.left(format!(
                "PBS deletes the hook '{NAME}' that was there before, for longer than {} s: a mom that is down keeps its copy; run \
                 this again once 'pbsnodes -a' shows them all up",
                PENDING.as_secs()
            )),
            Err(why) => {
                done.left(format!(
                    "qmgr did not take the hook ({why}); a manager of PBS runs:"
                ));
                commands
                    .iter()
                    .for_each(|line| done.left(format!("    qmgr -c '{line}'")));
            }
        }
    }
    if ask("list resource mps").is_err() {
        done.did("optional, so that accounts stay clean (qsub -l mps=on+threads=25), a manager of PBS runs:");
        done.did("    qmgr -c 'create resource mps type=string,flag=m'");
    }
    Ok(done)
}

/// How long the hook waits for one of our programs: no less than one takes that cannot read its configuration. Seconds.
fn limit_s(around: &SetupContext<'_>) -> u64 {
    around.settings.deadline.max(Settings::usual().deadline).as_secs() + GRACE_S
}

/// When PBS may kill the hook. Seconds.
fn alarm_s(around: &SetupContext<'_>) -> u64 {
    2 * limit_s(around) + ALARM_MARGIN_S
}

fn file(around: &SetupContext<'_>) -> PathBuf {
    around.settings.paths.state().join("mpsd.py")
}

/// The hook with this installation's programs and configuration.
fn render(around: &SetupContext<'_>) -> Result<String, String> {
    let literal = |value: &serde_json::Value| value.to_string();
    let programs = literal(&serde_json::json!(around.programs.display().to_string()));
    let options = literal(&serde_json::json!(config_option(around)));
    let look_again = around.settings.paths.look_again();
    let look_again = literal(&serde_json::json!(look_again.display().to_string()));
    let filled: Vec<String> = HOOK
        .lines()
        .map(|line| match line.split(' ').next() {
            Some("PROGRAMS") => format!("PROGRAMS = {programs}"),
            Some("OPTIONS") => format!("OPTIONS = {options}"),
            Some("LIMIT_S") => format!("LIMIT_S = {}", limit_s(around)),
            Some("LOOK_AGAIN") => format!("LOOK_AGAIN = {look_again}"),
            _ => line.to_owned(),
        })
        .collect();
    Ok(filled.join("\n") + "\n")
}

fn commands(file: &Path, events: &str, alarm: u64, create: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if create {
        lines.push(format!("create hook {NAME}"));
    }
    lines.push(format!(
        "import hook {NAME} application/x-python default {}",
        file.display()
    ));
    lines.push(format!("set hook {NAME} event = \"{events}\""));
    lines.push(format!("set hook {NAME} order = {ORDER}"));
    lines.push(format!("set hook {NAME} alarm = {alarm}"));
    lines.push(format!("set hook {NAME} enabled = True"));
    lines
}

/// All of qmgr's commands; from the first one again while the server deletes the hook that was there before.
fn carry_out(commands: &[String], ask: &dyn Fn(&str) -> Result<String, String>) -> Result<(), String> {
    let end = Deadline::after(PENDING);
    loop {
        match commands.iter().try_for_each(|line| ask(line).map(|_| ())) {
            Err(why) if is_pending(&why) && end.sleep(POLL) => {}
            done => return done,
        }
    }
}

/// A deleted hook keeps its name until every mom has removed its copy (docs/facts/pbs.md#hooks-of-openpbs).
fn is_pending(why: &str) -> bool {
    why.contains("is pending delete")
}

/// Whether qmgr's answer is definite (docs/facts/pbs.md#hooks-of-openpbs).
fn is_no_hook(why: &str) -> bool {
    why.to_lowercase().contains("hook not found")
}

/// Whether a classic prologue here calls us.
fn has_classic(pbs: &Installation) -> bool {
    files::calls_us(&pbs.mom_priv().join("prologue"))
}

/// What stands for an answer where the mom has no copy of the hook.
const NOT_AT_THE_MOM: &str = "the mom has no copy of it";

/// A hook as qmgr shows it, and on a node where root may not ask for that, as the mom's own copy says it: `NAME=VALUE`
/// lines, of which those with the default are left out (read: hook.c; enabled, and an alarm of 30 s).
///
/// # Errors
/// What qmgr said, or [`NOT_AT_THE_MOM`].
fn shown(pbs: &Installation, name: &str, around: &SetupContext<'_>) -> Result<String, String> {
    let asked = qmgr(pbs, &format!("list hook {name}"), around.host);
    if !asked.as_ref().is_err_and(|why| is_denied(why)) {
        return asked;
    }
    let copy = moms_copy(pbs, name, "HK");
    let text = around
        .host
        .read(&copy, MOST_CONF)
        .map_err(|e| format!("'{}': {e}", copy.display()))?;
    let text = text
        .filter(|_| copy.with_extension("PY").is_file())
        .ok_or(NOT_AT_THE_MOM)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    let (enabled, alarm) = (value("enabled").unwrap_or("true"), value("alarm").unwrap_or("30"));
    Ok(format!("enabled = {enabled}\nalarm = {alarm}\n"))
}

fn is_enabled(shown: &str) -> bool {
    shown.to_lowercase().contains("enabled = true")
}

fn is_denied(why: &str) -> bool {
    why.contains("unauthorized to access hooks")
}

fn moms_copy(pbs: &Installation, name: &str, kind: &str) -> PathBuf {
    pbs.mom_priv().join("hooks").join(format!("{name}.{kind}"))
}

/// What a site does so that PBS names a job's GPUs.
const NAME_GPUS: [&str; 4] = [
    "qmgr -c 'export hook pbs_cgroups application/x-config default' >cgroups.json",
    "(in cgroups.json: \"devices\": { \"enabled\": true, and \"nvidia-smi\": its path where that is not /usr/bin/nvidia-smi)",
    "qmgr -c 'import hook pbs_cgroups application/x-config default cgroups.json'",
    "qmgr -c 'set hook pbs_cgroups enabled = True'",
];

/// Whether jobs here learn which GPUs are theirs: a stock server counts GPUs and names none.
fn check_gpus(pbs: &Installation, around: &SetupContext<'_>) -> CheckLine {
    let missing = match shown(pbs, CGROUPS, around) {
        Ok(text) if !is_enabled(&text) => "pbs_cgroups is not enabled".to_owned(),
        Ok(_) => match cgroups_devices(pbs, around) {
            Ok(true) => return CheckLine::Pass("pbs_cgroups names each job's GPUs".to_owned()),
            Ok(false) => "pbs_cgroups leaves GPUs out (devices, discover_gpus)".to_owned(),
            Err(why) => format!("the configuration of pbs_cgroups is not known ({why})"),
        },
        Err(why) if why == NOT_AT_THE_MOM || is_no_hook(&why) => "there is no hook pbs_cgroups".to_owned(),
        Err(why) => format!("pbs_cgroups not seen ({why})"),
    };
    let without = match around.settings.gpus_unknown {
        GpusUnknown::Refuse => "",
        GpusUnknown::WholeNodeIfExclusive => {
            " (gpus_unknown of mpsd.toml decides only for a job that asks for no ngpus)"
        }
    };
    CheckLine::Warn(format!(
        "{missing}: PBS counts GPUs and names none, so only a job with all of a node's GPUs, or alone on its node \
         (-l place=exclhost), has MPS, and any other is refused{without}; to name them: {}",
        NAME_GPUS.join("; ")
    ))
}

/// Whether pbs_cgroups, as it is configured, finds GPUs and writes them into its file (read: pbs_cgroups.PY).
fn cgroups_devices(pbs: &Installation, around: &SetupContext<'_>) -> Result<bool, String> {
    let asked = qmgr(
        pbs,
        &format!("export hook {CGROUPS} application/x-config default"),
        around.host,
    );
    let text = match asked {
        Err(why) if is_denied(&why) => {
            let copy = moms_copy(pbs, CGROUPS, "CF");
            let bytes = around.host.read(&copy, MOST_CONF).map_err(|e| e.to_string())?;
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        }
        other => other?,
    };
    let config: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let on = |value: &serde_json::Value, unset: bool| value.as_bool().unwrap_or(unset);
    Ok(on(&config["cgroup"]["devices"]["enabled"], false) && on(&config["discover_gpus"], true))
}

/// Whether our hook is there; says so.
fn check(pbs: &Installation, around: &SetupContext<'_>, all: &mut Vec<CheckLine>) -> bool {
    let needed = alarm_s(around);
    let text = match shown(pbs, NAME, around) {
        Ok(text) => text.to_lowercase(),
        Err(why) if why == NOT_AT_THE_MOM || is_no_hook(&why) => {
            let (who, remedy) = match is_no_hook(&why) {
                true => (
                    "PBS",
                    "run 'mpsctl pbs install' as a manager on the server's host",
                ),
                false => (
                    "this mom",
                    "'mpsctl pbs install' runs once, on the server's host, and its moms have it within seconds",
                ),
            };
            all.extend((!has_classic(pbs)).then(|| {
                CheckLine::Fail(format!(
                    "{who} has no hook '{NAME}': jobs run without MPS; {remedy}"
                ))
            }));
            return false;
        }
        Err(why) => {
            all.push(CheckLine::Warn(format!(
                "hook '{NAME}' not seen ({why}); run 'mpsctl pbs install' as a manager"
            )));
            return false;
        }
    };
    if !is_enabled(&text) {
        all.push(CheckLine::Fail(format!(
            "hook '{NAME}' is not enabled: qmgr -c 'set hook {NAME} enabled = True'"
        )));
        return true;
    }
    let alarm = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("alarm = ")?.trim().parse::<u64>().ok());
    all.push(match alarm {
        Some(seconds) if seconds < needed => {
            let set = format!("qmgr -c 'set hook {NAME} alarm = {needed}'");
            CheckLine::Fail(format!(
                "hook '{NAME}' is killed after {seconds} s, before our own deadline: {set}"
            ))
        }
        _ => CheckLine::Pass(format!("hook '{NAME}' is enabled")),
    });
    all.extend(at_the_mom(pbs, around));
    true
}

/// The copy of the mom that runs here, which is what its jobs get: the server's list shows neither one that never arrived nor
/// one that stayed when the hook was imported again.
fn at_the_mom(pbs: &Installation, around: &SetupContext<'_>) -> Option<CheckLine> {
    let copy = moms_copy(pbs, NAME, "PY");
    let shown = copy.display();
    let remedy = "its server sends it again when the mom is restarted";
    let Some(text) = around.host.read(&copy, MOST_CONF).ok()? else {
        return runs_here(pbs).then(|| {
            CheckLine::Fail(format!(
                "no '{shown}': this mom has no hook '{NAME}', and its jobs run without MPS; {remedy}"
            ))
        });
    };
    let text = String::from_utf8_lossy(&text);
    let servers = exported(&|line: &str| qmgr(pbs, line, around.host));
    match servers {
        Ok(body) if !is_this_version(&body) => {}
        Ok(body) if body != text.trim_end() => {
            return Some(CheckLine::Warn(format!(
                "'{shown}' is another version's hook than the server's; {remedy}"
            )));
        }
        _ if is_this_version(&text) => return None,
        _ => {}
    }
    Some(CheckLine::Warn(format!(
        "'{shown}' is another version's hook than this mpsctl's: 'mpsctl pbs install' on the server's host, once all nodes are \
         upgraded; its moms have it within seconds"
    )))
}

/// Whether a mom runs here: it removes its lock when it ends.
fn runs_here(pbs: &Installation) -> bool {
    pbs.mom_priv().join("mom.lock").exists()
}

/// The hook is not an installed file: an upgrade leaves the old one in place.
fn is_this_version(text: &str) -> bool {
    let key = |line: &str| line.split(' ').next().map(str::to_owned);
    let is_alike =
        |(its, ours): (&str, &str)| its == ours || (ours.contains(FILLED_IN) && key(its) == key(ours));
    text.lines().count() == HOOK.lines().count() && text.lines().zip(HOOK.lines()).all(is_alike)
}

/// The hook's body as the server has it.
fn exported(ask: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
    ask(&format!("export hook {NAME} application/x-python default")).map(|body| body.trim_end().to_owned())
}

/// Whether a hook that qmgr shows listens to these events and no other, and is otherwise as [`commands`] sets it.
fn is_as_wanted(shown: &str, events: &str, alarm: u64) -> bool {
    let set = |list: &str| -> BTreeSet<String> {
        let words = list.trim_matches('"').split(',');
        words.map(|word| word.trim().to_owned()).collect()
    };
    let is =
        |name: &str, wanted: String| status(shown, name).is_some_and(|value| value.to_lowercase() == wanted);
    status(shown, "event").is_some_and(|all| set(&all) == set(events))
        && is("enabled", "true".to_owned())
        && is("order", ORDER.to_string())
        && is("alarm", alarm.to_string())
}

fn read_back(shown: Result<String, String>, events: &str, alarm: u64) -> VerbReport {
    let mut done = VerbReport::default();
    match shown {
        Ok(text) if is_as_wanted(&text, events, alarm) => {
            done.did(format!("imported hook '{NAME}': {events}, order {ORDER}, alarm {alarm} s; moms have it within seconds"));
        }
        Ok(text) => done.left(format!(
            "qmgr took the hook, but shows it otherwise: {}",
            one_line(text.trim(), 200)
        )),
        Err(why) => done.left(format!("qmgr took the hook, but does not show it: {why}")),
    }
    done
}

#[cfg(test)]
mod tests {
    //! The hook as it is filled in.

    use super::*;

    #[test]
    fn the_hook_is_filled_in_and_nothing_else_changes() {
        let around = SetupContext {
            config: Some(Path::new("/etc/a \"b\".toml")),
            settings: mpsd_core::config::Settings::usual(),
            broken: None,
            programs: Path::new("/opt/m/bin"),
            host: &crate::scheduler::host::ThisHost,
            inventory: &|_| Err(mpsd_core::Undetermined::new("NVML", "not asked").into()),
            standing: &|_| Vec::new(),
        };
        let text = render(&around).unwrap();
        let changed: Vec<&str> = text
            .lines()
            .filter(|line| !HOOK.lines().any(|other| other == *line))
            .collect();
        assert_eq!(
            changed,
            [
                "PROGRAMS = \"/opt/m/bin\"",
                "OPTIONS = [\"--config\",\"/etc/a \\\"b\\\".toml\"]",
                "LOOK_AGAIN = \"/run/mpsd/look-again\"",
                "LIMIT_S = 25"
            ]
        );
    }
}
