//! Asking before a commit, in sacctmgr's words.

use std::io::BufRead;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::output;

/// How long somebody may think.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an answer means; `None` is asked again.
fn meaning(answer: &str) -> Option<bool> {
    match answer.trim().chars().next().map(|letter| letter.to_ascii_lowercase()) {
        Some('y') => Some(true),
        None | Some('n') => Some(false),
        Some(_) => None,
    }
}

/// Asks on the terminal. No answer in time, and the end of the input, are no.
pub(super) fn confirm() -> anyhow::Result<bool> {
    output::status("Would you like to commit changes? (You have 30 seconds to decide)");
    let (answer, answers) = mpsc::channel();
    // It ends with the process: a read of a terminal cannot be called off.
    std::thread::Builder::new().name("answer".to_owned()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if answer.send(line).is_err() {
                return;
            }
        }
    })?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        output::status("(N/y): ");
        match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => match meaning(&line) {
                Some(answer) => return Ok(answer),
                None => output::status("Y or N please"),
            },
            Err(mpsc::RecvTimeoutError::Timeout) => {
                output::status("timeout");
                return Ok(false);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in
            [("y", Some(true)), ("Yes", Some(true)), ("", Some(false)), ("n", Some(false)), ("what", None)]
        {
            assert_eq!(meaning(answer), expected, "{answer}");
        }
    }
}
