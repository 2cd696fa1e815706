// SPDX-License-Identifier: GPL-2.0
//! What differs between the architectures. The lab's side is `ci/qemu/lab/src/arch.rs`.

/// The serial line of the results: the one beside the console's, which is the first of another kind
/// on arm64.
pub const KTAP_LINE: &str = if cfg!(target_arch = "aarch64") { "/dev/ttyS0" } else { "/dev/ttyS1" };

/// A no-op with this number in its operand, for the plugin that counts instructions
/// (ci/qemu/profile). It knows x86's alone; elsewhere this is nothing.
macro_rules! mark {
    ($number:literal) => {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: Does nothing: a no-op whose operand the plugin knows.
        unsafe {
            std::arch::asm!(
                concat!(".byte 0x0f, 0x1f, 0x80, 0x6e, 0x76, 0x70, ", $number),
                options(nomem, nostack, preserves_flags)
            )
        };
    };
}
pub(crate) use mark;
