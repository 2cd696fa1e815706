// SPDX-License-Identifier: GPL-2.0

//! Sets the soname that programs built with CUDA 12 look for at run time, and the version of its
//! symbols, which is the same word.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.12");
    // LLD, which rustup's compiler chooses by itself, has no such option. The last choice of a
    // linker on the command line counts.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    println!("cargo:rerun-if-changed=build.rs");
}
