//! Saying that a test did not run.

use std::io::Write;

/// Says on standard error that the test `name` was skipped for `reason`, past the test harness's capture.
///
/// Where the environment names a file in `SPUR_TEST_SKIPS`, a line `name: reason` is appended to it, for whoever
/// counts.
///
/// # Panics
/// When that file can't be written: a skip that nobody counts would look like a success.
pub fn skip(name: &str, reason: &str) {
    let reason = reason.lines().collect::<Vec<_>>().join(" ");
    // One write each, so that tests side by side don't mix their lines. A closed standard error hurts nobody.
    let _ = std::io::stderr().write_all(format!("SKIPPED {name}: {reason}\n").as_bytes());
    if let Some(path) = std::env::var_os("SPUR_TEST_SKIPS").filter(|path| !path.is_empty()) {
        let written = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(written.is_ok(), "append to SPUR_TEST_SKIPS={}: {written:?}", path.display());
    }
}
