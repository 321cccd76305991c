//! `mpsctl slurm enable | disable | check` on a Slurm configuration in its own directory, and our
//! units.

mod check;

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tests::double::copy_program;
use tests::node_bed::{NodeBed, Running, eventually, fast};
use tests::run::{Ran, USER, as_user, built, chmod, script, uid_of};

struct Cluster {
    bed: NodeBed,
}

impl Cluster {
    fn new(slurm_conf: &str) -> Self {
        let cluster = Self {
            bed: NodeBed::without_cgroup(fast(1), ""),
        };
        for release in ["22.05", "23.11"] {
            let dir = cluster.bed.directory(&format!("plugins/{release}"));
            let file = dir.join("spank_mps.so");
            // As built, it is stamped for 22.05: right in one directory, wrong in the other.
            fs::copy(built("libspank_mps.so"), &file).expect("build spank first");
            chmod(&file, 0o644);
        }
        cluster.bed.directory("etc");
        cluster.write("slurm.conf", &format!("{slurm_conf}\n"));
        cluster
    }

    /// One whose commands say this release.
    fn of_release(release: &str, slurm_conf: &str) -> Self {
        let cluster = Self::new(slurm_conf);
        cluster.commands(release);
        let commands = cluster.path("prefix/bin");
        let setting = format!("[slurm]\nexec = \"{}\"", commands.display());
        cluster.bed.configure(&setting);
        cluster
    }

    fn enabled() -> Self {
        let cluster = Self::new(GOOD);
        cluster.enable().ok();
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bed.path(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("etc").join(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path("etc").join(name), text).expect(name);
    }

    fn slurm(&self, verb: &str, more: &[&str]) -> Ran {
        let paths = ["etc/slurm.conf", "plugins"].map(|name| self.path(name).display().to_string());
        let conf = ["slurm", verb, "--slurm-conf", &paths[0]];
        let plugins = ["--plugins", &paths[1]];
        self.bed.mpsctl(&[&conf, &plugins[..], more].concat())
    }

    fn enable(&self) -> Ran {
        self.slurm("enable", &["--release", "22.05"])
    }

    fn check(&self) -> Ran {
        self.slurm("check", &[])
    }

    fn slurmd_from(&self, program: &str) -> PathBuf {
        let copy = self.bed.directory("prefix/sbin").join("slurmd");
        copy_program(Path::new(program), &copy).expect(program);
        copy
    }

    /// It writes no pid file, as with `--systemd`.
    fn slurmd(&self) -> Running {
        self.start(Command::new(self.slurmd_from("/bin/sleep")))
    }

    fn start(&self, mut command: Command) -> Running {
        let conf = self.path("etc/slurm.conf");
        let running = Running::start(command.arg("60").env("SLURM_CONF", conf));
        let comm = format!("/proc/{}/comm", running.pid());
        let has_name = || fs::read_to_string(&comm).is_ok_and(|comm| comm == "slurmd\n");
        eventually("a process of that name", has_name);
        running
    }

    fn commands(&self, release: &str) {
        let bin = self.bed.directory("prefix/bin");
        script(&bin.join("scontrol"), "");
        script(&bin.join("sinfo"), &format!("echo slurm {release}"));
    }

    fn line(&self) -> String {
        let (plugin, bin) = (self.path("plugins/22.05/spank_mps.so"), self.path("bin"));
        format!(
            "optional {} config={} prologue={bin}/mps-prologue epilogue={bin}/mps-epilogue",
            plugin.display(),
            self.bed.config().display(),
            bin = bin.display(),
        )
    }
}

const GOOD: &str = "GresTypes=gpu\nPrologFlags=Alloc";
/// The controller sends plugstack.conf to the nodes, and nothing that it includes.
const CONFIGLESS: &str = "GresTypes=gpu\nPrologFlags=Alloc\nSlurmctldParameters=enable_configless";
const OURS: &str = "plugstack.conf.d/mpsd.conf";
const STACK: &str = "plugstack.conf";

/// Slurm reads the files in the order of their names, so pyxis' own, `pyxis.conf`, follows ours.
#[test]
fn beside_pyxis_or_skybox_a_second_line_looks_behind_it() {
    second_line_behind("pyxis", "spank_pyxis.so");
    second_line_behind("skybox", "libskybox.so");
}

fn second_line_behind(tool: &str, plugin: &str) {
    let cluster = Cluster::enabled();
    let theirs = |name: &str| {
        let file = format!("plugstack.conf.d/{name}");
        cluster.write(&file, &format!("required /usr/lib/slurm/{plugin}\n"));
    };
    let [behind, before] = [format!("{tool}.conf"), format!("a-{tool}.conf")];
    theirs(&behind);
    let plugin = cluster.path("plugins/22.05/spank_mps.so");
    let look = format!("optional {} look=container", plugin.display());
    cluster.check().prints("WARN").prints(&look);

    cluster.enable().ok();
    let second = cluster.read("plugstack.conf.d/zz-mpsd.conf");
    assert_eq!(second.lines().last(), Some(look.as_str()));
    let ran = cluster.check();
    ran.prints("whose container hides its MPS does not start");
    ran.prints("has our line, 'optional'");

    theirs(&before);
    let told = format!("the line of {tool} comes before ours");
    cluster.check().prints("WARN").prints(told);

    cluster.slurm("disable", &[]).ok();
    let left = fs::read_dir(cluster.path("etc/plugstack.conf.d")).expect("directory");
    let mut left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, [before.as_str(), behind.as_str()]);
}

#[test]
fn enable_writes_one_line_and_disable_takes_it_back() {
    let cluster = Cluster::new(GOOD);
    cluster.enable().ok().prints("restart slurmd");
    let ours = cluster.read(OURS);
    assert_eq!(ours.lines().skip(1).collect::<Vec<_>>(), [cluster.line()]);
    let dir = cluster.path("etc/plugstack.conf.d");
    let include = format!("include {}/*.conf\n", dir.display());
    assert!(cluster.read(STACK).ends_with(&include));
    let files = || [STACK, OURS].map(|name| cluster.read(name));
    let before = files();
    cluster.enable().ok().lacks("restart slurmd");
    assert_eq!(files(), before);
    let ran = cluster.check().ok();
    ran.prints("for Slurm 22.05").lacks("FAIL");
    let options = ["--release", "22.05", "--required"];
    cluster.slurm("enable", &options).ok();
    let line = cluster.line().replace("optional", "required");
    assert!(cluster.read(OURS).ends_with(&format!("\n{line}\n")));
    for _ in 0..2 {
        cluster.slurm("disable", &[]).ok();
        assert_eq!(files(), ["", ""]);
    }
    cluster.check().exits(2).prints("FAIL  no '");
}

/// Also where a changed cluster moves it to another file.
#[test]
fn enable_keeps_the_words_of_its_line_unless_an_option_says_otherwise() {
    let cluster = Cluster::new(GOOD);
    let (optional, home) = (cluster.line(), cluster.path("etc").join(OURS));
    let required = optional.replace("optional", "required");
    let other = required.replace("22.05", "21.08");
    let reads = |file: &str, options: &[&str], line: &str| {
        let options = [&["--release", "22.05"], options].concat();
        cluster.slurm("enable", &options).ok();
        let text = cluster.read(file);
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), [line]);
    };
    reads(OURS, &["--required"], &required);
    reads(OURS, &[], &required);
    let text = cluster.read(OURS).replace(&required, &other);
    let text = format!("{} konfig=/x scope=job\n", text.trim_end());
    fs::write(home, text).unwrap();
    reads(OURS, &[], &required);
    cluster.write("slurm.conf", CONFIGLESS);
    reads(STACK, &[], &required);
    reads(STACK, &["--required=off"], &optional);
}

/// The end of a running job needs the plugin: without it its daemons and its exclusive GPU would
/// stay until the timer.
#[test]
fn disable_names_the_jobs_that_run_and_waits_or_is_forced() {
    let cluster = Cluster::enabled();
    let journal = cluster.bed.directory("run/jobs/4711").join("journal");
    fs::write(&journal, "").expect("journal");
    for (options, seconds) in [(&[][..], 0), (&["--wait", "1"], 1)] {
        let ran = cluster.slurm("disable", options).exits(1);
        ran.complains("4711").complains("allowed: --wait SECONDS");
        assert!(ran.took >= Duration::from_secs(seconds), "{ran:?}");
        assert!(cluster.read(OURS).contains(&cluster.line()));
    }
    let ran = cluster.slurm("disable", &["--force"]).ok();
    ran.prints("jobs with MPS still run here: 4711");
    assert_eq!(cluster.read(OURS), "");

    cluster.enable().ok();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        fs::remove_file(journal).expect("journal");
    });
    cluster.slurm("disable", &["--wait", "60"]).ok();
    ends.join().expect("the job's end");
}

/// The packages ask this before they are removed.
#[test]
fn idle_tells_whether_a_job_has_mps_here() {
    let cluster = Cluster::new(GOOD);
    let idle = |options: &[&str]| cluster.bed.mpsctl(&[&["idle"], options].concat());
    idle(&[]).ok();
    // A refused request leaves a record, and needs no end.
    let job = cluster.bed.directory("run/jobs/4711");
    idle(&[]).ok();
    fs::write(job.join("journal"), "").expect("journal");
    idle(&["--wait", "1"]).exits(1).complains("4711");
    let ran = cluster.bed.mpsctl_as(USER, &["idle"], &[]);
    ran.complains("allowed: root");
}

#[test]
fn files_of_the_site_are_left_alone() {
    let cluster = Cluster::new(GOOD);
    let stack = "optional /usr/lib/slurm/spank_pyxis.so\n";
    cluster.write(STACK, stack);
    cluster.enable().exits(1).prints("add this line to '");
    assert_eq!(cluster.read(STACK), stack);
    let ran = cluster.check().exits(2);
    ran.prints("does not include our line; add: include /");
    cluster.write(STACK, &format!("{stack}include plugstack.conf.d/*.conf\n"));
    cluster.enable().ok();
    cluster.check().ok();
    cluster.slurm("disable", &[]).ok();
    assert!(cluster.read(STACK).starts_with(stack));

    let foreign = "required /opt/site/spank_mps.so\n";
    cluster.write(OURS, foreign);
    let ran = cluster.enable().exits(1);
    ran.complains("one that we did not write");
    cluster.slurm("disable", &[]).exits(1);
    assert_eq!(cluster.read(OURS), foreign);
}

#[test]
fn the_plugin_must_fit_the_installed_slurm() {
    let cluster = Cluster::new(GOOD);
    let none = "no plugin for Slurm 25.05; there are: 22.05, 23.11";
    let stamped = "is stamped for Slurm 22.05, not 23.11";
    for (release, words) in [("23.11", stamped), ("25.05", none)] {
        let ran = cluster.slurm("enable", &["--release", release]);
        ran.exits(1).complains(words);
    }
    assert!(!cluster.path("etc/plugstack.conf.d").exists());
}

/// A site's own stack may include the directory of our file; before enable only that file is
/// missing.
#[test]
fn before_enable_only_our_file_is_missing() {
    let cluster = Cluster::new(GOOD);
    let _slurmd = cluster.slurmd();
    cluster.write(STACK, "include plugstack.conf.d/*.conf\n");
    let ran = cluster.check();
    let wrong = ran.out.lines().filter(|line| line.starts_with("FAIL"));
    let wrong: Vec<&str> = wrong.collect();
    let [one] = wrong[..] else { panic!("{ran:?}") };
    let missing = format!("{OURS}': not there; run 'mpsctl slurm enable'");
    assert!(one.contains(&missing), "{ran:?}");
    ran.lacks("our line was written");
    cluster.enable().ok();
    cluster.check().prints("includes our line");
}

#[test]
fn a_configless_sites_own_stack_is_left_and_its_line_told() {
    let cluster = Cluster::new(CONFIGLESS);
    let own =
        "optional /usr/lib/slurm/spank_pyxis.so\ninclude /etc/slurm/plugstack.conf.d/*.conf\n";
    cluster.write(STACK, own);
    cluster.enable().exits(1).prints(cluster.line());
    assert_eq!(cluster.read(STACK), own);
    let ran = cluster.check().exits(2);
    ran.prints("does not have our line, and the controller sends nothing");
    let first = format!("{own}{}\n", cluster.line());
    cluster.write(STACK, &first);
    let ran = cluster.enable().exits(1);
    let second = ran
        .out
        .lines()
        .find(|line| line.ends_with(" look=container"));
    let second = second
        .and_then(|line| line.rsplit_once(": "))
        .map(|(_, line)| line);
    cluster.write(
        STACK,
        &format!("{first}{}\n", second.expect("a second line")),
    );
    cluster.enable().ok();
    cluster.check().ok();
    let ran = cluster.slurm("disable", &[]).exits(1);
    ran.prints("remove the line for spank_mps.so");
}

#[test]
fn what_a_site_adds_to_a_stack_of_ours_stays() {
    const ITS: &str = "required /opt/site.so\n";
    for text in [GOOD, CONFIGLESS] {
        let cluster = Cluster::new(text);
        cluster.enable().ok();
        let ours = cluster.read(STACK);
        cluster.write(STACK, &format!("{ours}{ITS}"));
        cluster.enable().ok();
        assert_eq!(cluster.read(STACK), format!("{ours}{ITS}"));
        cluster.slurm("disable", &[]).ok();
        assert_eq!(cluster.read(STACK), ITS);
    }
}

/// From files on every node to configless, with the line in the stack itself, and back.
#[test]
fn a_cluster_that_changes_has_one_line() {
    let cluster = Cluster::new(GOOD);
    for text in [GOOD, CONFIGLESS, GOOD, CONFIGLESS] {
        cluster.write("slurm.conf", &format!("{text}\n"));
        cluster.enable().ok();
        cluster.check().ok();
        let in_stack = cluster.read(STACK).contains(&cluster.line());
        assert_eq!(in_stack, text == CONFIGLESS, "{text}");
    }
    let stack = cluster.read(STACK);
    assert!(stack.lines().skip(1).eq([cluster.line()]), "{stack}");
    cluster.slurm("disable", &[]).ok();
    assert!(!cluster.path("etc/plugstack.conf").exists());
}
