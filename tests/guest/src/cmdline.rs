// SPDX-License-Identifier: GPL-2.0
//! `guest.*` words of the kernel command line. Those of one suite are not listed: that suite's
//! `env.number()` reads them.
//!
//! - `run=a,b`: suites, in this order. `end` is added, except to `bare` and to suites that raise
//!   alarms on purpose. `run=shell` alone: a prompt with everything loaded.
//! - `only=TEXT,…`: only tests whose `suite/name` contains one of these. Each must be in a name of one
//!   of the suites, or of those in `of=a,b` where only some of these run.
//! - `mode=legacy`: only tests of this mode (persistent, legacy) and of the boot's generation, or
//!   of none. The others are skipped and say so.
//! - `generation=24.10`: the core's generation where a test does not say; 25.10 without it.
//! - `nvidia_c=1`: nvidia-peermem is NVIDIA's own.
//! - `kernel_crate=lite`: our module was built with kernel-lite. It has no tracepoints, and tests
//!   of them are skipped.
//! - `installed`: `make install` put the module into this image.
//! - `role=server` or `client`: which of two machines this is; addresses are fixed.
//! - `table=1`: only tests that a row of the scenario table names, for the boot's generation.
//! - `after=SUITE/TEST`: in this suite, only what comes after that test.
//! - `fragile=1`: power off after the first alarm or hang.
//! - `seed=N`: seed of random contents; each test that has some prints it.
//! - `size=N`, `iterations=N`: the demo's message (a multiple of 65536) and count.
//! - `dma_bits=N`: bits of an address that the boot's `edu` device puts on the bus.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::machine::Generation;

/// The request of the host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub suites: Vec<String>,
    pub nvidia_c: bool,
    pub generation: Generation,
    /// All other `guest.<key>=<value>` words, for the suites.
    pub values: BTreeMap<String, String>,
}

impl Request {
    pub fn parse(cmdline: &str) -> Result<Self> {
        let mut r = Self::default();
        for (key, value) in cmdline
            .split_whitespace()
            .filter_map(|w| w.strip_prefix("guest."))
            .map(|w| w.split_once('=').unwrap_or((w, "1")))
        {
            match key {
                "run" => r.suites = value.split(',').filter(|s| !s.is_empty()).map(str::to_string).collect(),
                "nvidia_c" => r.nvidia_c = value == "1",
                "generation" => r.generation = Generation::parse(value)?,
                _ => {
                    r.values.insert(key.to_string(), value.to_string());
                }
            }
        }
        Ok(r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_left_alone() {
        let r = Request::parse(
            "console=ttyS0 guest.run=smoke,,demo guest.nvidia_c=1 guest.seed=7 guest.long guest.generation=24.10 quiet\n",
        )
        .unwrap();
        assert_eq!(r.suites, ["smoke", "demo"]);
        assert!(r.nvidia_c);
        assert_eq!(r.generation, Generation::V2410);
        assert_eq!(r.values["seed"], "7");
        assert_eq!(r.values["long"], "1");
        assert_eq!(Request::parse("console=ttyS0").unwrap(), Request::default());
        assert!(Request::parse("guest.generation=5.4").is_err());
    }
}
