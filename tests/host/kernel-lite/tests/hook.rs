// SPDX-License-Identifier: GPL-2.0

//! Tests a core that releases a registration inside its own hook. That happens in the callback's
//! task, which does not wait for itself (rule 6).

use kernel_lite_tests::shim::{self, Umem, PAGE};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn a_core_that_releases_inside_its_hook() {
    assert_eq!(shim::load(), 0);
    let umem = Umem::register(0x7f00_0000_0000, 2 * PAGE, 1).unwrap();
    *shim::RELEASED_IN_HOOK.lock().unwrap() = Some(umem);
    shim::free_all_memory();
    assert_eq!((shim::INVALIDATED.load(SeqCst), shim::MAPPED.load(SeqCst), shim::MODULE_REFS.load(SeqCst)), (1, 0, 0));
    assert_eq!(shim::unload(), 0);
}
