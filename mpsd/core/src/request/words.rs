//! How the words are spelled in an account and a resource, and how they are put together.

use super::options::{Key, Request};
use super::values::Mode;
use crate::bind::Bind;
use crate::failure::Refusal;
use crate::limits::{Amount, Invalid, Percent, carried_as_text};
use crate::text::{nearest, one_line, or_meant};
use std::str::FromStr;

/// Longest text with a token of ours, bytes.
pub(super) const LONGEST: usize = 1024;
/// How much of a user's text a message repeats, characters.
const SHOWN: usize = 60;
/// The token without a value, as our documentation spells its key: a site's own account may be called `mps`.
const BARE: &str = "MPS";

impl Key {
    /// The option whose token or flag is `name`, in any case, `-` for `_`.
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase().replace('-', "_");
        Self::ALL.into_iter().find(|key| key.row().token() == name)
    }
}

/// How a user wrote the words, so that a message can name them as the user knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// Account tokens: `MPS_THREADS=25`.
    Account,
    /// Slurm's flags: `--mps-threads=25`.
    Flags,
    /// OpenPBS's resource: `mps=threads=25`.
    Resource,
}

impl Syntax {
    /// A word as the user knows it.
    pub fn token(self, key: Key, value: Option<&str>) -> String {
        let row = key.row();
        let name = match self {
            Syntax::Account => row.token(),
            Syntax::Flags => format!("--{}", row.flag()),
            Syntax::Resource if row.name.is_empty() => "mps".to_owned(),
            Syntax::Resource => format!("mps={}", row.name),
        };
        match value {
            Some(value) => format!("{name}={value}"),
            None => name,
        }
    }

    pub(super) fn keys(self) -> String {
        Key::ALL.map(|key| self.token(key, None)).join(", ")
    }

    /// How to ask for MPS at all, for whom `word` alone does not.
    fn switch(self, word: &str) -> String {
        match self {
            Syntax::Account => "add MPS=on".to_owned(),
            Syntax::Flags => "add --mps".to_owned(),
            Syntax::Resource => format!("write mps=on+{}", word.strip_prefix("mps=").unwrap_or(word)),
        }
    }

    /// The refusal of a key that is none; `name` is what the user wrote of it.
    fn unknown(self, name: &str, shown: &str) -> Refusal {
        let names = Key::ALL.map(|key| key.row().name);
        let name = name.to_ascii_lowercase().replace('_', "-");
        let name = name.trim_start_matches("mps-");
        let meant =
            nearest(name, names).and_then(|name| Key::ALL.into_iter().find(|key| key.row().name == name));
        let meant = meant.map(|key| self.token(key, None));
        self.refuse(shown, &or_meant("unknown key", meant), self.keys())
    }

    /// What a user may have meant by `value`, which is none of `key`.
    pub(super) fn meant(self, key: Key, value: &str) -> Option<String> {
        let limit = match key {
            Key::Mode if value.parse::<Percent>().is_ok() => Some(Key::Threads),
            Key::Mode if value.parse::<Amount>().is_ok() => Some(Key::Mem),
            _ => None,
        };
        let (key, value) = match limit {
            Some(limit) => (limit, value),
            None => (key, nearest(value, key.row().words.iter().copied())?),
        };
        Some(one_line(&self.token(key, Some(value)), SHOWN))
    }

    pub(super) fn refuse(self, shown: &str, why: &str, allowed: impl Into<String>) -> Refusal {
        Refusal::new(one_line(shown, SHOWN), why, allowed)
    }
}

impl Request {
    /// Reads an account string such as `proj1,MPS=true,MPS_THREADS=25`, of unknown encoding, as arguments and environments
    /// hold it. `None`: no token is ours.
    ///
    /// Tokens stand between commas, semicolons and blanks. One is ours if it has `=` and its key, in any case, is
    /// `MPS` or `MPS_` and letters; all others are the site's account and are not looked at.
    ///
    /// # Errors
    /// A refusal that names the token, the reason and what is allowed.
    pub fn from_account(account: impl AsRef<[u8]>) -> Result<Option<Self>, Refusal> {
        let source = Syntax::Account;
        let text = String::from_utf8_lossy(account.as_ref());
        let ours: Vec<(&str, &str)> = text
            .split(is_between)
            .filter_map(|token| token.split_once('='))
            .filter(|(key, _)| is_ours(key))
            .collect();
        let Some((first, _)) = ours.first() else {
            return Ok(None);
        };
        refuse_if_long(
            &format!("the account with {}", one_line(first, SHOWN)),
            account.as_ref().len(),
        )?;
        let mut words = Words::default();
        for (name, value) in ours {
            let key = Key::named(name).ok_or_else(|| source.unknown(name, &format!("{name}={value}")))?;
            words.take(source, key, name, Some(value))?;
        }
        words.request(source).map(Some)
    }

    /// What is said to whom the account names MPS without a value: such a token may be the site's own account, and asks for
    /// nothing.
    pub fn almost_asked(account: impl AsRef<[u8]>) -> Option<String> {
        let text = String::from_utf8_lossy(account.as_ref());
        let mut tokens = text.split(is_between);
        let ours = |token: &str| token.split_once('=').is_some_and(|(key, _)| is_ours(key));
        if !tokens.clone().any(|token| token == BARE) || tokens.any(ours) {
            return None;
        }
        Some(format!(
            "'{BARE}' in the account asks for no MPS: this job has none; with one it is submitted as {BARE}=on"
        ))
    }

    /// Reads the value of OpenPBS's `mps` resource: `on+threads=25+mem=4G`.
    ///
    /// # Errors
    /// A refusal that names the word as `mps=…`.
    pub fn from_resource(resource: &str) -> Result<Self, Refusal> {
        let source = Syntax::Resource;
        refuse_if_long("the mps resource", resource.len())?;
        let mut words = Words::default();
        // The mark between the words is also one within MPS_BIND's.
        let resource = resource.replace("+peers", "\0peers");
        for word in resource.split('+').map(|word| word.replace('\0', "+")) {
            let Some((name, value)) = word.split_once('=') else {
                words.take(source, Key::Mode, "mps", Some(&word))?;
                continue;
            };
            let key = Key::named(name).or_else(|| Key::named(&format!("mps-{name}")));
            let shown = format!("mps={name}");
            let key = key.ok_or_else(|| source.unknown(name, &format!("{shown}={value}")))?;
            words.take(source, key, &shown, Some(value))?;
        }
        words.request(source)
    }

    /// One request out of an account's and a resource's: what either says, and no contradiction.
    ///
    /// # Errors
    /// A refusal that names both words where they differ.
    pub fn merge(account: Self, resource: Self) -> Result<Self, Refusal> {
        for key in Key::ALL {
            if let (Some(one), Some(other)) = (account.value(key), resource.value(key))
                && one != other
            {
                let row = key.row();
                let word = if row.name.is_empty() { "mps" } else { row.name };
                let what = format!("{}={one} in the account", row.token());
                let why = format!("contradicts {word}={other} in the mps resource");
                return Err(Refusal::new(what, why, "the same in both, or only one of them"));
            }
        }
        let mut merged = account;
        merged.fill(&resource);
        merged.check(Syntax::Account)?;
        Ok(merged)
    }

    /// The rules that bind several words together.
    fn check(&self, source: Syntax) -> Result<(), Refusal> {
        let excluded = match (&self.threads, &self.memory) {
            (Some(threads), _) => Some((Key::Threads, threads.to_string())),
            (_, Some(memory)) => Some((Key::Mem, memory.to_string())),
            _ => None,
        };
        if let (Some(replicas), Some((key, value))) = (self.replicas, excluded) {
            let what = source.token(Key::Replicas, Some(&replicas.to_string()));
            let why = format!("excludes {}", source.token(key, Some(&value)));
            let allowed = "replicas alone (threads = 100/N, memory = total/N), or threads and memory";
            return Err(Refusal::new(
                one_line(&what, SHOWN),
                one_line(&why, SHOWN + 10),
                allowed,
            ));
        }
        self.check_sms(source)?;
        let one_gpu = self.bind.filter(|bind| bind.peers || *bind == Bind::NONE);
        if let (Mode::PerGpu, Some(bind)) = (self.mode, one_gpu) {
            let what = source.token(Key::Bind, Some(&bind.to_string()));
            let why = "with a daemon for each GPU a task sees one";
            return Err(Refusal::new(what, why, "block, cyclic, closest"));
        }
        let length = self.to_string().len();
        if length > LONGEST {
            let why = format!("{length} bytes in their plain form");
            return Err(Refusal::new(
                "the words for MPS",
                why,
                format!("at most {LONGEST} bytes"),
            ));
        }
        Ok(())
    }
}

impl Request {
    /// With static partitions NVIDIA's daemon ignores percentages.
    fn check_sms(&self, source: Syntax) -> Result<(), Refusal> {
        let Some(sms) = self.value(Key::Sms) else {
            return Ok(());
        };
        let shares = [Key::Threads, Key::Replicas];
        let given = shares.into_iter().find_map(|key| Some((key, self.value(key)?)));
        match given {
            None => Ok(()),
            Some((key, value)) => Err(Refusal::new(
                one_line(&source.token(Key::Sms, Some(&sms)), SHOWN),
                one_line(
                    &format!("excludes {}", source.token(key, Some(&value))),
                    SHOWN + 10,
                ),
                "multiprocessors of each rank's own, or shares",
            )),
        }
    }
}

impl FromStr for Request {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let none = || {
            Refusal::new(
                format!("'{}'", one_line(text, SHOWN)),
                "holds no word for MPS",
                "MPS=on,MPS_THREADS=25",
            )
        };
        Self::from_account(text)?.ok_or_else(none)
    }
}

carried_as_text!(Request);

/// What an account's tokens stand between.
fn is_between(c: char) -> bool {
    c == ',' || c == ';' || c.is_ascii_whitespace()
}

/// `MPS`, or `MPS_` and letters, in any case: all else belongs to the site.
fn is_ours(key: &str) -> bool {
    let key = key.to_ascii_uppercase();
    let letters = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphabetic());
    key == "MPS" || key.strip_prefix("MPS_").is_some_and(letters)
}

pub(super) fn refuse_if_long(what: &str, bytes: usize) -> Result<(), Refusal> {
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(Refusal::new(
        what,
        format!("{bytes} bytes long"),
        format!("at most {LONGEST} bytes"),
    ))
}

/// The words seen so far.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Whether the mode was among them.
    asked: bool,
    request: Request,
    /// The first word that needs MPS to be asked for, as the user wrote it.
    dependent: Option<String>,
}

impl Words {
    /// Takes one word; `name` is its key as the user wrote it, `None` a flag without its value.
    pub(super) fn take(
        &mut self,
        source: Syntax,
        key: Key,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), Refusal> {
        let shown = value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
        if key != Key::Mode && self.dependent.is_none() {
            self.dependent = Some(shown.clone());
        }
        let row = key.row();
        let value_given = value;
        let value = value
            .or(row.bare)
            .ok_or_else(|| Invalid::new("needs a value", row.allowed));
        let first = key == Key::Mode && !std::mem::replace(&mut self.asked, true);
        let same = value.and_then(|value| Ok(self.request.put(key, value)? || first));
        match same {
            Ok(true) => Ok(()),
            Ok(false) => Err(source.refuse(&shown, "given twice with different values", "one value")),
            Err(invalid) => {
                let meant = value_given.and_then(|value| source.meant(key, value));
                Err(source.refuse(&shown, &or_meant(&invalid.why, meant), invalid.allowed))
            }
        }
    }

    pub(super) fn request(self, source: Syntax) -> Result<Request, Refusal> {
        if !self.asked {
            let word = self.dependent.unwrap_or_default();
            let why = format!("MPS itself is not asked for: {}", source.switch(&word));
            return Err(source.refuse(&word, &one_line(&why, 2 * SHOWN), ""));
        }
        self.request.check(source)?;
        Ok(self.request)
    }
}
