// SPDX-License-Identifier: GPL-2.0

//! The module's parameters, which `core.c` declares (docs/install.md).

use crate::ffi::raw;
use kernel::prelude::*;

/// Returns `peerdirect_support`: 0, or 1 for plain clients.
pub(crate) fn peerdirect_support() -> c_int {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_param_peerdirect_support() }
}

/// Returns `persistent_api_support`: 1, or 0 for revocable pins first.
pub(crate) fn persistent_api_support() -> c_int {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_param_persistent_api_support() }
}

/// Returns `revocable_fallback`: 0, or 1 for revocable pins where persistent ones are refused.
pub(crate) fn revocable_fallback() -> c_int {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_param_revocable_fallback() }
}

/// Checks a module parameter that is 0 or 1. Refuses anything else in one line.
fn check_flag(name: &str, value: c_int, meanings: &str) -> Result {
    if matches!(value, 0 | 1) {
        return Ok(());
    }
    pr_err!("the module does not load with the invalid parameter {}={}: {}\n", name, value, meanings);
    Err(EINVAL)
}

/// Refuses values that mean nothing, each in one line.
pub(crate) fn check() -> Result {
    let (persistent, fallback) = (persistent_api_support(), revocable_fallback());
    check_flag(
        "peerdirect_support",
        peerdirect_support(),
        "use 0 (default: extended clients) or 1 (plain clients, kept for old configuration files)",
    )?;
    check_flag("persistent_api_support", persistent, "use 1 (default: persistent pins) or 0 (revocable pins first)")?;
    check_flag(
        "revocable_fallback",
        fallback,
        "use 0 (default) or 1 (revocable pins where the GPU driver refuses persistent ones)",
    )?;
    if fallback == 1 && persistent == 0 {
        pr_err!(
            "the module does not load with the invalid parameter revocable_fallback=1: with persistent_api_support=0 revocable pins come first anyway, so leave one of the two out\n"
        );
        return Err(EINVAL);
    }
    Ok(())
}
