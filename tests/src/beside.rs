//! Work that mostly waits, done at once. Work with the same claim is done one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, PoisonError};

pub struct Work<'a> {
    pub claims: Vec<String>,
    pub run: Box<dyn FnOnce() + Send + 'a>,
}

/// At most this many at once, in their order if the claims allow it. If one panics, it panics after
/// the rest is done.
pub fn run(all: Vec<Work<'_>>, at_once: usize) {
    let waiting_and_claimed = Mutex::new((all, Vec::<String>::new()));
    let state = &waiting_and_claimed;
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let given_back = Condvar::new();
    let work = || loop {
        let mut state = lock();
        let Work { claims, run } = loop {
            let (waiting, claimed) = &mut *state;
            if waiting.is_empty() {
                return;
            }
            let is_free = |claim: &String| !claimed.contains(claim);
            let may_start = |work: &Work<'_>| work.claims.iter().all(is_free);
            if let Some(at) = waiting.iter().position(may_start) {
                let work = waiting.remove(at);
                claimed.extend(work.claims.iter().cloned());
                break work;
            }
            let woken = given_back.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let ended = catch_unwind(AssertUnwindSafe(run));
        lock().1.retain(|one| !claims.contains(one));
        given_back.notify_all();
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(work);
        }
    });
}
