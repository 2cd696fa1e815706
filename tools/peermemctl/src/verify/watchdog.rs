// SPDX-License-Identifier: GPL-2.0
//! Notices a check that does not end: what it waits for may never come, and then nobody else would
//! tell.

use crate::answer::VerifyCheck;
use crate::check::Level;
use std::fs;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The results that are known when a check begins, which check that is, and how long it may take;
/// `None` when it has ended.
type Begun<T> = Option<(T, String, Duration)>;

/// A thread that waits beside the checks.
pub struct Watchdog<T> {
    tell: Sender<Begun<T>>,
}

impl<T: Send + 'static> Watchdog<T> {
    /// Starts the watchdog. If a check does not end in time, it calls `late` with what was known
    /// and with what is to be said of that check.
    pub fn new(late: impl FnOnce(T, VerifyCheck) + Send + 'static) -> Self {
        let (tell, told) = channel::<Begun<T>>();
        thread::spawn(move || {
            while let Ok(begun) = told.recv() {
                let Some((known, id, limit)) = begun else { continue };
                let start = Instant::now();
                match told.recv_timeout(limit) {
                    Err(RecvTimeoutError::Timeout) => return late(known, hung(&id, start.elapsed())),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(_) => {}
                }
            }
        });
        Self { tell }
    }

    pub fn begin(&self, known: T, id: impl Into<String>, limit: Duration) {
        // That thread ends only with this process.
        let _ = self.tell.send(Some((known, id.into(), limit)));
    }

    pub fn end(&self) {
        let _ = self.tell.send(None);
    }
}

/// Returns the result of a check that has not ended, with the places where the threads of this
/// process wait in the kernel, as far as this user may see them.
fn hung(id: &str, since: Duration) -> VerifyCheck {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let stacks = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stack")).ok());
    let details = stacks
        .map(|stack| stack.split_whitespace().filter(|word| !word.starts_with("[<")).collect::<Vec<_>>().join(" "));
    VerifyCheck {
        id: id.to_owned(),
        level: Level::Fail,
        message: format!(
            "has not ended after {} s: something stands still in the kernel, or a NIC or a GPU",
            since.as_secs()
        ),
        details: details.filter(|stack| !stack.is_empty()).collect(),
        ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_end_is_told() {
        let (tell, told) = channel();
        let watchdog = Watchdog::new(move |known: u32, check: VerifyCheck| tell.send((known, check.id)).unwrap());
        watchdog.begin(1, "quick", Duration::from_secs(60));
        watchdog.end();
        watchdog.begin(2, "slow", Duration::from_millis(20));
        assert_eq!(told.recv_timeout(Duration::from_secs(30)).unwrap(), (2, "slow".to_owned()));
    }
}
