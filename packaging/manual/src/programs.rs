//! The programs, by the definitions that their `--help` comes from.

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

/// One program.
pub struct Program {
    /// Its file.
    pub name: &'static str,
    /// Section of its man page.
    pub section: &'static str,
    /// Its command line.
    pub command: Command,
}

/// All programs that are installed.
pub fn all() -> Vec<Program> {
    let program = |name, section, command| Program {
        name,
        section,
        command,
    };
    vec![
        program("mpsctl", "1", mpsd::cli::mpsctl::command()),
        program("mps-probe", "1", mpsd::cli::programs::Probe::command()),
        program("mps-prologue", "8", prologue::arguments::Arguments::command()),
        program("mps-epilogue", "8", epilogue::arguments::Arguments::command()),
        program("mpsd", "8", mpsd::cli::programs::Daemon::command()),
    ]
}

/// The completion of `program` for `shell`.
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
        for sub in command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
        {
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

    /// The flags that a user can see, with dashes, of one command.
    fn flags(command: &Command) -> Vec<String> {
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        shown
            .filter_map(|argument| argument.get_long())
            .map(|long| format!("--{long}"))
            .collect()
    }

    #[test]
    fn every_flag_is_in_help_in_the_man_page_and_in_each_completion() {
        let pages = crate::pages::all().unwrap();
        for program in all() {
            let page = &pages[&format!("{}.{}", program.name, program.section)];
            let page = page.replace("\\-", "-");
            let commands = with_subcommands(&program.command);
            for (name, mut command) in commands {
                let flags = flags(&command);
                assert!(flags.contains(&"--help".to_owned()), "{name} has no --help");
                let help = command.render_long_help().to_string();
                for flag in &flags {
                    assert!(help.contains(flag), "{name} --help has no {flag}");
                    assert!(page.contains(flag.as_str()), "the page of {name} has no {flag}");
                    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                        let text = String::from_utf8(completion(shell, &program)).unwrap();
                        let word = if shell == Shell::Fish {
                            format!("-l {}", &flag[2..])
                        } else {
                            flag.clone()
                        };
                        assert!(text.contains(&word), "{shell}: no {flag} of {name}");
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
                let (_, examples) = help
                    .split_once("\nExamples:\n")
                    .unwrap_or_else(|| panic!("{name} has none"));
                let examples: Vec<&str> = examples.lines().filter(|line| !line.trim().is_empty()).collect();
                assert!(!examples.is_empty(), "{name} has none");
                for example in examples {
                    let line = example.trim_start();
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
        let programs = all();
        for program in programs
            .iter()
            .filter(|program| ["mpsctl", "mps-prologue"].contains(&program.name))
        {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let text = String::from_utf8(completion(shell, program)).unwrap();
                for token in mpsd_core::request::Key::ALL
                    .iter()
                    .flat_map(|key| key.row().completions())
                {
                    assert!(text.contains(&token), "{shell}: no {token} of {}", program.name);
                }
            }
        }
    }

    #[test]
    fn every_verb_has_a_heading_of_its_own() {
        let page = &crate::pages::all().unwrap()["mpsctl.1"];
        let commands = with_subcommands(&all()[0].command);
        assert!(commands.len() > 5, "{}", commands.len());
        for (name, _) in &commands[1..] {
            assert!(page.contains(&format!(".SS \"{name}\"")), "no heading '{name}'");
        }
    }
}
