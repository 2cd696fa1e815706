// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example overlay -- BASE FILE.tree...`: rewrites each recorded machine so that
//! the file has only the differences from the machine BASE of the same folder.
//! src/recorded/tree.rs describes the format.

#[path = "../tests/common/overlay.rs"]
mod overlay;

use peermemctl::recorded::tree::Tree;
use std::fs;
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [base, files @ ..] = args.as_slice() else {
        eprintln!("usage: overlay BASE FILE.tree...");
        std::process::exit(2);
    };
    for file in files.iter().map(Path::new) {
        let whole = Tree::read(file).unwrap();
        let base_file = file.with_file_name(format!("{base}.tree"));
        fs::write(file, overlay::overlay(&whole, base, &Tree::read(&base_file).unwrap())).unwrap();
    }
}
