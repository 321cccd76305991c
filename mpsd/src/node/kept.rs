//! Small files of root's in our directory below `/run`, each changed under a lock of its own.

use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Time for a file's lock.
const LOCK_TIME: Duration = Duration::from_millis(500);
/// Longest file that is read. Bytes.
const LONGEST: usize = 1 << 20;

/// One of them, by its name.
pub(super) struct Kept(pub &'static str);

impl Kept {
    /// What stands in it: nothing where it is not there, or nobody's of ours.
    pub fn read<T: Default + DeserializeOwned>(&self, run: &Dir) -> T {
        let bytes = run.read_limited(self.0, LONGEST).ok().flatten();
        bytes
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    }

    /// Changes it under its lock, and removes it when nothing is left in it. What stands in it then; None, and nothing is
    /// changed, when the lock is not to be had in time.
    pub fn change<T>(&self, run: &Dir, change: impl FnOnce(&mut T)) -> Option<T>
    where
        T: Default + PartialEq + Serialize + DeserializeOwned,
    {
        let _held = run.lock(self.lock(), Deadline::after(LOCK_TIME)).ok()?;
        let mut kept = self.read(run);
        change(&mut kept);
        if kept == T::default() {
            self.remove(run);
        } else if let Ok(text) = serde_json::to_vec(&kept) {
            let _ = run.write_atomic(self.0, &text, 0o600);
        }
        Some(kept)
    }

    /// Removes it, and its lock.
    pub fn remove(&self, run: &Dir) {
        let _ = run.remove_file(self.0);
        let _ = run.remove_file(self.lock());
    }

    fn lock(&self) -> String {
        format!(".{}.lock", self.0)
    }
}
