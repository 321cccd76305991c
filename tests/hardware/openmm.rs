//! OpenMM of the package, as the ordinary user runs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::child;
use crate::result::Section;
use crate::site::{self, Place};

/// Longest that one simulation may take, with all that comes before it counts.
pub const SIMULATION: Duration = Duration::from_secs(120);
/// How long a simulation counts; it warms up for 9 s before and goes on behind, so that all count side by side. Seconds.
const COUNT: &str = "6";
/// OpenMM's input, in the user's directory.
const INPUT: &str = "system.xml";

/// One simulation.
#[derive(Debug)]
pub struct Dynamics {
    /// Program and arguments.
    pub command: Vec<String>,
    /// What it needs of its environment.
    pub env: BTreeMap<String, String>,
}

impl Dynamics {
    /// Installs OpenMM for this run and makes its input in `home`; None where the package has none, or the machine no Python for
    /// it.
    pub fn prepare(
        section: &mut Section,
        place: &Place,
        package: &Path,
        home: &Path,
    ) -> Result<Option<Self>> {
        let wheels: Vec<PathBuf> = fs::read_dir(package.join("wheels"))
            .into_iter()
            .flatten()
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        let (Some(python), false) = (python(), wheels.is_empty()) else {
            let why = "no wheels in the package, or no python3 in PATH";
            section.fact("openmm_left_out", why);
            return Ok(None);
        };
        let packages = place.dir.join("python");
        let mut pip = Command::new(&python);
        let quiet = ["-m", "pip", "install", "-q", "--no-index", "--no-deps"];
        let apart = ["--no-compile", "--no-cache-dir", "--target"];
        pip.args(quiet).args(apart).arg(&packages).args(&wheels);
        child::run(&mut pip, "", SIMULATION)?.success()?;
        let script = place.staged("dynamics.py")?.display().to_string();
        let env = environment(&packages, home);
        let mut prepare = place.as_user(Path::new(&python), &env);
        prepare.args([&script, "prepare", INPUT]).current_dir(home);
        let said = child::run(&mut prepare, "", SIMULATION)?.success()?;
        section.fact("openmm", said.stdout.trim());
        let input = home.join(INPUT).display().to_string();
        let command = vec![python, script, "run".into(), input, COUNT.into()];
        Ok(Some(Self { command, env }))
    }
}

/// The Python in PATH: the machine's own may lack numpy and CUDA's libraries.
pub fn python() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|dir| dir.join("python3"));
    files
        .find(|file| file.is_file())
        .map(|file| file.display().to_string())
}

/// What every program of the user's has in its environment.
pub fn environment(packages: &Path, home: &Path) -> BTreeMap<String, String> {
    let mut env = site::base_env();
    let text = |path: &Path| path.display().to_string();
    env.insert("HOME".into(), text(home));
    env.insert("PYTHONPATH".into(), text(packages));
    // OpenMM keeps the kernels that it has compiled there.
    env.insert("TMPDIR".into(), text(home));
    env.insert("CUDA_CACHE_PATH".into(), text(&home.join("cache")));
    env
}
