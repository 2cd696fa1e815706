//! One run at a time for whatever is built once: flock(2), gone with the process however it ends.

use crate::sh::say;
use anyhow::{Context, Result};
use rustix::fs::{flock, FlockOperation};
use std::fs::{File, OpenOptions};
use std::path::Path;

/// Held until dropped.
pub struct Lock {
    _file: File,
}

pub fn take(path: &Path, what: &str) -> Result<Lock> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open the lock {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        say(&format!("  {what}: another run is at it, waiting ({})", path.display()));
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(Lock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = take(&path, "test").unwrap();
        let (tx, rx) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _second = take(&path, "test").unwrap();
            tx.send(()).unwrap();
        });
        assert!(rx.recv_timeout(Duration::from_millis(200)).is_err(), "the second got in beside the first");
        drop(first);
        rx.recv_timeout(Duration::from_secs(10)).expect("the second never got in");
        thread.join().unwrap();
    }
}
