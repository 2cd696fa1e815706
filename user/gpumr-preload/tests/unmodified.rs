// SPDX-License-Identifier: GPL-2.0
//! Programs that were not changed, with the library before them: `stand-ins/program.c` against stand-ins of libcuda and
//! libibverbs whose symbols have rdma-core's versions.

use std::path::{Path, PathBuf};
use std::process::Command;

fn cc(words: &[&str], folder: &Path) {
    let ran = Command::new("cc").args(["-D_GNU_SOURCE", "-O2"]).args(words).current_dir(folder).output().expect("cc");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Builds program and libraries in a folder of the test's own.
fn build(name: &str, dma_buf: bool) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("writable");
    let source = |file: &str| format!("{}/../stand-ins/{file}", env!("CARGO_MANIFEST_DIR"));
    let map = format!("-Wl,--version-script={}", source("ibverbs.map"));
    let without = if dma_buf { "-DWITH_DMA_BUF" } else { "-DWITHOUT_DMA_BUF" };
    let shared = ["-shared", "-fPIC", "-Wl,--undefined-version"];
    cc(&[&shared[..], &["-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", &source("cuda.c")]].concat(), &folder);
    let verbs = ["-Wl,-soname,libibverbs.so.1", &map, without, "-o", "libibverbs.so.1", &source("ibverbs.c")];
    cc(&[&shared[..], &verbs].concat(), &folder);
    cc(&["-o", "program", &source("program.c"), "libcuda.so.1", "libibverbs.so.1"], &folder);
    folder
}

fn run(folder: &Path, preload: bool, settings: &[(&str, &str)]) -> (String, String) {
    // cargo builds it beside the test.
    let library = std::env::current_exe().expect("this program").with_file_name("libgpumr_preload.so");
    assert!(library.exists(), "{} is built with this test", library.display());
    let mut program = Command::new(folder.join("program"));
    program.env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    if preload {
        program.env("LD_PRELOAD", library);
    }
    let ran = program.output().expect("built");
    assert!(ran.status.success(), "{:?}", ran.status);
    (String::from_utf8_lossy(&ran.stdout).into_owned(), String::from_utf8_lossy(&ran.stderr).into_owned())
}

#[test]
fn without_the_library_gpu_memory_is_refused() {
    let (out, _) = run(&build("without", true), false, &[]);
    assert_eq!(out, "constant: EFAULT\nvariable: EFAULT\nhost: addr right\ndealloc: 0\nplain 4, dma-buf 0, live 0\n");
}

#[test]
fn gpu_memory_is_registered_by_dma_buf_after_the_plain_call() {
    let (out, said) = run(&build("with", true), true, &[]);
    let all = "constant: addr right\nvariable: addr right\nhost: addr right\ndealloc: 0\n";
    assert_eq!(out, format!("{all}plain 4, dma-buf 3, live 0\n"), "{said}");
    assert_eq!(said, "");
}

#[test]
fn with_peer_memory_the_plain_call_is_enough() {
    let (out, _) = run(&build("peer", true), true, &[("STAND_IN_PEER_MEMORY", "1")]);
    assert!(out.ends_with("plain 4, dma-buf 0, live 0\n"), "{out}");
}

/// Two registrations of one buffer are one; after free and allocation it is another; the domain can go.
#[test]
fn the_cache_registers_once_and_again_after_a_free() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("cache", true), true, &settings);
    assert!(out.ends_with("dealloc: 0\nplain 1, dma-buf 2, live 0\n"), "{out}{said}");
}

#[test]
fn a_library_without_dma_buf_is_named_and_the_errno_stays() {
    let (out, said) = run(&build("old", false), true, &[]);
    assert!(out.starts_with("constant: EFAULT\n"), "{out}");
    assert!(said.contains("libibverbs has no ibv_reg_dmabuf_mr(): it needs rdma-core 34 or later"), "{said}");
}
