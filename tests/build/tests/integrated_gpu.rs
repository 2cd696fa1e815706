// SPDX-License-Identifier: GPL-2.0
//! Tests that `make` builds nothing for an integrated GPU (Tegra), and says so and what works
//! there.

use build_tests::FakeKernel;

/// Asserts that preflight ends with one line that contains all of these words.
fn refused(kernel: &FakeKernel, settings: &[&str], words: &[&str]) {
    let outcome = kernel.preflight(settings);
    assert!(!outcome.ok, "{}", outcome.text);
    let last = outcome.text.lines().last().unwrap_or_default();
    for word in words.iter().chain(&["integrated GPU", "cudaHostAlloc()", "ibv_reg_mr()", "make NVIDIA="]) {
        assert!(last.contains(word), "{word}: {}", outcome.text);
    }
}

/// Its functions have the names of the driver's, but other arguments.
#[test]
fn exports_without_persistent_pins() {
    let kernel = FakeKernel::new();
    let lines = ["get_pages", "put_pages", "dma_map_pages", "dma_unmap_pages"]
        .map(|name| format!("0x00000000\tnvidia_p2p_{name}\tnvidia-p2p\tEXPORT_SYMBOL\t\n"));
    let symvers = kernel.write("oot/Module.symvers", &lines.concat());
    let setting = format!("NVIDIA={}", kernel.path().join("oot").display());
    refused(&kernel, &[&setting], &[&symvers.display().to_string(), "nvidia_p2p_get_pages_persistent"]);
}

/// Makes modinfo report that the kernel has modules of these names.
fn modules(kernel: &FakeKernel, names: &str) {
    kernel.program("modinfo", &format!("for last; do :; done; case $last in {names}) echo GPL ;; *) exit 1 ;; esac"));
}

#[test]
fn its_module_and_no_drivers() {
    let kernel = FakeKernel::new();
    modules(&kernel, "nvidia-p2p");
    refused(&kernel, &[], &["nvidia-p2p.ko", FakeKernel::RELEASE]);
}

/// This is an IGX Orin with a GPU card in it.
#[test]
fn a_driver_beside_it() {
    let kernel = FakeKernel::new();
    modules(&kernel, "nvidia-p2p | nvidia");
    let outcome = kernel.preflight(&[]);
    assert!(outcome.ok, "{}", outcome.text);
}
