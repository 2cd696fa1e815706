// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The name by which programs find the library, and the version of its functions.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumr.so.1");
    // rustc writes the linker's list of what is exported, without a version; this gives it that name.
    // LLD, which rustup's compiler takes by itself, has no such option; the last choice of a linker counts.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
}
