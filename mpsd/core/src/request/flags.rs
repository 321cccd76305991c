//! Slurm's flags: each value is parsed once, when the flag arrives.
//!
//! Slurm gives a flag without its value as NULL at submission, as the empty string on a node and as the text `(null)`
//! in the prolog (docs/facts/slurm.md#options). Whatever arrives on a node is the user's text, checked or not.

use super::options::{Key, Request};
use super::words::{Wording, Words, refuse_if_long};
use crate::failure::Refusal;

/// Longest value that goes on in the raw form. Characters.
const LONGEST_RAW: usize = 100;

/// The flags as given, each at most once: the last one counts, as with Slurm's own (a command line overrides the
/// environment).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flags([Option<Flag>; Key::ALL.len()]);

#[derive(Debug, Clone, PartialEq)]
struct Flag {
    text: Option<String>,
    words: Result<Words, Refusal>,
}

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
        let text = argument.filter(|text| !matches!(*text, "" | "(null)"));
        let list = key.row().list;
        let value = text.map(|text| {
            if list {
                text.replace(',', ":")
            } else {
                text.to_owned()
            }
        });
        let mut words = Words::default();
        let name = Wording::Options.token(key, None);
        let taken = refuse_if_long("the --mps flags", name.len() + text.map_or(0, str::len))
            .and_then(|()| words.take(Wording::Options, key, &name, value.as_deref()));
        self.0[key as usize] = Some(Flag {
            text: text.map(str::to_owned),
            words: taken.clone().map(|()| words),
        });
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
        let length =
            |(key, flag): (Key, &Flag)| key.row().flag().len() + flag.text.as_deref().map_or(0, str::len);
        refuse_if_long("the --mps flags", self.given().map(length).sum())?;
        let mut all = Words::default();
        for (_, flag) in self.given() {
            all.fill(flag.words.as_ref().map_err(Clone::clone)?);
        }
        all.request(Wording::Options)
    }

    /// The flags as tokens that `mps-prologue` refuses again with the same reason and records: for flags that make no
    /// request. What could split or hide a token is replaced by `?`.
    pub fn raw(&self) -> String {
        let token = |(key, flag): (Key, &Flag)| {
            let text = flag.text.as_deref().or(key.row().bare).unwrap_or_default();
            let value: String = text.chars().take(LONGEST_RAW).map(harmless).collect();
            format!("{}={value}", key.row().token())
        };
        self.given().map(token).collect::<Vec<_>>().join(",")
    }

    fn given(&self) -> impl Iterator<Item = (Key, &Flag)> {
        Key::ALL
            .into_iter()
            .zip(&self.0)
            .filter_map(|(key, flag)| Some((key, flag.as_ref()?)))
    }
}

fn harmless(c: char) -> char {
    match c {
        ',' => ':',
        c if c.is_ascii_graphic() && c != ';' => c,
        _ => '?',
    }
}
