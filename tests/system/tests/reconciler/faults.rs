//! Faults of the API server and of the source delay work; they never take away, and never let in.

mod shared;
mod source;
mod starts;
mod watches;
mod writes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use spur_sdk::Deadlines;
use spur_sdk_quota::k8s::KubeApi;
use spur_system_tests::proxy::{Fault, Moment, Proxy};

/// What can become of a request that is not a watch.
const REQUEST_FAULTS: [Fault; 9] = [
    Fault::Overloaded,
    Fault::Status(409),
    Fault::Status(500),
    Fault::Status(503),
    Fault::Hang,
    Fault::Lost,
    Fault::End,
    Fault::Cut,
    Fault::Slow(Duration::from_millis(250)),
];

/// An API of a client that does not wait long.
fn impatient(client: Client) -> KubeApi {
    KubeApi::new(client, Deadlines::default().kubernetes_unary(Duration::from_millis(1500)))
}

/// An API of a client that waits for nothing long, not for watches either.
fn hasty(client: Client) -> KubeApi {
    let deadlines = Deadlines::default()
        .kubernetes_unary(Duration::from_millis(400))
        .kubernetes_watch_silence(Duration::from_secs(5));
    KubeApi::new(client, deadlines)
}

/// What stands for the next event of a watch, where a request stands by its line.
fn event_of(line: &str) -> String {
    format!("event of {line}")
}

/// Faults that wait for their requests; each strikes once. Clones are the same.
#[derive(Clone, Default)]
struct Armed(Arc<Mutex<Arms>>);

#[derive(Default)]
struct Arms {
    /// By request: how many times more it is let pass, and what becomes of it then.
    waiting: BTreeMap<String, Vec<(usize, Fault)>>,
    struck: usize,
}

impl Armed {
    fn lock(&self) -> MutexGuard<'_, Arms> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request fail when it was made so many times.
    fn arm(&self, line: String, after: usize, fault: Fault) {
        self.lock().waiting.entry(line).or_default().push((after, fault));
    }

    /// Decides over the requests of a proxy.
    fn over(&self, proxy: &Proxy) {
        let armed = self.clone();
        proxy.script(move |request, moment| match moment {
            Moment::Asked => armed.strike(&request.line()),
            Moment::Event => armed.strike(&event_of(&request.line())),
        });
    }

    fn strike(&self, line: &str) -> Fault {
        let mut arms = self.lock();
        let Some(waiting) = arms.waiting.get_mut(line) else { return Fault::None };
        let strikes = waiting.iter().position(|(left, _)| *left == 0);
        for (left, _) in waiting.iter_mut() {
            *left = left.saturating_sub(1);
        }
        let Some(at) = strikes else { return Fault::None };
        let (_, fault) = waiting.remove(at);
        if waiting.is_empty() {
            arms.waiting.remove(line);
        }
        arms.struck += 1;
        fault
    }

    /// Whether nothing waits for any of these.
    fn have_struck(&self, lines: &[String]) -> bool {
        let arms = self.lock();
        lines.iter().all(|line| !arms.waiting.contains_key(line))
    }

    /// Whether nothing waits.
    fn have_struck_all(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// The requests that something waits for.
    fn lines(&self) -> Vec<String> {
        self.lock().waiting.keys().cloned().collect()
    }

    /// How many have struck, and which are still waiting; they wait no more.
    fn disarm(&self) -> (usize, Vec<String>) {
        let mut arms = self.lock();
        let waiting = std::mem::take(&mut arms.waiting).into_iter();
        let waiting = waiting.flat_map(|(line, faults)| {
            faults.into_iter().map(move |(left, fault)| format!("{fault:?} after {left} of {line}"))
        });
        let waiting = waiting.collect();
        (std::mem::take(&mut arms.struck), waiting)
    }
}
