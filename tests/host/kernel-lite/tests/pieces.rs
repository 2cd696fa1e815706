// SPDX-License-Identifier: GPL-2.0

//! Tests an IOMMU without a block of addresses that is long enough. The pin is mapped in pieces of
//! 1 GiB, the table leads to the right bytes all the same, and exactly what was mapped is unmapped.
//!
//! The tables have 50 000 pages, which would take Miri minutes and show it nothing new.
#![cfg(not(miri))]

use kernel_lite_tests::shim::{self, Umem, BAR, PAGE};
use std::sync::atomic::Ordering::SeqCst;

const GIB: u64 = 1 << 30;
const VA: u64 = 0x7f00_0000_0000;

/// Returns the memory behind each byte that the table covers, as one address and length per
/// contiguous run.
fn covered(umem: &Umem) -> Vec<(u64, u64)> {
    let mappings = shim::MAPPINGS.lock().unwrap();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (dma, length) in umem.entries() {
        let (at, (address, mapped)) = mappings.range(..=dma).next_back().expect("mapped");
        assert!(dma + length <= at + mapped, "{dma:#x} leaves its mapping");
        let address = address + (dma - at);
        match runs.last_mut() {
            Some(run) if run.0 + run.1 == address => run.1 += length,
            _ => runs.push((address, length)),
        }
    }
    runs
}

#[test]
fn pieces_where_no_block_is_long_enough() {
    shim::PERSISTENT.store(true, SeqCst);
    shim::SEGMENT_LIMIT.store(2 << 30, SeqCst);
    assert_eq!(shim::load(), 0);
    for (skip, size, longest, mappings) in [
        (0, 3 * GIB + PAGE, u64::MAX, Some(1)),
        (0, 3 * GIB + PAGE, 3 * GIB, Some(4)),
        (4096, 3 * GIB, GIB, Some(4)),
        (4096 * 17, 2 * GIB, GIB, Some(3)),
        // No run of the pin is longer than a piece.
        (0, GIB, GIB - 1, None),
        (0, 2 * GIB, GIB - 1, None),
    ] {
        shim::LONGEST_BLOCK.store(longest, SeqCst);
        let what = format!("{size:#x} bytes from {skip:#x}, at most {longest:#x}");
        match (Umem::register(VA + skip, size, 1), mappings) {
            (Ok(umem), Some(mappings)) => {
                assert_eq!(shim::MAPPED.load(SeqCst), mappings, "{what}");
                // The stand-in's tables begin with the granule in which the range begins.
                assert_eq!(covered(&umem), [(BAR + skip % PAGE, size)], "{what}");
                // Memory and NIC are aligned alike as far as both can be: in pages of 64 KiB.
                let mut va = VA + skip;
                for (dma, length) in umem.entries() {
                    assert_eq!((dma ^ va) % PAGE, 0, "{what}");
                    va += length;
                }
                umem.deregister();
            }
            (Err(error), None) => assert_eq!(error, -5, "{what}"),
            (other, _) => panic!("{what}: {:?}", other.map(|_| ())),
        }
        assert_eq!((shim::MAPPED.load(SeqCst), shim::pins()), (0, 0), "{what}");
    }
    assert_eq!(shim::unload(), 0);
}
