//! Several sources as one.

use std::future::{Future, poll_fn};
use std::task::Poll;

use super::{Source, SourceError};
use crate::model::Model;

/// Several sources as one: their models become one by [`Model::merge`], in the order of the sources.
///
/// The whole is [`Completeness::Full`](crate::Completeness::Full) only if every source is. No source at all is a model
/// without an account, and [`Completeness::Partial`](crate::Completeness::Partial).
#[derive(Debug, Clone)]
pub struct Merged<S> {
    sources: Vec<S>,
}

impl<S: Source> Merged<S> {
    /// These sources.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = S>) -> Self {
        Self { sources: sources.into_iter().collect() }
    }

    /// The sources, in the order of reading.
    #[must_use]
    pub fn sources(&self) -> &[S] {
        &self.sources
    }
}

impl<S: Source> Source for Merged<S> {
    /// The names, joined by `, `.
    fn name(&self) -> String {
        self.sources.iter().map(Source::name).collect::<Vec<_>>().join(", ")
    }

    /// Reads every source, one after the other.
    ///
    /// # Errors
    /// That of the first source that fails, which names it. The others are read all the same, so that
    /// [`changed`](Source::changed) tells of none what had changed before.
    async fn read(&self) -> Result<Model, SourceError> {
        let mut whole: Option<Result<Model, SourceError>> = None;
        for source in &self.sources {
            let model = source.read().await;
            match (&mut whole, model) {
                (None, model) => whole = Some(model),
                (Some(Ok(whole)), Ok(model)) => whole.merge(model),
                (Some(whole @ Ok(_)), failed @ Err(_)) => *whole = failed,
                // Told when this one is put right.
                (Some(Err(_)), _) => {}
            }
        }
        whole.unwrap_or_else(|| Ok(Model::default()))
    }

    /// Ends when any source may have changed.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        let mut waiting: Vec<_> = self.sources.iter().map(|source| Box::pin(source.changed())).collect();
        poll_fn(move |context| {
            // Those that are not polled any more are asked again by the next call.
            if waiting.iter_mut().any(|changed| changed.as_mut().poll(context).is_ready()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use spur_sdk::{AccountName, error_chain};

    use super::*;
    use crate::model::{Completeness, Origin};

    /// A source with one account of its name.
    struct Store {
        name: &'static str,
        completeness: Option<Completeness>,
        changed: bool,
        read: AtomicUsize,
    }

    impl Store {
        /// One that cannot be read is `None`.
        fn new(name: &'static str, completeness: Option<Completeness>) -> Self {
            Self { name, completeness, changed: false, read: AtomicUsize::new(0) }
        }
    }

    impl Source for Store {
        fn name(&self) -> String {
            self.name.to_owned()
        }

        fn read(&self) -> impl Future<Output = Result<Model, SourceError>> + Send {
            self.read.fetch_add(1, Ordering::Relaxed);
            let read = || {
                let completeness = self
                    .completeness
                    .ok_or_else(|| SourceError::Store { store: self.name(), source: "it is down".into() })?;
                let mut model = Model { completeness, ..Model::default() };
                model.add_account(&Origin::store(self.name), "a", None, "").unwrap();
                model.add_account(&Origin::store(self.name), self.name, None, "").unwrap();
                Ok(model)
            };
            ready(read())
        }

        async fn changed(&self) {
            if !self.changed {
                pending::<()>().await;
            }
        }
    }

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn read(merged: &Merged<Store>) -> Result<Model, SourceError> {
        match poll(merged.read()) {
            Poll::Ready(model) => model,
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn the_models_become_one_in_the_order_of_the_sources() {
        let full = Some(Completeness::Full);
        let merged = Merged::new([Store::new("y", full), Store::new("x", full)]);
        assert_eq!(merged.name(), "y, x");
        assert_eq!(merged.sources().len(), 2);
        let model = read(&merged).unwrap();
        assert_eq!(model.accounts.keys().map(AccountName::as_str).collect::<Vec<_>>(), ["a", "x", "y"]);
        let problems: Vec<_> = model.problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, ["x: account a: is already defined at y; remove one of the two"]);
    }

    #[test]
    fn the_whole_is_full_only_if_every_part_is() {
        use Completeness::{Full, Partial};
        let of = |parts: &[Completeness]| {
            let stores =
                ["x", "y", "z"].into_iter().zip(parts).map(|(name, part)| Store::new(name, Some(*part)));
            read(&Merged::new(stores)).unwrap().completeness
        };
        for (parts, whole) in [
            (&[Full][..], Full),
            (&[Partial], Partial),
            (&[Full, Full, Full], Full),
            (&[Partial, Full, Full], Partial),
            (&[Full, Partial, Full], Partial),
            (&[Full, Full, Partial], Partial),
            (&[Partial, Partial], Partial),
            (&[], Partial),
        ] {
            assert_eq!(of(parts), whole, "{parts:?}");
        }
    }

    #[test]
    fn one_that_fails_fails_the_whole_by_its_name_and_the_others_are_read_all_the_same() {
        let full = Some(Completeness::Full);
        let merged = Merged::new([
            Store::new("w", full),
            Store::new("x", None),
            Store::new("y", None),
            Store::new("z", full),
        ]);
        assert_eq!(error_chain(&read(&merged).unwrap_err()), "read accounts from x: it is down");
        assert!(merged.sources().iter().all(|store| store.read.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn it_has_changed_when_any_source_has() {
        for changed in 0..3 {
            let mut stores = ["x", "y", "z"].map(|name| Store::new(name, None));
            assert!(poll(Merged::new(["x", "y"].map(|name| Store::new(name, None))).changed()).is_pending());
            stores[changed].changed = true;
            assert!(poll(Merged::new(stores).changed()).is_ready());
        }
        assert!(poll(Merged::<Store>::new([]).changed()).is_pending());
    }
}
