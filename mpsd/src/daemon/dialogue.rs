//! What is said to a control daemon, and what its answers must be. Pure.
//!
//! The daemon answers exit 0 to nearly everything, refusals included; answers come without delimiters and some
//! commands answer nothing (facts: mps-control, "The command session"). So every setting is read back, and every
//! reading that may be empty is followed by one that never is.

use mpsd_core::limits::{Percent, Priority};
use mpsd_core::record::Daemon;
use mpsd_core::text::one_line;

/// The command that always answers, with one number; it brackets those that may not.
const BRACKET: &str = "get_default_active_thread_percentage";
/// What it answers where nothing was set. Per cent.
const NO_LIMIT: f64 = 100.0;
/// The daemon prints one decimal.
const PRECISION: f64 = 0.05;

/// The session that sets every limit of `daemon`, reads each back, and starts the server of `uid`.
pub fn configure(daemon: &Daemon, uid: u32) -> String {
    let mut lines = Vec::new();
    if let Some(threads) = daemon.threads {
        lines.push(format!("set_default_active_thread_percentage {threads}"));
    }
    for (gpu, mib) in &daemon.memory {
        lines.push(format!("set_default_device_pinned_mem_limit {gpu} {mib}M"));
    }
    if let Some(priority) = daemon.priority {
        lines.push(format!("set_default_client_priority {}", level(priority)));
    }
    lines.push(BRACKET.to_owned());
    for (gpu, _) in &daemon.memory {
        lines.push(format!("get_default_device_pinned_mem_limit {gpu}"));
        lines.push(BRACKET.to_owned());
    }
    if daemon.priority.is_some() {
        lines.push("get_default_client_priority".to_owned());
        lines.push(BRACKET.to_owned());
    }
    lines.push(format!("start_server -uid {uid}"));
    lines.join("\n") + "\n"
}

/// The vendor's number for a priority (`set_default_client_priority`: 0 normal, 1 below normal).
fn level(priority: Priority) -> u8 {
    match priority {
        Priority::Normal => 0,
        Priority::BelowNormal => 1,
    }
}

/// Checks the answers to [`configure`] line by line.
///
/// # Errors
/// The first limit that is not in force, and what the daemon said instead.
pub fn check(daemon: &Daemon, answers: &str) -> Result<(), String> {
    let mut answers = answers.lines().map(str::trim).filter(|l| !l.is_empty());
    let wanted = daemon.threads.map_or(NO_LIMIT, |p| f64::from(p.tenths()) / 10.0);
    if daemon.threads.is_some() {
        expect_percent(answers.next(), wanted)?;
    }
    expect_percent(answers.next(), wanted)?;
    for (gpu, mib) in &daemon.memory {
        let said = answers.next();
        if said.and_then(mebibytes) != Some(*mib) {
            return Err(format!(
                "memory limit {mib}M of {gpu} is not in force: the daemon says {}",
                quoted(said)
            ));
        }
        expect_percent(answers.next(), wanted)?;
    }
    if let Some(priority) = daemon.priority {
        let said = answers.next();
        if said != Some(level(priority).to_string().as_str()) {
            return Err(format!(
                "client priority {priority} is not in force: the daemon says {}",
                quoted(said)
            ));
        }
        expect_percent(answers.next(), wanted)?;
    }
    match answers.next() {
        None => Ok(()),
        Some(more) => Err(format!("start_server was answered with {}", quoted(Some(more)))),
    }
}

/// `4G` for `4096M`: the daemon says a size back in the largest unit that holds it whole (seen on driver 580).
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
    said.map_or_else(|| "nothing".to_owned(), |s| format!("'{}'", one_line(s, 80)))
}

/// What the server's own log must show before the limits are proved, and what it has shown so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proof {
    /// Per cent, from `Active Threads Percentage set to …`.
    pub threads: Option<f64>,
    /// Device as named by the setting, and bytes.
    pub memory: Vec<(String, u64)>,
    /// The server that said it is ready, from `NEW SERVER n: Ready`.
    pub ready: Option<i32>,
    /// The server said `Server has started`: its limits stand above.
    pub started: bool,
}

impl Proof {
    /// Takes one line of the log in.
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

    /// Whether the server itself confirms every limit of `daemon`.
    ///
    /// # Errors
    /// The limit that the server does not have.
    pub fn confirms(&self, daemon: &Daemon) -> Result<(), String> {
        let wanted = daemon
            .threads
            .map_or(NO_LIMIT, |p: Percent| f64::from(p.tenths()) / 10.0);
        if self.threads.is_none_or(|t| (t - wanted).abs() > PRECISION) {
            let said = self.threads.map_or("nothing".to_owned(), |t| format!("{t:.1}"));
            return Err(format!(
                "the server's log says {said} for active thread percentage {wanted:.1}"
            ));
        }
        for (gpu, mib) in &daemon.memory {
            let bytes = self
                .memory
                .iter()
                .find(|(device, _)| device == gpu.as_str())
                .map(|(_, b)| *b);
            if bytes != Some(mib << 20) {
                let said = bytes.map_or("nothing".to_owned(), |b| format!("{b} bytes"));
                return Err(format!(
                    "the server's log says {said} for memory limit {mib}M of {gpu}"
                ));
            }
        }
        Ok(())
    }
}

/// A line of the vendor's log that means something to us (forms: mps-580-transcript).
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// `NEW SERVER 691: Ready`.
    Ready(i32),
    /// `Server has started`.
    Started,
    /// `Active Threads Percentage set to 25.0`.
    Threads(f64),
    /// `Device pinned memory limit for device D set to 0x… bytes`.
    Memory(String, u64),
    /// `Try shutting down server 691, backoff is enabled`: somebody told the daemon to quit.
    ServerToEnd(i32),
    /// `Server 691 exited with status 1`. A server that was killed has status 0 as well.
    ServerExited(i32, i32),
    /// `NEW CLIENT 1519 from user 1001: …`.
    NewClient(i32),
    /// A line that says "fatal". That a client's fatal error reaches every client on its GPU is documented (NVIDIA's
    /// manual, "Error Containment"); the words of the log are not.
    Fatal(String),
    /// `Failed to start server using uid …`, a fault: for the user's eyes.
    Trouble(String),
}

impl Event {
    /// Reads a line `[date time Who pid] message`; `None` when it means nothing to us.
    pub fn parse(line: &str) -> Option<Self> {
        let message = line.strip_prefix('[')?.split_once("] ")?.1.trim_end();
        if let Some(rest) = message.strip_prefix("NEW SERVER ") {
            return rest
                .strip_suffix(": Ready")
                .and_then(|pid| pid.parse().ok())
                .map(Self::Ready);
        }
        if let Some(rest) = message.strip_prefix("Active Threads Percentage set to ") {
            return rest.parse().ok().map(Self::Threads);
        }
        if let Some(rest) = message.strip_prefix("Device pinned memory limit for device ") {
            let (device, bytes) = rest.strip_suffix(" bytes")?.split_once(" set to 0x")?;
            return u64::from_str_radix(bytes, 16)
                .ok()
                .map(|b| Self::Memory(device.to_owned(), b));
        }
        if let Some(rest) = message.strip_prefix("NEW CLIENT ") {
            return rest.split(' ').next()?.parse().ok().map(Self::NewClient);
        }
        if let Some(rest) = message.strip_prefix("Try shutting down server ") {
            return rest.split(',').next()?.parse().ok().map(Self::ServerToEnd);
        }
        if let Some((pid, status)) = message
            .strip_prefix("Server ")
            .and_then(|r| r.split_once(" exited with status "))
        {
            return Some(Self::ServerExited(pid.parse().ok()?, status.parse().ok()?));
        }
        if message == "Server has started" {
            return Some(Self::Started);
        }
        if message.contains("fatal") {
            return Some(Self::Fatal(one_line(message, 200)));
        }
        let trouble = message.starts_with("Failed to start server") || message.contains("fault");
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
            gpus: vec![gpu.clone()],
            pipe: "/p".into(),
            log: "/l".into(),
            threads: threads.map(|t| t.parse().unwrap()),
            memory: memory.map(|m| vec![(gpu, m)]).unwrap_or_default(),
            priority: None,
        }
    }

    #[test]
    fn the_session_sets_reads_back_and_starts() {
        let text = configure(&daemon(Some("25"), Some(4096)), 1001);
        assert_eq!(
            text,
            format!(
                "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit {GPU} 4096M\n\
                 get_default_active_thread_percentage\nget_default_device_pinned_mem_limit {GPU}\n\
                 get_default_active_thread_percentage\nstart_server -uid 1001\n"
            )
        );
    }

    #[test]
    fn answers_of_the_recorded_daemon_pass() {
        assert_eq!(
            check(&daemon(Some("25"), Some(4096)), "25.0\n25.0\n4096M\n25.0\n"),
            Ok(())
        );
        assert_eq!(
            check(&daemon(Some("25"), Some(4096)), "25.0\n25.0\n4G\n25.0\n"),
            Ok(())
        );
        assert_eq!(check(&daemon(Some("12.5"), None), "12.5\n12.5\n"), Ok(()));
        assert_eq!(check(&daemon(None, None), "100.0\n"), Ok(()));
    }

    #[test]
    fn a_limit_that_was_silently_dropped_is_seen() {
        let want = daemon(Some("25"), Some(4096));
        for (answers, word) in [
            ("100.0\n100.0\n4096M\n100.0\n", "percentage 25.0"),
            ("25.0\n25.0\n25.0\n", "memory limit"),
            ("25.0\n25.0\n3G\n25.0\n", "'3G'"),
            ("25.0\n25.0\n4096M\n", "percentage"),
            ("25.0\n25.0\n4096M\n25.0\nNot enough privilege\n", "Not enough"),
            ("", "nothing"),
        ] {
            let error = check(&want, answers).unwrap_err();
            assert!(error.contains(word), "{answers:?}: {error}");
        }
    }

    #[test]
    fn the_servers_own_log_is_the_last_word() {
        let mut proof = Proof::default();
        for line in [
            "[2026-11-21 02:38:37.001 Control   621] NEW SERVER 645: Ready",
            "[2026-11-21 01:32:37.858 Server   691] Active Threads Percentage set to 25.0",
            &format!(
                "[2026-11-21 01:32:37.858 Server   691] Device pinned memory limit for device {GPU} set to 0x100000000 bytes"
            ),
            "[2026-11-21 01:32:37.858 Server   691] Server has started",
        ] {
            proof.take(line);
        }
        assert_eq!(proof.ready, Some(645));
        assert!(proof.started);
        assert_eq!(proof.confirms(&daemon(Some("25"), Some(4096))), Ok(()));
        assert!(proof.confirms(&daemon(Some("50"), Some(4096))).is_err());
        assert!(proof.confirms(&daemon(Some("25"), Some(2048))).is_err());
    }

    #[test]
    fn whatever_the_log_calls_fatal_is_for_the_user() {
        let line = "[x Control   459] Server encountered a fatal exception. Shutting down";
        assert!(
            matches!(Event::parse(line), Some(Event::Fatal(text)) if text.starts_with("Server encountered"))
        );
    }

    #[test]
    fn a_server_that_was_told_to_end_is_known() {
        let line = "[x Control   459] Try shutting down server 578, backoff is enabled";
        assert_eq!(Event::parse(line), Some(Event::ServerToEnd(578)));
    }

    #[test]
    fn lines_that_mean_nothing_or_are_hostile_mean_nothing() {
        for line in [
            "",
            "[",
            "[] ",
            "NEW SERVER 1: Ready",
            "[x] NEW SERVER x: Ready",
            "[x] Device pinned memory limit for device",
        ] {
            assert_eq!(Event::parse(line), None, "{line:?}");
        }
        assert_eq!(
            Event::parse("[x] Server 551 exited with status 1"),
            Some(Event::ServerExited(551, 1))
        );
    }
}
