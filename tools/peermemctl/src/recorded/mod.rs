// SPDX-License-Identifier: GPL-2.0
//! Recorded machines: `record` writes one, and `--root FILE` unpacks it.

pub mod anonymous;
mod record;
mod setting;
pub mod tree;

pub use record::record;

use crate::root::Root;
use anyhow::{bail, Context, Result};
use object::write::{Object, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};
use tree::{Entry, Tree};

/// The machine in `path`: a folder, or a file that `record` wrote.
pub fn open(path: &Path) -> Result<Root> {
    if path.is_dir() {
        return Ok(Root::new(path));
    }
    if !path.is_file() {
        bail!("--root {}: no such file or folder", path.display());
    }
    let dir = tempfile::tempdir().context("make a folder to unpack into")?;
    unpack(path, dir.path())?;
    Ok(Root::unpacked(dir))
}

/// Unpacks the machine in `file` into `dir`.
pub fn unpack(file: &Path, dir: &Path) -> Result<()> {
    for (path, entry) in Tree::read(file)?.entries {
        let inside = Path::new(path.trim_start_matches('/'));
        // Somebody else wrote the file.
        if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
            bail!("{}: {path} leads out of the machine", file.display());
        }
        let at = dir.join(inside);
        fs::create_dir_all(at.parent().unwrap_or(dir))?;
        put(&at, &entry).with_context(|| format!("{}: {path}", file.display()))?;
    }
    Ok(())
}

fn put(at: &Path, entry: &Entry) -> Result<()> {
    match entry.kind.as_str() {
        "F" => fs::write(at, content(&entry.lines))?,
        "H" => fs::write(at, bytes(entry.rest.parse()?, &entry.lines)?)?,
        "L" => symlink(entry.rest.strip_prefix("-> ").context("a link without target")?, at)?,
        "E" => fs::write(at, "")?,
        "M" => fs::write(at, module(&entry.lines)?)?,
        other => bail!("entry of kind {other}"),
    }
    Ok(())
}

fn content(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| match line.strip_prefix('|') {
            Some(whole) => format!("{whole}\n"),
            None => line.get(1..).unwrap_or_default().to_owned(),
        })
        .collect()
}

fn bytes(size: usize, lines: &[String]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    for line in lines {
        let (offset, hex) = line.trim_start_matches('|').split_once(' ').context("no offset")?;
        let offset = usize::from_str_radix(offset, 16)?;
        for (n, pair) in hex.as_bytes().chunks(2).enumerate() {
            let place = bytes.get_mut(offset + n).context("bytes beyond the size")?;
            *place = u8::from_str_radix(std::str::from_utf8(pair)?, 16)?;
        }
    }
    Ok(bytes)
}

/// A module file with what was recorded of it.
fn module(lines: &[String]) -> Result<Vec<u8>> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let mut info = Vec::new();
    let mut signer = None;
    for line in lines {
        let line = line.get(1..).unwrap_or_default();
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
    let mut image = object.write()?;
    if let Some(name) = signer {
        let mut signature = vec![0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, u8::try_from(name.len())?];
        signature.extend_from_slice(name.as_bytes());
        let length = u32::try_from(signature.len())?;
        image.extend_from_slice(&signature);
        image.extend_from_slice(&[0; 8]);
        image.extend_from_slice(&length.to_be_bytes());
        image.extend_from_slice(b"~Module signature appended~\n");
    }
    Ok(image)
}
