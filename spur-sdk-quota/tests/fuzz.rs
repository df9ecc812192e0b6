//! Mutated inputs for every parser of outside text: none may panic or hang, and what one accepts must hold together.
//!
//! The inputs follow from a seed, so a run is repeatable. `SPUR_FUZZ_SEED` sets another, `SPUR_FUZZ_INPUTS` how many
//! inputs each parser gets.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::explicit_write, reason = "what eprintln! prints is kept back while a test passes")]

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spur_sdk::{
    Bytes, Hostlist, MemorySpelling, Millicores, TresLimits, format_tres, parse_minutes, parse_tres,
};
use spur_sdk_quota::source::{Format, ReadOptions, read, to_accounts_toml, to_dump};
use spur_sdk_quota::{Policy, QuotaProjector, check};

/// How many inputs each parser gets.
const INPUTS: u64 = 1_000_000;

/// The seed of a run that is given none.
const SEED: u64 = 20_250_501;

/// The longest input, in bytes.
const LONGEST: usize = 200;

/// How often the watchdog looks, and after how many looks at the same input it gives up: 2 seconds. Looks are counted
/// rather than time taken, so that a machine on which everything stands still makes no false alarm.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: u32 = 20;

/// Each how many accepted inputs the costly questions are asked.
const COSTLY: u64 = 16;

/// A parser and what its inputs are made of.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    corpus: &'static [&'static str],
    /// Pieces that mean something to the parser.
    dictionary: &'static [&'static str],
    /// Whether the input was accepted. The number is that of the input.
    parse: fn(&str, u64) -> bool,
}

/// Pieces that are awkward anywhere.
const AWKWARD: &[&str] = &[
    "\0",
    "\t",
    "\n",
    "\r\n",
    " ",
    "\\",
    "\"",
    "'",
    "#",
    "\u{feff}",
    "\u{7f}",
    "é",
    "ß",
    "İ",
    "日本",
    "\u{2028}",
    "\u{10ffff}",
    "-1",
    "0",
    "00",
    "1",
    "4294967295",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
    "0.5",
    "1e9",
    "+5",
    "-",
    "--",
    "_",
    "/",
    ".",
    ",",
    ":",
    "=",
    "[",
    "]",
    "{",
    "}",
    "(null)",
    "NaN",
    "inf",
    "none",
    "parent",
    "unlimited",
];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64, number: u64) -> Self {
        // splitmix64, so that neighbours differ in all bits and no state is zero.
        let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    /// A number below `end`, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(high).unwrap() % end
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// A range of a text that is not empty.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        start..(start + 1 + self.below(8)).min(length)
    }
}

/// The input of a number: a text of the corpus, changed in one place or, less and less often, up to six.
fn input(target: &Target, seed: u64, number: u64) -> String {
    let mut random = Random::new(seed, number);
    let mut text = random.pick(target.corpus).as_bytes().to_vec();
    for _ in 0..=random.below(64).trailing_zeros().min(5) {
        let at = random.below(text.len() + 1);
        match random.below(10) {
            0..=2 => splice(&mut text, at..at, random.pick(target.dictionary).as_bytes()),
            3 => splice(&mut text, at..at, random.pick(AWKWARD).as_bytes()),
            4 if !text.is_empty() => {
                let range = random.range(text.len());
                splice(&mut text, range, random.pick(target.dictionary).as_bytes());
            }
            5 if !text.is_empty() => drop(text.drain(random.range(text.len()))),
            6 if !text.is_empty() => {
                let copy = text[random.range(text.len())].to_vec();
                splice(&mut text, at..at, &copy);
            }
            7 if !text.is_empty() => {
                let at = random.below(text.len());
                text[at] = u8::try_from(random.below(256)).unwrap();
            }
            8 => {
                let other = random.pick(target.corpus).as_bytes();
                let from = random.below(other.len() + 1);
                text.truncate(at);
                text.extend_from_slice(&other[from..]);
            }
            _ => text.truncate(at),
        }
    }
    let mut text = String::from_utf8(text)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
    }
    text
}

fn splice(text: &mut Vec<u8>, range: std::ops::Range<usize>, new: &[u8]) {
    text.splice(range, new.iter().copied());
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} = {text} is no number")))
}

fn fuzz(target: &Target) {
    let seed = number_from_environment("SPUR_FUZZ_SEED").unwrap_or(SEED);
    let inputs = number_from_environment("SPUR_FUZZ_INPUTS").unwrap_or(INPUTS);
    let (current, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let accepted = thread::scope(|scope| {
        scope.spawn(|| watch(target, seed, &current, &done));
        let mut accepted = 0_u64;
        let result = catch_unwind(AssertUnwindSafe(|| {
            for number in 0..inputs {
                current.store(number, Ordering::Relaxed);
                if (target.parse)(&input(target, seed, number), number) {
                    accepted += 1;
                }
            }
        }));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            let number = current.load(Ordering::Relaxed);
            say(&format!(
                "fuzz {}: seed {seed}, input {number}: {:?}",
                target.name,
                input(target, seed, number)
            ));
            resume_unwind(panic);
        }
        accepted
    });
    let seconds = start.elapsed().as_secs_f64();
    let name = target.name;
    say(&format!(
        "fuzz {name}: {inputs} inputs, {accepted} of them accepted, in {seconds:.1} s, seed {seed}"
    ));
    assert!(accepted > inputs / 200, "hardly an input is accepted: the corpus is no good");
}

/// Ends the process when one input takes too long: a thread cannot be stopped.
fn watch(target: &Target, seed: u64, current: &AtomicU64, done: &AtomicBool) {
    let (mut last, mut looks) = (u64::MAX, 0);
    while !done.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        let number = current.load(Ordering::Relaxed);
        looks = if number == last { looks + 1 } else { 0 };
        last = number;
        if looks >= LOOKS && !done.load(Ordering::Relaxed) {
            let text = input(target, seed, number);
            say(&format!("fuzz {}: seed {seed}, input {number} takes more than 2 s: {text:?}", target.name));
            std::process::abort();
        }
    }
}

/// Says something that is seen also when the test passes.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}

fn tres(text: &str, spelling: MemorySpelling) -> bool {
    let Ok(limits) = parse_tres(text, spelling) else { return false };
    let written = format_tres(&limits, spelling);
    let again = parse_tres(&written, spelling);
    match spelling {
        MemorySpelling::Spur => assert_eq!(again, Ok(limits), "{written}"),
        // Rounded once, it stays.
        MemorySpelling::Slurm => {
            assert_eq!(again.as_ref().map(|again: &TresLimits| format_tres(again, spelling)), Ok(written));
        }
    }
    true
}

fn accounts(text: &str, number: u64, format: Format) -> bool {
    let Ok(model) = read(text, "f", ReadOptions::default().format(Some(format))) else { return false };
    let accepted = model.problems.is_empty();
    if accepted && number.is_multiple_of(COSTLY) {
        let projection = QuotaProjector::new(&Policy::default()).project(&model);
        // A sum of devices may be more than Kubernetes holds; nothing else may be wrong.
        for finding in check(&projection) {
            assert!(finding.message.contains("is no quantity that Kubernetes takes"), "{finding}");
        }
        let written = to_accounts_toml(&model);
        read(&written, "f", ReadOptions::default().format(Some(Format::Toml))).unwrap();
        let _ = read(&to_dump(&model).0, "f", ReadOptions::default().format(Some(Format::Dump)));
    }
    accepted
}

/// A test for each parser.
macro_rules! fuzz {
    ($($test:ident: $corpus:expr, $dictionary:expr, $parse:expr;)*) => {
        $(
            #[test]
            fn $test() {
                fuzz(&Target { name: stringify!($test), corpus: $corpus, dictionary: $dictionary, parse: $parse });
            }
        )*
    };
}

const TRES: &[&str] = &[
    "cpu=16,mem=32768,gres/gpu=8",
    "gres/gpu:mi300x:4,gres/gpu:nvidia_a100_2g.20gb=3",
    "cpu=-1,mem=parent,node=0,billing=NONE",
    "license/matlab@server=2,bb/datawarp=52828800M,fs/disk=1G,ic/ofed=1",
    "mem=2.50G,vmem=1Gi,energy=7,pages=9",
];

const TRES_PIECES: &[&str] = &[
    "cpu",
    "mem",
    "node",
    "billing",
    "energy",
    "vmem",
    "pages",
    "gres/",
    "gres/gpu",
    "gpu:mi300x",
    "license/",
    "bb/",
    "fs/",
    "ic/",
    "=",
    ",",
    ":",
    "-1",
    "none",
    "parent",
    "K",
    "M",
    "G",
    "T",
    "P",
    "Ki",
    "Mi",
    "Gi",
    "m",
    ".5",
    "0",
    "18446744073709551615",
    "99999999999999999999",
];

const TOML: &[&str] = &[
    "[[account]]\nname = \"a\"\ngrp_tres = \"cpu=1,mem=2Gi\"\n",
    "[[account]]\nname=\"b\"\nparent=\"root\"\nfairshare=\"parent\"\ncoordinators=[\"u\"]\n",
    "[[account]]\nname='c'\ngrp_tres={cpu=1.5,mem=\"1Ti\",\"gres/gpu\"=2}\n",
    "[[user]]\nname=\"u\"\naccounts=[\"a\"]\n[[account]]\nname=\"a\"\n",
    "[[association]]\naccount=\"a\"\nuser=\"u\"\nmax_wall=\"1-00:00\"\n",
    "[[qos]]\nname=\"q\"\nflags=[\"x\"]\nmax_tres_per_user={cpu=1}\n",
    "[cluster]\nname=\"c\"\nqos=[\"+a\",\"-b\"]\ngrp_jobs=0\n",
];

const TOML_PIECES: &[&str] = &[
    "[[account]]\n",
    "[[user]]\n",
    "[[qos]]\n",
    "[[association]]\n",
    "[cluster]\n",
    "name=",
    "\"a\"",
    "parent=\"a\"\n",
    "grp_tres=",
    "\"cpu=4\"",
    "grp_jobs=1\n",
    "max_wall=",
    "fairshare=",
    "qos=",
    "default_qos=",
    "\"\"\"",
    "'''",
    "\\u0041",
    "\\U0010FFFF",
    "0x1F",
    "1_000",
    "1979-05-27T07:32:00Z",
    "true",
    "nan",
    "[",
    "]",
    "{",
    "}",
    "=",
    ",",
    ".",
    "#",
    "\r\n",
    "a.b=1\n",
    "priority=1\n",
];

const YAML: &[&str] = &[
    "account:\n- name: a\n  grp_tres: cpu=1\n",
    "account: [{name: a, grp_tres: {cpu: 1}}]\n",
    "account:\n- {name: b, parent: root}\nuser:\n- name: u\n  accounts: [b]\n",
    "cluster:\n  name: c\n  qos: [\"+a\", '-b']\n",
    "qos:\n- name: q\n  description: |\n    x\n    y\n",
    "---\naccount:\n- name: 5\n  max_wall: 1-00:00:00\n...\n",
];

const YAML_PIECES: &[&str] = &[
    "account:",
    "user:",
    "- name: a\n",
    "  ",
    "\n- ",
    ": ",
    "? ",
    "&a ",
    "*a",
    "!!str ",
    "!",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "\\x41",
    "~",
    "null",
    "<<: ",
    "# c\n",
    "%YAML 1.2\n",
    "\t",
    "@",
    "`",
    "grp_tres: cpu=4\n",
    "\n",
    ", ",
    "[a, b]",
    "{a: b}",
];

const DUMP: &[&str] = &[
    "Cluster - 'c':Fairshare=1:QOS='normal'\nAccount - 'a':GrpTRES=cpu=4\n",
    "Parent - 'root'\nAccount - 'a':Description='x: y':GrpTRES=cpu=4,gres/gpu:mi300x=4,gres/gpu=8\n",
    "Account - 'a'\nParent - 'a'\nUser - 'u':Partition='p':DefaultAccount='a':Coordinator='a'\n",
    "QOS - 'q':GrpJobs=5:MaxTRESPU=gres/gpu=8:Flags='x,y'\nAccount - a\n",
    "Account - 'a':\\\nGrpJ=3:MaxWall='1-00:00:00':QOS+=b # c\n",
];

const DUMP_PIECES: &[&str] = &[
    "Account - ",
    "User - ",
    "Parent - ",
    "Cluster - ",
    "QOS - ",
    "'a'",
    ":",
    "=",
    "GrpTRES=",
    "cpu=1",
    "gres/gpu",
    "gres/gpu:x=1",
    "mem=1G",
    ",",
    "'",
    "\"",
    "\\",
    "\\\n",
    "#",
    "\n",
    "\r\n",
    "QOS+=",
    "QOS-=",
    "Fairshare=parent",
    "MaxWall=",
    "GrpJobs=-1",
    "Description='",
    "Partition=",
    "AdminLevel=o",
    "WCKeys='k,l'",
    "-",
    "Project",
    "Machine",
];

const POLICY: &[&str] = &[
    "burst = \"free\"\nscope = [\"a\"]\n",
    "[resources]\n\"gres/gpu\" = \"amd.com/gpu\"\n\"gres/gpu:x\"=\"a.b/c\"\n",
    "[objects]\npods = 500\n\"count/jobs.batch\" = 4\n\"requests.storage\"=\"5Ti\"\n",
    "[limit_range]\nmin={cpu=\"10m\",memory=\"4Mi\"}\n",
    "[guard]\npriority_classes=[]\nmax_grace_period_seconds=60\n[guard.rules]\nnode_name=false\n",
    "prefix: spur.amd.com\npod_security: restricted\ncoordinators: true\n",
    "limit_range:\n  default_request: {cpu: 100m, memory: 128Mi}\n",
];

const POLICY_PIECES: &[&str] = &[
    "prefix",
    "pod_security",
    "no_allocation",
    "unset_dimension",
    "burst",
    "coordinators",
    "scope",
    "[resources]\n",
    "[objects]\n",
    "[limit_range]\n",
    "[guard]\n",
    "[guard.rules]\n",
    "\"gres/gpu\"",
    "\"amd.com/gpu\"",
    "=",
    ": ",
    "\"closed\"",
    "\"open\"",
    "true",
    "false",
    "100m",
    "4Mi",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    "pods",
    "count/",
    "-1",
    "\"",
    "'",
    "taints",
    "schedulers",
];

fuzz! {
    hostlist: &["gpu[01-08],login1", "rack[1-2]node[01-16]-ib", "a[1,3-5,9]b", "n1,n2,n3", "(null)"],
        &["[", "]", "-", ",", "01", "1-3", "[0-9]", "[08-11]", "a", "rack", "-ib", "[1-2][3-4]", "99", "x["],
        |text, number| {
            let Ok(list) = Hostlist::from_str(text) else { return false };
            if list.hosts().len() < 100 && number.is_multiple_of(COSTLY) {
                let again: Hostlist = list.to_string().parse().unwrap();
                let sorted = |list: &Hostlist| list.hosts().iter().cloned().collect::<std::collections::BTreeSet<_>>();
                assert_eq!(sorted(&again), sorted(&list));
            }
            true
        };
    tres_in_our_spelling: TRES, TRES_PIECES, |text, _| tres(text, MemorySpelling::Spur);
    tres_in_slurm_spelling: TRES, TRES_PIECES, |text, _| tres(text, MemorySpelling::Slurm);
    quantity: &["32768", "1Ti", "2.50G", "1536Mi", "500m", "0.5", "128g", "4k"],
        &["0", "9", "99999", ".", ".5", "k", "K", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi", "GiB", "m", "-", " "],
        |text, _| {
            let ours = Bytes::parse(text, MemorySpelling::Spur);
            let slurm = Bytes::parse(text, MemorySpelling::Slurm);
            let cpus = Millicores::parse(text);
            for Bytes(bytes) in [&ours, &slurm].into_iter().flatten() {
                assert!(i64::try_from(*bytes).is_ok());
            }
            if let Ok(cpus) = cpus {
                assert_eq!(Millicores::parse(&cpus.to_string()), Ok(cpus));
            }
            ours.is_ok() || slurm.is_ok() || cpus.is_ok()
        };
    time: &["90", "10:00", "36:00:00", "1-12", "1-12:30", "2-00:00:00", "UNLIMITED", "Partition_Limit", "-1"],
        &["-", ":", "00", "59", "1-", ":00", "infinite", "parent", "99999999999999999999", "n/a"],
        |text, _| parse_minutes(text).is_ok();
    toml: TOML, TOML_PIECES, |text, number| accounts(text, number, Format::Toml);
    yaml: YAML, YAML_PIECES, |text, number| accounts(text, number, Format::Yaml);
    dump: DUMP, DUMP_PIECES, |text, number| accounts(text, number, Format::Dump);
    policy: POLICY, POLICY_PIECES, |text, _| Policy::read(text, "f").is_ok();
}
