//! Work that mostly waits, done at once. Work with the same claim is done one after the other.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub struct Work<'a> {
    /// What no other work may use meanwhile.
    pub claims: Vec<String>,
    pub run: Box<dyn FnOnce() + Send + 'a>,
}

#[derive(Default)]
struct State<'a> {
    waiting: Vec<Work<'a>>,
    claimed: Vec<String>,
}

struct Queue<'a> {
    state: Mutex<State<'a>>,
    given_back: Condvar,
}

/// Does all work in its order, if the claims allow it, with at most this many at once. If one
/// panics, it panics after the rest is done.
pub fn run(all: Vec<Work<'_>>, at_once: usize) {
    let queue = Queue {
        state: Mutex::new(State {
            waiting: all,
            claimed: Vec::new(),
        }),
        given_back: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some((run, _claimed)) = queue.next() {
                    run();
                }
            });
        }
    });
}

impl<'a> Queue<'a> {
    /// The first work that may start now; `None` if no work is left.
    fn next(&self) -> Option<(Box<dyn FnOnce() + Send + 'a>, Claimed<'_, 'a>)> {
        let mut state = self.lock();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            let free = |work: &Work<'_>| {
                work.claims
                    .iter()
                    .all(|claim| !state.claimed.contains(claim))
            };
            if let Some(at) = state.waiting.iter().position(free) {
                let Work { claims, run } = state.waiting.remove(at);
                state.claimed.extend(claims.iter().cloned());
                return Some((
                    run,
                    Claimed {
                        queue: self,
                        claims,
                    },
                ));
            }
            state = self
                .given_back
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Claimed<'q, 'a> {
    queue: &'q Queue<'a>,
    claims: Vec<String>,
}

impl Drop for Claimed<'_, '_> {
    fn drop(&mut self) {
        self.queue
            .lock()
            .claimed
            .retain(|one| !self.claims.contains(one));
        self.queue.given_back.notify_all();
    }
}
