// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that the crate `gpumr` can be published: cargo warns about nothing, compiles what it would
//! upload, and that has the text of both licences.

use std::path::Path;
use std::process::Command;

#[test]
fn cargo_would_publish_the_crate() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["publish", "--dry-run", "--allow-dirty", "--locked", "-p", "gpumr"]);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("publish");
    cargo.env("CARGO_TARGET_DIR", &target);
    let ran = cargo.output().expect("cargo");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let mut warnings = said.lines().filter(|line| line.starts_with("warning:"));
    assert_eq!(warnings.next(), Some("warning: aborting upload due to dry run"), "{said}");
    assert_eq!(warnings.next(), None, "{said}");
    let unpacked = target.join(concat!("package/gpumr-", env!("CARGO_PKG_VERSION")));
    for (file, words) in [("LICENSE", "Redistribution and use"), ("LICENSE.GPL-2.0", "GNU GENERAL PUBLIC LICENSE")] {
        let text = std::fs::read_to_string(unpacked.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(words), "{file}: {text}");
    }
}
