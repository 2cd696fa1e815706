// SPDX-License-Identifier: GPL-2.0

//! Tests that with persistent pins alone the module can be unloaded in any build.

use kernel_lite_tests::shim::{self, Umem, PAGE};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn persistent_pins_keep_no_module() {
    shim::PERSISTENT.store(true, SeqCst);
    assert_eq!(shim::load(), 0);
    let umem = Umem::register(0x7f00_0000_0000, 5 * PAGE, 1).unwrap();
    shim::free_all_memory();
    assert_eq!((umem.bytes(), shim::pins(), shim::unload()), (5 * PAGE, 1, -16));
    umem.deregister();
    assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst), shim::unload()), (0, 0, 0));
}
