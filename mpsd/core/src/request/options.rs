//! A row for each option: parser, flags, help, refusals, manual pages and completions use it.

use super::values::{self, MemoryLimit, Mode, Threads};
use crate::bind::{Bind, DeviceNames};
use crate::limits::{Invalid, Priority};
use std::fmt;

/// In the texts, words that a user types stand between backquotes.
#[derive(Debug)]
pub struct Row {
    /// `threads`, `--mps-threads`, `MPS_THREADS`; empty: MPS itself.
    pub name: &'static str,
    /// The placeholder of its value in help and manual.
    pub value: &'static str,
    pub bare: Option<&'static str>,
    /// Whether the value is a list: Slurm's flags take `,` in it as well as `:`.
    pub list: bool,
    pub allowed: &'static str,
    pub words: &'static [&'static str],
    pub help: &'static str,
    pub more: &'static str,
    pub lowered_by_steps: bool,
    /// Whether it only concerns a task, so that a step may ask for any value.
    pub of_tasks: bool,
    /// A line of the printed plan, if neither daemons nor ranks show the option.
    pub plan: fn(&Request) -> Option<String>,
}

impl Row {
    const PLAIN: Self = Self {
        name: "",
        value: "",
        bare: None,
        list: false,
        allowed: "",
        words: &[],
        help: "",
        more: "",
        lowered_by_steps: false,
        of_tasks: false,
        plan: |_| None,
    };

    /// Slurm's flag without its dashes: `mps-threads`.
    pub fn flag(&self) -> String {
        match self.name {
            "" => "mps".to_owned(),
            name => format!("mps-{name}"),
        }
    }

    pub fn token(&self) -> String {
        self.flag().to_ascii_uppercase().replace('-', "_")
    }

    /// Tokens that a shell can complete: with each value of `words`, else up to the `=`.
    pub fn completions(&self) -> impl Iterator<Item = String> {
        let open = self.words.is_empty().then_some(&"");
        let words = self.words.iter().chain(open);
        words.map(|word| format!("{}={word}", self.token()))
    }

    /// The line in `--help`, marked `[mps]` among other plugins' flags.
    pub fn usage(&self) -> String {
        format!("[mps] {}", self.help.replace('`', ""))
    }
}

/// `Key field: Type, { row }, parser, printer;` for each option but MPS itself.
macro_rules! options {
    ($($(#[$doc:meta])* $key:ident $field:ident: $type:ty, {$($row:tt)+}, $read:expr, $write:expr;)+) => {
        /// In the order in which they are listed and printed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key {
            Mode,
            $($(#[$doc])* $key,)+
        }

        impl Key {
            pub const ALL: [Self; ROWS.len()] = [Self::Mode, $(Self::$key),+];

            pub fn row(self) -> &'static Row {
                &ROWS[self as usize]
            }
        }

        static ROWS: [Row; 1 + [$(stringify!($key)),+].len()] = [MODE, $(Row { $($row)+ ..Row::PLAIN }),+];

        /// Its text, also for serde, is the account string `MPS=per-node,MPS_THREADS=30:70`.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Request {
            pub mode: Mode,
            $($(#[$doc])* pub $field: Option<$type>,)+
        }

        impl Request {
            pub fn value(&self, key: Key) -> Option<String> {
                match key {
                    Key::Mode => Some(self.mode.to_string()),
                    $(Key::$key => self.$field.as_ref().map($write),)+
                }
            }

            /// Sets an option to the value in `text`; false if it had another value.
            pub(super) fn put(&mut self, key: Key, text: &str) -> Result<bool, Invalid> {
                match key {
                    Key::Mode => text.parse().map(|mode| std::mem::replace(&mut self.mode, mode) == mode),
                    $(Key::$key => {
                        let value: $type = $read(text)?;
                        Ok(*self.$field.get_or_insert_with(|| value.clone()) == value)
                    })+
                }
            }

            /// Takes from `other` each option that it does not have itself. The mode stays.
            pub(crate) fn fill(&mut self, other: &Self) {
                $(if self.$field.is_none() {
                    self.$field.clone_from(&other.$field);
                })+
            }
        }
    };
}

const MODE: Row = Row {
    value: "MODE",
    bare: Some("on"),
    allowed: Mode::ALLOWED,
    words: &["per-node", "auto", "per-gpu", "own", "off"],
    help: "the job's own NVIDIA MPS: `on` (or `per-node`), `auto` (only where it helps), `per-gpu` (one for each GPU), `own`, `off`",
    more: "`per-node` is one daemon for the job's GPUs of each node, `per-gpu` one for each GPU. `auto` is `per-node` if the job has more \
           tasks on a node than GPUs, or a GPU that jobs share; else the job runs as if it had not asked (mpsd(8), AUTO). The `auto` of a \
           limit is another one: a number that mpsd computes. \
           If the scheduler lets several jobs share a GPU, the user's jobs there share one MPS. With `own` this job has an MPS of its \
           own, which takes turns with the others.",
    ..Row::PLAIN
};

options! {
    Threads threads: Threads, {
        name: "threads",
        value: "P",
        list: true,
        allowed: Threads::ALLOWED,
        words: &["auto"],
        help: "active thread percentage of each client: 1 to 100, `auto` (twice the even share), or a list by local rank (`30:70`)",
        more: "Decimals are allowed. `auto` is 200/n, at most 100, for n tasks that can meet on a GPU: twice the even share, since clients \
               seldom all compute at once. The limit also holds for a task whose neighbors are idle (mpsd(8), LIMITS).",
        lowered_by_steps: true,
    }, str::parse, ToString::to_string;

    Mem memory: MemoryLimit, {
        name: "mem",
        value: "M",
        list: true,
        allowed: MemoryLimit::ALLOWED,
        words: &["auto"],
        help: "limit of each client's GPU memory: `4G`, `900M`, `25%`, `auto` (the even share), by local rank \
               (`2G:4G`), or of all the job's clients together (`job=24G`)",
        more: "Units are binary. `auto` is the GPU's memory / n for n tasks of the job that can meet on it. NVIDIA holds \
               each client to its limit. A job's sum, which `job=` or, on a shared GPU, `auto` sets, is watched: once a second, no \
               wall.",
        lowered_by_steps: true,
    }, str::parse, ToString::to_string;

    Priority priority: Priority, {
        name: "priority",
        value: "L",
        allowed: Priority::ALLOWED,
        words: &["normal", "below-normal"],
        help: "priority hint of the clients: `normal`, `below-normal`",
    }, str::parse, ToString::to_string;

    Bind bind: Bind, {
        name: "bind",
        value: "B",
        allowed: Bind::ALLOWED,
        words: &["auto", "block", "cyclic", "closest", "none"],
        help: "which of the job's GPUs each rank sees: `auto`, `block`, `cyclic`, `closest`, `none`",
        more: "A bound task sees its own GPU alone. `block` gives neighboring ranks one \
               GPU, `cyclic` deals the ranks out in turn, `closest` goes by the task's cores. `auto`, the default, \
               shows every task all GPUs. If a node has at least one task for each GPU, each task sees them in its own order. \
               So tasks that always use the first GPU spread out, and tasks that choose by rank spread as evenly as without MPS. Slurm's own --gpu-bind, --gpus-per-task and --ntasks-per-gpu win.",
        of_tasks: true,
        plan: |request| Some(format!("tasks bound to GPUs: {}", request.bind?)),
    }, str::parse, ToString::to_string;

    Visible visible: DeviceNames, {
        name: "visible",
        value: "V",
        allowed: DeviceNames::ALLOWED,
        words: &["auto", "uuid", "ordinal"],
        help: "names in CUDA_VISIBLE_DEVICES: `auto`, `uuid`, `ordinal` (for programs that read numbers)",
        more: "`ordinal` are the numbers by which the job's MPS counts its GPUs, from 0. `auto` gives them if they name the same GPUs \
               to a program that misses its MPS, else UUIDs.",
        of_tasks: true,
        plan: |request| Some(format!("GPUs named in CUDA_VISIBLE_DEVICES: {}", request.visible?)),
    }, str::parse, ToString::to_string;

    Report report: bool, {
        name: "report",
        value: "B",
        bare: Some("on"),
        allowed: values::BOOLEAN,
        words: &["on", "off"],
        help: "say at the end, in the job's own output, what its MPS was used for, and what to try",
        more: "Without it that is one line: clients at once, use of the GPUs, and the command of the report; with `off` it is nothing. \
               Slurm prints it on standard error when the batch script ends, for the script's node. Without a script it prints it when a \
               step ends (not under --pty): the paragraph for each node of the step, the line for the node of its first task. It has what \
               was seen until then. Torque prints it into the job's error file at the job's end, OpenPBS nowhere. \
               Afterwards `mpsctl report` prints the whole report.",
        of_tasks: true,
    }, values::boolean, |on: &bool| if *on { "on" } else { "off" }.to_owned();
}

impl Request {
    pub fn new(mode: Mode) -> Self {
        let none = Self::default();
        Self { mode, ..none }
    }

    pub fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }

    /// The request in the words of OpenPBS's resource: `per-node+threads=25`.
    pub fn in_resource_words(&self) -> String {
        let word = |(key, value): (Key, String)| match key.row().name {
            "" => value,
            name => format!("{name}={value}"),
        };
        self.values().map(word).collect::<Vec<_>>().join("+")
    }

    fn values(&self) -> impl Iterator<Item = (Key, String)> {
        let all = Key::ALL.into_iter();
        all.filter_map(|key| Some((key, self.value(key)?)))
    }

    pub fn plan_lines(&self) -> impl Iterator<Item = String> {
        let all = Key::ALL.into_iter();
        all.filter_map(|key| (key.row().plan)(self))
    }
}

impl fmt::Display for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |(key, value): (Key, String)| format!("{}={value}", key.row().token());
        out.write_str(&self.values().map(token).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_what_its_parser_does() {
        for key in Key::ALL {
            let row = key.row();
            let read = |text: &str| Request::default().put(key, text);
            // The examples of the help line: what stands between backquotes.
            let examples = row.help.split('`').skip(1).step_by(2);
            for word in examples.chain(row.words.iter().copied()).chain(row.bare) {
                assert!(read(word).is_ok(), "{}: {word}", row.flag());
            }
            assert!(!row.value.is_empty() && row.help.matches('`').count() % 2 == 0);
            let more = row.more;
            assert!(more.is_empty() || more.ends_with('.'), "{more}");
            let invalid = read("\u{1}").expect_err(&row.flag());
            assert_eq!(invalid.allowed, row.allowed, "{}", row.flag());
            // Slurm cuts longer names (spank.h, SPANK_OPTION_MAXLEN).
            assert!(row.flag().len() <= 75 && row.usage().starts_with("[mps] "));
        }
    }
}
