// SPDX-License-Identifier: GPL-2.0

//! Makes copies of shipped files in which `core`'s atomics are loom's: one as it is, and others
//! with one ordering weakened each. They are copies because loom counts accesses by types of its
//! own, and because a weakened file is not what the crate ships.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The present text, its replacement, and the number of times that it occurs.
type Place = (&'static str, &'static str, usize);

/// The shipped files, with the changes that are made in all copies.
const FILES: [(&str, &[Place]); 2] = [
    (
        "kernel-lite/kernel/sync/atomic.rs",
        &[
            ("use crate::", "use kernel::", 1),
            ("use core::sync::atomic as core_atomic;", "use crate::by_address as core_atomic;", 1),
        ],
    ),
    (
        "kernel-lite/kernel/sync/arc.rs",
        &[("use core::sync::atomic::", "use loom::sync::atomic::", 1), ("use crate::", "use kernel::", 4)],
    ),
];

/// This file depends on too much to be compiled here, so only what it does with its `READY` is
/// copied.
const READY: &str = "src/peer/client.rs";

/// Only how it keeps the pairs of a GPU and a NIC is copied from this file.
const PAIRS: &str = "src/gpu/topology.rs";

/// Only the counters, among them the count of orphans, are copied from this file.
const COUNTERS: &str = "src/observe/stats.rs";
const ORPHANS: &str = "src/pin/registry.rs";

/// The name of each variant, and the one place that is weaker in it.
const WEAKENED: [(&str, &str, &str, &str); 9] = [
    ("ends_read_relaxed", "counts.rs", "self.0.load(Acquire)", "self.0.load(Relaxed)"),
    ("raised_in_two_steps", "counts.rs", "self.0.cmpxchg(now, to, Relaxed)", "Ok::<_, u64>(self.0.store(to, Relaxed))"),
    (
        "orphans_in_two_steps",
        "counts.rs",
        "ORPHANS.fetch_sub(1, Relaxed)",
        "ORPHANS.store(ORPHANS.load(Relaxed).wrapping_sub(1), Relaxed)",
    ),
    ("pair_written_relaxed", "pairs.rs", "known.gpu.store(pair.gpu, Release)", "known.gpu.store(pair.gpu, Relaxed)"),
    ("pair_read_relaxed", "pairs.rs", "self.gpu.load(Acquire)", "self.gpu.load(Relaxed)"),
    ("arc_drop_relaxed", "arc.rs", "fetch_sub(1, Ordering::Release)", "fetch_sub(1, Ordering::Relaxed)"),
    ("arc_without_fence", "arc.rs", "fence(Ordering::Acquire);", ""),
    ("publish_relaxed", "ready.rs", "READY.store(true, Release)", "READY.store(true, Relaxed)"),
    ("seen_relaxed", "ready.rs", "READY.load(Acquire)", "READY.load(Relaxed)"),
];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let repo = here.join("../../..");
    let mut modules = String::new();
    variant(&mut modules, &repo, &here, &out, "shipped", None);
    for (name, file, from, to) in WEAKENED {
        variant(&mut modules, &repo, &here, &out, name, Some((file, from, to)));
    }
    fs::write(out.join("variants.rs"), modules).expect("OUT_DIR is writable");
}

fn variant(modules: &mut String, repo: &Path, here: &Path, out: &Path, name: &str, weaker: Option<(&str, &str, &str)>) {
    let dir = out.join(name);
    fs::create_dir_all(&dir).expect("OUT_DIR is writable");
    writeln!(modules, "pub mod {name} {{").expect("a String");
    let read = |path: &str| {
        let source = repo.join(path);
        println!("cargo:rerun-if-changed={}", source.display());
        fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()))
    };
    let counts = counts(&read(COUNTERS), &read(ORPHANS));
    let mut files: Vec<(&str, String)> =
        vec![("ready.rs", ready(&read(READY))), ("pairs.rs", pairs(&read(PAIRS))), ("counts.rs", counts)];
    for (path, places) in FILES {
        let mut text = read(path);
        for (from, to, times) in places {
            text = replace(path, &text, from, to, *times);
        }
        files.push((path.rsplit('/').next().expect("never empty"), text));
    }
    for (file, mut text) in files {
        if let Some((_, from, to)) = weaker.filter(|w| w.0 == file) {
            text = replace(file, &text, from, to, 1);
        }
        fs::write(dir.join(file), text).expect("OUT_DIR is writable");
        let module = file.trim_end_matches(".rs");
        // A test uses only a part of the shipped code.
        let allowed = "clippy::new_without_default, clippy::unit_arg, dead_code, unused_imports";
        writeln!(modules, "#[allow({allowed})] #[path = {:?}] pub mod {module};", dir.join(file)).expect("a String");
    }
    writeln!(modules, "#[path = {:?}] pub mod world;\n}}", here.join("src/world.rs")).expect("a String");
}

/// Returns `READY`, how module init sets it, and how callbacks look at it, which all do in the same
/// way.
fn ready(text: &str) -> String {
    let line = |what: &str| {
        let mut found: Vec<&str> = text.lines().map(str::trim).filter(|l| l.contains(what)).collect();
        found.dedup();
        match found[..] {
            [line] => line,
            _ => panic!("{READY} has no line with {what:?}, or different ones: see tests/host/weak/build.rs"),
        }
    };
    let load = line("READY.load(").trim_start_matches("if !").trim_end_matches(" {");
    format!(
        "use super::atomic::{{Acquire, Atomic, Relaxed, Release}};\n{}\npub fn publish() {{\n    {}\n}}\npub fn seen() -> bool \
         {{\n    {load}\n}}\n",
        line("static READY:"),
        line("READY.store(true")
    )
}

/// Returns how a pair is kept, how it is looked up, and how one is entered.
fn pairs(text: &str) -> String {
    let part = |from: &str, to: &str| {
        let part = text.split_once(from).and_then(|(_, rest)| rest.split_once(to));
        part.unwrap_or_else(|| panic!("{PAIRS} has nothing from {from:?} to {to:?}: see tests/host/weak/build.rs")).0
    };
    let kept = part("use kernel::sync::global_lock;\n", "/// The pairs that were met.").replace("pub(crate)", "pub");
    let kept = replace(PAIRS, &kept, "    fn pair(&self)", "    pub fn pair(&self)", 1);
    let kept = replace(PAIRS, &kept, "struct Known", "pub struct Known", 1);
    let enter = part("place(pair.gpu, pair.device) else { return };\n", "}\n\n");
    format!(
        "use super::atomic::{{Acquire, Atomic, Relaxed, Release}};\n{kept}\npub static KNOWN: Known = Known {{ gpu: \
         Atomic::new(0), device: Atomic::new(0), reach: Atomic::new(0) }};\npub fn remember(known: &Known, pair: Pair) {{\n{enter}}}\n\
         pub fn begin(known: &Known) {{\n    known.device.load(Relaxed);\n    known.reach.load(Relaxed);\n    known.gpu.load(Relaxed);\n}}\n"
    )
}

/// Returns a counter, and the steps of the count of orphans.
fn counts(counters: &str, orphans: &str) -> String {
    let part = |path: &str, text: &str, from: &str, to: &str| {
        let found = text.split_once(from).and_then(|(_, rest)| rest.split_once(to));
        let rest =
            found.unwrap_or_else(|| panic!("{path} has nothing from {from:?} to {to:?}: see tests/host/weak/build.rs"));
        format!("{from}{}{to}", rest.0)
    };
    let counter = part(COUNTERS, counters, "pub(crate) struct Counter", "\n}\n").replace("pub(crate)", "pub");
    let counter = replace(COUNTERS, &counter, "    fn raise", "    pub fn raise", 1);
    let step = |of: &str| part(ORPHANS, orphans, &format!("ORPHANS.{of}("), ")");
    format!(
        "use super::atomic::{{Acquire, Atomic, Relaxed, Release}};\n{counter}{}\npub mod orphans {{\n    use super::*;\n    \
         pub fn up() {{\n        {};\n    }}\n    pub fn down() {{\n        {};\n    }}\n    pub fn now() -> u64 {{\n        \
         {}\n    }}\n}}\n",
        part(ORPHANS, orphans, "static ORPHANS: ", ";"),
        step("fetch_add"),
        step("fetch_sub"),
        step("load"),
    )
}

/// Replaces text. Fails if a file has changed here, because this was written for another text.
fn replace(path: &str, text: &str, from: &str, to: &str, times: usize) -> String {
    let found = text.matches(from).count();
    assert_eq!(found, times, "{path} has {from:?} {found} times, wanted {times}: see tests/host/weak/build.rs");
    text.replace(from, to)
}
