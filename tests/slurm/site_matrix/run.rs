//! Runs a site's cells: the same job three times at once, a bystander beside them, and a look at
//! what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tests::double::NodeDouble;
use tests::slurm::{Bed, Bystander, Client, User, WITNESS, Witness};

use super::factors::{Choice, is};
use super::oracle::{self, Beside, Run};
use super::request::{self, Variant};
use super::site;
use crate::jobs::LIMIT;
use crate::runner::{Context, logs, teardown};

const QUIET: Duration = Duration::from_secs(20);
const SAMPLE: Duration = Duration::from_millis(5);

pub struct Site {
    cell: Context,
    bystander: Option<(Client, PathBuf)>,
    count: usize,
}

type Modes = BTreeMap<(String, String), BTreeSet<String>>;

impl Site {
    pub fn start(choice: &Choice) -> Result<Site> {
        let (bed, nodes) = site::create(choice)?;
        Ok(Site {
            cell: Context::start_bed(bed, nodes)?,
            bystander: None,
            count: 0,
        })
    }

    pub fn cell(&mut self, site: &Choice, request: &Choice) -> Result<Vec<String>> {
        self.stand_by(!is(request, "node", "alone-on-node"))?;
        let dir = self.directory(&self.cell.user.clone())?;
        let (runs, modes) = match self.run(request, &dir) {
            Ok(seen) => seen,
            Err(error) => {
                self.cell
                    .root(&format!("scancel -u {}", self.cell.user.uid))?;
                return Ok([vec![format!("{error:#}")], self.left()?].concat());
            }
        };
        let bystanders = match &self.bystander {
            Some((_, dir)) => read_bystanders(dir)?,
            None => BTreeMap::new(),
        };
        let beside = Beside { modes, bystanders };
        let mut troubles = oracle::judge(site, request, &runs, &beside);
        troubles.extend(self.left()?);
        Ok(troubles)
    }

    pub fn end(mut self) -> Result<()> {
        self.stand_by(false)?;
        teardown(self.cell)
    }

    pub fn logs(&self) -> String {
        logs(&self.cell.bed)
    }

    fn directory(&mut self, user: &User) -> Result<PathBuf> {
        self.count += 1;
        let dir = self.cell.bed.dir().join(format!("cell{}", self.count));
        fs::create_dir(&dir)?;
        chown(&dir, Some(user.uid), Some(user.gid))?;
        Ok(dir)
    }

    fn witness(&self) -> PathBuf {
        self.cell.nodes.dir().join(WITNESS)
    }

    /// Starts or ends the bystander, which has a task with a GPU on every node.
    fn stand_by(&mut self, wanted: bool) -> Result<()> {
        let stands = self
            .bystander
            .as_ref()
            .is_some_and(|(client, _)| client.runs());
        if wanted && stands {
            return Ok(());
        }
        if let Some((client, dir)) = self.bystander.take() {
            fs::write(dir.join("end"), "")?;
            client.wait(Duration::from_secs(600))?.success()?;
            self.cell.bed.wait_idle(QUIET)?;
            self.cell.bed.mark();
        }
        if !wanted {
            return Ok(());
        }
        let dir = self.directory(&self.cell.other.clone())?;
        let (witness, nodes) = (self.witness(), self.cell.bed.nodes().len());
        let task = format!("{} --bystander {}", witness.display(), dir.display());
        let command = format!("srun -N{nodes} --gres=gpu:1 {task}");
        let client = self.cell.start_as(&self.cell.other, &command, "", &[])?;
        let started = self
            .cell
            .bed
            .wait_until("the bystander on every node", QUIET, || {
                ensure!(client.runs(), "the bystander has ended");
                let all = read_bystanders(&dir)?;
                Ok(all.values().filter(|one| one.contexts > 0).count() == nodes)
            });
        if let Err(error) = started {
            bail!("{error:#}: {:?}", client.wait(Duration::from_secs(600))?);
        }
        self.cell.bed.mark();
        self.bystander = Some((client, dir));
        Ok(())
    }

    fn run(&self, request: &Choice, dir: &Path) -> Result<([Run; 3], Modes)> {
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (bed, nodes) = (&self.cell.bed, &self.cell.nodes.nodes);
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
                nodes: variant.nodes(request),
                has_flags: request::has_flags(request, variant),
                code,
                said,
                tasks: Witness::all(&place)?,
            });
        }
        runs.try_into().map_err(|_| anyhow::anyhow!("three runs"))
    }

    /// Waits for a batch job's end. Returns its exit code; for an array, the worst.
    fn ended(&self, job: u32) -> Result<Option<i32>> {
        let ended = self.cell.wait(&format!("the end of job {job}"), || {
            let queue = self.cell.root(&format!("squeue -h -a -j {job} -o %T"))?;
            Ok(queue.trim().is_empty())
        });
        ended.with_context(|| self.cell.bed.situation())?;
        let shown = self.cell.shown(job)?;
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
        chown(&place, Some(self.cell.user.uid), Some(self.cell.user.gid))?;
        let witness = format!("{} {}", self.witness().display(), place.display());
        let (mut words, mut script) = request::command(request, variant, &witness);
        if request::is_batch(request) {
            let file = place.join("job.sh");
            // Without the plugin, a script of another shell than bash would run outside MPS, as the
            // manual says.
            fs::write(&file, format!("#!/bin/bash\n{script}\n"))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
            words += &format!(" --output={}/%j.out {}", place.display(), file.display());
            script.clear();
        }
        let conf = self.cell.bed.plain_conf();
        let own: &[(&str, &str)] = match variant {
            Variant::Plain => &[("SLURM_CONF", &conf)],
            _ => &[],
        };
        let client = self.cell.start_as(&self.cell.user, &words, &script, own)?;
        Ok((variant, place, client))
    }

    fn left(&self) -> Result<Vec<String>> {
        let (cell, bed) = (&self.cell, &self.cell.bed);
        let mut troubles = Vec::new();
        let gone = bed.wait_until("the end of the jobs", QUIET, || {
            let queue = cell.root(&format!("squeue -h -a -o %i -u {}", cell.user.uid))?;
            let completing = cell.root("sinfo -h -N -o %T")?.contains("completing");
            Ok(queue.trim().is_empty() && !completing)
        });
        if let Err(error) = gone {
            troubles.push(format!(
                "left: {error:#} {}",
                bed.situation().replace('\n', "; ")
            ));
            cell.root(&format!("scancel -u {}", cell.user.uid))?;
        }
        for node in bed.nodes() {
            let state = bed.node_state(&node)?;
            let out_of_service = ["DRAIN", "DOWN", "FAIL"];
            if out_of_service.iter().any(|word| state.state.contains(word)) {
                troubles.push(format!("{node} is {}: {}", state.state, state.reason));
                bed.resume(&node)?;
            }
        }
        if bed.wait_clean(Duration::from_secs(5)).is_err() {
            troubles.push(format!("left: {}", bed.left_behind().join("; ")));
        }
        for (name, node) in bed.nodes().iter().zip(&cell.nodes.nodes) {
            let (modes, daemons) = (node.modes(), node.daemons());
            if modes.iter().any(|mode| mode != "default") || !daemons.is_empty() {
                troubles.push(format!("left: {name}: {modes:?} {daemons:?}"));
            }
        }
        Ok(troubles)
    }
}

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
    for file in fs::read_dir(dir)?.flatten() {
        if let Some(node) = file
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(".json"))
        {
            let record = serde_json::from_str(&fs::read_to_string(file.path())?);
            all.insert(node.to_owned(), record.context("a bystander's record")?);
        }
    }
    Ok(all)
}
