//! Several clients at once.

use std::task::Poll;

use super::{Case, Outcome, Running, done, ensure, fail, key, plain, poll, put, puts, same, together, value};
use crate::store::{Commit, Comparison, SharedStore, Store};
use crate::testing::linearizability;

pub(super) fn cases() -> Vec<(&'static str, Case)> {
    plain![
        no_increment_is_lost,
        of_many_creations_one_wins,
        a_snapshot_is_one_moment,
        a_commit_that_is_dropped_is_whole_or_not_at_all,
        concurrent_histories_are_linearizable,
    ]
}

async fn no_increment_is_lost(store: SharedStore) -> Outcome {
    const CLIENTS: u64 = 6;
    const EACH: u64 = 15;
    put(&store, "counter", "0").await?;
    let clients = (0..CLIENTS).map(|_| {
        let store = store.clone();
        let task: Running = Box::pin(async move {
            for _ in 0..EACH {
                increment(&store).await?;
            }
            Ok(())
        });
        task
    });
    together(clients.collect()).await?;
    same("the counter", &value(&store, "counter").await?, &Some((CLIENTS * EACH).to_string()))
}

async fn increment(store: &SharedStore) -> Outcome {
    loop {
        let entry = super::entry(store, "counter").await?;
        let Ok(Ok(count)) = std::str::from_utf8(&entry.value).map(str::parse::<u64>) else {
            return fail("the counter is no number");
        };
        let next = puts(&[("counter", &(count + 1).to_string())])?
            .when(Comparison::Modified(key("counter")?, entry.modified));
        if let Commit::Done(_) = store.commit(next).await? {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

async fn of_many_creations_one_wins(store: SharedStore) -> Outcome {
    for round in 0..5 {
        let name = format!("round/{round}");
        let clients = (0..8).map(|client: u64| {
            let (store, name) = (store.clone(), name.clone());
            let task: Running<Option<u64>> = Box::pin(async move {
                let create = puts(&[(&name, &client.to_string())])?.when(Comparison::Absent(name.parse()?));
                Ok(matches!(store.commit(create).await?, Commit::Done(_)).then_some(client))
            });
            task
        });
        let winners: Vec<u64> = together(clients.collect()).await?.into_iter().flatten().collect();
        let [winner] = winners.as_slice() else {
            return fail(format!("{} clients have created one key", winners.len()));
        };
        same("the value", &value(&store, &name).await?, &Some(winner.to_string()))?;
    }
    Ok(())
}

async fn a_snapshot_is_one_moment(store: SharedStore) -> Outcome {
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for round in 0..60_u32 {
                let round = round.to_string();
                done(&store, puts(&[("m/a", &round), ("m/b", &round), ("m/c", &round)])?).await?;
            }
            Outcome::Ok(())
        }
    });
    let mut last = super::Revision(0);
    while !writer.is_finished() {
        let snapshot = store.range("m/").await?;
        ensure(snapshot.revision >= last, || format!("{} follows {last}", snapshot.revision))?;
        last = snapshot.revision;
        let first = snapshot.entries.first();
        for entry in &snapshot.entries {
            ensure(first.is_some_and(|first| first.value == entry.value), || {
                format!("half of {snapshot:?}")
            })?;
            same("the revision of the snapshot", &snapshot.revision, &entry.modified)?;
        }
        ensure(matches!(snapshot.entries.len(), 0 | 3), || format!("half of {snapshot:?}"))?;
        tokio::task::yield_now().await;
    }
    writer.await.unwrap_or_else(|error| fail(format!("a task failed: {error}")))
}

async fn a_commit_that_is_dropped_is_whole_or_not_at_all(store: SharedStore) -> Outcome {
    for round in 0..20_u32 {
        let names = [format!("d/{round}/a"), format!("d/{round}/b")];
        let transaction = puts(&[(&names[0], "1"), (&names[1], "1")])?;
        {
            let mut commit = std::pin::pin!(store.commit(transaction));
            for _ in 0..=round % 4 {
                if let Poll::Ready(outcome) = poll(commit.as_mut()) {
                    let _ = outcome?;
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_micros(200)).await;
            }
        }
        // What was sent before comes before this.
        put(&store, "after", "1").await?;
        let there = store.range(&format!("d/{round}/")).await?.entries.len();
        ensure(there == 0 || there == 2, || format!("{there} of 2 writes were carried out"))?;
    }
    Ok(())
}

async fn concurrent_histories_are_linearizable(store: SharedStore) -> Outcome {
    let recorder = linearizability::exercise(&store, 11, 4, 25).await;
    recorder.check().map_err(|error| super::Failure(error.to_string()))
}
