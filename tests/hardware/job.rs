//! One whole job with the real control daemon: prologue, eight clients with `mpsctl env`, epilogue.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ::tests::child::{self, Ran};
use anyhow::{Context, Result, bail};

use crate::clients::{self, CLIENTS, Limits};
use crate::result::Section;
use crate::site::{self, BEFORE, Gpu, Place, Run};

const JOB: &str = "4711.srv";

/// The user's request; the limits as numbers are [`PERCENT`] and [`MEMORY_MIB`].
pub const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
pub const PERCENT: f64 = 25.0;
pub const MEMORY_MIB: u64 = 4096;

/// Longest time for a prologue or epilogue; their own deadline is 20 s.
const PROGRAM: Duration = Duration::from_secs(40);

#[derive(Debug)]
pub struct Job<'a> {
    place: &'a Place,
    gpu: String,
    nodes: String,
    id: String,
    group: String,
    config: PathBuf,
    /// The programs of the build before.
    pub before: bool,
    /// Its tasks, as Torque tells them in the environment.
    tasks: Option<u32>,
    open: std::cell::Cell<bool>,
}

impl<'a> Job<'a> {
    pub fn named(place: &'a Place, gpu: &Gpu, id: &str) -> Result<Self> {
        let group = users::get_group_by_gid(place.user.gid.as_raw())
            .context("the user's group has no name")?;
        let group = group.name().to_string_lossy().into_owned();
        let config = config(place)?;
        Ok(Self {
            place,
            gpu: gpu.uuid.clone(),
            nodes: "nodes=1:gpus=1".into(),
            id: id.into(),
            group,
            config,
            before: false,
            tasks: None,
            open: false.into(),
        })
    }

    pub fn on(mut self, gpus: &[&Gpu]) -> Self {
        let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        self.gpu = uuids.join(",");
        self.nodes = format!("nodes=1:gpus={}", gpus.len());
        self
    }

    pub fn of_tasks(mut self, tasks: u32) -> Self {
        self.nodes = format!("nodes=1:ppn={tasks}:gpus=1");
        self.tasks = Some(tasks);
        self
    }

    /// With further lines of mpsd.toml.
    pub fn under(mut self, name: &str, settings: &str) -> Result<Self> {
        let text = fs::read_to_string(&self.config)?;
        self.config = self.place.dir.join("etc").join(name);
        fs::write(&self.config, text + settings)?;
        Ok(self)
    }

    pub fn begin(&self, section: &mut Section, what: &str, account: &str) -> Result<Ran> {
        let prologue = self.prologue(account)?;
        if !section.good(format!("{what}mps-prologue"), &prologue) {
            bail!("the job did not start: {}", prologue.story());
        }
        Ok(prologue)
    }

    pub fn end(&self, section: &mut Section, what: &str) -> Result<Ran> {
        let epilogue = self.epilogue()?;
        section.good(format!("{what}mps-epilogue"), &epilogue);
        Ok(epilogue)
    }

    /// Runs `mps-prologue` as the mom does: as root, with Torque's recorded arguments and this
    /// account string.
    pub fn prologue(&self, account: &str) -> Result<Ran> {
        self.open.set(true);
        let mut command = self.program("mps-prologue")?;
        command.args(["--gpus", &self.gpu, &self.id, &self.place.user.name]);
        command.args([&self.group, "job1", &self.nodes, "batch", account]);
        child::run(&mut command, "", PROGRAM)
    }

    pub fn epilogue(&self) -> Result<Ran> {
        let mut command = self.program("mps-epilogue")?;
        let (session, used) = ("4242", "cput=00:00:01,mem=0kb,vmem=0kb,walltime=00:00:02");
        command.args([
            &self.id,
            &self.place.user.name,
            &self.group,
            "job1",
            session,
        ]);
        command.args([&self.nodes, used, "batch", ACCOUNT, "0"]);
        let ran = child::run(&mut command, "", PROGRAM)?;
        self.open.set(false);
        Ok(ran)
    }

    fn program(&self, name: &str) -> Result<Command> {
        let name = if self.before {
            &format!("{BEFORE}/{name}")
        } else {
            name
        };
        let mut command = Command::new(self.place.staged(name)?);
        command
            .env_clear()
            .current_dir("/")
            .args(["--scheduler", "torque", "--config"])
            .arg(&self.config);
        if let Some(tasks) = self.tasks {
            command
                .env("PBS_NUM_NODES", "1")
                .env("PBS_NUM_PPN", tasks.to_string());
        }
        Ok(command)
    }

    pub fn environment(&self) -> Result<BTreeMap<String, String>> {
        let mut env = site::base_env();
        env.insert("PBS_JOBID".into(), self.id.clone());
        let mut command = self.user_mpsctl(env.clone())?;
        command.args(["env", "--shell", "json", "--job", &self.id]);
        let ran = child::run(&mut command, "", Duration::from_secs(10))?.success()?;
        let changes: BTreeMap<String, Option<String>> = serde_json::from_str(&ran.stdout)
            .with_context(|| format!("mpsctl env wrote {}", ran.stdout))?;
        for (name, value) in changes {
            match value {
                Some(value) => env.insert(name, value),
                None => env.remove(&name),
            };
        }
        Ok(env)
    }

    pub fn mpsctl(&self) -> Result<Command> {
        Ok(self.with_config(Command::new(self.place.staged("mpsctl")?)))
    }

    /// `mpsctl exec --`, as the user in a task of the job. Its environment has only `env` and the
    /// job's name.
    pub fn exec(&self, env: BTreeMap<String, String>) -> Result<Command> {
        let mut command = self.user_mpsctl(env)?;
        command.args(["exec", "--"]);
        Ok(command)
    }

    /// The same without `exec`.
    pub fn user_mpsctl(&self, mut env: BTreeMap<String, String>) -> Result<Command> {
        env.insert("PBS_JOBID".into(), self.id.clone());
        let command = self.place.as_user(&self.place.staged("mpsctl")?, &env);
        Ok(self.with_config(command))
    }

    fn with_config(&self, mut command: Command) -> Command {
        command.arg("--config").arg(&self.config);
        command
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn mpsd_pid(&self) -> Result<i64> {
        let journal = fs::read_to_string(self.directory().join("journal"))?;
        let journal: serde_json::Value = serde_json::from_str(&journal)?;
        let pid = journal["supervisor"]["pid"].as_i64();
        pid.context("no mpsd in the journal")
    }

    pub fn logs(&self) -> Vec<(String, String)> {
        logs(&self.directory())
    }

    pub fn directory(&self) -> PathBuf {
        self.place.run.join("mpsd/jobs").join(&self.id)
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.open.get() {
            let _ = self.epilogue();
        }
    }
}

pub fn config(place: &Place) -> Result<PathBuf> {
    configure(place, "")
}

/// Writes a new configuration, with these lines after the usual ones.
pub fn configure(place: &Place, more: &str) -> Result<PathBuf> {
    let file = place.dir.join("etc/mpsd.toml");
    let text = format!(
        "run_dir = \"{}\"\nstate_dir = \"{}\"\ncontrol = \"{}\"\nnvml = \"{}\"\ncompute_mode = \"keep\"\n{more}",
        place.run.join("mpsd").display(),
        place.dir.join("state").display(),
        site::program("nvidia-cuda-mps-control")?.display(),
        site::nvml()?.display(),
    );
    fs::write(&file, text)?;
    Ok(file)
}

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let (place, gpu, limits) = (&run.place, run.gpu(), &run.limits);
    section.fact("request", ACCOUNT);
    let job = Job::named(place, gpu, JOB)?;
    let prologue = job.begin(section, "", ACCOUNT)?;
    section.fact("prologue_ms", prologue.ms());
    let name = "the prologue's output is closed when it has ended";
    section.check(name, !prologue.held_open, "a pipe of the mom");
    let env = job.environment()?;
    section.fact("task_environment", format!("{env:?}"));
    read_back(section, place, gpu, &env, limits)?;
    server_log(section, &job.directory(), &gpu.uuid, limits);
    idle(section, &job)?;
    eight_clients(section, place, &env, limits)?;
    let epilogue = job.end(section, "")?;
    section.fact("epilogue_ms", epilogue.ms());
    Ok(())
}

pub fn ask(place: &Place, env: &BTreeMap<String, String>, question: &str) -> Result<String> {
    let control = site::program("nvidia-cuda-mps-control")?;
    let mut command = place.as_user(&control, env);
    let ran = child::run(
        &mut command,
        &format!("{question}\n"),
        Duration::from_secs(10),
    )?;
    Ok(ran.success()?.stdout.trim().to_owned())
}

/// The cost of an idle `mpsd`: wake-ups in two seconds, and its share of memory as the kernel
/// counts it.
fn idle(section: &mut Section, job: &Job<'_>) -> Result<()> {
    let pid = job.mpsd_pid()?;
    let number = |file: &str, name: &str| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no '{name}' in '/proc/{pid}/{file}'"))
    };
    let turns = || number("status", "voluntary_ctxt_switches:");
    // Time for its work after the questions by hand.
    child::pause(Duration::from_millis(500))?;
    let before = turns()?;
    child::pause(Duration::from_secs(2))?;
    section.equal("wake-ups of mpsd in 2 s", &turns()?, &before);
    section.fact("mpsd_rss_kib", number("status", "VmRSS:")? as i64);
    let kib = number("smaps_rollup", "Pss:")?;
    section.check(
        "mpsd takes 3 MiB at most",
        kib <= 3 * 1024,
        format!("{kib} KiB"),
    );
    Ok(())
}

fn read_back(
    section: &mut Section,
    place: &Place,
    gpu: &Gpu,
    env: &BTreeMap<String, String>,
    limits: &Limits,
) -> Result<()> {
    let ask = |question: &str| ask(place, env, question);
    let threads = ask("get_default_active_thread_percentage")?.parse().ok();
    section.equal(
        "read back: thread percentage",
        &threads,
        &Some(limits.percent),
    );
    let memory = ask(&format!("get_default_device_pinned_mem_limit {}", gpu.uuid))?;
    let memory = mebibytes(&memory);
    section.equal("read back: memory limit", &memory, &Some(limits.memory_mib));
    let server = ask("get_server_list")?;
    let status = ask(&format!("get_server_status {server}"))?;
    section.equal("read back: server status", &status.as_str(), &"ACTIVE");
    Ok(())
}

pub fn server_log(section: &mut Section, directory: &Path, gpu: &str, limits: &Limits) {
    let texts = logs(directory).into_iter().map(|(_, text)| text);
    let log: String = texts.collect();
    let bytes = limits.memory_mib << 20;
    let wanted = [
        format!("Active Threads Percentage set to {:.1}", limits.percent),
        format!("Device pinned memory limit for device {gpu} set to {bytes:#x} bytes"),
        "Server Priority set to 0".to_owned(),
    ];
    for line in wanted {
        let last = log.lines().rfind(|found| found.contains(&line));
        section.check(
            format!("server log: {line}"),
            last.is_some(),
            last.unwrap_or("not found"),
        );
    }
}

/// The name and the text of each log of a job.
fn logs(directory: &Path) -> Vec<(String, String)> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let logs =
        entries(directory).filter(|entry| entry.file_name().to_string_lossy().starts_with("log"));
    let files = logs.flat_map(|log| entries(&log.path()));
    let regular = files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file()));
    let read = |file: fs::DirEntry| {
        let bytes = fs::read(file.path()).unwrap_or_default();
        let name = file.file_name().to_string_lossy().into_owned();
        (name, String::from_utf8_lossy(&bytes).into_owned())
    };
    regular.map(read).collect()
}

fn eight_clients(
    section: &mut Section,
    place: &Place,
    env: &BTreeMap<String, String>,
    limits: &Limits,
) -> Result<()> {
    let apps = || {
        site::smi(&[
            "--query-compute-apps=pid,process_name",
            "--format=csv,noheader",
        ])
    };
    let (clients, apps) = clients::at_once(section, place, env, (CLIENTS, limits), apps)?;
    let pids = clients
        .iter()
        .map(|client| format!("{},", client.report["pid"]));
    let listed = pids.filter(|pid| apps.lines().any(|line| line.starts_with(pid)));
    section.equal(
        "clients that nvidia-smi lists while they run",
        &listed.count(),
        &CLIENTS,
    );
    Ok(())
}

/// The daemon's answer about a memory limit (`3G`, `4096M`) in MiB.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.len().checked_sub(1)?);
    let number: u64 = number.parse().ok()?;
    match unit {
        "G" => Some(number << 10),
        "M" => Some(number),
        "K" => Some(number >> 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_the_limit_fails() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("log")).unwrap();
        let limits = Limits {
            percent: 25.0,
            memory_mib: 4096,
            device_sms: 132,
        };
        let written = "[t Server 6] Active Threads Percentage set to 25.0\n[t Server 6] Server Priority set to 0\n\
                       [t Server 6] Device pinned memory limit for device GPU-a set to 0x100000000 bytes\n";
        fs::write(dir.path().join("log/control.log"), written).unwrap();
        let failed = |gpu| {
            let mut section = Section::new("test");
            server_log(&mut section, dir.path(), gpu, &limits);
            section.checks.iter().filter(|check| !check.ok).count()
        };
        assert_eq!((failed("GPU-a"), failed("GPU-b")), (0, 1));
    }
}
