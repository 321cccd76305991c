//! Markers of our own drains, and the spool of those that were not delivered, in
//! `/var/lib/mpsd/drains`.

use mpsd_core::file::Durability;
use mpsd_core::{Paths, Scheduler};
use mpsd_sys::files::{Dir, FileError};
use std::ffi::OsStr;

pub const VERSION: u32 = 1;
const REMARK: &str = "remark-";
const LONGEST: usize = 64 * 1024;
const MOST: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Marker {
    pub version: u32,
    pub scheduler: Scheduler,
    pub node: String,
    /// Our reason, to the byte.
    pub reason: String,
    /// The administrator's note that our reason replaces. It comes back with the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The GPUs to look at again before the drain is lifted.
    pub gpus: Vec<String>,
    /// How many GPUs the node had, if known: with as many again, a missing one was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<usize>,
    /// Until the scheduler has it the node takes no MPS job.
    pub delivered: bool,
    /// `SLURM_CONF` of the prolog's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<String>,
    /// Seconds since 1970.
    pub when: u64,
    /// The node stays in service, and `reason` is a note for its administrator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remark: bool,
}

impl Marker {
    fn file(&self) -> String {
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let node: String = self.node.chars().filter(plain).collect();
        let kind = if self.remark { REMARK } else { "" };
        format!("{kind}{}-{node}", self.scheduler)
    }
}

fn directory(paths: &Paths) -> Result<Dir, FileError> {
    let make =
        |parent: Dir, name: &OsStr| parent.create_dir(name, 0o711, (0, 0)).map(|(dir, _)| dir);
    let state = paths.state();
    let parent = match (Dir::open(state), state.parent(), state.file_name()) {
        (Err(error), Some(above), Some(name)) if error.is_absent() => {
            make(Dir::open(above)?, name)?
        }
        (opened, _, _) => opened?,
    };
    make(parent, "drains".as_ref())
}

pub fn write(paths: &Paths, marker: &Marker) -> Result<(), String> {
    let text = serde_json::to_vec_pretty(marker).map_err(|e| e.to_string())?;
    let written =
        directory(paths).and_then(|dir| dir.write(marker.file(), &text, 0o644, Durability::OnDisk));
    written.map_err(|e| e.to_string())
}

pub fn remove(paths: &Paths, marker: &Marker) -> Result<(), String> {
    let removed = directory(paths).and_then(|dir| dir.remove_file(marker.file()));
    removed.map(drop).map_err(|e| e.to_string())
}

/// The drains, without garbled ones: the scheduler's own reason tells more.
pub fn all(paths: &Paths) -> Vec<Marker> {
    read_all(paths, false)
}

pub fn remarks(paths: &Paths) -> Vec<Marker> {
    read_all(paths, true)
}

fn read_all(paths: &Paths, remarks: bool) -> Vec<Marker> {
    let Ok(dir) = Dir::open(&paths.drains()) else {
        return Vec::new();
    };
    let read = |name| {
        let bytes = dir.read_limited(name, LONGEST).ok()??;
        serde_json::from_slice(&bytes).ok()
    };
    let names = dir.names(MOST).unwrap_or_default().into_iter();
    let is_one = |marker: &Marker| marker.remark == remarks;
    names.filter_map(read).filter(is_one).collect()
}

pub fn undelivered(paths: &Paths, node: &str) -> Option<Marker> {
    of_node(paths, node, false)
}

pub fn delivered(paths: &Paths, node: &str) -> Option<Marker> {
    of_node(paths, node, true)
}

fn of_node(paths: &Paths, node: &str, delivered: bool) -> Option<Marker> {
    let mut all = all(paths).into_iter();
    all.find(|marker| marker.node == node && marker.delivered == delivered)
}
