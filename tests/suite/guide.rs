//! The guide: README and the pages of docs/, and the examples of the man pages. Every command on them is run somewhere, every piece of mpsd.toml can be read, and every verb
//! that they name is there.

use std::collections::BTreeSet;

use mpsd_core::config::Config;

use crate::sources::{files, root, text};

/// What a block on a page may be, by the word behind its fence: commands, a job script, a piece of mpsd.toml, what a program says.
const BLOCKS: [&str; 4] = ["sh", "bash", "toml", "text"];

/// A command, the file in which it is run, and what of that file shows it. Most tests take their lines from the page itself.
type Row = (&'static str, &'static str, &'static str);

const ADMIN: &str = "packaging/tests/packages/admin.rs";
const MONITORING: &str = "packaging/tests/packages/monitoring.rs";
const PROMETHEUS: &str = "commands(\"metrics.md\", \"Prometheus\")";
const REPOSITORY: &str = "packaging/tests/packages/repository.rs";
const APT: &str = "commands(\"install.md\", \"From a repository with apt\")";
const INSTALL: &str = "tests/mom/install.rs";
const CONTAINERS: &str = "packaging/tests/packages/containers.rs";
const RECORDED: &str = "tests/mom/RECORDED.md";

const RUN: &[Row] = &[
    // README
    ("cargo xtask test", ".ci/run", "exec cargo xtask test"),
    // Install
    (
        "install -D -m 644 /srv/mpsd/mpsd.asc /etc/apt/keyrings/mpsd.asc",
        REPOSITORY,
        APT,
    ),
    (
        "echo 'deb [signed-by=/etc/apt/keyrings/mpsd.asc] file:/srv/mpsd/apt ./' >/etc/apt/sources.list.d/mpsd.list",
        REPOSITORY,
        APT,
    ),
    ("apt update", REPOSITORY, APT),
    ("apt install mpsd mpsd-slurm", REPOSITORY, APT),
    (
        "printf '%s\\n' '[mpsd]' name=mpsd baseurl=file:///srv/mpsd/dnf gpgkey=file:///srv/mpsd/mpsd.asc repo_gpgcheck=1 \
         gpgcheck=0 >/etc/yum.repos.d/mpsd.repo",
        REPOSITORY,
        "commands(\"install.md\", \"From a repository with dnf\")",
    ),
    (
        "dnf install -y mpsd mpsd-slurm",
        REPOSITORY,
        "commands(\"install.md\", \"From a repository with dnf\")",
    ),
    (
        "dnf install -y ./mpsd-[0-9]*.rpm ./mpsd-slurm-*.rpm",
        REPOSITORY,
        "commands(\"install.md\", \"From the packages\")",
    ),
    (
        "apt install ./mpsd_*.deb ./mpsd-slurm_*.deb",
        ADMIN,
        "commands(\"install.md\", \"From the packages\")",
    ),
    (
        "apt install -y --allow-downgrades ./mpsd_*.deb ./mpsd-slurm_*.deb",
        ADMIN,
        "commands(\"install.md\", \"Back to an older release\")",
    ),
    (
        "dnf downgrade -y ./mpsd-[0-9]*.rpm ./mpsd-slurm-*.rpm",
        REPOSITORY,
        "commands(\"install.md\", \"Back to an older release\")",
    ),
    (
        "systemctl enable --now mpsd.service mpsd-reconcile.timer",
        ADMIN,
        "commands(\"install.md\", \"On the nodes\")",
    ),
    (
        "mpsctl slurm disable",
        ADMIN,
        "commands(\"install.md\", \"Remove\")",
    ),
    (
        "apt-get remove -y mpsd mpsd-slurm",
        ADMIN,
        "commands(\"install.md\", \"Remove\")",
    ),
    (
        "dnf remove -y mpsd mpsd-slurm",
        ADMIN,
        "commands(\"install.md\", \"Remove with dnf\")",
    ),
    // Slurm
    ("mpsctl slurm enable", ADMIN, "commands(\"slurm.md\", \"Enable\")"),
    (
        "systemctl restart slurmd",
        ADMIN,
        "commands(\"slurm.md\", \"Enable\")",
    ),
    ("mpsctl slurm check", ADMIN, "commands(\"slurm.md\", \"Enable\")"),
    (
        "mpsctl config show --node gpu001",
        ADMIN,
        "commands(\"fleets.md\", \"One configuration\")",
    ),
    (
        "mpsctl selftest",
        "tests/slurm/selftest.rs",
        "(\"a_healthy_node\", a_healthy_node)",
    ),
    // The quick start, and README's line out of it
    (
        "srun --gres=gpu:1 --mps -n2 ./solver",
        ADMIN,
        "commands(\"quick-start.md\", \"Slurm\")",
    ),
    (
        "srun --gres=gpu:1 --mps --mps-threads=auto -n4 ./solver",
        ADMIN,
        "commands(\"quick-start.md\", \"Slurm\")",
    ),
    (
        "srun --gres=gpu:1 --mps --mps-threads=25 --mps-mem=4G -n4 ./solver",
        ADMIN,
        "commands(\"quick-start.md\", \"Slurm\")",
    ),
    (
        "srun --gres=gpu:1 --mps --mps-replicas=4 -n4 ./solver",
        ADMIN,
        "commands(\"quick-start.md\", \"Slurm\")",
    ),
    (
        "srun --gres=gpu:2 --mps --mps-bind=block -n4 ./solver",
        ADMIN,
        "commands(\"quick-start.md\", \"Slurm\")",
    ),
    (
        "sbatch --wait job.sh",
        ADMIN,
        "commands(\"quick-start.md\", \"Slurm\")",
    ),
    (
        "srun --gres=gpu:1 --mps mps-probe --require-mps",
        "tests/hardware/slurm.rs",
        "limits.probe_options()",
    ),
    (
        "srun --gres=gpu:1 --mps mpsctl sweep -- ./solver",
        "tests/slurm/sweep.rs",
        "[\"srun\", \"--mps\", \"-N1\", \"-n1\", \"--gres=gpu:2\"]",
    ),
    (
        "mpsctl support-bundle",
        ADMIN,
        "commands(\"troubleshooting.md\", \"To report a problem\")",
    ),
    // Containers
    (
        "podman run --rm $(mpsctl env --container podman) IMAGE ./solver",
        CONTAINERS,
        "commands(\"containers.md\", \"Podman\")",
    ),
    (
        "podman run --rm $(mpsctl env --container podman) --volume /usr/libexec/mpsd/mps-probe:/mps-probe:ro IMAGE /mps-probe \
         --require-mps",
        CONTAINERS,
        "commands(\"containers.md\", \"To see whether a container is attached\")",
    ),
    // Metrics and audit trail
    (
        "systemctl enable --now mpsd-metrics.timer",
        MONITORING,
        PROMETHEUS,
    ),
    (
        "promtool check rules /usr/share/mpsd/examples/mpsd.rules.yml",
        MONITORING,
        PROMETHEUS,
    ),
    (
        "journalctl --no-pager _UID=0 MPSD_EVENT=begin --since=-7d",
        ADMIN,
        "commands(\"metrics.md\", \"Who had MPS\")",
    ),
    (
        "journalctl --no-pager _UID=0 MPSD_JOB=2 --output=verbose",
        ADMIN,
        "commands(\"metrics.md\", \"Who had MPS\")",
    ),
    (
        "journalctl --no-pager _UID=0 MPSD_UID=1000 --output=json --output-fields=MPSD_EVENT,MPSD_JOB,MPSD_GPU,MPSD_LIMITS",
        ADMIN,
        "commands(\"metrics.md\", \"Who had MPS\")",
    ),
    // Torque and OpenPBS
    (
        "mpsctl pbs install",
        "tests/src/mom/cluster.rs",
        "sh(\"mpsctl pbs install\")",
    ),
    ("mpsctl pbs check", INSTALL, "sh(\"mpsctl pbs check\")"),
    (
        "mpsctl pbs uninstall",
        INSTALL,
        "sh(\"mpsctl pbs uninstall; mpsctl pbs uninstall\")",
    ),
    (
        "qsub -A \"MPS=true\" -l nodes=1:gpus=1 job.sh",
        RECORDED,
        "| 1 | `MPS=true`, one of a node's two GPUs, stock server |",
    ),
    (
        "qsub -A \"MPS=true,MPS_THREADS=25\" job.sh",
        "tests/mom/torque.rs",
        "\"proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G\"",
    ),
    (
        "qsub -A \"MPS=true,MPS_THREADS=25,MPS_MEM=4G\" -l nodes=1:gpus=1 job.sh",
        "tests/suite/whole.rs",
        "\"MPS=true,MPS_THREADS=25,MPS_MEM=4G\"",
    ),
    (
        "qsub -A \"MPS=true\" -l select=1:ngpus=1 -l place=exclhost job.sh",
        RECORDED,
        "`place=exclhost`",
    ),
    (
        "qsub -A \"MPS=true,MPS_THREADS=25\" -l select=1:ngpus=1 -l place=exclhost job.sh",
        "tests/mom/openpbs.rs",
        "\"free:exclhost\"",
    ),
    (
        "qsub -l mps=on+threads=25 -l select=1:ngpus=1 -l place=exclhost job.sh",
        "tests/mom/openpbs.rs",
        "resource: \"on+threads=25\"",
    ),
    (
        "qsub -A \"MPS=true\" -l select=1:ngpus=1 job.sh",
        RECORDED,
        "the same with pbs_cgroups and its devices enabled",
    ),
    (
        "qmgr -c 'export hook pbs_cgroups application/x-config default' >cgroups.json",
        RECORDED,
        "the same with pbs_cgroups and its devices enabled",
    ),
    (
        "qmgr -c 'import hook pbs_cgroups application/x-config default cgroups.json'",
        RECORDED,
        "the same with pbs_cgroups and its devices enabled",
    ),
    (
        "qmgr -c 'set hook pbs_cgroups enabled = True'",
        INSTALL,
        "qmgr -c 'set hook pbs_cgroups enabled = True'",
    ),
    ("eval \"$(mpsctl env)\"", INSTALL, "eval \\\"$(mpsctl env)\\\""),
    (
        "mpirun -n 4 mpsctl exec -- ./solver",
        RECORDED,
        "`mpirun -n 4 mpsctl exec -- CLIENT`",
    ),
    // The man pages alone
    (
        "mps-probe --require-mps",
        CONTAINERS,
        "commands(\"containers.md\", \"To see whether a container is attached\")",
    ),
    (
        "srun --mps --mps-threads=50 mps-probe --require-mps --expect-sms 66",
        "tests/hardware/slurm.rs",
        "limits.probe_options()",
    ),
    (
        "srun --gres=gpu:1 --mps --mps-sms=64 -n2 ./solver",
        "tests/slurm/partitions.rs",
        "[\"--mps\", \"--mps-sms=8\", \"-N1\", \"-n2\", \"--gres=gpu:1\"]",
    ),
    (
        "mpsctl sweep --seconds 60 --metric 'ns/day' -- ./simulation",
        "tests/suite/sweep.rs",
        "[\"--seconds\", \"2\", \"--metric\", \"steps\", \"--\", &endless]",
    ),
    (
        "mpsctl set --threads 40",
        "tests/suite/set.rs",
        "clients_that_connect_from_then_on_have_the_new_limits",
    ),
    (
        "mpsctl set 4711 --mem 0=4G:1=2G",
        "tests/suite/set.rs",
        "[\"set\", job, \"--mem\", \"0=2G\"]",
    ),
    (
        "mpsctl selftest -- --partition=gpu --nodelist=gpu001",
        "tests/slurm/selftest.rs",
        "[\"--\", \"--nodelist=node1\"]",
    ),
    (
        "mpsctl selftest -- -q gpu -A project",
        "tests/mom/selftest.rs",
        "[\"--\", \"-q\", \"gpu\", \"-A\", \"proj1\"]",
    ),
];

/// Not run by a test, each for the reason beside it.
const NOT_RUN: &[(&str, &str)] = &[(
    "cargo xtask demo",
    "it is README's own figure, and makes a second Slurm beside that of the tests, whose cells promise the same",
)];

/// README and the pages of docs/ itself: what lies in folders below it are facts.
pub fn pages() -> Vec<(String, String)> {
    let mut pages = vec![("README.md".to_owned(), text("README.md"))];
    let guide = files("docs", ".md").into_iter();
    pages.extend(guide.filter(|(name, _)| name.matches('/').count() == 1));
    pages
}

/// The blocks of a page, each with the word behind its fence; and what stands outside of them.
fn blocks(page: &str) -> (Vec<(&str, String)>, String) {
    let (mut blocks, mut outside) = (Vec::new(), String::new());
    let mut open = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if open => open = false,
            Some(word) => {
                open = true;
                blocks.push((word, String::new()));
            }
            None if open => {
                if let Some((_, text)) = blocks.last_mut() {
                    text.push_str(&format!("{line}\n"));
                }
            }
            None => outside.push_str(&format!("{line}\n")),
        }
    }
    (blocks, outside)
}

/// What stands outside of a page's blocks.
pub fn without_blocks(page: &str) -> String {
    blocks(page).1
}

/// What stands in backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The commands that a page has a reader type: the lines of its blocks, and in its tables what begins as a submission.
fn commands(page: &str) -> Vec<String> {
    let (blocks, outside) = blocks(page);
    let lines = blocks
        .iter()
        .filter(|(word, _)| *word == "sh")
        .flat_map(|(_, text)| text.lines());
    let lines = lines.map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned());
    let mut found: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    let tables = outside.lines().filter(|line| line.starts_with('|'));
    let submissions = tables.flat_map(spans).filter(|span| {
        ["srun -", "sbatch -", "qsub -"]
            .iter()
            .any(|word| span.starts_with(word))
    });
    found.extend(submissions.map(str::to_owned));
    found
}

#[test]
fn every_command_of_the_guide_is_run_somewhere() {
    let mut typed = BTreeSet::new();
    let manual = files("packaging/man", "").into_iter();
    let manual = manual.map(|(name, page)| (name, examples(&page)));
    let guide = pages().into_iter().map(|(name, page)| (name, commands(&page)));
    for (name, commands) in guide.chain(manual) {
        for command in commands {
            let is_not_run = NOT_RUN.iter().any(|(row, _)| *row == command);
            assert!(
                is_not_run || RUN.iter().any(|(row, ..)| *row == command),
                "{name}: nothing is known to run '{command}': run it in a test and name it in RUN"
            );
            typed.insert(command);
        }
    }
    assert!(typed.len() > 20, "only {typed:?}");
    for (command, _) in NOT_RUN {
        assert!(typed.contains(*command), "no page has '{command}' any more");
    }
    for (command, file, shows) in RUN {
        assert!(typed.contains(*command), "no page has '{command}' any more");
        assert!(root().join(file).exists(), "'{command}': there is no '{file}'");
        assert!(
            text(file).contains(shows),
            "'{command}': '{file}' has no '{shows}'"
        );
    }
}

/// The commands among the examples of the man pages, as roff has them: a line that begins with one of these words, or assigns to the shell.
fn examples(page: &str) -> Vec<String> {
    const PROGRAMS: [&str; 14] = [
        "apt",
        "apt-get",
        "dnf",
        "echo",
        "eval",
        "journalctl",
        "mpirun",
        "mps-probe",
        "mpsctl",
        "podman",
        "qmgr",
        "qsub",
        "srun",
        "systemctl",
    ];
    let blocks = page.split("\n.EX\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("\n.EE").next().unwrap_or("").lines());
    let lines = lines.map(|line| line.replace("\\-", "-"));
    let lines = lines.map(|line| line.split(" #").next().unwrap_or("").trim().to_owned());
    lines
        .filter(|line| PROGRAMS.contains(&line.split(' ').next().unwrap_or("")))
        .collect()
}

#[test]
fn every_block_of_the_guide_says_what_it_is() {
    for (name, page) in pages() {
        let (blocks, outside) = blocks(&page);
        for (word, text) in blocks {
            assert!(
                BLOCKS.contains(&word),
                "{name}: a block is '{word}', not one of {BLOCKS:?}:\n{text}"
            );
            if word == "toml" {
                let read = Config::parse(&text).map(|_| ());
                assert!(read.is_ok(), "{name}: {read:?}\n{text}");
            }
        }
        let indented = outside.lines().find(|line| line.starts_with("    "));
        assert_eq!(indented, None, "{name}: a block without a fence");
    }
}

#[test]
fn every_verb_that_the_guide_names_is_there() {
    let mpsctl = mpsd::cli::mpsctl::command();
    let xtask = text("packaging/src/main.rs");
    let mut named = 0;
    for (name, page) in pages() {
        let (_, outside) = blocks(&page);
        let prose = spans(&outside).map(str::to_owned);
        for span in prose.chain(commands(&page)) {
            let words: Vec<&str> = span.split(' ').collect();
            match words[..] {
                ["mpsctl", verb, ref rest @ ..] => {
                    let found = mpsctl.find_subcommand(verb);
                    let found = found.unwrap_or_else(|| panic!("{name}: '{span}': there is no such verb"));
                    let below = rest.first().filter(|_| found.has_subcommands());
                    let there = below.is_none_or(|below| found.find_subcommand(below).is_some());
                    assert!(there, "{name}: '{span}': there is no such verb");
                    named += 1;
                }
                ["cargo", "xtask", verb, ..] => {
                    assert!(
                        xtask.contains(&format!("| `{verb}")),
                        "{name}: '{span}': there is no such verb"
                    );
                    named += 1;
                }
                _ => {}
            }
        }
    }
    assert!(named > 15, "only {named} verbs were seen");
}

#[test]
fn a_command_in_a_block_or_a_table_is_seen() {
    let page = "`srun --mps x`\n| a | `srun --mps true` |\n```sh\none --two  # said\n\nthree\n```\n```text\nno command\n```\n";
    assert_eq!(commands(page), ["one --two", "three", "srun --mps true"]);
    assert_eq!(
        examples(".PP\n.EX\nmpsctl x \\-\\-y # z\nmpsd: no command\n.EE\n.PP\nmpsctl z\n"),
        ["mpsctl x --y"]
    );
    let (found, outside) = blocks(page);
    assert_eq!(found.len(), 2);
    assert!(!outside.contains("no command"), "{outside}");
}
