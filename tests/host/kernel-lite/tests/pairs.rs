// SPDX-License-Identifier: GPL-2.0

//! Tests how often the driver is asked whether a GPU and a NIC reach each other, and which of its
//! answers are kept. What is known about a pair stays until the module is unloaded, so this is a
//! program of its own.
#![cfg(not(miri))]

use kernel_lite_tests::shim::{self, stat, stats, Umem, PAGE};
use std::sync::atomic::Ordering::SeqCst;

const KEPT: usize = 1024;

/// Registers for `nic` while the driver gives `answer`. Returns how that ended, and how often the
/// driver was asked.
fn register(nic: u64, answer: i32) -> (Result<(), i32>, u64) {
    shim::NIC.store(nic, SeqCst);
    shim::MAP_ANSWER.store(answer, SeqCst);
    let before = shim::ASKED.load(SeqCst);
    let result = Umem::register(0x7f00_0000_0000, PAGE, 1).map(Umem::deregister);
    (result, shim::ASKED.load(SeqCst) - before)
}

#[test]
fn the_driver_is_asked_once_for_each_of_1024_pairs() {
    shim::PERSISTENT.store(true, SeqCst);
    assert_eq!(shim::load(), 0);
    // A failure for lack of memory says nothing about the pair.
    assert_eq!(register(0x100, -12), (Ok(()), 1));
    assert!(!stats().contains("pair."), "{}", stats());
    for (nic, answer, result, reach) in
        [(0x100, 0, Ok(()), "supported"), (0x108, -5, Ok(()), "supported"), (0x110, -524, Err(-95), "unsupported")]
    {
        assert_eq!(register(nic, answer), (result, 1), "{nic:#x}");
        // The answer is kept, whatever the driver would say now.
        for later in [0, -5, -12, -524] {
            assert_eq!(register(nic, later), (result, 0), "{nic:#x}");
        }
        let key = format!("pair.0000:00:08.0/0000:01:{:02x}.0", (nic & 0xff) >> 3);
        assert_eq!(stat(&key), reach);
    }
    let pairs = || stats().lines().filter(|line| line.starts_with("pair.")).count();
    for nic in 0..KEPT as u64 {
        let kept = pairs();
        let (_, asked) = register(0x1_0000 + nic, 0);
        assert_eq!((asked, pairs()), (1, (kept + 1).min(KEPT)));
    }
    // The module asks each time about a pair for which there was no room.
    for _ in 0..3 {
        assert_eq!(register(0x1_0000 + KEPT as u64 - 1, 0), (Ok(()), 1));
    }
    assert_eq!(pairs(), KEPT);
    assert_eq!(shim::unload(), 0);
}
