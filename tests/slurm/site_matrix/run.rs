//! Runs a site's cells: the same job three times at once, a bystander beside it, and a look at what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tests::double::NodeDouble;
use tests::slurm::{Bed, Bystander, Client, Simulated, User, WITNESS, Witness};

use super::factors::{Choice, is};
use super::oracle::{self, Beside, Run};
use super::request::{self, Variant};
use super::site::{self, NODE};

/// Longest that one job may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the nodes may take to become quiet after a cell.
const QUIET: Duration = Duration::from_secs(20);
/// How often compute modes are read.
const SAMPLE: Duration = Duration::from_millis(5);

/// A running cluster.
pub struct Site {
    bed: Bed,
    simulated: Simulated,
    user: User,
    other: User,
    bystander: Option<Beside0>,
    count: usize,
}

/// The other user's job.
struct Beside0 {
    client: Client,
    dir: PathBuf,
}

type Modes = BTreeMap<(String, String), BTreeSet<String>>;

impl Site {
    /// Brings it up.
    pub fn start(choice: &Choice) -> Result<Site> {
        let (bed, simulated) = site::create(choice)?;
        if let Err(error) = bed.start() {
            let said = |file: &str| fs::read_to_string(bed.dir().join("log").join(file)).unwrap_or_default();
            bail!("{error:#}\n{}{}", said("site1.out"), said("slurmctld.out"));
        }
        let [user, other] = bed.users();
        Ok(Site {
            bed,
            simulated,
            user,
            other,
            bystander: None,
            count: 0,
        })
    }

    /// Runs a cell; its troubles.
    pub fn cell(&mut self, site: &Choice, request: &Choice) -> Result<Vec<String>> {
        self.stand_by(!is(request, "node", "alone-on-node"))?;
        let dir = self.directory(&self.user.clone())?;
        let (runs, modes) = match self.run(request, &dir) {
            Ok(seen) => seen,
            Err(error) => {
                self.bed.root(&["scancel", "-u", &self.user.name])?;
                return Ok([vec![format!("{error:#}")], self.left()?].concat());
            }
        };
        let bystanders = self.bystanders()?;
        let beside = Beside { modes, bystanders };
        let mut troubles = oracle::judge(site, request, &runs, &beside);
        troubles.extend(self.left()?);
        Ok(troubles)
    }

    /// Ends it; what had to be forced.
    pub fn end(mut self) -> Result<()> {
        self.stand_by(false)?;
        let forced = self.bed.end()?;
        ensure!(
            forced.is_empty(),
            "the teardown had to use force: {}",
            forced.join("; ")
        );
        Ok(())
    }

    /// What the daemons logged last.
    pub fn logs(&self) -> String {
        let nodes = self.bed.nodes();
        let names = nodes.iter().map(String::as_str).chain(["slurmctld"]);
        let mut text = String::new();
        for name in names.filter(|name| !["5", "6", "7", "8"].iter().any(|end| name.ends_with(end))) {
            let log = self.bed.log(name);
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| !line.contains("MPI") && !line.contains("mpi/pmix"))
                .collect();
            let tail = &lines[lines.len().saturating_sub(12)..];
            text.push_str(&format!("== {name}\n{}\n", tail.join("\n")));
        }
        text
    }

    /// An empty directory that the user's tasks may write to.
    fn directory(&mut self, user: &User) -> Result<PathBuf> {
        self.count += 1;
        let dir = self.bed.dir().join(format!("cell{}", self.count));
        fs::create_dir(&dir)?;
        chown(&dir, Some(user.uid), Some(user.gid))?;
        Ok(dir)
    }

    fn witness(&self) -> PathBuf {
        self.simulated.dir().join(WITNESS)
    }

    /// Starts or ends the bystander, a task with a GPU on every node.
    fn stand_by(&mut self, wanted: bool) -> Result<()> {
        if wanted && self.bystander.as_mut().is_some_and(|beside| beside.client.runs()) {
            return Ok(());
        }
        if let Some(Beside0 { client, dir }) = self.bystander.take() {
            fs::write(dir.join("end"), "")?;
            client.wait(Duration::from_secs(600))?.success()?;
            self.bed.wait_idle(QUIET)?;
            self.bed.mark();
        }
        if !wanted {
            return Ok(());
        }
        let dir = self.directory(&self.other.clone())?;
        let count = format!("-N{}", self.bed.nodes().len());
        let (witness, place) = (self.witness().display().to_string(), dir.display().to_string());
        let argv = ["srun", &count, "--gres=gpu:1", &witness, "--bystander", &place];
        let client = self.bed.spawn(&self.other, &argv)?;
        let started = self.bed.wait_until("the bystander on every node", QUIET, || {
            ensure!(client.runs(), "the bystander has ended");
            Ok(read_bystanders(&dir)?
                .values()
                .filter(|one| one.contexts > 0)
                .count()
                == self.bed.nodes().len())
        });
        if let Err(error) = started {
            bail!("{error:#}: {:?}", client.wait(Duration::from_secs(600))?);
        }
        self.bed.mark();
        self.bystander = Some(Beside0 { client, dir });
        Ok(())
    }

    fn bystanders(&self) -> Result<BTreeMap<String, Bystander>> {
        match &self.bystander {
            Some(beside) => read_bystanders(&beside.dir),
            None => Ok(BTreeMap::new()),
        }
    }

    /// The three jobs at once, and the compute modes meanwhile.
    fn run(&self, request: &Choice, dir: &Path) -> Result<([Run; 3], Modes)> {
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (bed, nodes) = (&self.bed, &self.simulated.nodes);
            let sampler = scope.spawn(|| sample(bed, nodes, &end));
            let runs = self.jobs(request, dir);
            end.store(true, Ordering::Relaxed);
            let modes = sampler
                .join()
                .map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
            Ok((runs?, modes))
        })
    }

    fn jobs(&self, request: &Choice, dir: &Path) -> Result<[Run; 3]> {
        let started: Vec<(Variant, PathBuf, Client)> = Variant::ALL
            .into_iter()
            .map(|variant| self.start_job(request, variant, dir))
            .collect::<Result<_>>()?;
        let mut runs = Vec::new();
        for (variant, place, client) in started {
            let done = client.wait(LIMIT)?;
            let batch = request::is_batch(request).then(|| done.stdout.trim().parse::<u32>());
            let (mut code, mut said) = (done.code, done.said());
            if let Some(Ok(job)) = batch {
                code = self.ended(job)?;
            }
            let mut outputs: Vec<PathBuf> = fs::read_dir(&place)?
                .flatten()
                .map(|entry| entry.path())
                .collect();
            outputs.retain(|file| file.extension().is_some_and(|end| end == "out"));
            outputs.sort();
            for file in outputs {
                said += &fs::read_to_string(file)?;
            }
            runs.push(Run {
                variant,
                nodes: variant.nodes(request),
                code,
                said,
                tasks: Witness::all(&place)?,
            });
        }
        runs.try_into().map_err(|_| anyhow::anyhow!("three runs"))
    }

    /// Waits for a batch job's end; its exit code, of an array's elements the worst.
    fn ended(&self, job: u32) -> Result<Option<i32>> {
        let id = job.to_string();
        let ended = self.bed.wait_until(&format!("the end of job {id}"), LIMIT, || {
            let queue = self.bed.root(&["squeue", "-h", "-a", "-j", &id, "-o", "%T"])?;
            Ok(queue.success()?.stdout.trim().is_empty())
        });
        ended.with_context(|| self.bed.situation())?;
        let shown = self
            .bed
            .root(&["scontrol", "-o", "show", "job", &id])?
            .success()?
            .stdout;
        let words = shown.split_whitespace();
        let codes = words.filter_map(|word| {
            let (code, signal) = word.strip_prefix("ExitCode=")?.split_once(':')?;
            let signal: i32 = signal.parse().ok()?;
            let by_signal = if signal == 0 { 0 } else { 128 + signal };
            Some(code.parse::<i32>().ok()?.max(by_signal))
        });
        Ok(codes.max())
    }

    fn start_job(
        &self,
        request: &Choice,
        variant: Variant,
        dir: &Path,
    ) -> Result<(Variant, PathBuf, Client)> {
        let place = dir.join(variant.name());
        fs::create_dir(&place)?;
        chown(&place, Some(self.user.uid), Some(self.user.gid))?;
        let witness = format!("{} {}", self.witness().display(), place.display());
        let mut command = request::command(request, variant, &witness);
        if let Some(script) = command.script {
            let file = place.join("job.sh");
            fs::write(&file, script)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
            command.argv.push(format!("--output={}/%j.out", place.display()));
            command.argv.push(file.display().to_string());
        }
        let argv: Vec<&str> = command.argv.iter().map(String::as_str).collect();
        let conf = self.bed.plain_conf();
        let own: &[(&str, &str)] = match variant {
            Variant::Plain => &[("SLURM_CONF", &conf)],
            _ => &[],
        };
        Ok((variant, place, self.bed.spawn_with(&self.user, &argv, own)?))
    }

    /// What the cell left, and the nodes made usable again.
    fn left(&self) -> Result<Vec<String>> {
        let mut troubles = Vec::new();
        let gone = self.bed.wait_until("the end of the jobs", QUIET, || {
            let queue = self
                .bed
                .root(&["squeue", "-h", "-a", "-o", "%i", "-u", &self.user.name])?;
            let nodes = self
                .bed
                .root(&["sinfo", "-h", "-N", "-o", "%N %T"])?
                .success()?
                .stdout;
            Ok(queue.success()?.stdout.trim().is_empty() && !nodes.contains("completing"))
        });
        if let Err(error) = gone {
            troubles.push(format!(
                "left: {error:#} {}",
                self.bed.situation().replace('\n', "; ")
            ));
            self.bed.root(&["scancel", "-u", &self.user.name])?;
        }
        for node in self.bed.nodes() {
            let state = self.bed.node_state(&node)?;
            if ["DRAIN", "DOWN", "FAIL"]
                .iter()
                .any(|word| state.state.contains(word))
            {
                troubles.push(format!("{node} is {}: {}", state.state, state.reason));
                self.bed.resume(&node)?;
            }
        }
        if self.bed.wait_clean(Duration::from_secs(5)).is_err() {
            troubles.push(format!("left: {}", self.bed.left_behind().join("; ")));
        }
        for (name, node) in self.bed.nodes().iter().zip(&self.simulated.nodes) {
            let modes = node.modes();
            if modes.iter().any(|mode| mode != "default") {
                troubles.push(format!("left: {name} has compute modes {modes:?}"));
            }
            if !node.daemons().is_empty() {
                troubles.push(format!("left: {name} has daemons {:?}", node.daemons()));
            }
        }
        Ok(troubles)
    }
}

/// The compute modes that each GPU had until `end`.
fn sample(bed: &Bed, nodes: &[NodeDouble], end: &AtomicBool) -> Modes {
    let mut seen = Modes::new();
    while !end.load(Ordering::Relaxed) {
        for (name, node) in bed.nodes().into_iter().zip(nodes) {
            for (mode, device) in node.modes().into_iter().zip(node.device_names()) {
                seen.entry((name.clone(), device)).or_default().insert(mode);
            }
        }
        std::thread::sleep(SAMPLE);
    }
    seen
}

fn read_bystanders(dir: &Path) -> Result<BTreeMap<String, Bystander>> {
    let mut all = BTreeMap::new();
    for file in fs::read_dir(dir)?.flatten().map(|entry| entry.path()) {
        let Some(node) = file
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".json"))
        else {
            continue;
        };
        debug_assert!(node.starts_with(NODE));
        let text = fs::read_to_string(&file)?;
        all.insert(
            node.to_owned(),
            serde_json::from_str(&text).context("a bystander's record")?,
        );
    }
    Ok(all)
}
