// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Sets the name by which programs find the library, and the versions of its functions.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=gpumr.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumr.so.1");
    // The sweep's thread runs its code while a cache is open, whatever becomes of the plug-in that opened it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    write_linker(Path::new(&out));
    // The compiler looks in this folder first. LLD, which rustup's compiler chooses by itself, would
    // not be found there. The last choice of a linker on the command line counts.
    println!("cargo:rustc-cdylib-link-arg=-B{out}");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
}

/// Writes a linker that takes gpumr.map in place of rustc's list of exported functions. That list
/// has no versions, and the linker refuses a second one beside it.
fn write_linker(out: &Path) {
    let compiler = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    let found = Command::new(&compiler).arg("-print-prog-name=ld.bfd").output();
    let linker = found.ok().and_then(|found| String::from_utf8(found.stdout).ok());
    let linker = linker.unwrap_or_else(|| panic!("{compiler} does not say where ld.bfd is"));
    let map = format!("{}/gpumr.map", env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let script = format!(
        "#!/bin/sh\n\
         for word do\n\
         \tshift\n\
         \tcase $word in --version-script=*) word='--version-script={map}' ;; esac\n\
         \tset -- \"$@\" \"$word\"\n\
         done\n\
         exec '{}' \"$@\"\n",
        linker.trim()
    );
    let file = out.join("ld.bfd");
    fs::write(&file, script).expect("cargo's folder can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a file of our own");
}
