//! The programs, by the definitions that their `--help` comes from.

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use epilogue::Arguments as Epilogue;
use mpsd::cli::programs::{Daemon, Probe};
use prologue::Arguments as Prologue;

pub struct Program {
    pub name: &'static str,
    /// Of its man page.
    pub section: &'static str,
    pub command: Command,
    /// The sections of its page that follow the options.
    pub prose: &'static str,
}

const MPSCTL: &str = include_str!("../../man/mpsctl.1");
const PROBE: &str = include_str!("../../man/mps-probe.1");
const PROLOGUE: &str = include_str!("../../man/mps-prologue.8");
const EPILOGUE: &str = include_str!("../../man/mps-epilogue.8");
const DAEMON: &str = include_str!("../../man/mpsd.8");

/// All programs that are installed.
pub fn all() -> [Program; 5] {
    let all = [
        ("mpsctl", "1", runner::command(), MPSCTL),
        ("mps-probe", "1", Probe::command(), PROBE),
        ("mps-prologue", "8", Prologue::command(), PROLOGUE),
        ("mps-epilogue", "8", Epilogue::command(), EPILOGUE),
        ("mpsd", "8", Daemon::command(), DAEMON),
    ];
    all.map(|(name, section, command, prose)| Program {
        name,
        section,
        command,
        prose,
    })
}

pub fn completion(shell: Shell, program: &Program) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program.command.clone(), program.name, &mut text);
    text
}

/// The file's name that the shell looks for.
pub fn completion_name(shell: Shell, program: &str) -> String {
    match shell {
        Shell::Zsh => format!("_{program}"),
        Shell::Fish => format!("{program}.fish"),
        _ => program.to_owned(),
    }
}

/// Every command below `command`, itself first, each with its full name; `help` is clap's own.
pub fn with_subcommands(command: &Command) -> Vec<(String, Command)> {
    fn walk(name: &str, command: &Command, found: &mut Vec<(String, Command)>) {
        found.push((name.to_owned(), command.clone()));
        let subs = command.get_subcommands();
        for sub in subs.filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
            walk(&format!("{name} {}", sub.get_name()), sub, found);
        }
    }
    let mut built = command.clone();
    built.build();
    let mut found = Vec::new();
    walk(built.get_name(), &built, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

    fn text(shell: Shell, program: &Program) -> String {
        String::from_utf8(completion(shell, program)).unwrap()
    }

    #[test]
    fn every_verb_and_flag_is_in_help_in_the_man_page_and_in_each_completion() {
        let pages = crate::pages::all().unwrap();
        for program in all() {
            let page = &pages[&format!("{}.{}", program.name, program.section)];
            let plain = page.replace("\\-", "-");
            let completions = SHELLS.map(|shell| (shell, text(shell, &program)));
            for (name, mut command) in with_subcommands(&program.command) {
                let has_heading = page.contains(&format!(".SS \"{name}\""));
                assert!(name == program.name || has_heading, "no heading '{name}'");
                let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
                let flags = shown.filter_map(|arg| Some(arg.get_long()?.to_owned()));
                let flags: Vec<String> = flags.collect();
                assert!(flags.contains(&"help".to_owned()), "{name} has no --help");
                let help = command.render_long_help().to_string();
                for flag in flags {
                    let dashed = format!("--{flag}");
                    assert!(help.contains(&dashed), "{name} --help has no {dashed}");
                    // mps-prologue alone calls mpsd.
                    let is_told = program.name == "mpsd" || plain.contains(&dashed);
                    assert!(is_told, "the page of {name} has no {dashed}");
                    for (shell, text) in &completions {
                        let word = match shell {
                            Shell::Fish => format!("-l {flag}"),
                            _ => dashed.clone(),
                        };
                        assert!(text.contains(&word), "{shell}: no {dashed} of {name}");
                    }
                }
            }
        }
    }

    /// The words of an example as a shell would have them.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        let parts = parts.flat_map(|(n, part)| match n % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        parts.collect()
    }

    #[test]
    fn every_help_ends_with_examples_that_the_program_takes() {
        for program in all() {
            for (name, mut command) in with_subcommands(&program.command) {
                let help = command.render_long_help().to_string();
                let examples = help.split_once("\nExamples:\n");
                let examples = examples.map_or("", |(_, examples)| examples);
                assert!(!examples.trim().is_empty(), "{name} has none");
                let lines = examples.lines().map(str::trim_start);
                for line in lines.filter(|line| !line.is_empty()) {
                    assert!(line.starts_with(&name), "{name}: {line}");
                    if let Err(why) = program.command.clone().try_get_matches_from(words(line)) {
                        panic!("{line}: {why}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_shell_completes_the_tokens_of_a_request() {
        let takes_one = |program: &Program| ["mpsctl", "mps-prologue"].contains(&program.name);
        let keys = mpsd_core::request::Key::ALL.into_iter();
        let tokens: Vec<String> = keys.flat_map(|key| key.row().completions()).collect();
        for program in all().into_iter().filter(takes_one) {
            for shell in SHELLS {
                let (text, name) = (text(shell, &program), program.name);
                for token in &tokens {
                    assert!(text.contains(token), "{shell}: no {token} of {name}");
                }
            }
        }
    }
}
