// SPDX-License-Identifier: GPL-2.0
//! Everybody may read `stats`, even with hardly any processor time. A free callback must not need
//! what such a reader holds when its time is used up, because the callback has every GPU locked.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde_json::json;

use crate::common::{Bench, GPU_PAGE};
use crate::helper::Helper;
use crate::init::run;
use crate::lab;
use crate::machine::Mode;
use crate::test::{emit, in_modes, Env, NvidiaC, Suite};

/// The number of registrations of the memory, each with a callback of its own.
const MRS: usize = 256;
/// The number of registrations of memory that stays, which give a reader much to read.
const OTHERS: usize = 3000;
/// The time that the NIC takes to stop, which makes a free take a second.
const FENCE_US: u64 = 2000;
const READERS: usize = 8;
const ROUNDS: usize = 3;
const CGROUPS: &str = "/dev/.cgroup2";

pub fn suite(nvidia_c: bool) -> Suite {
    let tests = in_modes(nvidia_c, &[Mode::Legacy], "free_beside_throttled_readers", free_beside_throttled_readers);
    let means = NvidiaC::Skip("it has no such file");
    Suite { name: "readers", tests: tests.into_iter().map(|test| test.nvidia_c(means)).collect() }
}

/// Readers, each of which runs for a millisecond in each tenth of a second, and then waits with
/// what it holds.
struct Throttled {
    /// Each reader, with the folder of its limit.
    readers: Vec<(Helper, String)>,
}

impl Throttled {
    fn start() -> Result<Self> {
        fs::create_dir_all(CGROUPS)?;
        run("mount", &["-t", "cgroup2", "none", CGROUPS])?;
        fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu").context("limit processor time")?;
        let mut this = Self { readers: Vec::new() };
        for n in 0..READERS {
            let folder = format!("{CGROUPS}/reader{n}");
            fs::create_dir(&folder)?;
            let reader = Helper::start(&["read", "/proc/driver/nvidia-peermem/stats"])?;
            let pid = reader.pid().to_string();
            this.readers.push((reader, folder.clone()));
            fs::write(format!("{folder}/cpu.max"), "1000 100000").context("set cpu.max")?;
            fs::write(format!("{folder}/cgroup.procs"), pid).context("limit a reader")?;
        }
        Ok(this)
    }

    fn throttled(&self) -> Result<u64> {
        let times = |folder: &str| -> Result<u64> {
            let text = fs::read_to_string(format!("{folder}/cpu.stat"))?;
            let line = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
            line.context("no nr_throttled in cpu.stat")?.parse().context("nr_throttled")
        };
        self.readers.iter().map(|(_, folder)| times(folder)).sum()
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        for (reader, folder) in self.readers.drain(..) {
            // With all of the processor's time, it ends sooner.
            let _ = fs::write(format!("{folder}/cpu.max"), "max 100000");
            drop(reader);
            let _ = fs::remove_dir(folder);
        }
        let _ = run("umount", &[CGROUPS]);
    }
}

/// Returns the time of a few frees of memory with many registrations.
fn free(bench: &Bench) -> Result<Duration> {
    let mut time = Duration::ZERO;
    for _ in 0..ROUNDS {
        let memory = bench.cuda.alloc(MRS * GPU_PAGE)?;
        let place = |n: usize| memory.va() + (n * GPU_PAGE) as u64;
        let mrs = (0..MRS).map(|n| bench.reg(place(n), GPU_PAGE)).collect::<std::io::Result<Vec<_>>>()?;
        let begin = Instant::now();
        memory.free()?;
        time += begin.elapsed();
        for mr in mrs {
            mr.dereg()?;
        }
    }
    Ok(time)
}

/// A free takes as long beside such readers as without them.
fn free_beside_throttled_readers(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let others = bench.cuda.alloc(GPU_PAGE)?;
    let _others = (0..OTHERS).map(|_| bench.reg(others.va(), GPU_PAGE)).collect::<std::io::Result<Vec<_>>>()?;
    lab::set_nic("fence_us", FENCE_US)?;
    let alone = free(&bench)?;
    let readers = Throttled::start()?;
    let beside = free(&bench)?;
    let throttled = readers.throttled()?;
    drop(readers);
    emit("free_beside_throttled_readers", &json!({ "alone_us": alone.as_micros(), "beside_us": beside.as_micros() }));
    println!("{ROUNDS} frees take {alone:.1?}, beside readers {beside:.1?}; they were throttled {throttled} times");
    ensure!(throttled > 20, "the readers were throttled {throttled} times: nothing was tested");
    ensure!(beside < alone * 3 / 2, "{ROUNDS} frees take {beside:.1?} beside throttled readers, {alone:.1?} alone");
    Ok(())
}
