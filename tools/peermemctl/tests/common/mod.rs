// SPDX-License-Identifier: GPL-2.0
//! Unpacks recorded machines.

pub mod tree;

use object::write::{Object, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tree::Tree;

/// Where the recorded machines are.
pub fn trees() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees")
}

/// Unpacks the tree `name` into a directory that goes with what is returned.
pub fn unpack(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    unpack_into(&trees().join(format!("{name}.tree")), dir.path());
    dir
}

/// Unpacks the machine in `file` into `dir`.
pub fn unpack_into(file: &Path, dir: &Path) {
    for (path, entry) in Tree::read(file).entries {
        let path = dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry.kind.as_str() {
            "F" => fs::write(&path, content(&entry.lines)).unwrap(),
            "H" => fs::write(&path, bytes(entry.rest.parse().unwrap(), &entry.lines)).unwrap(),
            "L" => symlink(entry.rest.strip_prefix("-> ").unwrap(), &path).unwrap(),
            "E" => fs::write(&path, "").unwrap(),
            "M" => fs::write(&path, module(&entry.lines)).unwrap(),
            other => panic!("{}: entry of kind {other}", file.display()),
        }
    }
}

fn content(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| match line.strip_prefix('|') {
            Some(whole) => format!("{whole}\n"),
            None => line[1..].to_owned(),
        })
        .collect()
}

fn bytes(size: usize, lines: &[String]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for line in lines {
        let (offset, hex) = line[1..].split_once(' ').unwrap();
        let offset = usize::from_str_radix(offset, 16).unwrap();
        for (n, pair) in hex.as_bytes().chunks(2).enumerate() {
            bytes[offset + n] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    }
    bytes
}

/// A module file with what was recorded of it.
fn module(lines: &[String]) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let mut info = Vec::new();
    let mut signer = None;
    for line in lines {
        let line = &line[1..];
        if let Some(name) = line.strip_prefix("needs ") {
            object.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value: 0,
                size: 0,
                kind: SymbolKind::Unknown,
                scope: SymbolScope::Unknown,
                weak: false,
                section: SymbolSection::Undefined,
                flags: SymbolFlags::None,
            });
        } else if let Some(name) = line.strip_prefix("signer ") {
            signer = Some(name);
        } else {
            info.extend_from_slice(line.as_bytes());
            info.push(0);
        }
    }
    let section = object.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::ReadOnlyData);
    object.append_section_data(section, &info, 1);
    let mut image = object.write().unwrap();
    if let Some(name) = signer {
        let mut signature = vec![0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, u8::try_from(name.len()).unwrap()];
        signature.extend_from_slice(name.as_bytes());
        let length = u32::try_from(signature.len()).unwrap();
        image.extend_from_slice(&signature);
        image.extend_from_slice(&[0; 8]);
        image.extend_from_slice(&length.to_be_bytes());
        image.extend_from_slice(b"~Module signature appended~\n");
    }
    image
}
