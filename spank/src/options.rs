//! The flags: what srun, sbatch and salloc offer, and what was given.
//!
//! Slurm gives a flag without its value as NULL at submission, as the empty string on a node and as the text `(null)`
//! in the prolog (facts: slurm-live, "Options"). Whatever arrives on a node is the user's text, checked or not.

use mpsd_core::text::one_line;
use mpsd_core::{Mode, Refusal, Request};
use std::ffi::CStr;

/// One flag.
#[derive(Debug)]
pub struct OptionSpec {
    /// Without the dashes.
    pub name: &'static CStr,
    /// Its value in `--help`.
    pub value: &'static CStr,
    /// Whether the value may be left out.
    pub value_optional: bool,
    /// Its line in `--help`; begins `[mps]`, as it stands among other plugins' flags.
    pub help: &'static CStr,
}

/// All flags; the place of each is its number.
pub static OPTIONS: [OptionSpec; COUNT] = [
    OptionSpec {
        name: c"mps",
        value: c"[MODE]",
        value_optional: true,
        help: c"[mps] give the job its own NVIDIA MPS: on (or per-node), per-gpu, off",
    },
    OptionSpec {
        name: c"mps-threads",
        value: c"P",
        value_optional: false,
        help:
            c"[mps] active thread percentage of each client: 1 to 100, auto, or a list by local rank (30:70)",
    },
    OptionSpec {
        name: c"mps-mem",
        value: c"M",
        value_optional: false,
        help: c"[mps] pinned memory limit of each client: 4G, 900M, 25%, auto, by GPU (0=4G:1=2G), by local rank (2G:4G)",
    },
    OptionSpec {
        name: c"mps-replicas",
        value: c"N",
        value_optional: false,
        help: c"[mps] an N-th of each GPU for each client: threads 100/N, memory total/N; 1 to 48",
    },
    OptionSpec {
        name: c"mps-priority",
        value: c"L",
        value_optional: false,
        help: c"[mps] priority hint of the clients: normal, below-normal",
    },
    OptionSpec {
        name: c"mps-verify",
        value: c"[B]",
        value_optional: true,
        help: c"[mps] prove the new MPS with a CUDA client before the job starts",
    },
];

/// How many flags there are.
pub const COUNT: usize = 6;
/// Longest value that goes on in the raw form. Characters.
const LONGEST_RAW: usize = 100;

/// The flags as given, each at most once: the last one counts, as with Slurm's own (a command line overrides the
/// environment).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given([Option<Value>; COUNT]);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Absent,
    Text(String),
}

impl Value {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Absent => None,
            Self::Text(text) => Some(text),
        }
    }
}

/// What the flags come to.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// No flag.
    Nothing,
    /// `--mps=off`.
    Off,
    /// MPS.
    On(Request),
    /// Flags that make no request; never from an honest submission.
    Wrong(Refusal),
}

impl Given {
    /// Takes flag `number`.
    pub fn take(&mut self, number: usize, argument: Option<String>) {
        if let Some(place) = self.0.get_mut(number) {
            *place = Some(match argument {
                None => Value::Absent,
                Some(text) if text.is_empty() || text == "(null)" => Value::Absent,
                Some(text) => Value::Text(text),
            });
        }
    }

    /// What the flags come to, by the one parser of the suite.
    pub fn asked(&self) -> Asked {
        match Request::from_options(&self.pairs()) {
            Ok(None) => Asked::Nothing,
            Ok(Some(request)) if request.mode == Mode::Off => Asked::Off,
            Ok(Some(request)) => Asked::On(request),
            Err(refusal) => Asked::Wrong(refusal),
        }
    }

    /// The flags as tokens that `mps-prologue` refuses again with the same reason and records: for flags that make no
    /// request. What could split or hide a token is replaced by `?`.
    pub fn raw(&self) -> String {
        let tokens = self.pairs().into_iter().map(|(name, value)| {
            let value: String = value
                .unwrap_or("on")
                .chars()
                .take(LONGEST_RAW)
                .map(harmless)
                .collect();
            format!("{}={value}", name.to_ascii_uppercase().replace('-', "_"))
        });
        tokens.collect::<Vec<_>>().join(",")
    }

    fn pairs(&self) -> Vec<(&'static str, Option<&str>)> {
        let given = OPTIONS.iter().zip(&self.0);
        given
            .filter_map(|(spec, value)| Some((name(spec), value.as_ref()?.as_text())))
            .collect()
    }
}

fn harmless(c: char) -> char {
    match c {
        ',' => ':',
        c if c.is_ascii_graphic() && c != ';' => c,
        _ => '?',
    }
}

fn name(spec: &OptionSpec) -> &'static str {
    spec.name.to_str().unwrap_or_default()
}

/// Checks one flag by itself, at submission, where the others are not known yet.
///
/// # Errors
/// One line that names the flag, its value, and what is allowed.
pub fn check(number: usize, argument: Option<&str>) -> Result<(), String> {
    let mut alone = Given::default();
    alone.take(number, argument.map(str::to_owned));
    let mut pairs = alone.pairs();
    if number != 0 {
        pairs.insert(0, ("mps", None));
    }
    match Request::from_options(&pairs) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(one_line(&refusal.to_string(), 400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(flags: &[(usize, Option<&str>)]) -> Given {
        let mut given = Given::default();
        for (number, argument) in flags {
            given.take(*number, argument.map(str::to_owned));
        }
        given
    }

    #[test]
    fn the_three_shapes_of_a_missing_value_are_one() {
        for shape in [None, Some(""), Some("(null)")] {
            let Asked::On(request) = given(&[(0, shape), (5, shape)]).asked() else {
                panic!("{shape:?}")
            };
            assert_eq!(request.mode, Mode::PerNode);
            assert_eq!(request.verify, Some(true));
        }
    }

    #[test]
    fn every_flag_is_named_as_the_grammar_names_it() {
        let good = ["per-gpu", "30:70", "4G", "4", "below-normal", "off"];
        for (number, value) in good.iter().enumerate() {
            assert_eq!(check(number, Some(value)), Ok(()), "{:?}", OPTIONS[number].name);
        }
    }

    #[test]
    fn a_wrong_value_names_flag_value_and_what_is_allowed() {
        let cases = [
            (0, Some("maybe"), "--mps=maybe"),
            (1, Some("101"), "--mps-threads=101"),
            (1, None, "--mps-threads"),
            (2, Some("4"), "--mps-mem=4"),
            (3, Some("49"), "--mps-replicas=49"),
            (4, Some("high"), "--mps-priority=high"),
            (5, Some("perhaps"), "--mps-verify=perhaps"),
        ];
        for (number, value, named) in cases {
            let line = check(number, value).unwrap_err();
            assert!(line.starts_with(named), "{line}");
            assert!(line.contains("allowed: "), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn the_last_of_two_counts() {
        assert_eq!(
            given(&[(0, Some("per-gpu")), (0, Some("off"))]).asked(),
            Asked::Off
        );
        assert_eq!(given(&[]).asked(), Asked::Nothing);
    }

    #[test]
    fn a_limit_without_mps_makes_no_request() {
        let Asked::Wrong(refusal) = given(&[(1, Some("50"))]).asked() else {
            panic!()
        };
        assert!(refusal.to_string().contains("--mps-threads=50"), "{refusal}");
    }

    #[test]
    fn hostile_flags_reach_the_program_as_tokens_it_refuses() {
        let hostile = [
            given(&[(0, None), (1, Some("101"))]),
            given(&[(0, None), (2, Some("4G,MPS=off"))]),
            given(&[(0, Some("on;MPS_THREADS=1 \n\u{202e}x"))]),
            given(&[(0, Some(&"x".repeat(5000)))]),
            given(&[(1, Some("50"))]),
        ];
        for flags in hostile {
            assert!(matches!(flags.asked(), Asked::Wrong(_)), "{flags:?}");
            let raw = flags.raw();
            assert!(raw.is_ascii() && !raw.contains([' ', '\n', ';']), "{raw}");
            assert!(Request::from_account(&raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn help_stands_out_among_other_plugins() {
        for spec in &OPTIONS {
            assert!(spec.help.to_str().unwrap().starts_with("[mps] "));
            assert!(spec.name.to_bytes().len() <= 75);
        }
    }
}
