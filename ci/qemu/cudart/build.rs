// SPDX-License-Identifier: GPL-2.0

//! The name that programs built with CUDA 12 look for at run time, and the version of its symbols,
//! which is the same word.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.12");
    // LLD, which rustup's compiler takes by itself, has no such option; the last choice of a linker
    // counts.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    println!("cargo:rerun-if-changed=build.rs");
}
