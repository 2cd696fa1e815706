// SPDX-License-Identifier: GPL-2.0

//! Tests what no known core does: it asks for another range than it acquired. The registration ends
//! with EINVAL and the reason `core_order`, and nothing stays behind.

use helpers::take_log;
use kernel_lite_tests::shim::{self, Umem, PAGE};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn a_core_that_is_out_of_order() {
    shim::PERSISTENT.store(true, SeqCst);
    assert_eq!(shim::load(), 0);
    take_log();
    shim::OUT_OF_ORDER.store(PAGE, SeqCst);
    assert_eq!(Umem::register(0x7f00_0000_0000, 2 * PAGE, 1).err(), Some(-22));
    let log = take_log();
    assert_eq!(log.len(), 1, "{log:?}");
    for words in ["of 131072 bytes at 0x7f0000000000", "refused with EINVAL", "the RDMA core"] {
        assert!(log[0].contains(words), "no {words:?} in {log:?}");
    }
    assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst), shim::MODULE_REFS.load(SeqCst)), (0, 0, 0));
    shim::OUT_OF_ORDER.store(0, SeqCst);
    Umem::register(0x7f00_0000_0000, 2 * PAGE, 2).unwrap().deregister();
    assert_eq!(shim::unload(), 0);
}
