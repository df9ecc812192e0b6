//! Where the tables of `spur sacctmgr` differ from a real sacctmgr's on purpose. The list in
//! `docs/guides/accounts.md` is this one.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// A table between `|`, without its heading.
pub(crate) type Rows = Vec<Vec<String>>;

/// A difference: what it is, and what makes the two tables alike in it.
struct Difference {
    what: &'static str,
    settle: fn(&[String], slurm: &mut Rows, ours: &mut Rows),
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        what: "memory is in SPUR's spelling: a bare number, where Slurm adds a unit",
        settle: |_, slurm, _| {
            for cell in slurm.iter_mut().flatten() {
                let amounts: Vec<_> = cell.split(',').map(bare).collect();
                *cell = amounts.join(",");
            }
        },
    },
    Difference {
        what: "user root is not kept: whoever is root on the controller's machine is an admin",
        settle: |heading, slurm, _| {
            if let Some(at) = heading.iter().position(|name| name == "User") {
                slurm.retain(|row| row[at] != "root");
            }
        },
    },
    Difference {
        what: "there is no QoS `normal` that everybody has: no list of QoS is every QoS",
        settle: |heading, slurm, _| {
            if let Some(at) = heading.iter().position(|name| name == "QOS") {
                slurm.iter_mut().filter(|row| row[at] == "normal").for_each(|row| row[at].clear());
            }
            if heading[0] == "Name" {
                slurm.retain(|row| row[0] != "normal");
            }
        },
    },
    Difference {
        what: "descriptions and organizations keep their upper case",
        settle: |heading, _, ours| {
            for name in ["Descr", "Org"] {
                if let Some(at) = heading.iter().position(|heading| heading == name) {
                    for row in ours.iter_mut() {
                        row[at] = row[at].to_lowercase();
                    }
                }
            }
        },
    },
    Difference {
        what: "memberships alone stand in the order of accounts, in Slurm by their place in its table",
        settle: |heading, slurm, ours| {
            let at = heading.iter().position(|name| name == "User");
            if at.is_some_and(|at| slurm.iter().all(|row| !row[at].is_empty())) {
                slurm.sort();
                ours.sort();
            }
        },
    },
    Difference {
        what: "QoS are sorted by name, in Slurm by age",
        settle: |heading, slurm, _| {
            if heading[0] == "Name" {
                slurm.sort();
            }
        },
    },
];

/// `mem=128G` as `mem=131072`.
fn bare(entry: &str) -> String {
    let Some(amount) = entry.strip_prefix("mem=") else { return entry.to_owned() };
    let (digits, unit) = amount.split_at(amount.len() - 1);
    let power = "MGTP".find(unit).unwrap_or_else(|| panic!("{entry} has no unit"));
    format!("mem={}", digits.parse::<u64>().unwrap() << (10 * power))
}

/// Compares tables, and sees that each difference on the list is one.
#[derive(Default)]
pub(crate) struct Comparison {
    needed: RefCell<BTreeSet<&'static str>>,
}

fn rows(text: &str) -> (Vec<String>, Rows) {
    let mut lines = text.lines().map(|line| line.split('|').map(str::to_owned).collect::<Vec<_>>());
    (lines.next().unwrap_or_default(), lines.collect())
}

impl Comparison {
    pub(crate) fn compare(&self, what: &str, slurm: &str, ours: &str) {
        let ((heading, mut slurm), (our_heading, mut ours)) = (rows(slurm), rows(ours));
        assert_eq!(heading, our_heading, "{what}");
        for difference in DIFFERENCES {
            let before = (slurm.clone(), ours.clone());
            (difference.settle)(&heading, &mut slurm, &mut ours);
            if before != (slurm.clone(), ours.clone()) {
                self.needed.borrow_mut().insert(difference.what);
            }
        }
        let lines = |rows: &Rows| rows.iter().map(|row| row.join("|")).collect::<Vec<_>>();
        assert_eq!(lines(&slurm), lines(&ours), "{what}: Slurm's and ours");
    }

    pub(crate) fn every_difference_is_one(&self) {
        for difference in DIFFERENCES {
            assert!(
                self.needed.borrow().contains(difference.what),
                "no difference any more: {}",
                difference.what
            );
        }
    }
}
