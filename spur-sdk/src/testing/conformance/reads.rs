//! Single keys and ranges.

use super::{Case, Outcome, done, ensure, entry, key, keys, plain, put, puts, same, value};
use crate::store::{Revision, SharedStore, Store, Transaction};

pub(super) fn cases() -> Vec<(&'static str, Case)> {
    plain![
        an_empty_store_has_nothing,
        what_was_put_is_read_back,
        a_later_value_replaces_an_earlier_one,
        keys_are_ordered_by_their_bytes,
        a_prefix_takes_what_begins_with_it_and_nothing_else,
        a_prefix_at_the_end_of_a_block_of_unicode_is_not_cut_short,
        a_snapshot_says_the_revision_of_the_whole_store,
        a_large_range_comes_whole,
    ]
}

async fn an_empty_store_has_nothing(store: SharedStore) -> Outcome {
    same("an absent entry", &store.get(&key("k")?).await?, &None)?;
    same("the keys", &keys(&store.range("").await?), &vec![])?;
    same("the keys under a prefix", &keys(&store.range("k").await?), &vec![])
}

async fn what_was_put_is_read_back(store: SharedStore) -> Outcome {
    let values = [
        ("empty", Vec::new()),
        ("bytes", (0..=255).collect()),
        ("zeros", vec![0; 10]),
        ("large", vec![0xA5; 500_000]),
    ];
    for (name, value) in &values {
        done(&store, Transaction::new().put(key(name)?, value.clone())).await?;
    }
    for (name, value) in &values {
        ensure(entry(&store, name).await?.value == *value, || format!("{name} is not read as written"))?;
    }
    same("an absent entry", &store.get(&key("emp")?).await?, &None)
}

async fn a_later_value_replaces_an_earlier_one(store: SharedStore) -> Outcome {
    for text in ["1", "22", ""] {
        put(&store, "k", text).await?;
        same("the value", &value(&store, "k").await?, &Some(text.to_owned()))?;
    }
    same("the keys", &keys(&store.range("").await?), &vec!["k"])
}

async fn keys_are_ordered_by_their_bytes(store: SharedStore) -> Outcome {
    // The order of bytes, which is that of scalar values, but not that of UTF-16 or of a language.
    let ordered = [
        " ",
        "A",
        "B",
        "a",
        "a b",
        "a!",
        "a-",
        "a/",
        "a/b",
        "a0",
        "aa",
        "b",
        "~",
        "\u{e4}",
        "\u{df}x",
        "\u{20ac}",
        "\u{ffff}",
        "\u{10000}",
        "\u{10ffff}",
    ];
    let mut bytes = ordered;
    bytes.sort_unstable();
    let shuffled = ordered.iter().rev().map(|name| (*name, "1")).collect::<Vec<_>>();
    done(&store, puts(&shuffled)?).await?;
    same("the order", &keys(&store.range("").await?), &bytes.to_vec())
}

async fn a_prefix_takes_what_begins_with_it_and_nothing_else(store: SharedStore) -> Outcome {
    let mut names = ["a", "a%", "a*b", "a/", "a/b", "a/b/c", "a/c", "a0", "aab", "a_", "ab", "b", "b/a"];
    names.sort_unstable();
    done(&store, puts(&names.map(|name| (name, "1")))?).await?;
    for prefix in
        ["", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/cd", "aa", "ab", "a%", "a*", "a_", "b", "c", "/", "A"]
    {
        let expected: Vec<&str> = names.into_iter().filter(|name| name.starts_with(prefix)).collect();
        same(&format!("range {prefix:?}"), &keys(&store.range(prefix).await?), &expected)?;
    }
    Ok(())
}

async fn a_prefix_at_the_end_of_a_block_of_unicode_is_not_cut_short(store: SharedStore) -> Outcome {
    // An end of range that is found by adding one to the last character fails at these.
    let ends = ["\u{ff}", "\u{7ff}", "\u{d7ff}", "\u{ffff}", "\u{10ffff}", "\u{10ffff}\u{10ffff}", "p~"];
    let mut names = vec!["o".to_owned(), "q".to_owned(), "\u{e000}".to_owned(), "\u{800}".to_owned()];
    for end in ends {
        for before in ["", "p"] {
            for after in ["", " ", "x", "\u{10ffff}"] {
                names.push(format!("{before}{end}{after}"));
            }
        }
    }
    names.sort();
    names.dedup();
    let values: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    done(&store, puts(&values)?).await?;
    for prefix in ends.iter().flat_map(|end| [(*end).to_owned(), format!("p{end}")]) {
        let expected: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| name.starts_with(&prefix)).collect();
        same(&format!("range {prefix:?}"), &keys(&store.range(&prefix).await?), &expected)?;
    }
    Ok(())
}

async fn a_snapshot_says_the_revision_of_the_whole_store(store: SharedStore) -> Outcome {
    let first = put(&store, "a", "1").await?;
    let second = put(&store, "b", "1").await?;
    ensure(first > Revision(0) && second > first, || format!("{second} follows {first}"))?;
    for prefix in ["", "a", "nothing"] {
        let snapshot = store.range(prefix).await?;
        same(&format!("the revision of range {prefix:?}"), &snapshot.revision, &second)?;
    }
    Ok(())
}

async fn a_large_range_comes_whole(store: SharedStore) -> Outcome {
    // More than etcd gives without being asked in parts would be, and than one transaction takes.
    let names: Vec<String> = (0..1000).map(|index| format!("many/{index:04}")).collect();
    let filler = "x".repeat(1000);
    for part in names.chunks(Transaction::MAX_OPERATIONS) {
        let values: Vec<(&str, &str)> = part.iter().map(|name| (name.as_str(), filler.as_str())).collect();
        done(&store, puts(&values)?).await?;
    }
    let snapshot = store.range("many/").await?;
    same("the keys", &keys(&snapshot), &names.iter().map(String::as_str).collect())?;
    ensure(snapshot.entries.iter().all(|entry| entry.value == filler.as_bytes()), || "a value differs".into())
}
