//! The values of `mpsd.toml`. Each is checked when it is read, so that an error points at its line
//! and column.

use crate::bind::{Bind, DeviceNames};
use crate::failure::{Evidence, Fault};
use crate::limits::{Amount, Invalid, Percent};
use crate::request::{MemoryLimit, Mode, Threads};
use crate::text::{is_word, nearest, one_line, or_meant};
use serde::de::{DeserializeOwned, IntoDeserializer as _, value};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;
use toml::de::DeValue;

const LONGEST_REASON: usize = 600;
const TYPE_NAMES: [(&str, &str); 3] = [
    ("expected i64", "expected a whole number"),
    ("expected a sequence", "expected a list in brackets"),
    ("expected a boolean", "expected true or false"),
];

#[derive(Debug)]
pub struct ConfigError {
    pub(super) span: Range<usize>,
    why: String,
}

impl ConfigError {
    pub(super) fn at(span: Range<usize>, why: impl AsRef<str>) -> Self {
        let why = one_line(why.as_ref(), LONGEST_REASON);
        Self { span, why }
    }

    pub(super) fn of_key(self, key: &str) -> Self {
        let why = format!("{key}: {}", self.why);
        Self { why, ..self }
    }

    pub(super) fn allowed(self, line: &str) -> Self {
        let why = format!("{}; allowed: as in '{line}'", self.why);
        Self { why, ..self }
    }

    pub(super) fn toml(error: &toml::de::Error, part: Range<usize>) -> Self {
        Self::at(error.span().unwrap_or(part), in_words(error.message()))
    }

    pub(super) fn in_file(self, file: &Path, text: &str) -> Fault {
        let (line, column) = position(text, self.span.start);
        let place = format!("{}:{line}:{column}", file.display());
        Fault::new(Evidence::Configuration, place, self.why)
    }
}

/// Serde's message without names that only a programmer knows, and with the word that was meant.
fn in_words(message: &str) -> String {
    let mut why = message.trim_end().replace('\n', "; ").replace('`', "'");
    for (name, words) in TYPE_NAMES {
        why = why.replace(name, words);
    }
    let unknown = why.split_once("unknown variant '");
    let unknown = unknown.and_then(|(before, rest)| Some((before, rest.split_once('\'')?)));
    let Some((before, (word, expected))) = unknown else {
        return why;
    };
    let known = expected.split('\'').skip(1).step_by(2);
    let meant = nearest(word, known).map(|meant| format!("'{meant}'"));
    let unknown = or_meant(&format!("unknown word '{word}'"), meant);
    format!("{before}{unknown}{expected}")
}

/// The line and column, from 1, of the byte at `offset`.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

#[derive(Debug)]
pub struct Entry<'a> {
    value: &'a Spanned<DeValue<'a>>,
    node: &'a str,
}

pub(super) trait Value: Serialize + Sized {
    fn read(entry: &Entry<'_>) -> Result<Self, ConfigError>;

    /// The value as it would stand in the file; `None`: not set.
    fn written(&self) -> Option<String> {
        let value = toml::Value::try_from(self).ok()?;
        Some(value.to_string())
    }
}

impl<'a> Entry<'a> {
    pub(super) fn new(value: &'a Spanned<DeValue<'a>>, node: &'a str) -> Self {
        Self { value, node }
    }

    pub(super) fn get<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let value = self.value.clone();
        let span = value.span();
        T::deserialize(value.into_deserializer()).map_err(|error| ConfigError::toml(&error, span))
    }

    fn checked<T>(
        &self,
        check: impl FnOnce(String) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        check(self.get()?).map_err(|why| ConfigError::at(self.value.span(), why))
    }

    /// TOML's own deserializer is large for each type.
    fn word<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let in_words = |error: value::Error| in_words(&error.to_string());
        self.checked(|text| T::deserialize(text.into_deserializer()).map_err(in_words))
    }

    fn path(&self) -> Result<PathBuf, ConfigError> {
        self.checked(|text| on_node(&text, self.node).map(PathBuf::from))
    }

    /// In the request's grammar: `"30:70"`, and plain numbers without quotes too.
    fn worded<T: FromStr<Err = Invalid>>(&self) -> Result<T, ConfigError> {
        let text = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            _ => self.get()?,
        };
        let parsed = text.parse();
        parsed.map_err(|invalid: Invalid| ConfigError::at(self.value.span(), invalid.to_string()))
    }

    pub(super) fn whole<const LEAST: u32, const MOST: u32, T: From<u32>>(
        &self,
    ) -> Result<T, ConfigError> {
        let number: i64 = self.get()?;
        let fits = u32::try_from(number).ok();
        let fits = fits.filter(|number| (LEAST..=MOST).contains(number));
        let why = || format!("{number} is out of range; allowed: {LEAST} to {MOST}");
        fits.map(T::from)
            .ok_or_else(|| ConfigError::at(self.value.span(), why()))
    }

    pub(super) fn seconds<const MOST: u32>(&self) -> Result<Duration, ConfigError> {
        self.whole::<1, MOST, u64>().map(Duration::from_secs)
    }

    /// A shared library: a name for the system's loader, or an absolute path.
    pub(super) fn library(&self) -> Result<String, ConfigError> {
        self.checked(|text| match is_word(&text, b"._+-") {
            true => Ok(text),
            false => {
                on_node(&text, self.node).map_err(|why| format!("{why}, nor a library's name"))
            }
        })
    }

    fn name(&self) -> Result<String, ConfigError> {
        self.checked(|text| match is_word(&text, b"._-") {
            true => Ok(text),
            false => Err("not a name; allowed: letters, digits and any of '._-'".to_owned()),
        })
    }

    fn names(&self) -> Result<Vec<String>, ConfigError> {
        let DeValue::Array(list) = self.value.get_ref() else {
            return self.get();
        };
        let names = list.iter().map(|value| Entry::new(value, self.node).name());
        names.collect()
    }
}

/// An absolute path in which `%n` stands for the node's name.
fn on_node(text: &str, node: &str) -> Result<String, String> {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) || text.chars().any(char::is_control) {
        return Err("not an absolute path without '..'".to_owned());
    }
    if text.replace("%n", "").contains('%') {
        return Err("'%' is followed by something else than 'n' (the node's name)".to_owned());
    }
    Ok(text.replace("%n", node))
}

/// `Type: parser;`, and how it is written if serde does that differently.
macro_rules! values {
    ($($type:ty: $read:expr $(, $written:expr)?;)+) => {$(
        impl Value for $type {
            fn read(entry: &Entry<'_>) -> Result<Self, ConfigError> {
                $read(entry)
            }
            $(fn written(&self) -> Option<String> {
                let written: fn(&Self) -> Option<String> = $written;
                written(self)
            })?
        }
    )+};
}

values! {
    bool: Entry::get;
    u32: Entry::whole::<0, { u32::MAX }, _>;
    Duration: Entry::seconds::<{ u32::MAX }>, |time| Some(time.as_secs().to_string());
    String: Entry::name;
    PathBuf: Entry::path;
    Vec<String>: Entry::names;
    Cgroup: Cgroup::read;
    Percent: Entry::worded, |percent| Some(percent.to_string());
    Amount: Entry::worded;
    Mode: Entry::worded;
    Bind: Entry::worded;
    DeviceNames: Entry::worded;
    MemoryLimit: Entry::worded;
    Threads: Entry::worded, |threads| match threads {
        Threads::Uniform(percent) => percent.written(),
        other => other.to_string().written(),
    };
}

impl<T: Value> Value for Option<T> {
    fn read(entry: &Entry<'_>) -> Result<Self, ConfigError> {
        T::read(entry).map(Some)
    }

    fn written(&self) -> Option<String> {
        self.as_ref()?.written()
    }
}

/// Keys that take one of these words. The rows of `settings` say what each word means.
macro_rules! words {
    ($($type:ident: $($word:ident)+;)+) => {$(
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $type {
            $($word),+
        }

        impl Value for $type {
            fn read(entry: &Entry<'_>) -> Result<Self, ConfigError> {
                entry.word()
            }
        }
    )+};
}

words! {
    ComputeModeRule: Exclusive Keep;
    GpusUnknown: Refuse WholeNodeIfExclusive;
    WarnOrRefuse: Warn Refuse;
    LeftoverClients: Report Kill;
    MemoryOverLimit: Ignore Log Terminate;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cgroup {
    Auto,
    None,
    /// Below this directory of the cgroup file system.
    #[serde(untagged)]
    Below(PathBuf),
}

impl Cgroup {
    fn read(entry: &Entry<'_>) -> Result<Self, ConfigError> {
        entry.checked(|text| match text.as_str() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            _ => match on_node(&text, entry.node) {
                Ok(path) => Ok(Self::Below(path.into())),
                Err(why) => Err(format!("{why}, nor auto, nor none")),
            },
        })
    }
}
