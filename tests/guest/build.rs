// SPDX-License-Identifier: GPL-2.0
//! Compiles the C half of the bindings of the system's libibverbs.

fn main() {
    println!("cargo:rustc-link-lib=ibverbs");
    let files = ["../../tools/verbs/bindings/verbs.c", "../../tools/verbs/bindings/layout.c"];
    for file in files.iter().chain(&["../../tools/verbs/bindings/verbs.h"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new().files(files).warnings(false).compile("verbs_inline");
}
