// SPDX-License-Identifier: GPL-2.0
//! Compiles the C half of the bindings of the system's libibverbs, for the feature `link`.

fn main() {
    let files = ["bindings/verbs.c", "bindings/layout.c"];
    for file in files.iter().chain(&["bindings/verbs.h"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    #[cfg(feature = "link")]
    {
        println!("cargo:rustc-link-lib=ibverbs");
        cc::Build::new().files(files).warnings(false).compile("verbs_inline");
    }
}
