// SPDX-License-Identifier: GPL-2.0

//! Streams and events. A thread of its own does each stream's work, one piece after the other, so
//! that it is really not done when the call returns: a program that does not wait reads old bytes,
//! as it may on a card, and an event answers NOT_READY in the meantime.
//!
//! Left out: priorities, capture, and timing. Work on the stream NULL is done when the call
//! returns.

use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A piece of work.
pub type Work = Box<dyn FnOnce() + Send>;

/// Counts a stream's pieces of work: those that it has received, and those that are done.
#[derive(Debug, Default)]
struct Progress {
    given: u64,
    done: u64,
}

/// A stream's progress, and the condition variable that its thread signals.
#[derive(Debug, Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream. Its thread ends when it is dropped and all its work is done.
pub struct Stream {
    /// The context that it belongs to.
    pub context: usize,
    work: Sender<Work>,
    shared: Arc<Shared>,
}

/// The place of a stream at the time when an event was recorded there.
#[derive(Clone, Debug)]
pub struct Mark {
    shared: Arc<Shared>,
    at: u64,
}

impl Mark {
    /// Returns whether all work that the stream had received by then is done.
    pub fn is_done(&self) -> bool {
        self.shared.progress().done >= self.at
    }

    /// Waits until all work that the stream had received by then is done.
    pub fn wait(&self) {
        let mut progress = self.shared.progress();
        while progress.done < self.at {
            progress = self.shared.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Stream {
    /// Makes a stream without work, or returns `None` if no thread can be started.
    pub fn new(context: usize) -> Option<Self> {
        let (work, todo) = channel::<Work>();
        let shared = Arc::new(Shared::default());
        let to_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("cuda stream".into());
        thread
            .spawn(move || {
                for piece in todo {
                    piece();
                    to_thread.progress().done += 1;
                    to_thread.changed.notify_all();
                }
            })
            .ok()?;
        Some(Self { context, work, shared })
    }

    /// Gives the stream a piece of work, which it does after its earlier work.
    pub fn give(&self, piece: Work) {
        self.shared.progress().given += 1;
        // The thread waits as long as there is a sender.
        let _ = self.work.send(piece);
    }

    /// Returns the stream's present place.
    pub fn mark(&self) -> Mark {
        Mark { shared: Arc::clone(&self.shared), at: self.shared.progress().given }
    }
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// The context that it belongs to.
    pub context: usize,
    /// The last record. An event that was never recorded counts as done.
    pub mark: Option<Mark>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn an_event_is_ready_when_what_was_given_before_is_done() {
        let stream = Stream::new(1).unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let (tell, heard) = mpsc::channel();
        assert!(stream.mark().is_done());
        stream.give(Box::new(move || wait.recv().unwrap()));
        let first = stream.mark();
        stream.give(Box::new(move || tell.send(()).unwrap()));
        let both = stream.mark();
        assert!(!first.is_done() && !both.is_done());
        assert!(heard.try_recv().is_err(), "the second piece came before the first");
        go.send(()).unwrap();
        both.wait();
        assert!(first.is_done() && heard.recv().is_ok());
    }

    #[test]
    fn a_dropped_stream_does_its_work() {
        let stream = Stream::new(1).unwrap();
        let (tell, heard) = mpsc::channel();
        stream.give(Box::new(move || tell.send(7).unwrap()));
        drop(stream);
        assert_eq!(heard.recv(), Ok(7));
    }
}
