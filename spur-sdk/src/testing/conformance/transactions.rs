//! Transactions one after another.

use super::{Case, Outcome, done, ensure, entry, fail, key, keys, plain, put, puts, same, value};
use crate::store::{
    Commit, Comparison, Key, MAX_KEY_BYTES, Revision, SharedStore, Store, StoreError, Transaction,
};

pub(super) fn cases() -> Vec<(&'static str, Case)> {
    plain![
        each_transaction_has_a_greater_revision,
        an_entry_says_when_it_came_to_be_and_when_it_was_written,
        what_is_deleted_and_made_anew_came_to_be_anew,
        a_transaction_is_carried_out_whole_or_not_at_all,
        a_comparison_holds_for_what_it_names,
        comparisons_look_at_the_state_before_the_writes,
        a_conflict_names_its_keys,
        to_delete_what_is_absent_changes_nothing,
        a_transaction_without_writes_says_the_revision,
        the_largest_transactions_are_taken,
        what_no_store_takes_is_refused,
    ]
}

async fn each_transaction_has_a_greater_revision(store: SharedStore) -> Outcome {
    let mut last = store.range("").await?.revision;
    for round in 0..5 {
        let transactions = [
            puts(&[("a", "1"), ("b", "1")])?,
            // The same value again is a write too.
            puts(&[("a", "1")])?,
            Transaction::new().delete(key("b")?),
        ];
        for transaction in transactions {
            let text = format!("{transaction:?}");
            let revision = done(&store, transaction).await?;
            ensure(revision > last, || format!("round {round}, {text}: {revision} follows {last}"))?;
            same("the revision that is read", &store.range("").await?.revision, &revision)?;
            last = revision;
        }
    }
    Ok(())
}

async fn an_entry_says_when_it_came_to_be_and_when_it_was_written(store: SharedStore) -> Outcome {
    let first = done(&store, puts(&[("a", "1"), ("b", "1")])?).await?;
    let second = put(&store, "a", "2").await?;
    let third = put(&store, "c", "3").await?;
    let expected = [("a", first, second), ("b", first, first), ("c", third, third)];
    let snapshot = store.range("").await?;
    for ((name, created, modified), listed) in expected.into_iter().zip(&snapshot.entries) {
        let found = entry(&store, name).await?;
        same(name, &(found.created, found.modified), &(created, modified))?;
        same("the entry in a range", listed, &found)?;
    }
    Ok(())
}

async fn what_is_deleted_and_made_anew_came_to_be_anew(store: SharedStore) -> Outcome {
    let first = put(&store, "a", "1").await?;
    done(&store, Transaction::new().delete(key("a")?)).await?;
    same("the entry", &store.get(&key("a")?).await?, &None)?;
    let again = put(&store, "a", "1").await?;
    let found = entry(&store, "a").await?;
    same("the entry", &(found.created, found.modified), &(again, again))?;
    let stale = Transaction::new().when(Comparison::Created(key("a")?, first)).put(key("a")?, b"2".to_vec());
    same("the outcome", &store.commit(stale).await?, &Commit::Conflict(vec![key("a")?]))
}

async fn a_transaction_is_carried_out_whole_or_not_at_all(store: SharedStore) -> Outcome {
    let first = done(&store, puts(&[("a", "1"), ("b", "1")])?).await?;
    let change = puts(&[("a", "2"), ("c", "2")])?.delete(key("b")?);
    let refused = change.clone().when(Comparison::Absent(key("a")?));
    same("the outcome", &store.commit(refused).await?, &Commit::Conflict(vec![key("a")?]))?;
    let snapshot = store.range("").await?;
    same("the keys", &keys(&snapshot), &vec!["a", "b"])?;
    same("the revision", &snapshot.revision, &first)?;
    let second = done(&store, change.when(Comparison::Modified(key("a")?, first))).await?;
    let snapshot = store.range("").await?;
    same("the keys", &keys(&snapshot), &vec!["a", "c"])?;
    let modified: Vec<Revision> = snapshot.entries.iter().map(|entry| entry.modified).collect();
    same("the revisions", &modified, &vec![second, second])
}

async fn a_comparison_holds_for_what_it_names(store: SharedStore) -> Outcome {
    let created = put(&store, "there", "1").await?;
    let modified = put(&store, "there", "2").await?;
    let (there, absent) = (key("there")?, key("absent")?);
    let zero = Revision(0);
    let table = [
        (Comparison::Absent(absent.clone()), true),
        (Comparison::Absent(there.clone()), false),
        (Comparison::Modified(there.clone(), modified), true),
        (Comparison::Modified(there.clone(), created), false),
        (Comparison::Modified(there.clone(), Revision(modified.0 + 1)), false),
        (Comparison::Modified(there.clone(), zero), false),
        (Comparison::Modified(absent.clone(), modified), false),
        (Comparison::Modified(absent.clone(), zero), false),
        (Comparison::Created(there.clone(), created), true),
        (Comparison::Created(there.clone(), modified), false),
        (Comparison::Created(there.clone(), zero), false),
        (Comparison::Created(absent.clone(), created), false),
        (Comparison::Created(absent, zero), false),
    ];
    for (comparison, holds) in table {
        let outcome = store.commit(Transaction::new().when(comparison.clone())).await?;
        let expected =
            if holds { Commit::Done(modified) } else { Commit::Conflict(vec![comparison.key().clone()]) };
        same(&format!("the outcome of {comparison:?}"), &outcome, &expected)?;
    }
    Ok(())
}

async fn comparisons_look_at_the_state_before_the_writes(store: SharedStore) -> Outcome {
    let create = puts(&[("a", "1")])?.when(Comparison::Absent(key("a")?));
    let first = done(&store, create.clone()).await?;
    same("the outcome", &store.commit(create).await?, &Commit::Conflict(vec![key("a")?]))?;
    let delete = Transaction::new().when(Comparison::Modified(key("a")?, first)).delete(key("a")?);
    done(&store, delete.clone()).await?;
    same("the outcome", &store.commit(delete).await?, &Commit::Conflict(vec![key("a")?]))
}

async fn a_conflict_names_its_keys(store: SharedStore) -> Outcome {
    let revision = done(&store, puts(&[("a", "1"), ("m", "1"), ("z", "1")])?).await?;
    let transaction = puts(&[("new", "1")])?
        .when(Comparison::Absent(key("z")?))
        .when(Comparison::Modified(key("m")?, revision))
        .when(Comparison::Created(key("gone")?, revision))
        .when(Comparison::Absent(key("a")?))
        .when(Comparison::Created(key("z")?, Revision(revision.0 + 1)));
    let expected = ["z", "gone", "a"].into_iter().map(key).collect::<Outcome<Vec<Key>>>()?;
    same("the outcome", &store.commit(transaction).await?, &Commit::Conflict(expected))?;
    same("what it would have written", &value(&store, "new").await?, &None)
}

async fn to_delete_what_is_absent_changes_nothing(store: SharedStore) -> Outcome {
    let first = put(&store, "a", "1").await?;
    let revision = done(&store, Transaction::new().delete(key("b")?)).await?;
    same("the revision", &revision, &first)?;
    let both = done(&store, puts(&[("c", "1")])?.delete(key("b")?)).await?;
    ensure(both > first, || format!("{both} follows {first}"))?;
    same("the keys", &keys(&store.range("").await?), &vec!["a", "c"])
}

async fn a_transaction_without_writes_says_the_revision(store: SharedStore) -> Outcome {
    let before = store.range("").await?.revision;
    same("the revision of an empty store", &done(&store, Transaction::new()).await?, &before)?;
    let first = put(&store, "a", "1").await?;
    for _ in 0..2 {
        same("the revision", &done(&store, Transaction::new()).await?, &first)?;
    }
    let compared = Transaction::new().when(Comparison::Modified(key("a")?, first));
    same("the revision", &done(&store, compared).await?, &first)
}

async fn the_largest_transactions_are_taken(store: SharedStore) -> Outcome {
    let numbered = |index: usize| key(&format!("{index:03}/{}", "k".repeat(MAX_KEY_BYTES - 4)));
    let mut many = Transaction::new();
    for index in 0..Transaction::MAX_OPERATIONS {
        let name = numbered(index)?;
        many = many.when(Comparison::Absent(name.clone())).put(name, b"1".to_vec());
    }
    let revision = done(&store, many).await?;
    let snapshot = store.range("").await?;
    same("the number of keys", &snapshot.entries.len(), &Transaction::MAX_OPERATIONS)?;
    let mut many = Transaction::new();
    for index in 0..Transaction::MAX_OPERATIONS {
        let name = numbered(index)?;
        many = many.when(Comparison::Modified(name.clone(), revision)).delete(name);
    }
    done(&store, many.clone()).await?;
    same("the keys", &keys(&store.range("").await?), &vec![])?;
    match store.commit(many).await? {
        Commit::Conflict(keys) => {
            same("the number of conflicts", &keys.len(), &Transaction::MAX_OPERATIONS)?;
        }
        Commit::Done(_) => return fail("comparisons of what is gone hold"),
    }
    let large = vec![0x5A; Transaction::MAX_BYTES - "large".len()];
    done(&store, Transaction::new().put(key("large")?, large.clone())).await?;
    ensure(entry(&store, "large").await?.value == large, || "a large value is not read as written".into())
}

async fn what_no_store_takes_is_refused(store: SharedStore) -> Outcome {
    put(&store, "a", "1").await?;
    let before = store.range("").await?;
    let mut many = Transaction::new();
    let mut compared = puts(&[("a", "2")])?;
    for index in 0..=Transaction::MAX_OPERATIONS {
        many = many.put(key(&format!("{index}"))?, b"1".to_vec());
        compared = compared.when(Comparison::Absent(key(&format!("{index}"))?));
    }
    // One comparison more than anybody may make is for a fence.
    let compared = compared.when(Comparison::Absent(key("one more")?));
    let refused = [
        ("too many writes", many),
        ("too many comparisons", compared),
        ("too many bytes", Transaction::new().put(key("a")?, vec![0; Transaction::MAX_BYTES])),
        ("a key that is written twice", puts(&[("a", "2"), ("b", "2"), ("a", "3")])?),
        ("a key that is written and deleted", puts(&[("a", "2")])?.delete(key("a")?)),
        ("a key that is deleted twice", Transaction::new().delete(key("a")?).delete(key("a")?)),
    ];
    for (what, transaction) in refused {
        match store.commit(transaction).await {
            Err(StoreError::Transaction(_)) => {}
            other => return fail(format!("{what}: {other:?}")),
        }
        same(what, &store.range("").await?, &before)?;
    }
    Ok(())
}
