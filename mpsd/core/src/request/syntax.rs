//! How a user writes a request, and what a refusal of it says. Every text is hostile: a Slurm user
//! can put any bytes into the variable that root's prolog reads (docs/facts/slurm.md#options).

use super::options::{Key, Request};
use super::values::Mode;
use crate::bind::Bind;
use crate::failure::Refusal;
use crate::limits::{Amount, Percent, carried_as_text};
use crate::text::{nearest, one_line, or_meant};
use std::str::FromStr;

/// Longest text that may hold a request. Bytes.
pub(super) const LONGEST: usize = 1024;
const LONGEST_RAW: usize = 100;
const SHOWN: usize = 60;

/// Messages name each option as the user wrote it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Syntax {
    /// Account tokens: `MPS_THREADS=25`.
    #[default]
    Account,
    /// Slurm's flags: `--mps-threads=25`.
    Flags,
    /// OpenPBS's resource: `mps=threads=25`.
    Resource,
}

impl Syntax {
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

    fn all_tokens(self) -> String {
        Key::ALL.map(|key| self.token(key, None)).join(", ")
    }

    fn switch(self, word: &str) -> String {
        match self {
            Syntax::Account => "add MPS=on".to_owned(),
            Syntax::Flags => "add --mps".to_owned(),
            Syntax::Resource => {
                format!("write mps=on+{}", word.strip_prefix("mps=").unwrap_or(word))
            }
        }
    }

    /// The key that the user wrote as `name`; `word` is what a refusal repeats.
    fn key(self, name: &str, word: &str) -> Result<Key, Refusal> {
        if let Some(key) = Key::named(name) {
            return Ok(key);
        }
        let names = Key::ALL.map(|key| key.row().name);
        let name = name.to_ascii_lowercase().replace('_', "-");
        let meant = nearest(name.trim_start_matches("mps-"), names);
        let key = meant.and_then(|meant| Key::ALL.into_iter().find(|key| key.row().name == meant));
        let why = or_meant("unknown key", key.map(|key| self.token(key, None)));
        Err(refuse(word, &why, self.all_tokens()))
    }

    fn meant(self, key: Key, value: &str) -> Option<String> {
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
}

fn refuse(word: &str, why: &str, allowed: impl Into<String>) -> Refusal {
    Refusal::new(one_line(word, SHOWN), why, allowed)
}

fn refuse_if_long(what: &str, bytes: usize) -> Result<(), Refusal> {
    if bytes <= LONGEST {
        return Ok(());
    }
    let allowed = format!("at most {LONGEST} bytes");
    Err(Refusal::new(what, format!("{bytes} bytes long"), allowed))
}

impl Key {
    fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase().replace('-', "_");
        Self::ALL.into_iter().find(|key| key.row().token() == name)
    }
}

#[derive(Default)]
struct Parser {
    syntax: Syntax,
    request: Request,
    has_mode: bool,
    dependent: Option<String>,
}

impl Parser {
    fn new(syntax: Syntax) -> Self {
        let empty = Self::default();
        Self { syntax, ..empty }
    }

    fn take(&mut self, key: Key, name: &str, value: Option<&str>) -> Result<(), Refusal> {
        let word = value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
        if key != Key::Mode {
            self.dependent.get_or_insert_with(|| word.clone());
        }
        let is_first_mode = key == Key::Mode && !std::mem::replace(&mut self.has_mode, true);
        let row = key.row();
        let needed = || refuse(&word, "needs a value", row.allowed);
        let text = value.or(row.bare).ok_or_else(needed)?;
        match self.request.put(key, text) {
            Ok(is_same) if is_same || is_first_mode => Ok(()),
            Ok(_) => {
                let why = "given twice with different values";
                Err(refuse(&word, why, "one value"))
            }
            Err(invalid) => {
                let meant = value.and_then(|value| self.syntax.meant(key, value));
                let why = or_meant(&invalid.why, meant);
                Err(refuse(&word, &why, invalid.allowed))
            }
        }
    }

    fn finish(self) -> Result<Request, Refusal> {
        if !self.has_mode {
            let word = self.dependent.unwrap_or_default();
            let why = format!("MPS itself is not asked for: {}", self.syntax.switch(&word));
            return Err(refuse(&word, &one_line(&why, 2 * SHOWN), ""));
        }
        self.request.check(self.syntax)?;
        Ok(self.request)
    }
}

/// Slurm's flags. The last value counts, as with Slurm's own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flags([Option<Option<String>>; Key::ALL.len()]);

impl Flags {
    /// [`Flags::request`] refuses what is wrong with them.
    pub fn from_fn(given: impl Fn(Key) -> Option<Option<String>>) -> Self {
        let mut flags = Self::default();
        for key in Key::ALL {
            if let Some(argument) = given(key) {
                let _ = flags.take(key, argument.as_deref());
            }
        }
        flags
    }

    /// Keeps a flag and checks its value alone; [`Flags::request`] refuses a wrong one again.
    /// Without a value Slurm gives NULL, `""` or `(null)` (docs/facts/slurm.md#options).
    pub fn take(&mut self, key: Key, argument: Option<&str>) -> Result<(), Refusal> {
        let value = argument.filter(|text| !matches!(*text, "" | "(null)"));
        let flag = Some(value.map(str::to_owned));
        let mut alone = Self::default();
        alone.0[key as usize].clone_from(&flag);
        self.0[key as usize] = flag;
        alone.parse().map(drop)
    }

    pub fn request(&self) -> Result<Option<Request>, Refusal> {
        match self.given().next() {
            None => Ok(None),
            Some(_) => self.parse()?.finish().map(Some),
        }
    }

    /// Reads limits without a mode as those of a step in a job with MPS.
    pub fn imply_mode(&mut self) {
        if self.given().next().is_some() {
            self.0[Key::Mode as usize].get_or_insert(None);
        }
    }

    fn parse(&self) -> Result<Parser, Refusal> {
        let name = |key| Syntax::Flags.token(key, None);
        let length =
            |(key, value): (Key, Option<&str>)| name(key).len() + value.map_or(0, str::len);
        refuse_if_long("the --mps flags", self.given().map(length).sum())?;
        let mut parser = Parser::new(Syntax::Flags);
        for (key, value) in self.given() {
            let list = value.filter(|_| key.row().list);
            let list = list.map(|text| text.replace(',', ":"));
            parser.take(key, &name(key), list.as_deref().or(value))?;
        }
        Ok(parser)
    }

    /// Wrong flags as tokens that `mps-prologue` refuses too; `?` stands for what could split or
    /// hide a token.
    pub fn raw(&self) -> String {
        let harmless = |c: char| match c {
            ',' => ':',
            c if c.is_ascii_graphic() && c != ';' => c,
            _ => '?',
        };
        let token = |(key, value): (Key, Option<&str>)| {
            let text = value.or(key.row().bare).unwrap_or_default();
            let value: String = text.chars().take(LONGEST_RAW).map(harmless).collect();
            Syntax::Account.token(key, Some(&value))
        };
        self.given().map(token).collect::<Vec<_>>().join(",")
    }

    fn given(&self) -> impl Iterator<Item = (Key, Option<&str>)> {
        let all = Key::ALL.into_iter().zip(&self.0);
        all.filter_map(|(key, flag)| Some((key, flag.as_ref()?.as_deref())))
    }
}

impl Request {
    pub fn from_flags(line: &str) -> Result<Self, Refusal> {
        let mut flags = Flags::default();
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').unzip();
            let key = key_of_flag(name.unwrap_or(word))?;
            let value = value.or_else(|| key.row().bare.is_none().then(|| words.next()).flatten());
            flags.take(key, value)?;
        }
        let request = flags.request()?.filter(Self::is_on);
        Ok(request.unwrap_or_default())
    }

    /// Reads an account such as `proj1,MPS=true,MPS_THREADS=25`, of unknown encoding; `None`: no
    /// token is ours. Refuses what can only be meant for us.
    pub fn from_account(account: impl AsRef<[u8]>) -> Result<Option<Self>, Refusal> {
        Self::from_account_of(account, &[])
    }

    /// The same on a site with these projects, which are no request in any spelling.
    pub fn from_account_of(
        account: impl AsRef<[u8]>,
        projects: &[String],
    ) -> Result<Option<Self>, Refusal> {
        let text = String::from_utf8_lossy(account.as_ref());
        let is_project = |token: &&str| projects.iter().any(|project| project == token);
        let is_between = |c: char| c == ',' || c == ';' || c.is_ascii_whitespace();
        let tokens = || text.split(is_between).filter(|token| !is_project(token));
        if let Some(refusal) = tokens().find_map(near_miss) {
            return Err(refusal);
        }
        let pairs = || tokens().filter_map(|token| token.split_once('='));
        let mut ours = pairs().filter(|(key, _)| is_ours(key)).peekable();
        let Some((first, _)) = ours.peek() else {
            return Ok(None);
        };
        let what = format!("the account with {}", one_line(first, SHOWN));
        refuse_if_long(&what, account.as_ref().len())?;
        let mut parser = Parser::new(Syntax::Account);
        for (name, value) in ours {
            let key = Syntax::Account.key(name, &format!("{name}={value}"))?;
            parser.take(key, name, Some(value))?;
        }
        match pairs().find_map(|(name, value)| without_prefix(name, value)) {
            Some(refusal) => Err(refusal),
            None => parser.finish().map(Some),
        }
    }

    pub fn from_resource(resource: &str) -> Result<Self, Refusal> {
        refuse_if_long("the mps resource", resource.len())?;
        let mut parser = Parser::new(Syntax::Resource);
        for word in resource.split('+') {
            let Some((name, value)) = word.split_once('=') else {
                parser.take(Key::Mode, "mps", Some(word))?;
                continue;
            };
            let shown = format!("mps={name}");
            let key = match Key::named(&format!("mps-{name}")) {
                Some(key) => key,
                None => Syntax::Resource.key(name, &format!("{shown}={value}"))?,
            };
            parser.take(key, &shown, Some(value))?;
        }
        parser.finish()
    }

    /// One request from an account and a resource, which may not contradict each other.
    pub fn merge(account: Self, resource: Self) -> Result<Self, Refusal> {
        for key in Key::ALL {
            if let (Some(one), Some(other)) = (account.value(key), resource.value(key))
                && one != other
            {
                let row = key.row();
                let word = if row.name.is_empty() { "mps" } else { row.name };
                let what = format!("{}={one} in the account", row.token());
                let why = format!("contradicts {word}={other} in the mps resource");
                let allowed = "the same in both, or only one of them";
                return Err(Refusal::new(what, why, allowed));
            }
        }
        let mut merged = account;
        merged.fill(&resource);
        merged.check(Syntax::Account)?;
        Ok(merged)
    }

    /// The rules for several options together.
    fn check(&self, syntax: Syntax) -> Result<(), Refusal> {
        let shows_several = self.bind.filter(|bind| *bind == Bind::None);
        if let (Mode::PerGpu, Some(bind)) = (self.mode, shows_several) {
            let what = syntax.token(Key::Bind, Some(&bind.to_string()));
            let why = "with a daemon for each GPU a task sees one";
            return Err(Refusal::new(what, why, "block, cyclic, closest"));
        }
        if let (Mode::Auto, Some(bind)) = (self.mode, self.bind) {
            let what = syntax.token(Key::Bind, Some(&bind.to_string()));
            let why = "auto may give the job no MPS, and then nothing binds its tasks";
            return Err(Refusal::new(what, why, syntax.token(Key::Mode, Some("on"))));
        }
        let what = "the words for MPS in their plain form";
        refuse_if_long(what, self.to_string().len())
    }
}

impl FromStr for Request {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let what = || format!("'{}'", one_line(text, SHOWN));
        let none = || Refusal::new(what(), "holds no word for MPS", "MPS=on,MPS_THREADS=25");
        Self::from_account(text)?.ok_or_else(none)
    }
}

carried_as_text!(Request);

fn key_of_flag(name: &str) -> Result<Key, Refusal> {
    let flags = Key::ALL.map(|key| Syntax::Flags.token(key, None));
    if let Some(at) = flags.iter().position(|flag| flag == name) {
        return Ok(Key::ALL[at]);
    }
    let near = || nearest(name, flags.iter().map(String::as_str)).map(str::to_owned);
    let (why, meant) = match name.starts_with("--") {
        true => ("unknown flag", near()),
        false => ("not a flag", Syntax::Flags.meant(Key::Mode, name)),
    };
    let why = or_meant(why, meant);
    Err(refuse(name, &why, Syntax::Flags.all_tokens()))
}

/// `MPS`, or `MPS_` and letters, in any case. Everything else belongs to the site.
fn is_ours(key: &str) -> bool {
    let key = key.to_ascii_uppercase();
    let letters =
        |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphabetic());
    key == "MPS" || key.strip_prefix("MPS_").is_some_and(letters)
}

/// Refuses what is meant for us, but is not `KEY=VALUE`: `mps`, `--mps-threads=25`, `MPS:true`.
fn near_miss(token: &str) -> Option<Refusal> {
    if token.split_once('=').is_some_and(|(key, _)| is_ours(key)) {
        return None;
    }
    let word = token.trim_start_matches('-').trim_matches(['"', '\'']);
    word.get(..3)
        .filter(|start| start.eq_ignore_ascii_case("MPS"))?;
    let (name, value) = word.split_once(['=', ':']).unzip();
    let key = Key::named(name.unwrap_or(word))?;
    let row = key.row();
    let is_value = |value: &str| value.parse::<Mode>().is_ok();
    // 'mps:physics' is a project.
    if key == Key::Mode && !word.contains('=') && !value.is_none_or(is_value) {
        return None;
    }
    let meant = Syntax::Account.token(key, Some(value.or(row.bare).unwrap_or(row.value)));
    let why = or_meant("not written as a request", Some(one_line(&meant, SHOWN)));
    let allowed = row.allowed;
    let allowed = format!("{allowed}; a project of that name: projects in mpsd.toml");
    Some(refuse(token, &why, allowed))
}

/// Refuses `THREADS=25`: beside MPS=true it can only mean MPS_THREADS.
fn without_prefix(name: &str, value: &str) -> Option<Refusal> {
    let key = Key::named(&format!("mps_{name}"))?;
    let meant = one_line(&Syntax::Account.token(key, Some(value)), SHOWN);
    let why = or_meant("unknown key beside MPS", Some(meant));
    let word = format!("{name}={value}");
    Some(refuse(&word, &why, Syntax::Account.all_tokens()))
}
