//! What is being done, and for how long: one line that counts on a terminal, two lines elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A step under way; dropping it ends the line.
#[derive(Debug)]
pub struct Progress {
    what: String,
    started: Instant,
    over: Arc<AtomicBool>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins a step.
    pub fn start(what: &str) -> Progress {
        let started = Instant::now();
        let over = Arc::new(AtomicBool::new(false));
        let ticker = if std::io::stderr().is_terminal() {
            let (what, over) = (what.to_owned(), Arc::clone(&over));
            Some(std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    eprint!("\r{what} … {} s ", started.elapsed().as_secs());
                    let _ = std::io::stderr().flush();
                    std::thread::sleep(Duration::from_millis(250));
                }
            }))
        } else {
            eprintln!("{what} …");
            None
        };
        Progress {
            what: what.to_owned(),
            started,
            over,
            ticker,
        }
    }

    /// Ends it with a word.
    pub fn end(mut self, word: &str) {
        self.finish(word);
    }

    fn finish(&mut self, word: &str) {
        if self.over.swap(true, Ordering::Relaxed) {
            return;
        }
        let lead = match self.ticker.take() {
            Some(ticker) => {
                // The ticker only prints and sleeps: it cannot fail.
                let _ = ticker.join();
                "\r"
            }
            None => "",
        };
        eprintln!(
            "{lead}{} … {word} ({:.0} s)",
            self.what,
            self.started.elapsed().as_secs_f64()
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish("failed");
    }
}
