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
