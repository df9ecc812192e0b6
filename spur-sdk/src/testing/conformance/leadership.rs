//! Fences, and leadership over a store that one process has to itself.

use super::{Case, Outcome, done, ensure, fail, key, plain, put, puts, same, value};
use crate::store::{
    Commit, Comparison, Fence, Fenced, Leadership, SharedStore, SoleLeadership, Store, StoreError,
    Transaction,
};

pub(super) fn cases() -> Vec<(&'static str, Case)> {
    plain![
        a_fenced_store_writes_as_long_as_its_term_lasts,
        a_fence_leaves_conflicts_as_they_are,
        a_fence_fits_into_the_largest_transaction,
        the_next_of_a_sole_leader_deposes_the_one_before,
    ]
}

async fn a_fenced_store_writes_as_long_as_its_term_lasts(store: SharedStore) -> Outcome {
    let term = key("term")?;
    let created = put(&store, "term", "first").await?;
    let fenced = Fenced::new(store.clone(), Fence { key: term.clone(), created });
    put(&fenced, "a", "1").await?;
    // What a leader writes into its own entry does not end its term.
    put(&store, "term", "still first").await?;
    put(&fenced, "a", "2").await?;
    done(&store, Transaction::new().delete(term)).await?;
    deposed(&fenced).await?;
    put(&store, "term", "second").await?;
    deposed(&fenced).await?;
    same("the value", &value(&store, "a").await?, &Some("2".to_owned()))?;
    same("what is read behind the fence", &value(&fenced, "a").await?, &Some("2".to_owned()))
}

/// Whether every kind of write is refused.
async fn deposed(fenced: &Fenced<SharedStore>) -> Outcome {
    let writes = [
        puts(&[("a", "late")])?,
        Transaction::new().delete(key("a")?),
        puts(&[("late", "1")])?.when(Comparison::Absent(key("late")?)),
        // A conflict beside it makes no difference.
        puts(&[("late", "1")])?.when(Comparison::Absent(key("a")?)),
    ];
    for transaction in writes {
        let text = format!("{transaction:?}");
        match fenced.commit(transaction).await {
            Err(StoreError::Deposed) => {}
            other => return fail(format!("after its term {text} gives {other:?}")),
        }
    }
    Ok(())
}

async fn a_fence_leaves_conflicts_as_they_are(store: SharedStore) -> Outcome {
    let created = done(&store, puts(&[("term", "1"), ("a", "1")])?).await?;
    let fenced = Fenced::new(store.clone(), Fence { key: key("term")?, created });
    let taken = puts(&[("b", "1")])?.when(Comparison::Absent(key("a")?));
    same("the outcome", &fenced.commit(taken).await?, &Commit::Conflict(vec![key("a")?]))?;
    same("the value", &value(&store, "b").await?, &None)
}

async fn a_fence_fits_into_the_largest_transaction(store: SharedStore) -> Outcome {
    let created = put(&store, "term", "1").await?;
    let fenced = Fenced::new(store.clone(), Fence { key: key("term")?, created });
    let mut many = Transaction::new();
    for index in 0..Transaction::MAX_OPERATIONS {
        let name = key(&format!("{index}"))?;
        many = many.when(Comparison::Absent(name.clone())).put(name, b"1".to_vec());
    }
    done(&fenced, many).await?;
    let large = Transaction::MAX_BYTES - 1;
    done(&fenced, Transaction::new().put(key("k")?, vec![0; large])).await?;
    same("the number of keys", &store.range("").await?.entries.len(), &(Transaction::MAX_OPERATIONS + 2))
}

async fn the_next_of_a_sole_leader_deposes_the_one_before(store: SharedStore) -> Outcome {
    let first = SoleLeadership::new(store.clone(), "one", "one:1");
    same("the leader", &first.leader().await?, &None)?;
    let first_term = first.campaign().await?;
    let behind_first = Fenced::new(store.clone(), first_term.fence().clone());
    put(&behind_first, "a", "1").await?;
    let second = SoleLeadership::new(store.clone(), "two", "two:2");
    let second_term = second.campaign().await?;
    ensure(first_term.fence() != second_term.fence(), || "two terms have one fence".into())?;
    deposed(&behind_first).await?;
    put(&Fenced::new(store.clone(), second_term.fence().clone()), "a", "2").await?;
    let Some(leader) = first.leader().await? else { return fail("nobody leads") };
    same("the leader", &(leader.name.as_str(), leader.address.as_str()), &("two", "two:2"))?;
    same("the leader's fence", &leader.fence, second_term.fence())
}
