// SPDX-License-Identifier: GPL-2.0
//! Tests our module beside an `nvidia.ko` of the closed flavour.

use anyhow::{ensure, Result};

use crate::machine::Level;
use crate::modules;
use crate::test::{Env, Suite, Test};

pub fn suite() -> Suite {
    Suite {
        name: "closed",
        tests: vec![Test::new("gpl_only_imports_are_refused", Level::Devices, gpl_only_imports_are_refused)],
    }
}

/// The kernel refuses a module that imports both kinds of symbols, as the module built with the
/// kernel's own crate does, and then accepts ours. The linker decides which kind the kernel meets
/// first, and so which message it prints.
fn gpl_only_imports_are_refused(_: &Env) -> Result<()> {
    ensure!(modules::loaded("lab_pcie")?, "what nvlab_gdr imports from lab_pcie is not there anyway");
    let refused = modules::try_modprobe("nvlab_gdr", &[])?;
    for line in &refused.kernel {
        println!("{line}");
    }
    ensure!(!refused.ok && !modules::loaded("nvlab_gdr")?, "it was loaded");
    let told = |words: &str| refused.kernel.iter().any(|l| l.starts_with("nvlab_gdr: ") && l.contains(words));
    ensure!(
        told("proprietary module nvidia") && (told("using GPL-only symbols") || told("Unknown symbol lab_pcie_")),
        "it was refused for another reason: {:?}",
        refused.kernel
    );
    modules::modprobe("nvidia-peermem", &[]).map(drop)
}
