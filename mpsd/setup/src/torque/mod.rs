//! `mpsctl pbs` in a Torque: our scripts, and our `$job_starter`. The starter stands beside the
//! scripts in `mom_priv`, so that it outlives our package: a mom without its starter can start no
//! job at all.

mod scripts;

use crate::pbs::product::{InstallOptions, ProductVerbs};
use crate::verbs::{CheckLine, SetupContext, VerbReport};
use anyhow::{Context as _, Result, anyhow, bail};
use batch::batch_system::Unattached;
use batch::pbs::Installation;
use batch::torque::PRODUCT;
use batch::torque::starter::{self, Starter, names, own_way_with_shells};
use scripts::{
    Author, author, check_scripts, command_line, consequence, place_scripts, remove_scripts,
    render, unattached,
};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub static VERBS: ProductVerbs = ProductVerbs {
    product: &PRODUCT,
    install,
    uninstall,
    check: |pbs, ctx, all| {
        all.extend(check_scripts(pbs, ctx));
        all.push(check_tasks(pbs, ctx));
    },
};

const ABOVE: &str =
    "# mpsd: written by 'mpsctl pbs install': tasks that TM starts get their job's MPS";
const STARTER_MODE: u32 = 0o755;
const REREAD: &str = "the mom reads it at its next start, or by SIGHUP";
const JOB_STARTER: &str = include_str!("../../../../etc/pbs/torque/job-starter");

fn install(
    pbs: &Installation,
    options: &InstallOptions,
    ctx: &SetupContext<'_>,
    report: &mut VerbReport,
) -> Result<()> {
    place_scripts(pbs, ctx, report)?;
    let (config, file) = (pbs.mom_config(), starter_file(pbs));
    let (shown, follows) = (config.display(), consequence(ctx));
    let text = render(JOB_STARTER, ctx);
    let own_way = own_way_with_shells(pbs, ctx.host).map(lost);
    let closed = closed(&file);
    let not_set = |why| format!("no $job_starter was set: {why}\n    {follows}");
    match Starter::of(pbs, ctx.host) {
        Starter::Absent | Starter::Privileged { ours: false } if options.no_job_starter => {
            report.did(format!("no $job_starter, as wished:\n    {follows}"));
        }
        Starter::Absent => match own_way.or(closed) {
            Some(why) => report.left(not_set(why)),
            None => return set(pbs, &text, report),
        },
        Starter::Ours(at) => {
            let starter = at.display();
            match closed {
                Some(why) if at == file => report.left(format!("$job_starter '{starter}': {why}")),
                None if at == file => report.write(&file, text.as_bytes(), STARTER_MODE, "")?,
                _ => {}
            }
            report.did(format!("$job_starter '{starter}' is ours"));
            tell_mom(starter::reread_needed(pbs, &file), report);
            if let Some(what) = own_way {
                report.left(format!("take it out of '{shown}': {what}"));
            }
        }
        Starter::Foreign(at) => {
            let at = at.display();
            let call = command_line(&ctx.programs.join("mpsctl"), ctx);
            report.left(format!(
                "$job_starter '{at}' is the site's own and stays; let its last line be:\n    exec {call} exec --starter -- \"$@\""
            ));
        }
        Starter::Privileged { ours: true } => report.left(privileged(pbs)),
        Starter::Privileged { ours: false } => report.left(not_set(privileged(pbs))),
        Starter::Unread(why) => report.left(not_set(why)),
    }
    Ok(())
}

fn set(pbs: &Installation, starter: &str, report: &mut VerbReport) -> Result<()> {
    let (config, line) = (pbs.mom_config(), config_line(pbs));
    report.write(&starter_file(pbs), starter.as_bytes(), STARTER_MODE, "")?;
    let about = format!(" with our $job_starter; {REREAD}");
    let mut change = || {
        let mode = mode(&config)?;
        report.write(&config, &with_line(contents(&config)?, &line), mode, &about)
    };
    match change() {
        Ok(()) => tell_mom(starter::reread_command(pbs), report),
        Err(why) => {
            let shown = config.display();
            report.left(format!(
                "cannot change '{shown}' ({why:#}); add to it:\n    {line}"
            ));
        }
    }
    Ok(())
}

fn tell_mom(command: Option<String>, report: &mut VerbReport) {
    if let Some(command) = command {
        report.did(format!(
            "until then tasks that TM starts run outside MPS; now run:\n    {command}"
        ));
    }
}

/// Takes the lines that name our starter out of the mom's configuration. The file is removed only
/// if no line names it: until its SIGHUP the mom starts every task through it.
fn uninstall(pbs: &Installation, _: &SetupContext<'_>, report: &mut VerbReport) -> Result<()> {
    remove_scripts(pbs, report)?;
    let (config, starter) = (pbs.mom_config(), starter_file(pbs));
    let (shown, ours) = (config.display(), starter.display());
    let text =
        contents(&config).map_err(|e| anyhow!("cannot read '{shown}': {e}; '{ours}' stays"))?;
    let is_ours = |line: &&[u8]| {
        let line = String::from_utf8_lossy(line);
        line.trim() == ABOVE || names(&line, &starter)
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let kept: Vec<&[u8]> = lines.filter(|line| !is_ours(line)).collect();
    let kept = kept.concat();
    if kept.len() == text.len() {
        return match author(&starter) {
            Author::Ours => report.remove(&starter),
            Author::Absent | Author::Site => Ok(()),
        };
    }
    let mode = mode(&config).with_context(|| format!("cannot change '{shown}'"))?;
    let about = format!(" without '{}'; {REREAD}", config_line(pbs));
    report.write(&config, &kept, mode, &about)?;
    let command = starter::reread_command(pbs).unwrap_or_else(|| "a start of the mom".to_owned());
    report.left(format!(
        "'{ours}' stays until then: run this again, after:\n    {command}"
    ));
    Ok(())
}

fn check_tasks(pbs: &Installation, ctx: &SetupContext<'_>) -> CheckLine {
    let starter = format!("the $job_starter of '{}'", pbs.mom_config().display());
    if let Starter::Privileged { ours: true } = Starter::of(pbs, ctx.host) {
        return CheckLine::Fail(privileged(pbs));
    }
    if let Some(Unattached { why, remedy, .. }) = starter::unattached(pbs, ctx.host) {
        return unattached(&why, &remedy, ctx);
    }
    match own_way_with_shells(pbs, ctx.host) {
        Some(line) => CheckLine::Warn(format!("{starter}: {}", lost(line))),
        None => CheckLine::Pass(format!("{starter}: every task has its MPS")),
    }
}

fn starter_file(pbs: &Installation) -> PathBuf {
    pbs.mom_priv().join("mpsd-job-starter")
}

fn config_line(pbs: &Installation) -> String {
    format!("$job_starter {}", starter_file(pbs).display())
}

fn lost(line: &str) -> String {
    format!("the mom has {line}, and under any $job_starter that is lost for every job")
}

/// A SIGHUP sets `$job_starter_run_privileged`, and does not reset it (Torque 6.1, parse_config.c).
fn privileged(pbs: &Installation) -> String {
    format!(
        "'{}' has $job_starter_run_privileged, and ours runs as the job's user only: set it to false (without the line \
         the mom keeps it until its next start)",
        pbs.mom_config().display()
    )
}

fn contents(config: &Path) -> Result<Vec<u8>> {
    match fs::read(config) {
        Err(gone) if gone.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => Ok(other?),
    }
}

/// Why users cannot reach our starter. It has no other place: a package would take it away with its
/// own files.
fn closed(file: &Path) -> Option<String> {
    let may_pass = |dir: &&Path| fs::metadata(dir).is_ok_and(|about| about.mode() & 0o001 != 0);
    let closed = file.ancestors().skip(1).find(|dir| !may_pass(dir))?;
    Some(format!("users may not pass '{}'", closed.display()))
}

fn with_line(text: Vec<u8>, line: &str) -> Vec<u8> {
    let is_whole = text.is_empty() || text.ends_with(b"\n");
    let end = if is_whole { "" } else { "\n" };
    [text, format!("{end}{ABOVE}\n{line}\n").into_bytes()].concat()
}

/// The mode that the mom's configuration keeps. A link, or a file of another user, is managed
/// elsewhere.
fn mode(config: &Path) -> Result<u32> {
    match fs::symlink_metadata(config) {
        Ok(about) if !about.is_file() => bail!("it is no plain file"),
        Ok(about) if about.uid() != 0 || about.gid() != 0 => bail!("it is not root's"),
        Ok(about) => Ok(about.mode() & 0o777),
        Err(_) => Ok(0o644),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_added_behind_what_stands_and_a_link_is_managed_elsewhere() {
        let text = with_line(b"$logevent 255".to_vec(), "$job_starter /x");
        let expected = format!("$logevent 255\n{ABOVE}\n$job_starter /x\n");
        assert_eq!(text, expected.into_bytes());
        let dir = tempfile::tempdir().unwrap();
        let (config, link) = (dir.path().join("config"), dir.path().join("link"));
        fs::write(&config, "").unwrap();
        std::os::unix::fs::symlink(&config, &link).unwrap();
        assert!(mode(&config).is_ok() && mode(&link).is_err());
    }
}
