// SPDX-License-Identifier: GPL-2.0

//! A value that is built on first use while others wait for it.

use anyhow::{anyhow, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::LazyLock;

type Build<'a, T> = Box<dyn FnOnce() -> Result<T, String> + Send + 'a>;

/// The first thread that asks for the value builds it, and other threads that ask sleep until then.
pub struct Later<'a, T>(LazyLock<Result<T, String>, Build<'a, T>>);

impl<'a, T> Later<'a, T> {
    pub fn new(build: impl FnOnce() -> Result<T> + Send + 'a) -> Self {
        // A panic in a LazyLock panics in each thread that waits for it, and the run would end
        // without its report.
        let build = || {
            let built = catch_unwind(AssertUnwindSafe(build));
            built.unwrap_or_else(|_| Err(anyhow!("the lab itself failed"))).map_err(|e| format!("{e:#}"))
        };
        Later(LazyLock::new(Box::new(build)))
    }

    pub fn get(&self) -> Result<&T> {
        self.0.as_ref().map_err(|why| anyhow!("it was not built: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_wait_get_what_was_built_once_or_why_not() {
        let mut tries = 0;
        let bad = Later::<u32>::new(|| {
            tries += 1;
            Err(anyhow!("no compiler"))
        });
        for _ in 0..2 {
            assert!(bad.get().unwrap_err().to_string().contains("no compiler"));
        }
        drop(bad);
        assert_eq!((tries, *Later::new(|| Ok(17)).get().unwrap()), (1, 17));
    }
}
