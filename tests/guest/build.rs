// SPDX-License-Identifier: GPL-2.0
//! The C half of the bindings of the system's libibverbs.

fn main() {
    println!("cargo:rustc-link-lib=ibverbs");
    println!("cargo:rerun-if-changed=bindings");
    cc::Build::new().file("bindings/verbs.c").file("bindings/layout.c").warnings(false).compile("verbs_inline");
}
