//! Where nothing tells when a callback has left the module's text, as in every kernel-lite build for a preemptible
//! kernel, the module stays loaded after the first revocable pin, and only then.

use kernel_lite_tests::shim::{self, Umem, PAGE};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn the_module_stays_after_the_first_revocable_pin() {
    shim::CAN_DRAIN.store(false, SeqCst);
    assert_eq!(shim::load(), 0);
    assert_eq!(shim::MODULE_REFS.load(SeqCst), 0);
    for _ in 0..3 {
        Umem::register(0x7f00_0000_0000, PAGE, 1).unwrap().deregister();
        assert_eq!((shim::pins(), shim::MODULE_REFS.load(SeqCst), shim::unload()), (0, 1, -16));
    }
}
