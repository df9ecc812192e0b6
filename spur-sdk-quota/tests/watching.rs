//! A file of accounts that changes, in all the ways in which files are written.

#![cfg(feature = "apply")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Waker};
use std::time::Duration;

use spur_sdk::{Classify, ErrorKind};
use spur_sdk_quota::source::{FileSource, Merged, ReadOptions, Source};
use spur_sdk_quota::{Completeness, Model};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

/// Longer than anything takes here, also on a machine that does much else.
const LONG: Duration = Duration::from_mins(1);

/// A folder with the file of accounts.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The file `accounts.toml` as a source, with these accounts and read.
    async fn source(&self, accounts: &[&str]) -> FileSource {
        let path = self.path("accounts.toml");
        fs::write(&path, text(accounts)).unwrap();
        let source = FileSource::new(path, ReadOptions::default());
        expect_read(&source, accounts).await;
        source
    }
}

fn text(accounts: &[&str]) -> String {
    accounts.iter().fold(String::new(), |text, name| text + "[[account]]\nname = \"" + name + "\"\n")
}

fn names(model: &Model) -> Vec<&str> {
    model.accounts.keys().map(spur_sdk::AccountName::as_str).collect()
}

async fn expect_read(source: &FileSource, accounts: &[&str]) {
    let model = timeout(LONG, source.read()).await.unwrap().unwrap();
    assert_eq!(names(&model), accounts);
    assert_eq!(model.completeness, Completeness::Full);
}

async fn expect_changed(source: &impl Source) {
    assert!(timeout(LONG, source.changed()).await.is_ok(), "the change is told");
}

async fn expect_unchanged(source: &impl Source, within: Duration) {
    assert!(timeout(within, source.changed()).await.is_err(), "nothing has changed");
}

/// Makes a file anew and puts it in the place of the old one.
fn replace(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}

#[tokio::test]
async fn a_file_that_stays_has_not_changed() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    // It is compared by its content meanwhile, since it was just made.
    expect_unchanged(&source, Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_file_that_another_replaces_has_changed_once() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    replace(source.path(), &text(&["b"]));
    expect_changed(&source).await;
    expect_read(&source, &["b"]).await;
    expect_unchanged(&source, Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_change_while_it_is_waited_for_is_told() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    let path = source.path().to_owned();
    let writer = tokio::spawn(async move {
        sleep(Duration::from_millis(700)).await;
        replace(&path, &text(&["a", "b"]));
    });
    expect_changed(&source).await;
    writer.await.unwrap();
    expect_read(&source, &["a", "b"]).await;
}

#[tokio::test]
async fn a_file_that_is_written_in_pieces_is_whole_in_the_end() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    let accounts = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];
    let path = source.path().to_owned();
    let writer = tokio::spawn(async move {
        let mut file = fs::File::create(path).unwrap();
        for account in accounts {
            file.write_all(text(&[account]).as_bytes()).unwrap();
            sleep(Duration::from_millis(60)).await;
        }
    });
    let begun = Instant::now();
    loop {
        expect_changed(&source).await;
        // A writer that is kept waiting leaves a file that looks done, so that this may be a part.
        let model = timeout(LONG, source.read()).await.unwrap().unwrap();
        if names(&model) == accounts {
            assert_eq!(model.completeness, Completeness::Full);
            break;
        }
        assert!(begun.elapsed() < LONG);
    }
    writer.await.unwrap();
    expect_unchanged(&source, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_file_that_never_stays_has_changed_all_the_same() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    let path = source.path().to_owned();
    let writer = tokio::spawn(async move {
        let mut file = fs::File::options().append(true).open(path).unwrap();
        loop {
            file.write_all(b"#\n").unwrap();
            sleep(Duration::from_millis(10)).await;
        }
    });
    expect_changed(&source).await;
    writer.abort();
}

#[cfg(unix)]
#[tokio::test]
async fn a_mounted_config_map_that_is_swapped_has_changed() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let path = |name: &str| folder.path(name);
    // As kubelet does it: accounts.toml -> ..data/accounts.toml, ..data -> ..N.
    let swap = |number: &str, accounts: &[&str]| {
        fs::create_dir(path(number)).unwrap();
        fs::write(path(number).join("accounts.toml"), text(accounts)).unwrap();
        symlink(number, path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
    };
    swap("..1", &["a"]);
    symlink("..data/accounts.toml", path("accounts.toml")).unwrap();
    let source = FileSource::new(path("accounts.toml"), ReadOptions::default());
    expect_read(&source, &["a"]).await;
    swap("..2", &["b"]);
    fs::remove_dir_all(path("..1")).unwrap();
    expect_changed(&source).await;
    expect_read(&source, &["b"]).await;
}

#[tokio::test]
async fn a_file_that_goes_and_one_that_comes_back_have_changed() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    fs::remove_file(source.path()).unwrap();
    expect_changed(&source).await;
    let error = timeout(LONG, source.read()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    expect_unchanged(&source, Duration::from_secs(1)).await;
    fs::write(source.path(), text(&["a"])).unwrap();
    expect_changed(&source).await;
    expect_read(&source, &["a"]).await;
}

#[tokio::test]
async fn a_change_between_two_waits_is_told_by_the_second() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    expect_unchanged(&source, Duration::from_millis(600)).await;
    replace(source.path(), &text(&["b"]));
    // What is asked anew all the time gets on as well.
    let begun = Instant::now();
    while timeout(Duration::from_millis(20), source.changed()).await.is_err() {
        assert!(begun.elapsed() < LONG);
    }
    expect_read(&source, &["b"]).await;
}

#[tokio::test]
async fn a_change_after_a_reading_that_nobody_waited_for_is_told() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    replace(source.path(), &text(&["b"]));
    // Dropped when it is on its way; should it be done already, it is a reading like any other.
    let begun = pin!(source.read()).poll(&mut Context::from_waker(Waker::noop()));
    if begun.is_ready() {
        replace(source.path(), &text(&["b"]));
    }
    expect_changed(&source).await;
    expect_read(&source, &["b"]).await;
}

#[tokio::test]
async fn a_clone_knows_what_was_read() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    let twin = source.clone();
    replace(source.path(), &text(&["b"]));
    expect_read(&source, &["b"]).await;
    expect_changed(&twin).await;
    expect_read(&twin, &["b"]).await;
}

#[tokio::test]
async fn an_edit_of_the_same_length_is_told_however_soon_it_comes() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    for (account, pause) in [("b", 0), ("c", 0), ("d", 50), ("e", 1100)] {
        sleep(Duration::from_millis(pause)).await;
        fs::write(source.path(), text(&[account])).unwrap();
        expect_changed(&source).await;
        expect_read(&source, &[account]).await;
    }
}

#[tokio::test]
async fn an_edit_that_keeps_length_and_time_is_told() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    let time = fs::metadata(source.path()).unwrap().modified().unwrap();
    sleep(Duration::from_millis(50)).await;
    let mut file = fs::File::options().write(true).open(source.path()).unwrap();
    file.write_all(text(&["b"]).as_bytes()).unwrap();
    file.set_modified(time).unwrap();
    expect_changed(&source).await;
    expect_read(&source, &["b"]).await;
}

#[tokio::test]
async fn a_file_that_is_only_touched_may_be_told_and_is_read_as_before() {
    let folder = Folder::new();
    let source = folder.source(&["a"]).await;
    let file = fs::File::options().write(true).open(source.path()).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let _ = timeout(Duration::from_secs(2), source.changed()).await;
    expect_read(&source, &["a"]).await;
}

#[tokio::test]
async fn of_several_files_any_that_changes_is_told() {
    let folder = Folder::new();
    let paths = ["a", "b", "c"].map(|name| folder.path(name));
    for path in &paths {
        fs::write(path, text(&[path.file_name().unwrap().to_str().unwrap()])).unwrap();
    }
    let sources = paths.iter().map(|path| FileSource::new(path, ReadOptions::default()));
    let merged = Merged::new(sources);
    assert_eq!(merged.name(), paths.each_ref().map(|path| path.display().to_string()).join(", "));
    assert_eq!(names(&merged.read().await.unwrap()), ["a", "b", "c"]);
    expect_unchanged(&merged, Duration::from_secs(1)).await;
    for (path, account) in paths.iter().zip(["d", "e", "f"]) {
        replace(path, &text(&[account]));
        expect_changed(&merged).await;
        assert!(names(&merged.read().await.unwrap()).contains(&account));
    }

    // One that is missing is named; that another was changed meanwhile is not told for ever.
    fs::remove_file(&paths[0]).unwrap();
    replace(&paths[2], &text(&["g"]));
    expect_changed(&merged).await;
    let error = spur_sdk::error_chain(&merged.read().await.unwrap_err());
    assert!(error.starts_with(&format!("read accounts: read {}: ", paths[0].display())), "{error}");
    expect_unchanged(&merged, Duration::from_secs(1)).await;
    replace(&paths[0], &text(&["a"]));
    expect_changed(&merged).await;
    let model = merged.read().await.unwrap();
    assert_eq!(names(&model), ["a", "e", "g"]);
    assert_eq!(model.completeness, Completeness::Full);
}

/// A pipe with a name; whether this system has them.
fn make_pipe(path: &Path) -> bool {
    Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_reading_that_hangs_blocks_nothing_else_and_a_pipe_is_read_once() {
    let folder = Folder::new();
    let path = folder.path("pipe");
    if !make_pipe(&path) {
        println!("skipped: there is no mkfifo");
        return;
    }
    let source = FileSource::new(&path, ReadOptions::default());
    // Nobody writes it: who reads it waits, and this thread goes on.
    let mut first = Box::pin(source.read());
    assert!(timeout(Duration::from_millis(300), &mut first).await.is_err());
    // This one waits for the first, and is gone before that ends.
    assert!(timeout(Duration::from_millis(300), source.read()).await.is_err());
    let writer = std::thread::spawn(move || fs::write(path, text(&["a"])).unwrap());
    let model = timeout(LONG, first).await.unwrap().unwrap();
    writer.join().unwrap();
    assert_eq!(names(&model), ["a"]);
    assert_eq!(model.completeness, Completeness::Full);
    expect_unchanged(&source, Duration::from_secs(1)).await;
}

#[test]
fn a_file_is_read_without_a_runtime_too() {
    let folder = Folder::new();
    let path = folder.path("accounts.toml");
    fs::write(&path, text(&["a"])).unwrap();
    let source = FileSource::new(path, ReadOptions::default());
    assert_eq!(names(&source.read_blocking().unwrap()), ["a"]);
    fs::write(source.path(), text(&["a", "b"])).unwrap();
    // What was read counts in a runtime as well.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        expect_changed(&source).await;
        expect_read(&source, &["a", "b"]).await;
    });
}
