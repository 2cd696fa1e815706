// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! `make user-install`: what it puts below another root is what a compiler and a program need.

#[allow(dead_code, reason = "this test uses a part")]
#[path = "../../stand-ins/build.rs"]
mod stand_ins;

use stand_ins::{cc, libraries, source, Without};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn script(folder: &Path, words: &[&str]) -> Output {
    let script = format!("{}/../../mk/user.sh", env!("CARGO_MANIFEST_DIR"));
    let mut sh = Command::new("sh");
    // What cargo would build, the tests have.
    sh.arg(script).args(words).current_dir(folder).env("CARGO_TARGET_DIR", folder.join("target"));
    sh.output().expect("a shell")
}

#[test]
fn what_is_installed_is_found_by_compilers_and_programs() {
    let folder = libraries("install", Without::Nothing);
    let root = folder.join("root");
    let at = |path: &Path| path.display().to_string();
    let install = ["install", "built", "/opt/rdma", "/opt/rdma/lib/here", &at(&root)];
    let early = script(&folder, &install);
    assert!(!early.status.success() && text(&early).contains("has no libgpumr.so.1: make user"), "{}", text(&early));

    fs::create_dir_all(folder.join("target/release")).expect("writable");
    let own = std::env::current_exe().expect("this program").with_file_name("libgpumr_c.so");
    for name in ["libgpumr_c.so", "libgpumr_preload.so"] {
        fs::copy(&own, folder.join("target/release").join(name)).expect("writable");
    }
    for words in [&["build", "true", "built"][..], &install] {
        let ran = script(&folder, words);
        assert!(ran.status.success(), "{}", text(&ran));
    }
    let prefix = root.join("opt/rdma");
    let libraries = [
        "libgpumr.so.1",
        "libgpumr-preload.so",
        "pkgconfig/gpumr.pc",
        "cmake/gpumr/gpumr-config.cmake",
        "cmake/gpumr/gpumr-config-version.cmake",
    ]
    .map(|file| format!("lib/here/{file}"));
    let others = ["include/gpumr.h", "share/man/man7/libgpumr-preload.so.7"].map(String::from);
    for file in libraries.into_iter().chain(others) {
        let mode = fs::metadata(prefix.join(&file)).unwrap_or_else(|_| panic!("no {file}")).permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{file}");
    }

    let mut config = Command::new("pkg-config");
    config.args(["--cflags", "--libs", "gpumr"]).env("PKG_CONFIG_SYSROOT_DIR", &root);
    let said = config.env("PKG_CONFIG_PATH", prefix.join("lib/here/pkgconfig")).output().expect("pkg-config");
    assert!(said.status.success(), "{}", text(&said));
    let version = Command::new("pkg-config")
        .args(["--modversion", "gpumr"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/here/pkgconfig"))
        .output();
    assert_eq!(text(&version.expect("pkg-config")).trim(), env!("CARGO_PKG_VERSION"));
    let cmake = fs::read_to_string(prefix.join("lib/here/cmake/gpumr/gpumr-config.cmake")).expect("readable");
    assert!(!cmake.contains('@') && cmake.contains("\"/opt/rdma/include\""), "{cmake}");
    let said = text(&said);
    let sources = [source("../examples/lease.c"), source("main.c")];
    let mut words = vec!["-o", "program", &sources[0], &sources[1], "libcuda.so.1", "libibverbs.so.1"];
    words.extend(said.split_whitespace());
    cc(&words, &folder);
    let path = format!("{}:{}", at(&folder), at(&prefix.join("lib/here")));
    let ran = Command::new(folder.join("program")).env("LD_LIBRARY_PATH", path).output().expect("built");
    assert!(ran.status.success() && text(&ran).contains("hits 1, misses 1"), "{}", text(&ran));
}
