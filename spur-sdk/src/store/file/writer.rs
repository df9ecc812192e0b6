//! The thread that writes: one at a time, several transactions together where they wait.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::disk::FileDisk;
use super::engine::Engine;
use super::lock::Lock;
use crate::store::history::History;
use crate::store::{Commit, StoreError, Transaction};

/// The most transactions that are made safe together.
const TOGETHER: usize = 64;

/// The most bytes of them, roughly.
const BYTES: usize = 4 << 20;

/// How many may wait. Whoever comes then waits too, for its place in the queue.
pub(super) const WAITING: usize = 1024;

/// What the thread is asked.
#[derive(Debug)]
pub(super) enum Request {
    Commit(Transaction, oneshot::Sender<Result<Commit, StoreError>>),
    /// Answered with the bytes of the file before and after.
    Compact(oneshot::Sender<Result<(u64, u64), StoreError>>),
    Close,
}

type Asked = (Transaction, oneshot::Sender<Result<Commit, StoreError>>);

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) engine: Arc<Engine>,
    pub(super) history: Arc<History>,
    pub(super) place: String,
    /// What keeps other processes out; `None` on a disk of a test.
    pub(super) guard: Option<Guard>,
}

/// Keeps other processes out until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) disk: Arc<FileDisk>,
    /// Given up last.
    pub(super) _lock: Lock,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.disk.unlock();
    }
}

impl Writer {
    /// Works until nobody is left who could ask, or until it is told to close.
    pub(super) fn run(self, mut requests: mpsc::Receiver<Request>) {
        let mut left = None;
        while let Some(request) = left.take().or_else(|| requests.blocking_recv()) {
            match request {
                Request::Commit(transaction, answer) => {
                    let mut batch = vec![(transaction, answer)];
                    left = Self::gather(&mut batch, &mut requests);
                    self.commit(batch);
                }
                Request::Compact(answer) => {
                    let compacted = self.engine.compact().map_err(|refusal| refusal.error(&self.place));
                    let _ = answer.send(compacted);
                }
                Request::Close => break,
            }
        }
        // What was asked meanwhile is answered by the end of its channel.
        requests.close();
        self.engine.close();
        drop(self.guard);
    }

    /// Adds what waits already; gives back what is no commit.
    fn gather(batch: &mut Vec<Asked>, requests: &mut mpsc::Receiver<Request>) -> Option<Request> {
        let mut bytes = batch.iter().map(|(transaction, _)| transaction.bytes()).sum::<usize>();
        while batch.len() < TOGETHER && bytes < BYTES {
            match requests.try_recv().ok()? {
                Request::Commit(transaction, answer) => {
                    bytes += transaction.bytes();
                    batch.push((transaction, answer));
                }
                other => return Some(other),
            }
        }
        None
    }

    fn commit(&self, batch: Vec<Asked>) {
        let (transactions, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        match self.engine.commit(&transactions, self.history.floor()) {
            Ok(applied) => {
                for set in applied.sets {
                    self.history.push(set);
                }
                for (answer, outcome) in answers.into_iter().zip(applied.outcomes) {
                    // Whoever does not wait any more does not want to know.
                    let _ = answer.send(Ok(outcome));
                }
            }
            Err(refusal) => {
                for (transaction, answer) in transactions.iter().zip(answers) {
                    // What writes nothing needs no disk.
                    let outcome = match self.engine.without_writing(transaction) {
                        Ok(None) => Err(refusal.error(&self.place)),
                        Ok(Some(commit)) => Ok(commit),
                        Err(error) => Err(error),
                    };
                    let _ = answer.send(outcome);
                }
            }
        }
    }
}
