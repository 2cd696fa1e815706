// SPDX-License-Identifier: GPL-2.0
//! Compiles the C half of the bindings of the system's libibverbs, for the feature `link`.

fn main() {
    println!("cargo:rerun-if-changed=bindings");
    #[cfg(feature = "link")]
    {
        println!("cargo:rustc-link-lib=ibverbs");
        let files = ["bindings/verbs.c", "bindings/layout.c"];
        cc::Build::new().files(files).warnings(false).compile("verbs_inline");
    }
}
