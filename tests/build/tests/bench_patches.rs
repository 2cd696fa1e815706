// SPDX-License-Identifier: GPL-2.0

//! Tests that the patches in `bench/` fit the sources: a measurement that cannot be repeated is
//! worthless.

use build_tests::repository;
use std::fs;
use std::process::Command;

#[test]
fn patches_apply() {
    let mut patches = 0;
    for entry in fs::read_dir(repository().join("bench")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "patch") {
            continue;
        }
        patches += 1;
        let tried = Command::new("patch")
            .args(["-p1", "--dry-run", "--forward", "--fuzz=0", "-i"])
            .arg(&path)
            .current_dir(repository())
            .output()
            .expect("patch is installed");
        let said = String::from_utf8_lossy(&tried.stdout);
        assert!(tried.status.success(), "{} does not apply any more; make it again: {said}", path.display());
    }
    assert!(patches > 0, "bench/ has no patch");
}
