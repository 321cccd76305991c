//! The examples at the end of every `--help`. A test runs each through its parser.

/// Lines `command => example | example`; the examples are without the command.
const ALL: &str = include_str!("examples.txt");

pub fn of(command: &str) -> String {
    let mut all = ALL.lines().filter_map(|line| line.split_once(" => "));
    let examples = all
        .find(|(of, _)| *of == command)
        .map_or("", |(_, examples)| examples);
    let line = |example| format!("\n  {}", format!("{command} {example}").trim_end());
    format!(
        "Examples:{}",
        examples.split(" | ").map(line).collect::<String>()
    )
}

/// With those of every verb below it. `above` has the words before its name.
pub fn added(command: clap::Command, above: &str) -> clap::Command {
    let name = format!("{above}{}", command.get_name());
    let verbs = command
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned());
    let verbs: Vec<String> = verbs.collect();
    let below = format!("{name} ");
    let command = verbs.into_iter().fold(command, |command, verb| {
        command.mut_subcommand(verb, |verb| added(verb, &below))
    });
    command.after_help(of(&name))
}
