// SPDX-License-Identifier: GPL-2.0
//! Measures our module beside NVIDIA's C module in one boot. The rows go to the host, which judges
//! them. A measurement fails here only if something could not be measured.

mod bad_addresses;
mod bandwidth;
mod free;
pub mod kernel_crates;
mod live;
mod memory;
mod nics;
mod pages;
mod pieces;
mod profile;
mod rig;
mod threads;
mod times;
mod ways;

use crate::machine::Level;
use crate::test::Suite;
use rig::test;

/// Returns what runs on the clock that counts instructions.
pub fn suite() -> Suite {
    Suite {
        name: "bench",
        tests: vec![
            test("times", Level::Devices, times::all),
            test("free", Level::Devices, free::all),
            test("live", Level::Devices, live::all),
            test("pieces", Level::Devices, pieces::all),
            test("bandwidth", Level::Devices, bandwidth::all),
            test("memory", Level::Devices, memory::all),
            test("nics", Level::Devices, nics::all),
            test("pages", Level::Bare, pages::all),
        ],
    }
}

/// Returns the comparison of peer memory with dma-buf.
pub fn suite_ways() -> Suite {
    Suite { name: "bench_ways", tests: vec![test("ways", Level::Devices, ways::all)] }
}

/// Returns what runs under the plugin that counts instructions.
pub fn suite_profile() -> Suite {
    Suite { name: "bench_profile", tests: vec![test("profile", Level::Devices, profile::all)] }
}

/// Returns what runs under the plugin and must stay below a bound of the host's.
pub fn suite_free_cost() -> Suite {
    Suite { name: "free_cost", tests: vec![test("counted", Level::Devices, free::counted)] }
}

/// Returns what runs on the machine's own clock.
pub fn suite_threads() -> Suite {
    Suite {
        name: "bench_threads",
        tests: vec![
            test("threads", Level::Devices, threads::all),
            test("wall", Level::Devices, times::wall),
            test("bad_addresses", Level::Devices, bad_addresses::all),
        ],
    }
}
