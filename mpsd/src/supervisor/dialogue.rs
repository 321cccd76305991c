//! The commands for a control daemon, and what its answers and its log must say. Pure.
//!
//! The daemon exits with 0 after nearly everything, and some commands answer nothing
//! (docs/facts/mps-control.md#the-command-session). So every setting is read back. A reading
//! that is never empty follows each that may be.

use mpsd_core::limits::Percent;
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;

const THREADS: &str = "active_thread_percentage";
const PRECISION: f64 = 0.05;
/// The command that always answers, with one number. It brackets commands that may not answer.
const BRACKET: &str = "get_default_active_thread_percentage";

/// Besides threads: name, value, and words.
fn limits(daemon: &Daemon) -> Vec<[String; 3]> {
    let memory = daemon.memory.iter().map(|(gpu, mib)| {
        let words = format!("memory limit {mib}M of {gpu}");
        let name = format!("device_pinned_mem_limit {}", gpu.in_limits());
        [name, format!("{mib}M"), words]
    });
    let priority = daemon.priority.map(|priority| {
        let words = format!("client priority {priority}");
        [
            "client_priority".to_owned(),
            priority.number().to_string(),
            words,
        ]
    });
    memory.chain(priority).collect()
}

pub fn configure(daemon: &Daemon, uid: u32) -> String {
    let limits = limits(daemon);
    let line = |name: &str, value: &str| format!("set_default_{name} {value}\n");
    let threads = daemon
        .threads
        .map(|threads| line(THREADS, &threads.to_string()));
    let others = limits.iter().map(|[name, value, _]| line(name, value));
    let set: String = threads.into_iter().chain(others).collect();
    format!("{set}{}start_server -uid {uid}\n", reading(&limits))
}

fn reading(limits: &[[String; 3]]) -> String {
    let read = |[name, ..]: &[String; 3]| format!("get_default_{name}\n{BRACKET}\n");
    let others: String = limits.iter().map(read).collect();
    format!("{BRACKET}\n{others}")
}

pub fn read(daemon: &Daemon) -> String {
    reading(&limits(daemon))
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InForce {
    pub limit: String,
    pub asked: Option<String>,
    pub said: Option<String>,
    pub holds: bool,
}

/// By the answers to [`read`]. A size may have no answer.
pub fn in_force(daemon: &Daemon, answers: &str) -> Vec<InForce> {
    let answers = answers.lines().map(str::trim).filter(|l| !l.is_empty());
    let mut answers = answers.peekable();
    let bracket = answers.next();
    let mut all = vec![InForce {
        limit: "active thread percentage".to_owned(),
        asked: daemon.threads.map(|percent| percent.to_string()),
        said: bracket.map(|said| one_line(said, 80)),
        holds: expect_percent(bracket, percent(daemon)).is_ok(),
    }];
    for [_, value, limit] in limits(daemon) {
        let said = answers.next_if(|said| Some(*said) != bracket);
        answers.next_if(|said| Some(*said) == bracket);
        all.push(InForce {
            limit,
            said: said.map(|said| one_line(said, 80)),
            holds: said.is_some_and(|said| is_same(said, &value)),
            asked: Some(value),
        });
    }
    all
}

/// By the answers to [`configure`]. The error names the first limit that is not in force.
pub fn check(daemon: &Daemon, answers: &str) -> Result<(), String> {
    let mut answers = answers.lines().map(str::trim).filter(|l| !l.is_empty());
    let wanted = percent(daemon);
    if daemon.threads.is_some() {
        expect_percent(answers.next(), wanted)?;
    }
    expect_percent(answers.next(), wanted)?;
    for [_, value, words] in limits(daemon) {
        let said = answers.next();
        if !said.is_some_and(|said| is_same(said, &value)) {
            let said = quoted(said);
            return Err(format!("{words} is not in force: the daemon says {said}"));
        }
        expect_percent(answers.next(), wanted)?;
    }
    match answers.next() {
        None => Ok(()),
        Some(more) => Err(format!("the daemon's last word is {}", quoted(Some(more)))),
    }
}

/// The daemon answers `4096M` with `4G`, the largest unit that holds it whole (driver 580).
fn is_same(said: &str, value: &str) -> bool {
    said == value || mebibytes(said).is_some_and(|said| Some(said) == mebibytes(value))
}

fn mebibytes(said: &str) -> Option<u64> {
    let unit = said.chars().last()?;
    let number: u64 = said.strip_suffix(unit)?.parse().ok()?;
    match unit {
        'M' => Some(number),
        'G' => number.checked_mul(1 << 10),
        'T' => number.checked_mul(1 << 20),
        _ => None,
    }
}

fn percent(daemon: &Daemon) -> f64 {
    f64::from(daemon.threads.unwrap_or(Percent::WHOLE).tenths()) / 10.0
}

fn expect_percent(said: Option<&str>, wanted: f64) -> Result<(), String> {
    match said.and_then(|s| s.parse::<f64>().ok()) {
        Some(value) if (value - wanted).abs() <= PRECISION => Ok(()),
        _ => Err(format!(
            "active thread percentage {wanted:.1} is not in force: the daemon says {}",
            quoted(said)
        )),
    }
}

fn quoted(said: Option<&str>) -> String {
    match said {
        None => "nothing".to_owned(),
        Some(said) => format!("'{}'", one_line(said, 80)),
    }
}

/// The proof of the limits by the server's own log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proof {
    /// Percent, from `Active Threads Percentage set to …`.
    pub threads: Option<f64>,
    /// Device as named by the setting, and bytes.
    pub memory: Vec<(String, u64)>,
    /// The server that said it is ready, from `NEW SERVER n: Ready`.
    ready: Option<i32>,
    /// `Server has started`: the lines of its limits come before.
    started: bool,
}

impl Proof {
    pub fn take(&mut self, line: &str) {
        match Event::parse(line) {
            Some(Event::Threads(percent)) => self.threads = Some(percent),
            Some(Event::Memory(device, bytes)) => {
                self.memory.retain(|(known, _)| *known != device);
                self.memory.push((device, bytes));
            }
            Some(Event::Ready(pid)) => self.ready = Some(pid),
            Some(Event::Started) => self.started = true,
            _ => {}
        }
    }

    /// The server, once it is ready and the log has its limits.
    pub fn server(&self) -> Option<i32> {
        self.ready.filter(|_| self.started)
    }

    pub fn confirms(&self, daemon: &Daemon) -> Result<(), String> {
        let wanted = percent(daemon);
        if self.threads.is_none_or(|t| (t - wanted).abs() > PRECISION) {
            let said = self
                .threads
                .map_or("nothing".to_owned(), |t| format!("{t:.1}"));
            return Err(format!(
                "the server's log says {said} for active thread percentage {wanted:.1}"
            ));
        }
        for (gpu, mib) in &daemon.memory {
            let mut known = self.memory.iter();
            let bytes = known.find(|(device, _)| device == gpu.in_limits());
            if bytes.is_none_or(|(_, bytes)| *bytes != mib << 20) {
                let said =
                    bytes.map_or("nothing".to_owned(), |(_, bytes)| format!("{bytes} bytes"));
                return Err(format!(
                    "the server's log says {said} for memory limit {mib}M of {gpu}"
                ));
            }
        }
        Ok(())
    }
}

/// A line of the vendor's log (docs/facts/mps-580-transcript.txt).
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// `NEW SERVER 691: Ready`.
    Ready(i32),
    Started,
    /// `Active Threads Percentage set to 25.0`.
    Threads(f64),
    /// `Device pinned memory limit for device D set to 0x… bytes`.
    Memory(String, u64),
    /// `Try shutting down server 691, backoff is enabled`: the daemon was told to quit.
    ServerToEnd(i32),
    /// `Server 691 exited with status 1`. A server that was killed has status 0 as well.
    ServerExited(i32, i32),
    /// `Cmd:quit`, or with a time.
    Quit,
    /// `NEW CLIENT 1519 from user 1001: …`.
    NewClient(i32),
    /// `Status of client {PID: 4631, Context ID: 1} is ACTIVE`: it has a context.
    Active(i32),
    /// `Client process 494 disconnected`.
    Left(i32),
    /// It ends every client on the GPU. NVIDIA does not document the words of the log.
    Fatal(String),
    /// A failed start of a server, or a fault: for the user to read.
    Trouble(String),
}

/// What stands before a pid, whether the rest fits behind it, and what the line means.
type LineForm = (&'static str, fn(&str) -> bool, fn(i32) -> Event);

impl Event {
    /// Of `[date time Who pid] message`; `None`: it tells nothing.
    pub fn parse(line: &str) -> Option<Self> {
        let message = line.strip_prefix('[')?.split_once("] ")?.1.trim_end();
        if let Some(command) = message.strip_prefix("Cmd:") {
            let name = command.trim().split(' ').next();
            return (name == Some("quit")).then_some(Self::Quit);
        }
        if let Some(rest) = message.strip_prefix("Active Threads Percentage set to ") {
            return rest.parse().ok().map(Self::Threads);
        }
        if let Some(rest) = message.strip_prefix("Device pinned memory limit for device ") {
            let (device, bytes) = rest.strip_suffix(" bytes")?.split_once(" set to 0x")?;
            let bytes = u64::from_str_radix(bytes, 16).ok()?;
            return Some(Self::Memory(device.to_owned(), bytes));
        }
        let rows: [LineForm; 5] = [
            ("NEW SERVER ", |rest| rest == ": Ready", Self::Ready),
            ("NEW CLIENT ", |rest| rest.starts_with(' '), Self::NewClient),
            (
                "Status of client {PID: ",
                |rest| rest.ends_with(" is ACTIVE"),
                Self::Active,
            ),
            (
                "Client process ",
                |rest| rest == " disconnected",
                Self::Left,
            ),
            (
                "Try shutting down server ",
                |rest| rest.is_empty() || rest.starts_with(','),
                Self::ServerToEnd,
            ),
        ];
        let numbered = |before: &str| {
            let text = message.strip_prefix(before)?;
            let (pid, rest) = text.split_at(
                text.find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(text.len()),
            );
            Some((pid.parse().ok()?, rest))
        };
        for (before, is_whole, event) in rows {
            if let Some((pid, _)) = numbered(before).filter(|(_, rest)| is_whole(rest)) {
                return Some(event(pid));
            }
        }
        if let Some((server, rest)) = numbered("Server ")
            && let Some(status) = rest.strip_prefix(" exited with status ")
        {
            return Some(Self::ServerExited(server, status.parse().ok()?));
        }
        if message == "Server has started" {
            return Some(Self::Started);
        }
        if message.contains("fatal") {
            return Some(Self::Fatal(one_line(message, 200)));
        }
        let trouble = message.starts_with("Failed to start server")
            || message.replace("default", "").contains("fault");
        trouble.then(|| Self::Trouble(one_line(message, 200)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::GpuUuid;

    const GPU: &str = "GPU-200b4359-5562-4e0e-ed46-88b581af6524";

    fn daemon(threads: Option<&str>, memory: Option<u64>) -> Daemon {
        let gpu = GpuUuid::parse(GPU).unwrap();
        Daemon {
            threads: threads.map(|t| t.parse().unwrap()),
            memory: memory.map(|m| (gpu, m)).into_iter().collect(),
            ..Daemon::default()
        }
    }

    #[test]
    fn the_session_sets_reads_back_and_starts() {
        let session = format!(
            "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit {GPU} 4096M\n\
             get_default_active_thread_percentage\nget_default_device_pinned_mem_limit {GPU}\n\
             get_default_active_thread_percentage\nstart_server -uid 1001\n"
        );
        assert_eq!(configure(&daemon(Some("25"), Some(4096)), 1001), session);
    }

    #[test]
    fn answers_of_the_recorded_daemon_pass_and_a_dropped_limit_is_found() {
        let wanted = daemon(Some("25"), Some(4096));
        assert_eq!(check(&wanted, "25.0\n25.0\n4096M\n25.0\n"), Ok(()));
        assert_eq!(check(&wanted, "25.0\n25.0\n4G\n25.0\n"), Ok(()));
        assert_eq!(check(&daemon(Some("12.5"), None), "12.5\n12.5\n"), Ok(()));
        assert_eq!(check(&daemon(None, None), "100.0\n"), Ok(()));
        let more = "25.0\n25.0\n4096M\n25.0\nNot enough privilege\n";
        for (answers, word) in [
            ("100.0\n100.0\n4096M\n100.0\n", "percentage 25.0"),
            ("25.0\n25.0\n25.0\n", "memory limit"),
            ("25.0\n25.0\n3G\n25.0\n", "'3G'"),
            ("25.0\n25.0\n4096M\n", "percentage"),
            (more, "Not enough"),
            ("", "nothing"),
        ] {
            let error = check(&wanted, answers).unwrap_err();
            assert!(error.contains(word), "{answers:?}: {error}");
        }
    }

    #[test]
    fn the_servers_own_log_proves_its_limits() {
        let mut proof = Proof::default();
        for line in [
            "[2026-11-21 02:38:37.001 Control   621] NEW SERVER 645: Ready",
            "[2026-11-21 01:32:37.858 Server   691] Active Threads Percentage set to 25.0",
            &format!(
                "[x Server   691] Device pinned memory limit for device {GPU} set to 0x100000000 bytes"
            ),
            "[2026-11-21 01:32:37.858 Server   691] Server has started",
        ] {
            assert_eq!(proof.server(), None, "before: {line}");
            proof.take(line);
        }
        assert_eq!(proof.server(), Some(645));
        assert_eq!(proof.confirms(&daemon(Some("25"), Some(4096))), Ok(()));
        assert!(proof.confirms(&daemon(Some("50"), Some(4096))).is_err());
        assert!(proof.confirms(&daemon(Some("25"), Some(2048))).is_err());
    }

    /// Recorded forms: docs/facts/mps-580-transcript.txt, tests/hardware/results.
    #[test]
    fn lines_of_the_log_are_told_apart() {
        let (fatal, trouble) = ("Server hit a fatal exception", "a fault by default");
        let control = |text: &str| Event::parse(&format!("[x Control 459] {text}"));
        let end = "Try shutting down server 578";
        let end_later = "Try shutting down server 578, backoff is enabled";
        let ended = "Server 551 exited with status 1";
        for (text, event) in [
            ("Cmd:quit 5", Event::Quit),
            (end_later, Event::ServerToEnd(578)),
            (end, Event::ServerToEnd(578)),
            (ended, Event::ServerExited(551, 1)),
            (fatal, Event::Fatal(fatal.to_owned())),
            (trouble, Event::Trouble(trouble.to_owned())),
        ] {
            assert_eq!(control(text), Some(event), "{text:?}");
        }
        for line in [
            "[x Control 4582] set_default_device_pinned_mem_limit GPU-c7ad435f 4096M.",
            "[x Control 621] Cmd:get_default_active_thread_percentage",
            "[x Control 621] Cmd:set_default_active_thread_percentage 25",
            "[x Control 459] Try shutting down server 578th",
            "",
            "[",
            "[] ",
            "NEW SERVER 1: Ready",
            "[x] NEW SERVER x: Ready",
            "[x] Device pinned memory limit for device",
        ] {
            assert_eq!(Event::parse(line), None, "{line:?}");
        }
    }
}
