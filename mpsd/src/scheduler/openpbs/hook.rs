//! The OpenPBS hook: our file in the lasting root, imported through qmgr and read back.

use crate::scheduler::Host;
use crate::scheduler::pbs::Installation;
use crate::scheduler::pbs::files;
use crate::scheduler::pbs::setup::{Done, Install, Surroundings, config_option};
use mpsd_core::text::one_line;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The hook's name in PBS.
pub(crate) const NAME: &str = "mpsd";
/// What the hook gives our programs beyond their own deadline, to end by themselves. Seconds.
const GRACE_S: u64 = 5;
/// What the hook's alarm leaves beyond both of our programs: a failed begin cleans up behind itself. Seconds.
const ALARM_MARGIN_S: u64 = 10;
/// After pbs_cgroups (100), whose file names the job's GPUs.
const ORDER: u32 = 110;
const EVENTS: &str = "execjob_begin,execjob_launch,execjob_end,execjob_abort";
const HOOK: &str = include_str!("../../../../etc/pbs/hooks/mpsd.py");
/// qmgr talks to the server, which may be busy.
const QMGR_DEADLINE: Duration = Duration::from_secs(10);

pub(crate) fn install(
    pbs: &Installation,
    options: &Install,
    around: &Surroundings,
    host: &dyn Host,
) -> Result<Done, String> {
    let mut done = Done::new();
    let file = file(around);
    let directory = around.state.clone();
    fs::create_dir_all(&directory).map_err(|e| format!("cannot make '{}': {e}", directory.display()))?;
    files::place(&file, &render(around)?, 0o644)
        .map_err(|e| format!("cannot write '{}': {e}", file.display()))?;
    done.did(format!("wrote '{}'", file.display()));
    let events = if options.queuejob {
        format!("{EVENTS},queuejob")
    } else {
        EVENTS.to_owned()
    };
    let commands = commands(
        &file,
        &events,
        alarm_s(around),
        ask(pbs, host, &format!("list hook {NAME}")).is_err(),
    );
    match commands
        .iter()
        .try_for_each(|line| ask(pbs, host, line).map(|_| ()))
    {
        Ok(()) => done.add(read_back(pbs, host, &events, alarm_s(around))),
        Err(why) => {
            done.left(format!(
                "qmgr did not take the hook ({why}); a manager of PBS runs:"
            ));
            commands
                .iter()
                .for_each(|line| done.left(format!("    qmgr -c '{line}'")));
        }
    }
    if ask(pbs, host, "list resource mps").is_err() {
        done.did("optional, so that accounts stay clean (qsub -l mps=on+threads=25), a manager of PBS runs:");
        done.did("    qmgr -c 'create resource mps type=string,flag=m'");
    }
    Ok(done)
}

pub(crate) fn uninstall(pbs: &Installation, around: &Surroundings, host: &dyn Host) -> Result<Done, String> {
    let mut done = Done::new();
    if ask(pbs, host, &format!("list hook {NAME}")).is_ok() {
        match ask(pbs, host, &format!("delete hook {NAME}")) {
            Ok(_) => done.did(format!("deleted hook '{NAME}'")),
            Err(why) => done.left(format!(
                "cannot delete the hook ({why}); a manager of PBS runs: qmgr -c 'delete hook {NAME}'"
            )),
        }
    }
    let file = file(around);
    if file.exists() {
        fs::remove_file(&file).map_err(|e| format!("cannot remove '{}': {e}", file.display()))?;
        done.did(format!("removed '{}'", file.display()));
    }
    Ok(done)
}

/// How long the hook waits for one of our programs. Seconds.
fn limit_s(around: &Surroundings) -> u64 {
    around.deadline.as_secs() + GRACE_S
}

/// When PBS may kill the hook. Seconds.
pub(crate) fn alarm_s(around: &Surroundings) -> u64 {
    2 * limit_s(around) + ALARM_MARGIN_S
}

fn file(around: &Surroundings) -> PathBuf {
    around.state.join("mpsd.py")
}

/// The hook with this installation's programs and configuration.
fn render(around: &Surroundings) -> Result<String, String> {
    let literal = |value: &serde_json::Value| value.to_string();
    let programs = literal(&serde_json::json!(around.programs.display().to_string()));
    let options = literal(&serde_json::json!(config_option(around.config.as_deref())));
    let filled: Vec<String> = HOOK
        .lines()
        .map(|line| match line.split(' ').next() {
            Some("PROGRAMS") => format!("PROGRAMS = {programs}"),
            Some("OPTIONS") => format!("OPTIONS = {options}"),
            Some("LIMIT_S") => format!("LIMIT_S = {}", limit_s(around)),
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

/// One qmgr command a call: of several `-c` only the last counts (recorded).
pub(crate) fn ask(pbs: &Installation, host: &dyn Host, line: &str) -> Result<String, String> {
    let qmgr = pbs.command("qmgr", host)?;
    let answer = host.run(&qmgr, &["-c", line], QMGR_DEADLINE)?;
    match answer.code {
        Some(0) => Ok(answer.text),
        _ => Err(one_line(answer.text.trim(), 120)),
    }
}

fn read_back(pbs: &Installation, host: &dyn Host, events: &str, alarm: u64) -> Done {
    let mut done = Done::new();
    match ask(pbs, host, &format!("list hook {NAME}")) {
        Ok(text)
            if events.split(',').all(|event| text.contains(event))
                && text.to_lowercase().contains("enabled = true") =>
        {
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
    use super::*;

    #[test]
    fn the_hook_is_filled_in_and_nothing_else_changes() {
        let around = Surroundings {
            site: Default::default(),
            programs: "/opt/m/bin".into(),
            config: Some("/etc/a \"b\".toml".into()),
            state: "/var/lib/mpsd".into(),
            deadline: Duration::from_secs(20),
            unattached: mpsd_core::config::UnattachedTasks::Refuse,
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
                "LIMIT_S = 25"
            ]
        );
    }
}
