//! The scripts in `mom_priv`: ours are written and replaced, the site's own stay. `check` says what
//! pbs_mom demands of them, and the time that it leaves them.

use crate::verbs::CheckLine::{self, Fail, Pass, Warn};
use crate::verbs::{SetupContext, VerbReport, is_so};
use anyhow::Result;
use batch::call::MARGIN;
use batch::pbs::Installation;
use batch::torque::{EARLY_S, time_limit};
use mpsd_core::config::WarnOrRefuse;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const TAG: &str = "# mpsd: written by 'mpsctl pbs install";
/// What pbs_mom demands and no more: root reads and runs it.
const SCRIPT_MODE: u32 = 0o500;
const SHIPPED_QUEUES: &str = "queues=, #";

struct Script {
    names: [&'static str; 2],
    text: &'static str,
    program: &'static str,
    /// What a site with its own script must add: the line, with `PROGRAM` and `QUEUES` to be filled
    /// in, and its place.
    lines: &'static [&'static str],
}

/// Our scripts: the mother superior runs the first of each kind, the sisters the second.
static SCRIPTS: [Script; 2] = [
    Script {
        names: ["prologue", "prologue.parallel"],
        text: include_str!("../../../../etc/pbs/torque/prologue"),
        program: "mps-prologue",
        lines: &[
            "asked=; case QUEUES in *\",$6,\"*) case $5 in *gpus=*) asked=mps ;; esac ;; esac",
            "case $asked$7 in *[Mm][Pp][Ss]*) PROGRAM --scheduler torque ${asked:+--queue \"$6\"} \"$@\" </dev/null || exit $? ;; esac",
            "# (near its end, after everything that can fail)",
        ],
    },
    Script {
        names: ["epilogue", "epilogue.parallel"],
        text: include_str!("../../../../etc/pbs/torque/epilogue"),
        program: "mps-epilogue",
        lines: &[
            "PROGRAM --scheduler torque \"$@\" </dev/null",
            "# (near its beginning)",
        ],
    },
];

fn scripts(pbs: &Installation) -> impl Iterator<Item = (&'static Script, PathBuf)> {
    let (scripts, mom) = (SCRIPTS.iter(), pbs.mom_priv());
    let named = scripts.flat_map(|script| script.names.map(|name| (script, name)));
    named.map(move |(script, name)| (script, mom.join(name)))
}

/// All are judged before one is changed: a link may lead from one to another.
fn judged(pbs: &Installation) -> Vec<(&'static Script, PathBuf, Author)> {
    let judge = |(script, path): (&'static Script, PathBuf)| {
        let author = author(&path);
        (script, path, author)
    };
    scripts(pbs).map(judge).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    Absent,
    Ours,
    Site,
}

pub fn author(path: &Path) -> Author {
    let is_absent =
        |error: &Error| error.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err();
    let is_tagged = |text: &str| text.lines().take(3).any(|line| line.starts_with(TAG));
    match fs::read(path) {
        Ok(bytes) if is_tagged(&String::from_utf8_lossy(&bytes)) => Author::Ours,
        Err(error) if is_absent(&error) => Author::Absent,
        _ => Author::Site,
    }
}

pub fn place_scripts(
    pbs: &Installation,
    ctx: &SetupContext<'_>,
    report: &mut VerbReport,
) -> Result<()> {
    for (script, path, author) in judged(pbs) {
        let (shown, text) = (path.display(), render(script.text, ctx));
        if author != Author::Site {
            if is_so(&path, text.as_bytes(), SCRIPT_MODE) {
                report.did(format!("'{shown}' is ours"));
            }
            report.write(&path, text.as_bytes(), SCRIPT_MODE, "")?;
            continue;
        }
        let calls_us = calls_us(&path);
        if calls_us && !lacks_queues(script, &path, ctx) {
            report.did(format!("'{shown}' is the site's own and calls us"));
        } else {
            let call = command_line(&ctx.programs.join(script.program), ctx);
            let lines = script.lines.join("\n    ").replace("PROGRAM", &call);
            let lines = lines.replace("QUEUES", &queues(ctx));
            let how = match calls_us {
                true => "replace our lines in it by",
                false => "add to it",
            };
            report.left(format!(
                "'{shown}' is the site's own and stays; {how}:\n    {lines}"
            ));
        }
    }
    Ok(())
}

pub fn remove_scripts(pbs: &Installation, report: &mut VerbReport) -> Result<()> {
    for (_, path, author) in judged(pbs) {
        match author {
            Author::Ours => report.remove(&path)?,
            Author::Site if calls_us(&path) => {
                let own = format!("'{}' is the site's own", path.display());
                report.left(format!("{own}: take our lines out of it"));
            }
            Author::Site | Author::Absent => {}
        }
    }
    Ok(())
}

fn calls_us(path: &Path) -> bool {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.contains("mps-prologue") || text.contains("mps-epilogue")
}

pub fn command_line(program: &Path, ctx: &SetupContext<'_>) -> String {
    let words = [vec![program.display().to_string()], ctx.config_option()].concat();
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

pub fn render(shipped: &str, ctx: &SetupContext<'_>) -> String {
    let programs = ctx.programs.display().to_string();
    let options = ctx.config_option().into_iter();
    let option: String = options.map(|word| format!(" {}", quoted(&word))).collect();
    let run = ctx.settings.paths.run().display().to_string();
    shipped
        .replace("/usr/bin/", &format!("{}/", programs.trim_end_matches('/')))
        .replace("/run/mpsd/", &format!("{}/", quoted(&run)))
        .replace(SHIPPED_QUEUES, &format!("queues={} #", queues(ctx)))
        .replace(" --scheduler", &format!("{option} --scheduler"))
        .replace(" exec --starter", &format!("{option} exec --starter"))
}

/// The queues in which the site asks for its jobs, between commas.
fn queues(ctx: &SetupContext<'_>) -> String {
    let names = ctx.settings.pbs.auto_queues.iter();
    names.fold(",".to_owned(), |list, name| format!("{list}{name},"))
}

/// Whether the script calls us for the jobs of other queues than the site's `auto_queues`. If there
/// are none, a site's own script is not judged.
fn lacks_queues(script: &Script, path: &Path, ctx: &SetupContext<'_>) -> bool {
    let names_them = script.text.contains(SHIPPED_QUEUES) && calls_us(path);
    let text = fs::read_to_string(path).unwrap_or_default();
    let wanted = match author(path) == Author::Ours {
        true => format!("queues={} #", queues(ctx)),
        false if ctx.settings.pbs.auto_queues.is_empty() => return false,
        // The first such lines gave no queue.
        false if !text.contains("--queue") => return names_them,
        false => format!("{} ", queues(ctx)),
    };
    names_them && !text.contains(&wanted)
}

fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'-' | b'_');
    match word.bytes().all(plain) {
        true => word.to_owned(),
        false => batch::pbs::trial::quoted(word),
    }
}

pub fn check_scripts(pbs: &Installation, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let mut all = Vec::new();
    for (script, path) in scripts(pbs) {
        let shown = path.display();
        all.extend(lacks_queues(script, &path, ctx).then(|| {
            Warn(format!(
                "'{shown}' lacks our lines for auto_queues of mpsd.toml: run 'mpsctl pbs install' again"
            ))
        }));
        all.push(match fs::metadata(&path) {
            Ok(about) => check_script(&path, &about),
            Err(_) => Fail(format!(
                "no '{shown}': jobs run without MPS; run 'mpsctl pbs install'"
            )),
        });
    }
    all.push(check_time_limit(pbs, ctx));
    all
}

/// The mom demands: owner root, a regular file (a link to one is fine), u+rx, not writable by group
/// and others. A missing file counts as success for the mom (recorded), so nothing else would tell.
fn check_script(path: &Path, about: &fs::Metadata) -> CheckLine {
    let (shown, mode) = (path.display(), about.mode());
    if !about.is_file() || about.uid() != 0 || mode & 0o022 != 0 || mode & 0o500 != 0o500 {
        let (owner, mode) = (about.uid(), mode & 0o7777);
        return Fail(format!(
            "'{shown}' has owner {owner} and mode {mode:04o}: the mom refuses it and requeues every job; chown root and chmod 0500"
        ));
    }
    match (author(path) == Author::Ours, calls_us(path)) {
        (true, _) => Pass(format!("'{shown}' is ours")),
        (false, true) => Pass(format!("'{shown}' is the site's own and calls us")),
        (false, false) => Fail(format!(
            "'{shown}' is the site's own and does not call us; see 'mpsctl pbs install'"
        )),
    }
}

fn check_time_limit(pbs: &Installation, ctx: &SetupContext<'_>) -> CheckLine {
    let (limit, ours) = (time_limit(pbs, ctx.host), ctx.settings.deadline);
    let (limit_s, ours_s) = (limit.as_secs(), ours.as_secs());
    let text = format!(
        "the mom kills a prologue after {limit_s} s (Torque fires {EARLY_S} s before $prologalarm), our deadline is {ours_s} s"
    );
    if limit >= ours + MARGIN {
        return Pass(text);
    }
    let (needed, config) = (EARLY_S + (ours + MARGIN).as_secs(), pbs.mom_config());
    let config = config.display();
    Fail(format!("{text}: set '$prologalarm {needed}' in '{config}'"))
}

pub fn unattached(missing: &str, remedy: &str, ctx: &SetupContext<'_>) -> CheckLine {
    let text = format!("{missing} ({remedy}): {}", consequence(ctx));
    match ctx.settings.pbs.unattached_tasks {
        WarnOrRefuse::Refuse => Fail(text),
        WarnOrRefuse::Warn => Warn(text),
    }
}

pub fn consequence(ctx: &SetupContext<'_>) -> &'static str {
    match ctx.settings.pbs.unattached_tasks {
        WarnOrRefuse::Refuse => {
            "every job that asks for MPS is refused, as unattached_tasks under [pbs] of mpsd.toml wants"
        }
        WarnOrRefuse::Warn => {
            "tasks that TM starts run outside MPS unless they are 'mpsctl exec -- CMD'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    #[test]
    fn shipped_scripts_are_ours_and_usual_places_change_nothing() {
        for script in &SCRIPTS {
            let (name, text) = (script.names[0], script.text);
            assert!(text.lines().nth(1).unwrap().starts_with(TAG), "{name}");
            assert_eq!(render(text, &context("/usr/bin", None)), text, "{name}");
        }
        let elsewhere = context("/opt/mpsd/bin", Some("/etc/my site.toml"));
        let text = render(SCRIPTS[0].text, &elsewhere);
        let line =
            "exec /opt/mpsd/bin/mps-prologue --config '/etc/my site.toml' --scheduler torque ";
        assert!(text.contains(line) && !text.contains("/usr/bin"), "{text}");
        assert!(text.ends_with(" $gone \"$@\"\n"), "{text}");
    }

    #[test]
    fn a_file_without_our_tag_is_the_sites() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prologue");
        assert_eq!(author(&path), Author::Absent);
        for (text, expected) in [
            ("#!/bin/sh\nexit 0\n", Author::Site),
            (SCRIPTS[0].text, Author::Ours),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(author(&path), expected);
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert_eq!(author(&path), Author::Site, "a dangling link");
    }
}
