//! `mpsctl slurm enable | disable | check` on a configuration of Slurm's in a directory of its own, and our units.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};
use tests::double::{NodeDouble, copy_program};
use tests::stage::{Ran, Stage, USER, as_user, built, finish};

/// A Slurm's configuration, and plugins beside it.
struct Cluster {
    stage: Stage,
}

impl Cluster {
    fn new(slurm_conf: &str) -> Self {
        let node = NodeDouble::builder()
            .gpus(1, "NVIDIA H200")
            .build()
            .expect("node");
        let cluster = Self {
            stage: Stage::new(node, ""),
        };
        for release in ["22.05", "23.11"] {
            let dir = cluster.path("plugins").join(release);
            fs::create_dir_all(&dir).expect("directory");
            let file = dir.join("spank_mps.so");
            // As linked, it is stamped for 22.05: right in one directory, wrong in the other.
            fs::copy(built("libspank_mps.so"), &file).expect("build spank first");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
        }
        fs::create_dir(cluster.path("etc")).expect("directory");
        let pid = cluster.path("slurmd.pid").display().to_string();
        fs::write(
            cluster.path("etc/slurm.conf"),
            format!("{slurm_conf}\nSlurmdPidFile={pid}\n"),
        )
        .expect("slurm.conf");
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.path(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("etc").join(name)).unwrap_or_default()
    }

    fn slurm(&self, verb: &str, more: &[&str]) -> Ran {
        let (conf, plugins) = (self.path("etc/slurm.conf"), self.path("plugins"));
        let place = [
            "--slurm-conf",
            conf.to_str().expect("path"),
            "--plugins",
            plugins.to_str().expect("path"),
        ];
        self.stage
            .run("mpsctl", &[&["slurm", verb], &place[..], more].concat(), &[])
    }

    fn enable(&self) -> Ran {
        self.slurm("enable", &["--release", "22.05"])
    }

    /// A process that goes by slurmd's name.
    fn slurmd(&self) -> Slurmd {
        let program = self.path("slurmd");
        copy_program(Path::new("/bin/sleep"), &program).expect("sleep");
        let child = Command::new(&program).arg("60").spawn().expect("slurmd");
        fs::write(self.path("slurmd.pid"), format!("{}\n", child.id())).expect("pid file");
        Slurmd(child)
    }
}

struct Slurmd(Child);

impl Drop for Slurmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const GOOD: &str = "GresTypes=gpu\nPrologFlags=Alloc";

#[test]
fn enable_writes_one_line_and_disable_takes_it_back() {
    let cluster = Cluster::new(GOOD);
    let ran = cluster.enable();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (plugin, bin) = (cluster.path("plugins/22.05/spank_mps.so"), cluster.path("bin"));
    let line = format!(
        "optional {} config={} prologue={}/mps-prologue epilogue={}/mps-epilogue\n",
        plugin.display(),
        cluster.stage.config().display(),
        bin.display(),
        bin.display()
    );
    assert_eq!(
        cluster
            .read("plugstack.conf.d/mpsd.conf")
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        [line.trim_end()]
    );
    let include = format!(
        "include {}/*.conf\n",
        cluster.path("etc/plugstack.conf.d").display()
    );
    assert!(cluster.read("plugstack.conf").ends_with(&include));
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(0) && !ran.out.contains("FAIL") && ran.out.contains("for Slurm 22.05"),
        "{ran:?}"
    );
    let ran = cluster.slurm("enable", &["--release", "22.05", "--required"]);
    assert!(
        ran.code == Some(0)
            && cluster
                .read("plugstack.conf.d/mpsd.conf")
                .contains("\nrequired /"),
        "{ran:?}"
    );
    assert_eq!(cluster.slurm("disable", &[]).code, Some(0));
    assert!(
        !cluster.path("etc/plugstack.conf").exists()
            && !cluster.path("etc/plugstack.conf.d/mpsd.conf").exists()
    );
    let ran = cluster.slurm("check", &[]);
    assert!(ran.code == Some(1) && ran.out.contains("FAIL  no '"), "{ran:?}");
}

#[test]
fn nobody_elses_file_is_touched() {
    let cluster = Cluster::new(GOOD);
    let stack = "optional /usr/lib/slurm/spank_pyxis.so\n";
    fs::write(cluster.path("etc/plugstack.conf"), stack).expect("stack");
    let ran = cluster.enable();
    assert!(
        ran.code == Some(1) && ran.out.contains("add this line to '"),
        "{ran:?}"
    );
    assert_eq!(cluster.read("plugstack.conf"), stack);
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("does not include our line; add: include /"),
        "{ran:?}"
    );
    fs::write(
        cluster.path("etc/plugstack.conf"),
        format!("{stack}include plugstack.conf.d/*.conf\n"),
    )
    .expect("stack");
    assert_eq!(cluster.enable().code, Some(0));
    assert_eq!(cluster.slurm("check", &[]).code, Some(0));
    assert_eq!(cluster.slurm("disable", &[]).code, Some(0));
    assert!(cluster.read("plugstack.conf").starts_with(stack));

    let foreign = "required /opt/site/spank_mps.so\n";
    fs::write(cluster.path("etc/plugstack.conf.d/mpsd.conf"), foreign).expect("another's");
    let ran = cluster.enable();
    assert!(
        ran.code == Some(1) && ran.err.contains("one that we did not write"),
        "{ran:?}"
    );
    assert_eq!(cluster.slurm("disable", &[]).code, Some(1));
    assert_eq!(cluster.read("plugstack.conf.d/mpsd.conf"), foreign);
}

#[test]
fn the_plugin_must_fit_the_installed_slurm() {
    let cluster = Cluster::new(GOOD);
    let ran = cluster.slurm("enable", &["--release", "23.11"]);
    assert!(
        ran.code == Some(1) && ran.err.contains("is stamped for Slurm 22.05, not 23.11"),
        "{ran:?}"
    );
    let ran = cluster.slurm("enable", &["--release", "25.05"]);
    assert!(
        ran.code == Some(1)
            && ran
                .err
                .contains("no plugin for Slurm 25.05; there are: 22.05, 23.11"),
        "{ran:?}"
    );
    assert!(!cluster.path("etc/plugstack.conf.d").exists());
    let mut command = as_user(USER, cluster.stage.program("mpsctl"));
    command
        .args(["slurm", "enable", "--slurm-conf"])
        .arg(cluster.path("etc/slurm.conf"))
        .env_clear();
    let ran = finish(command);
    assert!(
        ran.code == Some(1) && ran.err.contains("allowed: root"),
        "{ran:?}"
    );
}

#[test]
fn a_slurmd_that_began_before_our_line_is_told_of() {
    let cluster = Cluster::new(GOOD);
    let _slurmd = cluster.slurmd();
    let began = SystemTime::now();
    assert_eq!(cluster.enable().code, Some(0));
    let line_is_of = |when: SystemTime| {
        let line = cluster.path("etc/plugstack.conf.d/mpsd.conf");
        let line = fs::OpenOptions::new().write(true).open(line).expect("our line");
        line.set_modified(when).expect("its time");
    };
    line_is_of(began + Duration::from_secs(3));
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("restart slurmd"),
        "{ran:?}"
    );
    line_is_of(began - Duration::from_secs(3));
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(0) && ran.out.contains("began after our line was written"),
        "{ran:?}"
    );
}

#[test]
fn what_mps_needs_of_slurms_configuration_is_checked() {
    let cluster = Cluster::new("JobContainerType=job_container/tmpfs\ngrestypes=gpu,shard");
    assert_eq!(cluster.enable().code, Some(0));
    let ran = cluster.slurm("check", &[]);
    for line in [
        "WARN  PrologFlags is not set",
        "WARN  GresTypes has shard",
        "is hidden from tasks by job_container/tmpfs",
    ] {
        assert!(ran.out.contains(line), "{line}: {ran:?}");
    }
    let cluster = Cluster::new("PrologFlags=Contain");
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("FAIL  GresTypes has no gpu"),
        "{ran:?}"
    );
}

#[test]
fn units_call_verbs_that_there_are() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/systemd/system");
    let mut calls = 0;
    for unit in fs::read_dir(&units).expect("units").flatten() {
        let text = fs::read_to_string(unit.path()).expect("unit");
        let commands = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
        for line in commands.filter(|line| line.contains("mps")) {
            let words = line
                .trim_start_matches('-')
                .split_whitespace()
                .map(|word| word.trim_start_matches("/usr/bin/"));
            let parsed = mpsd::cli::mpsctl::command().try_get_matches_from(words);
            assert!(
                parsed.is_ok(),
                "{line}: {}",
                parsed.err().map(|e| e.to_string()).unwrap_or_default()
            );
            calls += 1;
        }
    }
    assert_eq!(calls, 2);
    let home = fs::read_to_string(units.join("mpsd.service")).expect("unit");
    for promise in [
        "Delegate=yes",
        "KillMode=process",
        "SendSIGKILL=no",
        "OOMPolicy=continue",
        "TasksMax=infinity",
        "RemainAfterExit=yes",
        "ExecStart=-/bin/true",
    ] {
        assert!(
            home.lines().any(|line| line == promise),
            "a stop of the unit, or too many processes, would end jobs: {promise}"
        );
    }
}
