//! PEM (RFC 7468).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Characters of base 64 in a line.
const LINE: usize = 64;

pub(super) const CERTIFICATE: &str = "CERTIFICATE";
pub(super) const PRIVATE_KEY: &str = "PRIVATE KEY";

/// What a block is called, and what is in it, which may be a secret.
pub(super) type Block = (String, Zeroizing<Vec<u8>>);

pub(super) fn encode(label: &str, der: &[u8]) -> String {
    let text = Zeroizing::new(STANDARD.encode(der));
    // Large enough, so that no part of a secret stays behind where it grew from.
    let mut pem = String::with_capacity(text.len() + text.len() / LINE + 2 * label.len() + 40);
    pem.push_str("-----BEGIN ");
    pem.push_str(label);
    pem.push_str("-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        // Base 64 is ASCII: any place is between characters.
        let (line, more) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = more;
    }
    pem.push_str("-----END ");
    pem.push_str(label);
    pem.push_str("-----\n");
    pem
}

/// All blocks, in order; `None` if one cannot be read. Text between blocks is for people.
pub(super) fn blocks(text: &str) -> Option<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, Zeroizing<String>)> = None;
    for line in text.lines().map(str::trim) {
        let begins = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----"));
        let ends = line.strip_prefix("-----END ").and_then(|rest| rest.strip_suffix("-----"));
        match (&mut open, begins, ends) {
            (None, Some(label), _) => open = Some((label, Zeroizing::new(String::with_capacity(text.len())))),
            (Some((label, body)), None, Some(end)) if *label == end => {
                let der = Zeroizing::new(STANDARD.decode(body.as_bytes()).ok()?);
                blocks.push(((*label).to_owned(), der));
                open = None;
            }
            (Some((_, body)), None, None) => body.push_str(line),
            (None, None, None) => {}
            (Some(_), Some(_), _) | (Some(_) | None, _, Some(_)) => return None,
        }
    }
    open.is_none().then_some(blocks)
}

/// The one block in `text`, if it is called one of `labels`.
pub(super) fn decode(text: &str, labels: &[&str]) -> Option<Zeroizing<Vec<u8>>> {
    let mut blocks = blocks(text)?;
    let (label, der) = blocks.pop()?;
    (blocks.is_empty() && labels.contains(&label.as_str())).then_some(der)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_around_blocks_is_for_people_and_broken_blocks_are_refused() {
        let one = encode("A", b"one");
        let both = format!("hello\n{one}between\r\n{}", encode("B", b"two").replace('\n', "\r\n"));
        let labels: Vec<_> = blocks(&both).unwrap().into_iter().map(|(label, _)| label).collect();
        assert_eq!(labels, ["A", "B"]);
        assert!(decode(&both, &["A", "B"]).is_none());
        assert!(decode(&one, &["B"]).is_none());
        for broken in [
            "-----BEGIN A-----\nb25l\n",
            "-----BEGIN A-----\nb25l\n-----END B-----\n",
            "-----BEGIN A-----\n-----BEGIN A-----\n-----END A-----\n",
            "-----END A-----\n",
            "-----BEGIN A-----\n!!!!\n-----END A-----\n",
        ] {
            assert!(blocks(broken).is_none(), "{broken}");
        }
        assert!(blocks("").unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(der in prop::collection::vec(any::<u8>(), 0..300)) {
            let text = encode("X Y", &der);
            prop_assert!(text.lines().all(|line| line.len() <= LINE));
            prop_assert_eq!(decode(&text, &["X Y"]).unwrap().to_vec(), der);
        }

        #[test]
        fn no_text_breaks_the_reader(text in "(-----(BEGIN|END) [AB]-----\n|[a-zA-Z=\n]{0,9}|\\PC{0,9})*") {
            let _ = blocks(&text);
        }
    }
}
