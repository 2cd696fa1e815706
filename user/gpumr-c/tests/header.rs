// SPDX-License-Identifier: GPL-2.0
//! gpumr.h and libgpumr.so fit: the same functions, and the C example runs, on stand-ins of libcuda and libibverbs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn library() -> PathBuf {
    std::env::current_exe().expect("this program").with_file_name("libgpumr_c.so")
}

fn output(command: &mut Command) -> (String, String) {
    let ran = command.output().expect("installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{command:?}: {}", text(&ran.stderr));
    (text(&ran.stdout), text(&ran.stderr))
}

#[test]
fn the_header_names_what_the_library_has() {
    let (symbols, _) =
        output(Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(library()));
    let exported: BTreeSet<&str> = symbols.lines().filter(|name| name.starts_with("gpumr_")).collect();
    let header = include_str!("../include/gpumr.h");
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '\t', '/', '#']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("gpumr_"))
        .collect();
    assert_eq!(exported, declared);
    assert!(declared.contains("gpumr_register"));
}

#[test]
fn the_example_in_c_runs() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("example-c");
    std::fs::create_dir_all(&folder).expect("writable");
    std::fs::copy(library(), folder.join("libgpumr.so.0")).expect("writable");
    let user = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("user/");
    let cc = |words: &[&str]| output(Command::new("cc").args(["-Wall", "-Werror"]).args(words).current_dir(&folder));
    let at = |path: &str| user.join(path).display().to_string();
    let shared = ["-shared", "-fPIC", "-o"];
    cc(&[&shared[..], &["libcuda.so.1", "-Wl,-soname,libcuda.so.1", &at("stand-ins/cuda.c")]].concat());
    let map = format!("-Wl,--version-script={}", at("stand-ins/ibverbs.map"));
    cc(&[&shared[..], &["libibverbs.so.1", "-Wl,-soname,libibverbs.so.1", &map, &at("stand-ins/ibverbs.c")]].concat());
    let include = format!("-I{}", at("gpumr-c/include"));
    let libraries = ["libgpumr.so.0", "libcuda.so.1", "libibverbs.so.1"];
    cc(&[&["-o", "example", &include, &at("examples/lease.c"), &at("stand-ins/main.c")][..], &libraries].concat());
    let (out, said) = output(Command::new(folder.join("example")).env("LD_LIBRARY_PATH", &folder));
    assert!(out.contains("hits 1, misses 1\n"), "{out}{said}");
    assert!(out.ends_with("results 0 1 1, live 0\n"), "{out}{said}");
    assert!(said.contains("is no memory that CUDA knows"), "{said}");
    assert!(said.contains("the protection domain is NULL"), "{said}");
}
