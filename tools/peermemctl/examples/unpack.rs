// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example unpack -- FILE.tree DIR`, then `peermemctl --root DIR doctor`: looks at a recorded machine.

#[allow(dead_code)]
#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, file, dir] = args.as_slice() else {
        eprintln!("usage: unpack FILE.tree DIR");
        std::process::exit(2);
    };
    common::unpack_into(Path::new(file), Path::new(dir));
}
