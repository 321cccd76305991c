//! Ending the server: for `quit`, and for a client of another user.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::daemon::Daemon;

/// First pause between two attempts; each next pause is twice as long (recorded).
const FIRST_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Quit {
    pub session: u64,
    pub deadline: Option<Instant>,
}

#[derive(Debug)]
pub struct Retry {
    pub at: Instant,
    pause: Duration,
}

impl Daemon {
    pub fn begin_quit(&mut self, session: u64, patience: Option<Duration>) {
        let deadline = patience.map(|p| Instant::now() + p);
        self.quit = Some(Quit { session, deadline });
        self.retry = None;
        self.try_shutdown_if_wanted();
    }

    /// Ends the server if a session or a client waits for its end, now or after a pause.
    pub fn try_shutdown_if_wanted(&mut self) {
        let Some(server) = self.server.as_ref() else {
            if self.quit.is_some() {
                self.finish_quit();
            }
            return;
        };
        let replaced = self.pending.first().is_some_and(|c| c.uid != server.uid);
        if server.connection.is_none() || !(self.quit.is_some() || replaced) {
            return;
        }
        let pid = server.pid;
        let pause = self.retry.take().map(|r| r.pause);
        let backoff = pause.map_or("disabled", |_| "enabled");
        let text = format!("Try shutting down server {pid}, backoff is {backoff}");
        self.log.control(text);
        let Some(answer) = self.ask("SHUTDOWN") else {
            return;
        };
        if let Some(threads) = answer.strip_prefix("BUSY ") {
            let pause = pause.map_or(FIRST_PAUSE, |p| p * 2);
            let text = format!("Server {pid} has {threads} active worker threads.");
            self.log.control(text + " Server will not shutdown.");
            let text = format!("Control will try shutting down server {pid} again in at most");
            self.log.control(format!("{text} {}ms", pause.as_millis()));
            let at = Instant::now() + pause;
            self.retry = Some(Retry { at, pause });
        }
    }

    pub fn timers(&mut self) {
        let now = Instant::now();
        if self.retry.as_ref().is_some_and(|r| r.at <= now) {
            self.try_shutdown_if_wanted();
        }
        let Some(quit) = self.quit.as_mut() else {
            return;
        };
        if quit.deadline.is_some_and(|d| d <= now) {
            quit.deadline = None;
            self.retry = None;
            self.try_shutdown_if_wanted();
            if self.retry.take().is_some() {
                self.force();
            }
        }
    }

    fn force(&mut self) {
        let Some(pid) = self.server.as_ref().map(|s| s.pid) else {
            return;
        };
        self.log
            .control(format!("Force shutting down server {pid}"));
        let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
    }

    pub fn finish_quit(&mut self) {
        // Recorded: 1 if any server has failed under this daemon.
        self.ended = Some(u8::from(self.server_failed));
    }
}
