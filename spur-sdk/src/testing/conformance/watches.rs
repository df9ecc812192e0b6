//! Watches.

use std::collections::BTreeMap;
use std::task::Poll;

use super::{
    CHANGE, Case, Held, Outcome, Running, changes, done, ensure, expected, fail, key, next, plain, poll, put,
    puts, same, together,
};
use crate::store::{Revision, SharedStore, Store, StoreError, Transaction, Watch};
use crate::testing::dice::Dice;
use crate::{Classify, ErrorKind};

pub(super) fn cases() -> Vec<(&'static str, Case)> {
    let mut cases = plain![
        a_watch_gives_what_comes,
        a_watch_from_an_earlier_revision_gives_what_followed,
        a_transaction_is_one_set_of_changes_sorted_by_key,
        a_watch_gives_what_begins_with_its_prefix_and_nothing_else,
        what_changes_nothing_is_not_seen,
        a_range_and_the_watch_after_it_leave_no_gap,
        a_next_that_is_dropped_loses_nothing,
        a_watch_among_many_writers_sees_all_in_order,
        watches_do_not_disturb_each_other,
    ];
    cases.push((
        "a_watch_from_forgotten_history_has_expired",
        Case::Forgetting(
            |store| Box::pin(before_forgotten(store)),
            |store, held| Box::pin(from_forgotten(store, held)),
        ),
    ));
    cases.push((
        "a_watch_that_is_slower_than_history_leaves_no_gap",
        Case::Forgetting(
            |store| Box::pin(before_forgotten(store)),
            |store, held| Box::pin(slow(store, held)),
        ),
    ));
    cases
}

async fn a_watch_gives_what_comes(store: SharedStore) -> Outcome {
    let start = store.range("").await?.revision;
    let mut watch = store.watch("", start).await?;
    let waiting: Running<Watch> = Box::pin(async move {
        let set = next(&mut watch).await?;
        same("the changes", &changes(&set), &expected(&[("a", "1")]))?;
        Ok(watch)
    });
    let waiting = tokio::spawn(waiting);
    tokio::task::yield_now().await;
    let first = put(&store, "a", "1").await?;
    let Ok(watch) = waiting.await else { return fail("the task that watches failed") };
    let mut watch = watch?;
    done(&store, Transaction::new().delete(key("a")?)).await?;
    let set = next(&mut watch).await?;
    same("the changes", &changes(&set), &expected(&[("a", "-")]))?;
    ensure(set.revision > first, || format!("{} follows {first}", set.revision))
}

async fn a_watch_from_an_earlier_revision_gives_what_followed(store: SharedStore) -> Outcome {
    let start = store.range("").await?.revision;
    let mut revisions = vec![start];
    for index in 0..10 {
        revisions.push(put(&store, "a", &index.to_string()).await?);
    }
    for (place, after) in revisions.iter().enumerate() {
        let mut watch = store.watch("a", *after).await?;
        for (index, revision) in revisions.iter().enumerate().skip(place + 1) {
            let set = next(&mut watch).await?;
            same("the revision", &set.revision, revision)?;
            same("the changes", &changes(&set), &expected(&[("a", &(index - 1).to_string())]))?;
        }
    }
    Ok(())
}

async fn a_transaction_is_one_set_of_changes_sorted_by_key(store: SharedStore) -> Outcome {
    let start = done(&store, puts(&[("b", "1"), ("d", "1")])?).await?;
    let mut watch = store.watch("", start).await?;
    let mixed = puts(&[("z", "2"), ("d", "2"), ("a", "2"), ("c", "2")])?.delete(key("b")?);
    let revision = done(&store, mixed).await?;
    let set = next(&mut watch).await?;
    same("the revision", &set.revision, &revision)?;
    let sorted = expected(&[("a", "2"), ("b", "-"), ("c", "2"), ("d", "2"), ("z", "2")]);
    same("the changes", &changes(&set), &sorted)
}

async fn a_watch_gives_what_begins_with_its_prefix_and_nothing_else(store: SharedStore) -> Outcome {
    let start = store.range("").await?.revision;
    let mut watch = store.watch("p/", start).await?;
    let mut last = store.watch("p\u{10ffff}", start).await?;
    put(&store, "p", "1").await?;
    put(&store, "p0", "1").await?;
    put(&store, "q/", "1").await?;
    let both = done(&store, puts(&[("p/b", "2"), ("o", "2"), ("p/a", "2"), ("p", "2")])?).await?;
    done(&store, puts(&[("p\u{10ffff}\u{10ffff}", "3"), ("q", "3")])?).await?;
    let whole = done(&store, puts(&[("p/", "4")])?).await?;
    let set = next(&mut watch).await?;
    same("the revision", &set.revision, &both)?;
    same("the changes", &changes(&set), &expected(&[("p/a", "2"), ("p/b", "2")]))?;
    let set = next(&mut watch).await?;
    same("the revision", &set.revision, &whole)?;
    same("the changes", &changes(&set), &expected(&[("p/", "4")]))?;
    let set = next(&mut last).await?;
    same("the changes", &changes(&set), &expected(&[("p\u{10ffff}\u{10ffff}", "3")]))
}

async fn what_changes_nothing_is_not_seen(store: SharedStore) -> Outcome {
    let start = put(&store, "a", "1").await?;
    let mut watch = store.watch("", start).await?;
    done(&store, Transaction::new()).await?;
    done(&store, Transaction::new().delete(key("absent")?)).await?;
    let refused = puts(&[("b", "1")])?.when(crate::store::Comparison::Absent(key("a")?));
    let _ = store.commit(refused).await?;
    done(&store, puts(&[("c", "1")])?.delete(key("absent")?)).await?;
    same("the changes", &changes(&next(&mut watch).await?), &expected(&[("c", "1")]))?;
    // The same value is written again.
    put(&store, "c", "1").await?;
    same("the changes", &changes(&next(&mut watch).await?), &expected(&[("c", "1")]))
}

type Values = BTreeMap<String, Vec<u8>>;

async fn values(store: &SharedStore, prefix: &str) -> Outcome<(Revision, Values)> {
    let snapshot = store.range(prefix).await?;
    let entries = snapshot.entries.into_iter();
    Ok((snapshot.revision, entries.map(|entry| (entry.key.to_string(), entry.value)).collect()))
}

/// Changes keys at random; the last transaction sets `prefix` + `end`.
async fn churn(store: SharedStore, prefix: &'static str, seed: u64, transactions: u64) -> Outcome {
    let mut dice = Dice::new(seed);
    for round in 0..transactions {
        let mut transaction = Transaction::new();
        for name in ["a", "b", "c", "d"] {
            let name = key(&format!("{prefix}{name}"))?;
            transaction = match dice.roll(4) {
                0 => transaction.put(name, format!("{seed} {round}").into_bytes()),
                1 => transaction.delete(name),
                _ => transaction,
            };
        }
        done(&store, transaction).await?;
    }
    done(&store, puts(&[(&format!("{prefix}end"), "1")])?).await?;
    Ok(())
}

/// Follows a watch until the key `end` is set, and compares with what the store holds then.
async fn follow(
    store: &SharedStore,
    prefix: &str,
    watch: &mut Watch,
    mut last: Revision,
    mut seen: Values,
) -> Outcome {
    let end = format!("{prefix}end");
    while !seen.contains_key(&end) {
        let set = next(watch).await?;
        ensure(set.revision > last, || format!("{} follows {last}", set.revision))?;
        last = set.revision;
        for change in set.changes {
            let name = change.key.to_string();
            match change.value {
                Some(value) => {
                    seen.insert(name, value);
                }
                None if seen.remove(&name).is_none() => {
                    return fail(format!("revision {last} deletes {name}, which was not there"));
                }
                None => {}
            }
        }
    }
    same("what the watch has led to", &seen, &values(store, prefix).await?.1)
}

async fn a_range_and_the_watch_after_it_leave_no_gap(store: SharedStore) -> Outcome {
    let writer = tokio::spawn(churn(store.clone(), "x/", 7, 60));
    let mut followers = Vec::new();
    // Each begins at another moment of the writer's work.
    for _ in 0..6 {
        let (revision, seen) = values(&store, "x/").await?;
        let mut watch = store.watch("x/", revision).await?;
        let follower = store.clone();
        followers
            .push(tokio::spawn(async move { follow(&follower, "x/", &mut watch, revision, seen).await }));
        put(&store, "y", "1").await?;
    }
    for task in followers.into_iter().chain([writer]) {
        task.await.unwrap_or_else(|error| fail(format!("a task failed: {error}")))?;
    }
    Ok(())
}

async fn a_next_that_is_dropped_loses_nothing(store: SharedStore) -> Outcome {
    let start = store.range("").await?.revision;
    let mut watch = store.watch("", start).await?;
    let mut seen = Vec::new();
    for index in 0..20_u32 {
        poll_and_drop(&mut watch, &mut seen)?;
        put(&store, "a", &index.to_string()).await?;
        poll_and_drop(&mut watch, &mut seen)?;
        // A deadline that is over at once, or soon.
        let soon = std::time::Duration::from_micros(u64::from(index % 4) * 300);
        if let Ok(set) = tokio::time::timeout(soon, watch.next()).await {
            seen.extend(changes(&set?));
        }
    }
    while seen.len() < 20 {
        seen.extend(changes(&next(&mut watch).await?));
    }
    let all: Vec<(String, String)> = (0..20).map(|index| ("a".to_owned(), index.to_string())).collect();
    same("the changes", &seen, &all)
}

fn poll_and_drop(watch: &mut Watch, seen: &mut Vec<(String, String)>) -> Outcome {
    if let Poll::Ready(set) = poll(std::pin::pin!(watch.next())) {
        seen.extend(changes(&set?));
    }
    Ok(())
}

async fn a_watch_among_many_writers_sees_all_in_order(store: SharedStore) -> Outcome {
    const WRITERS: u64 = 4;
    const EACH: u64 = 25;
    let start = store.range("").await?.revision;
    let mut watch = store.watch("w/", start).await?;
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        let task: Running<Vec<Revision>> = Box::pin(async move {
            let mut revisions = Vec::new();
            for index in 0..EACH {
                revisions.push(put(&store, &format!("w/{writer}"), &index.to_string()).await?);
            }
            Ok(revisions)
        });
        task
    });
    let writers = tokio::spawn(together(writers.collect()));
    let mut seen = Vec::new();
    for _ in 0..WRITERS * EACH {
        seen.push(next(&mut watch).await?.revision);
    }
    let Ok(written) = writers.await else { return fail("the writers failed") };
    let mut written: Vec<Revision> = written?.into_iter().flatten().collect();
    written.sort();
    same("the revisions", &seen, &written)
}

async fn watches_do_not_disturb_each_other(store: SharedStore) -> Outcome {
    let start = store.range("").await?.revision;
    let mut first = store.watch("", start).await?;
    let mut second = store.watch("", start).await?;
    let dropped = store.watch("", start).await?;
    let one = put(&store, "a", "1").await?;
    same("the revision", &next(&mut first).await?.revision, &one)?;
    drop(dropped);
    let two = put(&store, "a", "2").await?;
    same("the revision", &next(&mut first).await?.revision, &two)?;
    drop(first);
    same("the revision", &next(&mut second).await?.revision, &one)?;
    same("the revision", &next(&mut second).await?.revision, &two)
}

/// Writes some history, and opens a watch that is not read yet.
async fn before_forgotten(store: SharedStore) -> Outcome<Held> {
    let start = store.range("").await?.revision;
    let watch = store.watch("h/", start).await?;
    for index in 0..5 {
        put(&store, "h/a", &index.to_string()).await?;
    }
    Ok((start, vec![watch]))
}

async fn from_forgotten(store: SharedStore, (start, _): Held) -> Outcome {
    let mut late = match store.watch("h/", start).await {
        Ok(watch) => watch,
        Err(error) => return is_expired(&error),
    };
    match tokio::time::timeout(CHANGE, late.next()).await {
        Ok(Err(error)) => is_expired(&error)?,
        other => return fail(format!("a watch from forgotten history gives {other:?}")),
    }
    // The way on that the error names.
    let (revision, _) = values(&store, "h/").await?;
    let mut watch = store.watch("h/", revision).await?;
    put(&store, "h/b", "1").await?;
    same("the changes", &changes(&next(&mut watch).await?), &expected(&[("h/b", "1")]))
}

fn is_expired(error: &StoreError) -> Outcome {
    ensure(matches!(error, StoreError::Expired { .. }), || {
        format!("a watch from forgotten history says {error}")
    })?;
    same("the kind of the error", &error.kind(), &ErrorKind::Conflict)
}

/// A watch that was there before may still give everything, or part of it and then end, but without a gap.
async fn slow(store: SharedStore, (_, watches): Held) -> Outcome {
    put(&store, "h/a", "end").await?;
    let Some(mut watch) = watches.into_iter().next() else { return fail("no watch") };
    let all = ["0", "1", "2", "3", "4", "end"];
    for wanted in all {
        let set = match tokio::time::timeout(CHANGE, watch.next()).await {
            Ok(Ok(set)) => set,
            Ok(Err(error)) => return is_expired(&error),
            Err(_) => return fail(format!("no change came within {CHANGE:?}")),
        };
        same("the changes", &changes(&set), &expected(&[("h/a", wanted)]))?;
    }
    Ok(())
}
