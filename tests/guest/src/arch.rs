// SPDX-License-Identifier: GPL-2.0
//! This file says what differs between the architectures. The lab's side is
//! `ci/qemu/lab/src/arch.rs`.

/// The serial line of the results. It is the one beside the console's, and on arm64 the first of
/// another kind.
pub const KTAP_LINE: &str = if cfg!(target_arch = "aarch64") { "/dev/ttyS0" } else { "/dev/ttyS1" };

/// Executes a no-op with this number in its operand, for the plugin that counts instructions
/// (ci/qemu/profile). The plugin knows only x86, so on other architectures this does nothing.
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
