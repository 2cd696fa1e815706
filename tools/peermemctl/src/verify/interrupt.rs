// SPDX-License-Identifier: GPL-2.0
//! Notes that the program is interrupted, so that its checks end and the module is restored.

use anyhow::{bail, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag that the signals of an interruption set.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Sets the flag.
pub(super) extern "C" fn interrupted(signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
    // A second signal ends this program at once.
    // SAFETY: A handler may call signal().
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Returns an error once somebody has interrupted the program.
pub(super) fn go_on() -> Result<()> {
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => bail!("interrupted"),
        false => Ok(()),
    }
}
