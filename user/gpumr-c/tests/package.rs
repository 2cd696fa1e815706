// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that the crate `gpumr` can be published: cargo warns about nothing.

use std::path::Path;
use std::process::Command;

#[test]
fn cargo_would_publish_the_crate() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["publish", "--dry-run", "--no-verify", "--allow-dirty", "--locked", "-p", "gpumr"]);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("publish"));
    let ran = cargo.output().expect("cargo");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let mut warnings = said.lines().filter(|line| line.starts_with("warning:"));
    assert_eq!(warnings.next(), Some("warning: aborting upload due to dry run"), "{said}");
    assert_eq!(warnings.next(), None, "{said}");
}
