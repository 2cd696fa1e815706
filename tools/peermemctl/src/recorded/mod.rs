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
use std::path::{Component, Path, PathBuf};
use tree::{Entry, Tree};

/// Opens the machine in `path`: a folder, or a file that `record` wrote.
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

/// Unpacks the machine in `file` into `dir`, and writes nowhere else, whatever somebody else wrote into the
/// file: links are made when all else is there, and lead to what is in the machine.
pub fn unpack(file: &Path, dir: &Path) -> Result<()> {
    let entries = Tree::read(file)?.entries;
    let is_link = |path: &Path| entries.iter().any(|(link, entry)| entry.kind == "L" && Path::new(link) == path);
    // What lies behind a link has another path.
    let behind = entries.keys().find(|path| Path::new(path).ancestors().skip(1).any(is_link));
    if let Some(path) = behind {
        bail!("{}: {path} lies behind a link", file.display());
    }
    let (links, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(_, entry)| entry.kind == "L");
    for (path, entry) in others.into_iter().chain(links) {
        let inside = Path::new(path.trim_start_matches('/'));
        if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
            bail!("{}: {path} leads out of the machine", file.display());
        }
        let at = dir.join(inside);
        fs::create_dir_all(at.parent().unwrap_or(dir))?;
        put(&at, &entry, inside).with_context(|| format!("{}: {path}", file.display()))?;
    }
    Ok(())
}

/// Makes an entry, whose path in the machine is `inside`.
fn put(at: &Path, entry: &Entry, inside: &Path) -> Result<()> {
    match entry.kind.as_str() {
        "F" => fs::write(at, content(&entry.lines))?,
        "H" => fs::write(at, bytes(entry.rest.parse()?, &entry.lines)?)?,
        "L" => symlink(target(inside, entry.rest.strip_prefix("-> ").context("a link without target")?)?, at)?,
        "E" => fs::write(at, "")?,
        "M" => fs::write(at, module(&entry.lines)?)?,
        other => bail!("entry of kind {other}"),
    }
    Ok(())
}

/// Returns where a link leads: a target from the root on is one of the machine's root.
fn target(link: &Path, target: &str) -> Result<PathBuf> {
    let above = link.parent().map_or(0, |folder| folder.components().count());
    if let Some(of_root) = target.strip_prefix('/') {
        // As in the machine: nothing is above its root.
        let parts = Path::new(of_root).components().filter(|part| matches!(part, Component::Normal(_)));
        return Ok(std::iter::repeat_n("..", above).collect::<PathBuf>().join(parts.collect::<PathBuf>()));
    }
    let mut depth = above;
    for part in Path::new(target).components() {
        depth = match part {
            Component::ParentDir => {
                depth.checked_sub(1).with_context(|| format!("{target} leads out of the machine"))?
            }
            Component::Normal(_) => depth + 1,
            _ => depth,
        };
    }
    Ok(PathBuf::from(target))
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

/// The most bytes that a file of bytes may have: a configuration space has 4096.
const MOST_BYTES: usize = 1 << 20;

fn bytes(size: usize, lines: &[String]) -> Result<Vec<u8>> {
    if size > MOST_BYTES {
        bail!("{size} bytes, and no file that is looked at has more than {MOST_BYTES}");
    }
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

/// Builds a module file from what was recorded of it.
fn module(lines: &[String]) -> Result<Vec<u8>> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let mut info = Vec::new();
    let (mut signer, mut versions) = (None, Vec::new());
    for line in lines {
        let line = line.get(1..).unwrap_or_default();
        if let Some((name, version)) = line.strip_prefix("wants ").and_then(|rest| rest.split_once(' ')) {
            let mut row = [0; 64];
            let crc = u32::from_str_radix(version, 16)?.to_le_bytes();
            row.iter_mut().zip(crc).for_each(|(byte, of)| *byte = of);
            // A name ends with a zero.
            row.iter_mut().skip(8).take(55).zip(name.bytes()).for_each(|(byte, of)| *byte = of);
            versions.extend_from_slice(&row);
        } else if let Some((name, version)) = line.strip_prefix("exports ").and_then(|rest| rest.split_once(' ')) {
            object.add_symbol(Symbol {
                name: format!("__crc_{name}").into_bytes(),
                value: u32::from_str_radix(version, 16)?.into(),
                size: 0,
                kind: SymbolKind::Data,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Absolute,
                flags: SymbolFlags::None,
            });
        } else if let Some(name) = line.strip_prefix("needs ") {
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
    if !versions.is_empty() {
        let section = object.add_section(Vec::new(), b"__versions".to_vec(), SectionKind::ReadOnlyData);
        object.append_section_data(section, &versions, 8);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Unpacks a machine of this text into a folder of its own below `dir`.
    fn unpacked(dir: &Path, text: &str) -> Result<()> {
        let file = dir.join("a.tree");
        fs::write(&file, text).unwrap();
        fs::create_dir(dir.join("machine")).unwrap();
        unpack(&file, &dir.join("machine"))
    }

    #[test]
    fn a_file_of_somebody_else_writes_and_reads_nothing_outside() {
        for text in [
            "# x\nF /../outside\n|text\n",
            "# x\nL /x -> ../..\nF /x/outside\n|text\n",
            "# x\nL /x -> ../../outside\n",
            "# x\nL /x -> {dir}\nF /x/outside\n|text\n",
            "# x\nL /p -> .\nL /p/p/p/x -> ../../..\nL /x/outside -> nothing\n",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let result = unpacked(dir.path(), &text.replace("{dir}", &dir.path().display().to_string()));
            assert!(result.is_err() && !dir.path().join("outside").exists(), "{text}: {result:?}");
        }
        // A link from the root on leads to what is there in the machine.
        let dir = tempfile::tempdir().unwrap();
        unpacked(dir.path(), "# x\nF /etc/passwd\n|nobody\nL /a/b/link -> /etc/passwd\n").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("machine/a/b/link")).unwrap(), "nobody\n");
    }

    #[test]
    fn a_file_of_somebody_else_takes_no_more_than_there_is() {
        for text in ["# x\nH /a 99999999999999\n", "# x\nbase a\n"] {
            let dir = tempfile::tempdir().unwrap();
            assert!(unpacked(dir.path(), text).is_err(), "{text}");
        }
    }
}
