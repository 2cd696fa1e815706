// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that a patch of at most 100 lines makes a verbs program use the library. Both are built
//! and run.

#[allow(dead_code, reason = "this test uses a part")]
#[path = "../../stand-ins/build.rs"]
mod stand_ins;

use stand_ins::{cc, libraries, source, Without};
use std::fs;
use std::path::Path;
use std::process::Command;

fn run(folder: &Path, settings: &[(&str, &str)]) -> String {
    let mut program = Command::new(folder.join("program"));
    let ran = program.env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied()).output().expect("built");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    said + if ran.status.success() { "" } else { "failed\n" }
}

#[test]
fn a_short_patch_adopts_the_library() {
    let patch = fs::read_to_string(source("../examples/adopt/adopt.patch")).expect("there");
    assert!(patch.lines().count() <= 100, "{} lines", patch.lines().count());

    let folder = libraries("adopt", Without::Nothing);
    fs::copy(source("../examples/adopt/transfers.c"), folder.join("transfers.c")).expect("writable");
    let transport = [&format!("-I{}", source("../examples/adopt")), &source("../examples/adopt/stand_in.c")];
    let linked = ["libcuda.so.1", "libibverbs.so.1"];
    cc(&[&["-o", "program", "transfers.c", transport[0], transport[1]][..], &linked].concat(), &folder);
    let peer_memory = [("STAND_IN_PEER_MEMORY", "1")];
    let before = run(&folder, &peer_memory);
    assert_eq!(before, "sent 101, another key: 1\nregistrations 101, left 0\n");
    assert_eq!(run(&folder, &[]), "ibv_reg_mr: Bad address\nfailed\n", "without nvidia-peermem");

    fs::write(folder.join("adopt.patch"), &patch).expect("writable");
    let patched = Command::new("patch").args(["-p1", "--fuzz=0", "-i", "adopt.patch"]).current_dir(&folder).output();
    let patched = patched.expect("patch is installed");
    assert!(patched.status.success(), "{}", String::from_utf8_lossy(&patched.stdout));
    let library = std::env::current_exe().expect("this program").with_file_name("libgpumr_c.so");
    fs::copy(library, folder.join("libgpumr.so.1")).expect("writable");
    let include = format!("-I{}/include", env!("CARGO_MANIFEST_DIR"));
    let words = ["-o", "program", &include, "transfers.c", transport[0], transport[1], "libgpumr.so.1"];
    cc(&[&words[..], &linked].concat(), &folder);
    // The program sends four buffers, and one of them again after it was freed. It does the same by
    // dma-buf.
    let after = "sent 101, another key: 1\nregistrations 5, left 0\n";
    assert_eq!(run(&folder, &[]), after);
}
