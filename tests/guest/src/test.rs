// SPDX-License-Identifier: GPL-2.0
//! Describes a test. A test runs in a process of its own, so that a panic, an abort or a hang is
//! one failure with a name, and so that whatever it held is given back when it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::machine::{Generation, Level, Mode};

/// The meaning of a test when nvidia-peermem is NVIDIA's own module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvidiaC {
    /// It must pass as well.
    Same,
    /// The result is written down as `# json nvidia_c`, and is no failure.
    Recorded,
    /// It asks for something that only ours promises.
    Skip(&'static str),
}

/// The boot in which a test runs, and the values of the command line.
pub struct Env {
    pub mode: Option<Mode>,
    pub generation: Generation,
    pub nvidia_c: bool,
    pub values: BTreeMap<String, String>,
}

impl Env {
    /// Returns the mode of a test that declared `Level::Peermem`.
    pub fn mode(&self) -> Result<Mode> {
        self.mode.context("this test runs with nvidia-peermem loaded")
    }

    /// Returns whether our module was built with kernel-lite, and has no tracepoints
    /// (`guest.kernel_crate=lite`).
    pub fn kernel_lite(&self) -> bool {
        self.values.get("kernel_crate").is_some_and(|c| c == "lite")
    }

    /// Returns the number that the command line gives as `guest.<key>=`, or `without` if it gives
    /// none.
    pub fn number<T: FromStr<Err = ParseIntError>>(&self, key: &str, without: T) -> Result<T> {
        let Some(text) = self.values.get(key) else { return Ok(without) };
        text.parse().with_context(|| format!("guest.{key}={text} is no number for that"))
    }

    /// Makes a generator of random numbers from `guest.seed=`, or from a seed of its own. Prints
    /// the seed, so that a failure can be repeated.
    pub fn rng(&self) -> Result<fastrand::Rng> {
        let seed = self.number("seed", fastrand::u64(..))?;
        println!("guest.seed={seed}");
        Ok(fastrand::Rng::with_seed(seed))
    }

    /// Returns the reason that a refusal is to be recorded with, or `None` with NVIDIA's module,
    /// which records none.
    pub fn reason<'a>(&self, reason: &'a str) -> Option<&'a str> {
        (!self.nvidia_c).then_some(reason)
    }
}

pub struct Test {
    pub name: String,
    pub level: Level,
    /// The generation of the RDMA core that the test needs; `None` if it runs on the boot's.
    pub generation: Option<Generation>,
    /// The generation on which the test cannot run or would hang because of the core, and why.
    pub not_on: Option<(Generation, &'static str)>,
    pub nvidia_c: NvidiaC,
    pub limit: Duration,
    pub run: fn(&Env) -> Result<()>,
}

/// The usual limit. It is long, because a test of ten seconds may take two minutes where seven machines
/// share two processors. A test that hangs is found all the same.
const USUAL_LIMIT: Duration = Duration::from_secs(180);

impl Test {
    pub fn new(name: &str, level: Level, run: fn(&Env) -> Result<()>) -> Self {
        Self {
            name: name.into(),
            level,
            generation: None,
            not_on: None,
            nvidia_c: NvidiaC::Same,
            limit: USUAL_LIMIT,
            run,
        }
    }

    pub fn nvidia_c(mut self, nvidia_c: NvidiaC) -> Self {
        self.nvidia_c = nvidia_c;
        self
    }

    /// Skips the test on a generation of the RDMA core. `why` says what that core does there.
    pub fn not_on(mut self, generation: Generation, why: &'static str) -> Self {
        self.not_on = Some((generation, why));
        self
    }

    /// Sets the limit of a test for which the usual one is too short.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        assert!(self.limit > USUAL_LIMIT, "{}: the usual limit is no shorter", self.name);
        self
    }
}

/// Makes the same test for each mode that exists, named `mode/name`.
pub fn in_modes(nvidia_c: bool, modes: &[Mode], name: &str, run: fn(&Env) -> Result<()>) -> Vec<Test> {
    Mode::all(nvidia_c)
        .iter()
        .filter(|m| modes.contains(m))
        .map(|m| Test::new(&format!("{}/{name}", m.name()), Level::Peermem(*m), run))
        .collect()
}

pub struct Suite {
    pub name: &'static str,
    pub tests: Vec<Test>,
}

/// Marks at the begin of a line in a child's output. They make the line more than a note.
pub const JSON_MARK: &str = "@json ";
pub const SKIP_MARK: &str = "@skip ";
pub const FAIL_MARK: &str = "@fail ";

/// Prints a result row for the host.
pub fn emit(name: &str, value: &Value) {
    println!("{JSON_MARK}{name} {value}");
}

/// Prints why the test failed, each line a reason.
pub fn fail(error: &anyhow::Error) {
    for line in format!("{error:#}").lines() {
        println!("{FAIL_MARK}{line}");
    }
}

/// Returns whether a test failed because it asked the lab's GPU driver for a switch that only its other
/// flavour has (ci/qemu/gpu/README.md).
pub fn wants_other_flavour(error: &anyhow::Error) -> bool {
    let is_refusal = |cause: &(dyn std::error::Error + 'static)| {
        let errno = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        errno == Some(libc::EOPNOTSUPP)
    };
    format!("{error:#}").contains("/nvidia_lab/") && error.chain().any(is_refusal)
}

/// The machine lacks what a test needs. A function that finds this out returns this error, and the test
/// counts as skipped.
#[derive(Debug)]
pub struct Lacking(pub String);

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacking {}

/// Says that the machine lacks what the test needs. The test must return after this.
pub fn skip(why: &str) {
    println!("{SKIP_MARK}{why}");
}
