// SPDX-License-Identifier: GPL-2.0

fn main() {
    const GPU: &str = "../../../ci/qemu/gpu";
    for file in ["bar1.c", "bar1.h"] {
        println!("cargo:rerun-if-changed={GPU}/{file}");
    }
    println!("cargo:rerun-if-changed=bar1_host.h");
    cc::Build::new().file(format!("{GPU}/bar1.c")).include(".").compile("bar1");
}
