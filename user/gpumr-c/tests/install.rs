// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests `make user-install`: what it installs below another root is what a compiler and a program
//! need.

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
    // The tests have already built what cargo would build.
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
    let said = text(&said);
    let sources = [source("../examples/lease.c"), source("main.c")];
    let mut words = vec!["-o", "program", &sources[0], &sources[1], "libcuda.so.1", "libibverbs.so.1"];
    words.extend(said.split_whitespace());
    cc(&words, &folder);
    let path = format!("{}:{}", at(&folder), at(&prefix.join("lib/here")));
    let ran = Command::new(folder.join("program")).env("LD_LIBRARY_PATH", path).output().expect("built");
    assert!(ran.status.success() && text(&ran).contains("hits 1, misses 1"), "{}", text(&ran));
}

/// Builds a program with CMake and runs it on the stand-ins.
fn by_cmake(folder: &Path, version: &str, words: &[String]) -> Output {
    let at = |file: &str| folder.join(file).display().to_string();
    let sources = [source("../examples/lease.c"), source("main.c")].join(" ");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.13)\nproject(program C)\nfind_package(gpumr {version} REQUIRED)\n\
         add_executable(program {sources})\ntarget_compile_definitions(program PRIVATE _GNU_SOURCE)\n\
         target_link_libraries(program gpumr::gpumr {} {})\n",
        at("libcuda.so.1"),
        at("libibverbs.so.1")
    );
    let _ = fs::remove_dir_all(folder.join("cmake"));
    fs::create_dir_all(folder.join("cmake")).expect("writable");
    fs::write(folder.join("cmake/CMakeLists.txt"), lists).expect("writable");
    let mut cmake = Command::new("cmake");
    let made = cmake.args(["-S", "cmake", "-B", "cmake/build"]).args(words).current_dir(folder).output();
    let made = made.expect("cmake is installed");
    if !made.status.success() {
        return made;
    }
    let built = Command::new("cmake").args(["--build", "cmake/build"]).current_dir(folder).output().expect("cmake");
    if !built.status.success() {
        return built;
    }
    let mut program = Command::new(folder.join("cmake/build/program"));
    program.env("LD_LIBRARY_PATH", folder).output().expect("built")
}

/// CMake finds the library in the multiarch folder of Debian, in plain lib, and in a folder that it
/// is told about.
#[test]
fn cmake_finds_what_is_installed() {
    let folder = libraries("cmake", Without::Nothing);
    let own = std::env::current_exe().expect("this program").with_file_name("libgpumr_c.so");
    fs::create_dir_all(folder.join("target/release")).expect("writable");
    for name in ["libgpumr_c.so", "libgpumr_preload.so"] {
        fs::copy(&own, folder.join("target/release").join(name)).expect("writable");
    }
    let ran = script(&folder, &["build", "true", "built"]);
    assert!(ran.status.success(), "{}", text(&ran));
    let multiarch = Command::new("cc").arg("-print-multiarch").output().expect("cc");
    let multiarch = format!("/usr/lib/{}", text(&multiarch).trim());
    for (prefix, libdir) in
        [("/usr", multiarch.as_str()), ("/usr/local", "/usr/local/lib"), ("/opt/rdma", "/opt/rdma/lib/a/b")]
    {
        let root = folder.join("root");
        let _ = fs::remove_dir_all(&root);
        let ran = script(&folder, &["install", "built", prefix, libdir, &root.display().to_string()]);
        assert!(ran.status.success(), "{}", text(&ran));
        let told = if libdir.ends_with('b') {
            format!("-Dgpumr_DIR={}{libdir}/cmake/gpumr", root.display())
        } else {
            format!("-DCMAKE_PREFIX_PATH={}{prefix}", root.display())
        };
        // The accepted versions do not depend on the folder, so testing them once is enough.
        let first = prefix == "/usr";
        let (fit, do_not): (&[_], &[_]) =
            if first { (&["", "1", "1.0", "1.0.0 EXACT"], &["2.0", "1.9", "0.9"]) } else { (&[""], &[]) };
        for version in fit {
            let ran = by_cmake(&folder, version, std::slice::from_ref(&told));
            let said = text(&ran);
            assert!(ran.status.success() && said.contains("hits 1, misses 1"), "{libdir}, {version:?}: {said}");
        }
        for version in do_not {
            let ran = by_cmake(&folder, version, std::slice::from_ref(&told));
            let said = text(&ran).split_whitespace().collect::<Vec<_>>().join(" ");
            let named = said.contains(&format!("that is compatible with requested version \"{version}\""));
            assert!(!ran.status.success() && named, "{version}: {said}");
        }
    }
    let elsewhere =
        script(&folder, &["install", "built", "/usr", "/opt/lib", &folder.join("root").display().to_string()]);
    assert!(
        !elsewhere.status.success() && text(&elsewhere).contains("/opt/lib is not below the prefix /usr"),
        "{}",
        text(&elsewhere)
    );
}
