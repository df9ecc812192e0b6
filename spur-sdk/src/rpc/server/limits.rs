//! How much one caller may ask at once and in a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::rpc::{Code, Refusal};

/// The callers that are remembered; more make those without a call under way forgotten.
const MAX_CALLERS: usize = 10_000;

/// How much each caller asks.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    most: u32,
    rate: u32,
    callers: Arc<Mutex<HashMap<String, Account>>>,
}

/// What one caller has left.
#[derive(Debug)]
struct Account {
    running: u32,
    /// Thousandths of a call.
    saved: u64,
    since: Instant,
}

/// A call under way; dropping it ends it.
#[derive(Debug)]
pub(super) struct Running {
    caller: String,
    callers: Arc<Mutex<HashMap<String, Account>>>,
}

impl Limits {
    pub(super) fn new(most: u32, rate: u32) -> Self {
        Self { most, rate, callers: Arc::default() }
    }

    /// Begins a call, unless there are too many.
    pub(super) fn begin(&self, caller: String, now: Instant) -> Result<Running, Refusal> {
        let full = u64::from(self.rate).saturating_mul(1000);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= MAX_CALLERS {
            let minute = Duration::from_mins(1);
            callers.retain(|_, account| account.running > 0 || now.duration_since(account.since) < minute);
        }
        let account =
            callers.entry(caller.clone()).or_insert(Account { running: 0, saved: full, since: now });
        let passed =
            u64::try_from(now.saturating_duration_since(account.since).as_millis()).unwrap_or(u64::MAX);
        account.saved = account.saved.saturating_add(passed.saturating_mul(u64::from(self.rate))).min(full);
        account.since = now;
        if account.running >= self.most {
            return Err(refused(format!(
                "more than {} calls of this caller at once: wait for some",
                self.most
            )));
        }
        let Some(left) = account.saved.checked_sub(1000) else {
            return Err(refused(format!(
                "more than {} calls of this caller in a second: wait a moment",
                self.rate
            )));
        };
        account.saved = left;
        account.running += 1;
        drop(callers);
        Ok(Running { caller, callers: Arc::clone(&self.callers) })
    }
}

fn refused(message: String) -> Refusal {
    Refusal::new(Code::ResourceExhausted, message)
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = callers.get_mut(&self.caller) {
            account.running = account.running.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_its_own_rate_and_gets_it_back_with_time() {
        let limits = Limits::new(10, 2);
        let start = Instant::now();
        let ask = |caller: &str, at: u64| limits.begin(caller.to_owned(), start + Duration::from_millis(at));
        assert!(ask("alice", 0).is_ok());
        assert!(ask("alice", 0).is_ok());
        assert_eq!(ask("alice", 0).unwrap_err().code, Code::ResourceExhausted);
        assert!(ask("bob", 0).is_ok());
        assert!(ask("alice", 499).is_err());
        assert!(ask("alice", 999).is_ok());
    }

    #[test]
    fn calls_at_once_are_counted_until_they_end() {
        let limits = Limits::new(2, 100);
        let now = Instant::now();
        let first = limits.begin("alice".to_owned(), now).unwrap();
        let _second = limits.begin("alice".to_owned(), now).unwrap();
        assert!(limits.begin("alice".to_owned(), now).is_err());
        drop(first);
        assert!(limits.begin("alice".to_owned(), now).is_ok());
    }
}
