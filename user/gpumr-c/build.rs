// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Sets the name by which programs find the library, and the version of its functions.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumr.so.1");
    // rustc writes the linker's list of exported functions without a version. This script adds the
    // version. LLD, which rustup's compiler chooses by itself, has no such option. The last choice
    // of a linker on the command line counts.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
}
