// SPDX-License-Identifier: GPL-2.0

//! Tests the module's policy, as shipped, over kernel-lite: registration, revocation in the middle
//! of deregistration, unload.

use helpers::take_log;
use kernel_lite_tests::shim::{self, Umem, PAGE};
use std::sync::atomic::Ordering::SeqCst;

const ROUNDS: u64 = if cfg!(miri) { 6 } else { 300 };

/// There is only one test, because the module exists only once.
#[test]
fn each_registration_ends_once_whenever_its_memory_is_freed() {
    assert_eq!(shim::load(), 0);
    let log = take_log();
    let said = ["client nv_mem (revocable) is registered", "client nv_mem_nc (persistent) is registered"];
    assert_eq!(log.len(), said.len(), "{log:?}");
    assert!(log.iter().zip(said).all(|(line, said)| line.contains(said)), "{log:?}");

    // The range has 3 provider pages and is unaligned at both ends. That makes 2 entries more than
    // whole pages need, with cuts at the device's limit of 2 pages.
    let umem = Umem::register(0x7f00_0000_1000, 2 * PAGE, 7).unwrap();
    assert_eq!(umem.bytes(), 2 * PAGE);
    assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst), shim::unload()), (1, 1, -16));
    umem.deregister();
    assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst)), (0, 0));

    // The memory is freed, then deregistered. The core's hook was called once.
    let umem = Umem::register(0x7f00_0000_0000, PAGE, 8).unwrap();
    shim::free_all_memory();
    assert_eq!((shim::INVALIDATED.load(SeqCst), shim::MAPPED.load(SeqCst)), (1, 0));
    umem.deregister();

    // The memory is freed while it is deregistered. Whatever the order, each happens once.
    for round in 0..ROUNDS {
        let umem = Umem::register(0x7f00_0000_0000, 4 * PAGE, round).unwrap();
        let second = Umem::register(0x7f00_0000_0000, PAGE, round).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(shim::free_all_memory);
            scope.spawn(|| second.deregister());
            umem.deregister();
        });
        assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst), shim::MODULE_REFS.load(SeqCst)), (0, 0, 0));
    }
    // The memory is freed while it is registered. The registration succeeds, or fails with EFAULT.
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            scope.spawn(shim::free_all_memory);
            match Umem::register(0x7f00_0000_0000, 4 * PAGE, round) {
                Ok(umem) => umem.deregister(),
                Err(errno) => assert_eq!(errno, -14),
            }
        });
        assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst), shim::MODULE_REFS.load(SeqCst)), (0, 0, 0));
    }
    // These are a ticket that ended long ago, and one that never existed.
    shim::late_callback(1 << 32);
    shim::late_callback(u64::MAX);
    assert_eq!(shim::unload(), 0);
}
