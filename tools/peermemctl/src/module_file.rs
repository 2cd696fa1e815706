// SPDX-License-Identifier: GPL-2.0
//! Module files on disk: which one modprobe would load, and what is in it.

use crate::kernel::modules_dir;
use crate::modprobe;
use crate::root::Root;
use anyhow::{bail, Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, SymbolSection};
use std::collections::BTreeMap;
use std::io::{Cursor, Read};

/// The folder of the package nvidia-peermem-rust-dkms: a folder for each kernel with a link to its module, and the
/// program of [`upkeep()`].
pub const PACKAGE: &str = "/usr/lib/nvidia-peermem-rust";

/// Returns the program of the package that builds and installs the module on every kernel with headers
/// (packaging/dkms/upkeep).
pub fn upkeep() -> String {
    format!("{PACKAGE}/upkeep")
}

/// The words that follow a module's ELF image if it is signed.
const SIGNED: &[u8] = b"~Module signature appended~\n";

/// The modules whose symbols nvidia-peermem binds to.
pub const PROVIDERS: [&str; 3] = ["ib_core", "ib_uverbs", "nvidia"];

/// The maker of a file or a loaded module named `nvidia-peermem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maker {
    /// The module is this repository's.
    Ours,
    /// The module is NVIDIA's C module.
    Nvidia,
    /// The module is somebody else's.
    Other,
}

/// The contents of a module file that are read.
pub struct ModuleFile {
    /// Its path on that machine.
    pub path: String,
    /// `key=value` of .modinfo; keys that occur several times keep their first value.
    pub info: BTreeMap<String, String>,
    /// Symbols that it needs of others.
    pub needs: Vec<String>,
    /// The versions (CRCs) of symbols of others that it was built against; none where its kernel has none.
    pub versions: BTreeMap<String, u32>,
    /// The versions of the symbols that it exports.
    pub exports: BTreeMap<String, u32>,
    /// Whether a signature is appended, and who signed, if that can be read.
    pub signature: Option<Signature>,
}

/// An appended signature.
pub struct Signature {
    /// Common name of the signing key's certificate.
    pub signer: Option<String>,
}

impl ModuleFile {
    /// Reads a module file, packed or not.
    pub fn read(root: &Root, path: &str) -> Result<Self> {
        let packed = root.bytes(path).ok().with_context(|| format!("read {path}"))?;
        let image = unpack(path, packed)?;
        let signature = image.ends_with(SIGNED).then(|| Signature { signer: signer(&image) });
        let elf = object::File::parse(image.as_slice()).with_context(|| format!("{path} is no module"))?;
        let mut info = BTreeMap::new();
        if let Some(section) = elf.section_by_name(".modinfo") {
            for field in section.data()?.split(|byte| *byte == 0) {
                let field = String::from_utf8_lossy(field);
                if let Some((key, value)) = field.split_once('=') {
                    info.entry(key.to_owned()).or_insert_with(|| value.to_owned());
                }
            }
        }
        let needs = elf
            .symbols()
            .filter(|symbol| symbol.is_undefined())
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
            .filter(|name| !name.is_empty())
            .collect();
        let (versions, exports) = (versions(&elf), exports(&elf));
        Ok(Self { path: path.to_owned(), info, needs, versions, exports, signature })
    }

    /// Returns one field of .modinfo.
    pub fn field(&self, key: &str) -> Option<&str> {
        self.info.get(key).map(String::as_str)
    }

    /// Returns who made the module.
    pub fn maker(&self) -> Maker {
        match self.field("description") {
            Some(text) if text.starts_with("GPUDirect RDMA: GPU memory for the peer-memory API") => Maker::Ours,
            Some("NVIDIA GPU memory plug-in") => Maker::Nvidia,
            _ => Maker::Other,
        }
    }

    /// Returns whether the module needs `symbol` of another module.
    pub fn needs(&self, symbol: &str) -> bool {
        self.needs.iter().any(|name| name == symbol)
    }

    /// Returns whether the module is an RDMA driver that registers dma-bufs.
    pub fn takes_dma_buf(&self) -> bool {
        self.needs.iter().any(|name| name.starts_with("ib_umem_dmabuf_get"))
    }

    /// Returns whether the module is built on the kernel's own Rust, whose symbols are all
    /// GPL-only.
    pub fn uses_kernel_rust(&self) -> bool {
        self.needs.iter().any(|name| name.starts_with("_R") && name.contains("6kernel"))
    }
}

/// Returns the versions that a module wants of symbols: rows of a `struct modversion_info`, and in newer
/// kernels two lists (include/linux/module.h and kernel/module/version.c of Linux 7.2).
fn versions(elf: &object::File) -> BTreeMap<String, u32> {
    const ROW: usize = 64;
    let section = |name: &str| elf.section_by_name(name).and_then(|section| section.data().ok()).unwrap_or_default();
    let text = |bytes: &[u8]| {
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    };
    let row = |row: &[u8]| Some((text(row.get(8..)?), number(row, 0)?));
    let names = section("__version_ext_names").split(|byte| *byte == 0).map(text);
    let numbers = section("__version_ext_crcs").chunks_exact(4).filter_map(|bytes| number(bytes, 0));
    section("__versions").chunks_exact(ROW).filter_map(row).chain(names.zip(numbers)).collect()
}

/// Returns the versions of the symbols that a module exports: each is the value of a symbol `__crc_NAME`, or
/// lies where that points to.
fn exports(elf: &object::File) -> BTreeMap<String, u32> {
    let of = |symbol: object::Symbol| {
        let name = symbol.name().ok()?.strip_prefix("__crc_")?;
        let version = match symbol.section() {
            SymbolSection::Absolute => u32::try_from(symbol.address()).ok()?,
            SymbolSection::Section(index) => {
                let data = elf.section_by_index(index).ok()?.data().ok()?;
                number(data, usize::try_from(symbol.address()).ok()?)?
            }
            _ => return None,
        };
        Some((name.to_owned(), version))
    };
    elf.symbols().filter_map(of).collect()
}

/// Returns the number of four bytes at a place.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn unpack(path: &str, packed: Vec<u8>) -> Result<Vec<u8>> {
    let mut image = Vec::new();
    match path.rsplit('.').next() {
        Some("xz") => lzma_rs::xz_decompress(&mut Cursor::new(packed), &mut image)
            .map_err(|error| anyhow::anyhow!("unpack {path}: {error:?}"))?,
        Some("gz") => {
            flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut image)?;
        }
        Some("zst") => {
            ruzstd::decoding::StreamingDecoder::new(packed.as_slice())
                .map_err(|error| anyhow::anyhow!("unpack {path}: {error}"))?
                .read_to_end(&mut image)?;
        }
        Some("ko") => image = packed,
        _ => bail!("{path} is no module file"),
    }
    Ok(image)
}

/// Returns the signer: the common name of the signature's issuer. That name is the last one before
/// the signature's own bytes.
fn signer(image: &[u8]) -> Option<String> {
    // A struct module_signature of 12 bytes precedes the magic; its last four are the signature's
    // length.
    let head = image.len().checked_sub(SIGNED.len() + 12)?;
    let length = image.get(head + 8..head + 12)?;
    let length = usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()?;
    let signature = image.get(head.checked_sub(length)?..head)?;
    // DER: OBJECT IDENTIFIER 2.5.4.3 (commonName), then a string with its tag and a length below
    // 128.
    const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
    let at = signature.windows(COMMON_NAME.len()).rposition(|window| window == COMMON_NAME)?;
    let text = signature.get(at + COMMON_NAME.len() + 1..)?;
    let (length, text) = text.split_first()?;
    Some(String::from_utf8_lossy(text.get(..usize::from(*length))?).into_owned())
}

/// Returns the file that modprobe would load for `name` (with underscores) on `release`, from
/// depmod's list. Debian gives the files of the GPU driver other names, to which install lines lead.
pub fn chosen(root: &Root, release: &str, name: &str) -> Option<String> {
    let dir = modules_dir(release);
    let list = root.text(&format!("{dir}/modules.dep")).ok()?;
    let of = |name: &str| {
        let mut files = list.lines().filter_map(|line| line.split_once(':')).map(|(file, _)| file);
        files.find(|file| is_module(file, name))
    };
    let file = of(name).or_else(|| of(&modprobe::installed_as(root, name)?))?;
    Some(match file.starts_with('/') {
        true => file.to_owned(),
        false => format!("{dir}/{file}"),
    })
}

/// Returns every file of that name below the modules of `release`, and the link of this project's package, which lies
/// elsewhere (packaging/dkms/upkeep).
pub fn all(root: &Root, release: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![modules_dir(release), format!("{PACKAGE}/{release}")];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(root.at(&dir)).into_iter().flatten().flatten() {
            let path = format!("{dir}/{}", entry.file_name().to_string_lossy());
            let Ok(kind) = entry.file_type() else { continue };
            // Links (build, source) lead out of the tree.
            if kind.is_dir() {
                open.push(path);
            } else if is_module(&path, name) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns whether a file is that of a module.
pub fn is_module(path: &str, name: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let Some((stem, rest)) = file.split_once('.') else { return false };
    stem.replace('-', "_") == name && matches!(rest, "ko" | "ko.xz" | "ko.gz" | "ko.zst")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_module_files() {
        assert!(is_module("updates/dkms/nvidia-peermem.ko.zst", "nvidia_peermem"));
        assert!(is_module("nvidia_peermem.ko", "nvidia_peermem"));
        assert!(!is_module("nvidia-peermem.ko.bak", "nvidia_peermem"));
        assert!(!is_module("nvidia.ko", "nvidia_peermem"));
    }
}
