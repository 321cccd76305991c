//! The examples at the end of every `--help`: one table, of which a test runs each line through its parser.

/// A command's examples.
struct Examples {
    /// The command with its verbs.
    command: &'static str,
    /// What follows it.
    lines: &'static [&'static str],
}

/// `command => lines`, each line without the command.
macro_rules! examples {
    ($($command:literal => $($line:literal),+;)+) => {
        &[$(Examples { command: $command, lines: &[$($line),+] }),+]
    };
}

static ALL: &[Examples] = examples! {
    "mpsctl" => "status", "doctor", "explain 806";
    "mpsctl env" => "", "--shell fish", "--shell json --job 4711", "--container podman";
    "mpsctl exec" => "-- ./simulate input.dat";
    "mpsctl status" => "", "--watch", "4711 --json";
    "mpsctl set" => "--threads 40", "4711 --threads 12.5 --mem 0=4G:1=2G --json";
    "mpsctl sweep" => "-- ./simulate input.dat", "--clients 1,2,4 --seconds 60 -- ./simulate input.dat";
    "mpsctl report" => "4711", "--since 7d", "--since 24h --json";
    "mpsctl metrics" => "", "--textfile /var/lib/prometheus/node-exporter";
    "mpsctl plan" => "--user alice --request MPS=on,MPS_THREADS=25 --gpus 0", "--user alice --request \"--mps --mps-mem=4G\" --gpus 0,1 --tasks 8 --json";
    "mpsctl reconcile" => "--dry-run", "--dry-run --json";
    "mpsctl selftest" => "", "--scheduler slurm --json -- -p gpu";
    "mpsctl undrain" => "", "--node gpu001";
    "mpsctl idle" => "", "--wait 600";
    "mpsctl config" => "check", "show --node gpu001";
    "mpsctl config check" => "", "draft.toml --json";
    "mpsctl config show" => "--node gpu001", "--product \"NVIDIA H200\" --json";
    "mpsctl doctor" => "", "--problems", "--json";
    "mpsctl explain" => "806", "control.log", "-";
    "mpsctl advertise" => "slurm", "openpbs --node gpu001";
    "mpsctl support-bundle" => "";
    "mpsctl slurm" => "enable", "check";
    "mpsctl slurm enable" => "", "--release 23.11 --required";
    "mpsctl slurm disable" => "", "--wait 600";
    "mpsctl slurm check" => "", "--node gpu001 --json";
    "mpsctl pbs" => "install", "check";
    "mpsctl pbs install" => "", "--scheduler torque --no-job-starter";
    "mpsctl pbs uninstall" => "", "--wait 600";
    "mpsctl pbs check" => "", "--scheduler openpbs --json";
    "mpsctl pbs request" => "--account=proj1,MPS=on";
    "mps-probe" => "", "--require-mps --expect-sms 33", "--json";
    "mps-prologue" => "--scheduler slurm --request MPS=on,MPS_THREADS=25 --record";
    "mps-epilogue" => "--scheduler slurm --strict", "--scheduler torque 4711.server alice users";
    "mpsd" => "--nvml libnvidia-ml.so.1";
};

/// The last lines of the help of `command` (`mpsctl config check`).
pub fn of(command: &str) -> String {
    let lines = ALL.iter().filter(|examples| examples.command == command);
    let lines = lines.flat_map(|examples| examples.lines);
    let lines: Vec<String> = lines
        .map(|line| format!("  {}", format!("{command} {line}").trim_end()))
        .collect();
    format!("Examples:\n{}", lines.join("\n"))
}

/// `command` and every verb below it, each with its examples; `above`: the words before its name.
pub fn added(command: clap::Command, above: &str) -> clap::Command {
    let name = format!("{above}{}", command.get_name());
    let verbs: Vec<String> = command
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    let below = format!("{name} ");
    let command = verbs.into_iter().fold(command, |command, verb| {
        command.mut_subcommand(verb, |verb| added(verb, &below))
    });
    command.after_help(of(&name))
}
