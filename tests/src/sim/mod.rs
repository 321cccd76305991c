//! A node in memory: everything that [`mpsd::job::node::Node`] can do to a node, or ask of it, done
//! to plain values.
//!
//! Every change has smallest steps. Before each call and after each step is a *point* at which the
//! worker can be killed. The steps are the real node's: a file and its lock are two, a directory's
//! two halves are two, a cgroup and its note are two. So a matrix over all points needs no list of
//! effects.

mod calls;
mod files;
pub mod scenario;
mod world;

pub use files::paths;
pub use world::{Living, World, Worlds, reference};

use mpsd::job::node::NodeSettings;
use mpsd::job::{self, Begun, FailedStart, Findings};
use mpsd_core::Failure;
use mpsd_core::config::Settings;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use scenario::Scenario;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

pub type SharedWorld = Rc<RefCell<World>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Killed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    KillAt(usize),
    FaultAt(usize),
    UndeterminedAt(usize),
    /// Another worker comes at this point ([`Sim::meeting`]).
    MeetsAt(usize),
}

#[derive(Debug)]
pub struct Sim {
    pub world: SharedWorld,
    settings: NodeSettings,
    trouble: Trouble,
    points: usize,
    calls: usize,
    /// Whether a daemon was to look for programs outside its MPS.
    pub outside: bool,
    locks: Rc<RefCell<BTreeSet<PathBuf>>>,
    /// It continues alone after its program has ended.
    alone: bool,
    checked: Option<PathBuf>,
    /// Its last call asked whether the job has ended.
    asked: Cell<bool>,
    other: Option<Other>,
}

type Work = dyn FnOnce(&SharedWorld);

struct Other(Box<Work>);

impl std::fmt::Debug for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another worker")
    }
}

impl Sim {
    pub fn new(world: &SharedWorld, trouble: Trouble) -> Self {
        Self {
            world: Rc::clone(world),
            settings: settings(),
            trouble,
            points: 0,
            calls: 0,
            outside: false,
            locks: Rc::default(),
            alone: false,
            checked: None,
            asked: Cell::new(false),
            other: None,
        }
    }

    pub fn well(world: &SharedWorld) -> Self {
        Self::new(world, Trouble::None)
    }

    pub fn begun(&mut self, scenario: &Scenario) -> Begun {
        let job = scenario.job().expect("job");
        job::begin(self, &job, scenario, scenario.when)
    }

    pub fn begin(&mut self, scenario: &Scenario) -> Result<(), FailedStart> {
        let begun = self.begun(scenario);
        assert!(begun.failed.is_some() || begun.code == 0, "{begun:?}");
        begun.failed.map_or(Ok(()), Err)
    }

    pub fn end(&mut self, scenario: &Scenario) -> Findings {
        let settings = scenario.settings();
        job::end(self, &scenario.id(), &scenario.ending(&settings)).findings
    }

    pub fn meeting(mut self, other: impl FnOnce(&SharedWorld) + 'static) -> Self {
        self.other = Some(Other(Box::new(other)));
        self
    }

    pub fn points(&self) -> usize {
        self.points
    }

    pub fn calls(&self) -> usize {
        self.calls
    }

    fn point(&mut self) {
        let now = self.points;
        self.points += 1;
        if self.trouble == Trouble::KillAt(now) {
            panic_any(Killed);
        }
        if self.trouble == Trouble::MeetsAt(now)
            && let Some(other) = self.other.take()
        {
            other.0(&self.world);
            let ended = std::mem::take(&mut self.world.borrow_mut().starter_ended);
            if ended && self.alone {
                panic_any(Killed);
            }
        }
    }

    fn call(&mut self, name: &'static str) -> Result<(), Failure> {
        self.point();
        self.asked.set(false);
        let of_nvml = [
            "inventory",
            "compute_mode",
            "set_compute_mode",
            "gpu_processes",
        ];
        if of_nvml.contains(&name) && self.world.borrow().silent {
            return Err(Undetermined::new("NVML", "no answer within 5000 ms").into());
        }
        match self.trouble_of_call() {
            Some(true) => Err(Fault::new(Evidence::Storage, name, "injected").into()),
            Some(false) => Err(Undetermined::new(name, "injected").into()),
            None => Ok(()),
        }
    }

    /// Whether it fails, and whether by evidence.
    fn trouble_of_call(&mut self) -> Option<bool> {
        let now = self.calls;
        self.calls += 1;
        match self.trouble {
            Trouble::FaultAt(at) if at == now => Some(true),
            Trouble::UndeterminedAt(at) if at == now => Some(false),
            _ => None,
        }
    }

    fn step<T>(&mut self, change: impl FnOnce(&mut World) -> T) -> T {
        let changed = change(&mut self.world.borrow_mut());
        self.point();
        changed
    }
}

/// Runs a worker's `work`; `None` if it was killed. Its locks are released then, as by the kernel.
pub fn living<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(why) if why.is::<Killed>() => None,
        Err(other) => resume_unwind(other),
    }
}

pub fn silence_kills() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Killed>() {
                usual(info);
            }
        }));
    });
}

fn settings() -> NodeSettings {
    let settings = Settings {
        paths: paths(),
        ..Settings::usual()
    };
    let limit = Duration::from_secs(20);
    NodeSettings::new(&settings, limit, limit / 2)
}
