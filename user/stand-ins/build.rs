// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Builds the stand-ins, for tests of several crates.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the libraries lack or do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each test uses a part")]
pub enum Without {
    Nothing,
    /// libcuda cannot be opened, as where it is missing.
    Cuda,
    /// libcuda lacks what CUDA 10.2 and 11.7 brought.
    NewCuda,
    /// libcuda finds no GPU.
    Gpu,
    /// libnvidia-ml cannot be opened.
    Nvml,
    /// libibverbs cannot be opened.
    Verbs,
    /// libibverbs is older than rdma-core 34.
    DmaBuf,
    /// libibverbs calls its own functions directly, as where it is linked with -Bsymbolic.
    Interposition,
    /// The system's pages have 64 KiB, as on some arm64 machines.
    SmallPages,
}

/// The name of a copy of libibverbs, as wheels bring it.
pub const RENAMED: &str = "libibverbs-1de1263b.so";

pub fn source(file: &str) -> String {
    format!("{}/../stand-ins/{file}", env!("CARGO_MANIFEST_DIR"))
}

pub fn cc(words: &[&str], folder: &Path) {
    let warnings = ["-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"];
    let ran = Command::new("cc").args(warnings).args(words).current_dir(folder).output().expect("cc is installed");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Makes a folder of the test's own with libcuda.so.1, libnvidia-ml.so.1 and libibverbs.so.1.
pub fn libraries(name: &str, without: Without) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("writable");
    let shared = ["-shared", "-fPIC", "-Wl,--undefined-version"];
    let lacks = match without {
        Without::NewCuda => "-DWITHOUT_NEW_CUDA",
        Without::Gpu => "-DWITHOUT_GPU",
        Without::SmallPages => "-DLARGE_PAGES",
        _ => "-DWITH_ALL",
    };
    let cuda = ["-Wl,-soname,libcuda.so.1", lacks, "-o", "libcuda.so.1", &source("cuda.c")];
    cc(&[&shared[..], &cuda].concat(), &folder);
    let nvml = ["-Wl,-soname,libnvidia-ml.so.1", "-o", "libnvidia-ml.so.1", &source("nvml.c"), "libcuda.so.1"];
    cc(&[&shared[..], &nvml].concat(), &folder);
    let map = format!("-Wl,--version-script={}", source("ibverbs.map"));
    let old = if without == Without::DmaBuf { "-DWITHOUT_DMA_BUF" } else { "-DWITH_DMA_BUF" };
    let binding = if without == Without::Interposition { "-Wl,-Bsymbolic" } else { "-Wl,-znow" };
    for name in ["libibverbs.so.1", RENAMED] {
        let soname = format!("-Wl,-soname,{name}");
        let verbs = [&soname, &map, binding, old, "-o", name, &source("ibverbs.c")];
        cc(&[&shared[..], &verbs].concat(), &folder);
    }
    let missing = match without {
        Without::Cuda => "libcuda.so.1",
        Without::Nvml => "libnvidia-ml.so.1",
        Without::Verbs => "libibverbs.so.1",
        _ => return folder,
    };
    // The library must not be found elsewhere either: the machine may have one.
    std::fs::write(folder.join(missing), "no library").expect("writable");
    folder
}
