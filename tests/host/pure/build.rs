// SPDX-License-Identifier: GPL-2.0

//! Makes a copy of the registry whose tickets have few indices, so that a test can use them up.

use std::path::PathBuf;
use std::{env, fs};

/// The number of bits of an index in that copy.
const SHIFT: u32 = 12;

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let source = here.join("../../../src/pin/registry.rs");
    println!("cargo:rerun-if-changed={}", source.display());
    let mut text = fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let from = "const LAST: u32 = NONE - 1;";
    assert_eq!(text.matches(from).count(), 1, "src/pin/registry.rs has no {from:?}: see tests/host/pure/build.rs");
    text = text.replace(from, &format!("const LAST: u32 = (1 << {SHIFT}) - 1;"));
    fs::write(out.join("registry.rs"), text).expect("OUT_DIR is writable");
    let module = format!(
        "pub(crate) const SHIFT: u32 = {SHIFT};\n#[path = {:?}]\npub(crate) mod registry;\n",
        out.join("registry.rs")
    );
    fs::write(out.join("small.rs"), module).expect("OUT_DIR is writable");
}
