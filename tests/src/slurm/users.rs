//! The users who submit: accounts that every machine has.

use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};

use super::bed::lock;

/// Ordinary accounts of Linux distributions; the first ones are in all of them.
const ACCOUNTS: [&str; 12] = [
    "nobody", "daemon", "bin", "mail", "lp", "games", "sync", "news", "sys", "adm", "operator",
    "uucp",
];

static TAKEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The tests create none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

impl User {
    pub fn named(name: &str) -> Result<User> {
        let user = users::get_user_by_name(name);
        let user = user.with_context(|| format!("there is no account '{name}'"))?;
        let is_root = user.uid() == 0;
        ensure!(
            !is_root,
            "'{name}' is root, and jobs are an ordinary user's"
        );
        Ok(User {
            name: name.to_owned(),
            uid: user.uid(),
            gid: user.primary_group_id(),
        })
    }

    pub fn root() -> User {
        User {
            name: "root".into(),
            uid: 0,
            gid: 0,
        }
    }
}

/// No other bed has them meanwhile: the owner tells which job left something in `/dev/shm`.
#[derive(Debug)]
pub(super) struct Pair(pub [User; 2]);

impl Pair {
    /// The first two that no bed has.
    pub fn take() -> Result<Pair> {
        let mut taken = lock(&TAKEN);
        let mut free = existing().filter(|user| !taken.contains(&user.name));
        let mut next = || free.next().context("no account is left for a further bed");
        let pair = [next()?, next()?];
        taken.extend(pair.iter().map(|user| user.name.clone()));
        Ok(Pair(pair))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        lock(&TAKEN).retain(|name| self.0.iter().all(|user| user.name != *name));
    }
}

pub fn most_beds() -> usize {
    existing().count() / 2
}

fn existing() -> impl Iterator<Item = User> {
    ACCOUNTS.iter().filter_map(|name| User::named(name).ok())
}
