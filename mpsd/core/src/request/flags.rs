//! Slurm's flags: each value is parsed once, when the flag arrives.
//!
//! Slurm gives a flag without its value as NULL at submission, as the empty string on a node and as the text `(null)`
//! in the prolog (docs/facts/slurm.md#options). Whatever arrives on a node is the user's text, checked or not.

use super::options::{Key, Request};
use super::words::{Syntax, Words, refuse_if_long};
use crate::failure::Refusal;
use crate::text::{nearest, or_meant};

/// Longest value that goes on in the raw form. Characters.
const LONGEST_RAW: usize = 100;

/// The flags as given, each at most once: the last one counts, as with Slurm's own (a command line overrides the
/// environment).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flags([Option<Flag>; Key::ALL.len()]);

/// The text of a flag; `None`: it was given without one.
type Flag = Option<String>;

/// What the flags come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// No flag.
    Nothing,
    /// `--mps=off`.
    Off,
    /// MPS.
    On(Request),
    /// Flags that make no request; never from an honest submission.
    Wrong(Refusal),
}

impl Flags {
    /// Takes the flag of `key`.
    ///
    /// # Errors
    /// A refusal that names the flag, its value, and what is allowed; the flag is kept, and refused again with the
    /// others.
    pub fn take(&mut self, key: Key, argument: Option<&str>) -> Result<(), Refusal> {
        let flag = argument.filter(|text| !matches!(*text, "" | "(null)"));
        let flag = flag.map(str::to_owned);
        let taken = put([(key, &flag)].into_iter(), &mut Words::default());
        self.0[key as usize] = Some(flag);
        taken
    }

    /// What all flags together come to.
    pub fn demand(&self) -> Demand {
        if self.given().next().is_none() {
            return Demand::Nothing;
        }
        match self.request() {
            Ok(request) if request.is_on() => Demand::On(request),
            Ok(_) => Demand::Off,
            Err(refusal) => Demand::Wrong(refusal),
        }
    }

    fn request(&self) -> Result<Request, Refusal> {
        let mut all = Words::default();
        put(self.given(), &mut all)?;
        all.request(Syntax::Flags)
    }

    /// The flags as tokens that `mps-prologue` refuses again with the same reason and records: for flags that make no
    /// request. What could split or hide a token is replaced by `?`.
    pub fn raw(&self) -> String {
        let token = |(key, flag): (Key, &Flag)| {
            let text = flag.as_deref().or(key.row().bare).unwrap_or_default();
            let value: String = text.chars().take(LONGEST_RAW).map(harmless).collect();
            format!("{}={value}", key.row().token())
        };
        self.given().map(token).collect::<Vec<_>>().join(",")
    }

    fn given(&self) -> impl Iterator<Item = (Key, &Flag)> + Clone {
        Key::ALL
            .into_iter()
            .zip(&self.0)
            .filter_map(|(key, flag)| Some((key, flag.as_ref()?)))
    }
}

impl Request {
    /// Reads the flags as they stand on a command line: `--mps --mps-threads=25`.
    ///
    /// # Errors
    /// A refusal that names the flag, the reason and what is allowed.
    pub fn from_flags(line: &str) -> Result<Self, Refusal> {
        let mut flags = Flags::default();
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
            let key = key_of(name)?;
            let value = value.or_else(|| key.row().bare.is_none().then(|| words.next()).flatten());
            flags.take(key, value)?;
        }
        match flags.demand() {
            Demand::On(request) => Ok(request),
            Demand::Wrong(refusal) => Err(refusal),
            Demand::Off | Demand::Nothing => Ok(Self::default()),
        }
    }
}

/// The option whose flag is `name`.
fn key_of(name: &str) -> Result<Key, Refusal> {
    const SOURCE: Syntax = Syntax::Flags;
    let all = Key::ALL.map(|key| SOURCE.token(key, None));
    let found = Key::ALL.into_iter().zip(&all).find(|(_, flag)| *flag == name);
    let (why, meant) = match name.starts_with("--") {
        true => (
            "unknown flag",
            nearest(name, all.iter().map(String::as_str)).map(str::to_owned),
        ),
        false => ("not a flag", SOURCE.meant(Key::Mode, name)),
    };
    let refused = || SOURCE.refuse(name, &or_meant(why, meant), SOURCE.keys());
    found.map(|(key, _)| key).ok_or_else(refused)
}

/// Puts `flags` into `words`.
fn put<'f>(flags: impl Iterator<Item = (Key, &'f Flag)> + Clone, words: &mut Words) -> Result<(), Refusal> {
    let name = |key| Syntax::Flags.token(key, None);
    let length = |(key, flag): (Key, &Flag)| name(key).len() + flag.as_deref().map_or(0, str::len);
    refuse_if_long("the --mps flags", flags.clone().map(length).sum())?;
    for (key, flag) in flags {
        let value = match key.row().list {
            true => flag.as_ref().map(|text| text.replace(',', ":")),
            false => flag.clone(),
        };
        words.take(Syntax::Flags, key, &name(key), value.as_deref())?;
    }
    Ok(())
}

fn harmless(c: char) -> char {
    match c {
        ',' => ':',
        c if c.is_ascii_graphic() && c != ';' => c,
        _ => '?',
    }
}
