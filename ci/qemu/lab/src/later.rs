//! What is being built while others wait for it.

use anyhow::{bail, Result};
use std::sync::{Condvar, Mutex, OnceLock};

pub struct Later<T> {
    built: OnceLock<Result<T, String>>,
    waiting: Mutex<()>,
    told: Condvar,
}

impl<T> Default for Later<T> {
    fn default() -> Self {
        Later { built: OnceLock::new(), waiting: Mutex::default(), told: Condvar::new() }
    }
}

impl<T> Later<T> {
    /// Those who wait go on. What was told first stays.
    pub fn tell(&self, built: Result<T>) {
        let _guard = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        let _ = self.built.set(built.map_err(|e| format!("{e:#}")));
        self.told.notify_all();
    }

    /// It could not be built: who builds something else need not go on.
    pub fn failed(&self) -> bool {
        self.built.get().is_some_and(Result::is_err)
    }

    /// Sleeps until it is there, or could not be built.
    pub fn wait(&self) -> Result<&T> {
        let guard = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        drop(self.told.wait_while(guard, |()| self.built.get().is_none()).unwrap_or_else(|e| e.into_inner()));
        match self.built.get() {
            Some(Ok(built)) => Ok(built),
            Some(Err(why)) => bail!("it was not built: {why}"),
            None => bail!("it was not built"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn all_who_wait_get_what_was_built_or_why_not() {
        let (good, bad) = (Later::default(), Later::<u32>::default());
        thread::scope(|scope| {
            let early = scope.spawn(|| *good.wait().unwrap());
            thread::sleep(Duration::from_millis(20));
            assert!(!good.failed() && !bad.failed());
            good.tell(Ok(17));
            bad.tell(Err(anyhow::anyhow!("no compiler")));
            assert_eq!(early.join().unwrap(), 17);
        });
        assert_eq!(*good.wait().unwrap(), 17);
        assert!(!good.failed() && bad.failed());
        assert!(bad.wait().unwrap_err().to_string().contains("no compiler"));
    }
}
