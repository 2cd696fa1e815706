// SPDX-License-Identifier: GPL-2.0

//! Computes instructions per function and per line of our module, from the plugin's counts
//! (ci/qemu/profile), the guest's list of functions, and the module's line tables.

use anyhow::{bail, ensure, Context, Result};
use lab::ctx::Lab;
use lab::sh;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's name for our module.
const OURS: &str = "nvidia_peermem";

/// The start addresses of functions, with module (empty: the kernel) and name.
type Functions = BTreeMap<u64, (String, String)>;

/// Returns the kernel's own functions at the addresses to which it was linked. They hold for a boot
/// without KASLR.
fn kernel_functions(system_map: &str) -> Functions {
    system_map
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            let address = u64::from_str_radix(address, 16).ok()?;
            kind.eq_ignore_ascii_case("t").then(|| (address, (String::new(), plain(name))))
        })
        .collect()
}

/// Returns a name as people write it: without Rust's mangling, and without what the compiler
/// appended.
fn plain(name: &str) -> String {
    let name = format!("{:#}", rustc_demangle::demangle(name));
    name.split(".llvm.").next().unwrap_or(&name).replace("peer_client::", "")
}

/// Returns the address at which the module's code begins in a boot. `functions` is the guest's
/// list, `symbols` the output of nm.
fn text_at(functions: &Value, symbols: &str) -> Option<u64> {
    let offsets: BTreeMap<&str, u64> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (offset, _, name) = (words.next()?, words.next()?, words.next()?);
            Some((name, u64::from_str_radix(offset, 16).ok()?))
        })
        .collect();
    functions.as_array()?.iter().filter(|f| f[2] == OURS).find_map(|f| {
        // Only mangled names are used: they are unique, and all of them are in the text section.
        let name = f[1].as_str().filter(|n| n.starts_with("_RNvMs"))?;
        u64::from_str_radix(f[0].as_str()?, 16).ok()?.checked_sub(*offsets.get(name)?)
    })
}

/// Returns `sg.rs:12` for a line of our module, whose sources are in the folder src/ beside Kbuild.
fn of_ours(line: &str) -> Option<String> {
    let (folder, place) = line.rsplit_once("/src/")?;
    // "(discriminator 3)" may follow the place.
    let place = place.split_whitespace().next()?;
    let ours = folder.ends_with("/source") || Path::new(folder).join("Kbuild").is_file();
    ours.then(|| place.to_string())
}

/// Reads the output of `addr2line -a -i`. Returns, for each address, the innermost of its lines
/// that is in one of our sources.
fn lines_in(answer: &str) -> BTreeMap<u64, String> {
    let mut lines = BTreeMap::new();
    let mut address = None;
    for line in answer.lines() {
        if let Some(hex) = line.strip_prefix("0x") {
            address = u64::from_str_radix(hex, 16).ok();
        } else if let (Some(at), Some(place)) = (address, of_ours(line)) {
            lines.entry(at).or_insert(place);
        }
    }
    lines
}

/// The module that was measured.
pub struct Module<'a> {
    lab: &'a Lab,
    file: PathBuf,
    symbols: String,
}

impl<'a> Module<'a> {
    pub fn new(lab: &'a Lab, file: PathBuf) -> Result<Self> {
        let symbols = sh::output(sh::command("nm").arg(&file))?;
        Ok(Self { lab, file, symbols })
    }

    /// Returns the source lines of these offsets in the module's code, where they are ours.
    fn lines(&self, offsets: &[u64]) -> Result<BTreeMap<u64, String>> {
        let list = self.lab.build.join("profile-addresses.txt");
        let text: String = offsets.iter().map(|offset| format!("{offset:#x}\n")).collect();
        fs::write(&list, text).with_context(|| format!("cannot write {}", list.display()))?;
        let mut cmd = sh::command("addr2line");
        cmd.args(["-a", "-i", "-j", ".text", "-e"]).arg(&self.file).arg(format!("@{}", list.display()));
        Ok(lines_in(&sh::output(&mut cmd)?))
    }
}

fn by_line(module: &Module<'_>, begin: u64, counts: &BTreeMap<u64, u64>) -> Result<Vec<Value>> {
    let offset = |address: u64| address.wrapping_sub(begin);
    let lines = module.lines(&counts.keys().map(|address| offset(*address)).collect::<Vec<_>>())?;
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (address, count) in counts {
        let line = lines.get(&offset(*address)).map_or("-", String::as_str);
        *sums.entry(line).or_default() += count;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Ok(sums.iter().map(|(line, count)| json!([line, count])).collect())
}

/// Returns the guest's `profile` rows, each with `functions`: `[module, name, instructions]`, and,
/// where `module` was loaded, `lines`: `[line, instructions]`, beginning with the most
/// instructions. `modules` has the instructions of each module, including those of the kernel that
/// it called.
pub fn rows(
    counted: &str,
    system_map: &str,
    marked: &[Value],
    listed: &[Value],
    module: Option<&Module<'_>>,
) -> Result<Vec<Value>> {
    let mut sections: Vec<&str> = counted.split("==\n").collect();
    ensure!(sections.first().is_some_and(|s| s.is_empty()), "the plugin's file does not begin with a mark");
    sections.remove(0);
    if sections.len() != marked.len() {
        bail!("the plugin saw {} marks, the guest made {}", sections.len(), marked.len());
    }
    let kernel = kernel_functions(system_map);
    let mut rows = Vec::new();
    for (section, row) in sections.iter().zip(marked) {
        let mut functions = kernel.clone();
        let modules = listed.iter().find(|l| l["variant"] == row["variant"]).context("no list of functions")?;
        for function in modules["functions"].as_array().context("functions")? {
            let word = |i: usize| function[i].as_str().context("a word of a function");
            let address = u64::from_str_radix(word(0)?, 16).context("address of a function")?;
            functions.insert(address, (word(2)?.to_string(), plain(word(1)?)));
        }
        let mut sums: BTreeMap<&(String, String), u64> = BTreeMap::new();
        let mut ours: BTreeMap<u64, u64> = BTreeMap::new();
        let mut by_module: BTreeMap<&str, u64> = BTreeMap::new();
        for line in section.lines() {
            let (address, count) = line.split_once(' ').with_context(|| format!("plugin's line {line:?}"))?;
            let called_for = address.strip_prefix('+');
            let address = u64::from_str_radix(called_for.unwrap_or(address), 16)
                .with_context(|| format!("plugin's line {line:?}"))?;
            if let Some((_, function)) = functions.range(..=address).next_back() {
                let count = count.parse::<u64>().context("plugin's count")?;
                if called_for.is_some() || !function.0.is_empty() {
                    *by_module.entry(function.0.as_str()).or_default() += count;
                }
                if called_for.is_some() {
                    continue;
                }
                *sums.entry(function).or_default() += count;
                if function.0 == OURS {
                    ours.insert(address, count);
                }
            }
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let sums: Vec<Value> = sums.iter().map(|((module, name), count)| json!([module, name, count])).collect();
        let mut row = row.clone();
        row["functions"] = sums.into();
        row["modules"] = json!(by_module);
        let began = module.and_then(|m| Some((m, text_at(&modules["functions"], &m.symbols)?)));
        if let (Some((module, begin)), true) = (began, row["variant"].as_str().is_some_and(|v| v.starts_with("ours"))) {
            row["lines"] = by_line(module, begin, &ours)?.into();
        }
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_summed_by_function() {
        let map = "ffffffff81000000 T _stext\nffffffff81000100 t memcpy\nffffffff81000200 D data\n";
        let listed =
            [json!({"variant": "ours", "functions": [["ffffffffc0000000", "nvpm_dma_map", "nvidia_peermem"]]})];
        let marked = [json!({"variant": "ours", "size": 1})];
        let counted = "==\nffffffff81000100 5\nffffffff81000120 2\nffffffffc0000010 9\n+ffffffffc0000010 4\n+0 3\n";
        let rows = rows(counted, map, &marked, &listed, None).unwrap();
        assert_eq!(rows[0]["functions"], json!([["nvidia_peermem", "nvpm_dma_map", 9], ["", "memcpy", 7]]));
        assert_eq!(rows[0]["modules"], json!({"nvidia_peermem": 13}), "its own and what the kernel did for it");
        assert!(super::rows("==\n==\n", map, &marked, &listed, None).is_err(), "a mark too many");
    }

    #[test]
    fn addresses_become_lines_of_ours() {
        let functions = json!([
            ["ffffffffc0000100", "nvpm_dma_map", "nvidia_peermem"],
            ["ffffffffc0000040", "_RNvMsg_3mapNtB2_7Mapping3new", "nvidia_peermem"],
            ["ffffffffc1000040", "_RNvMsg_3mapNtB2_7Mapping3new", "nvidia"],
        ]);
        let symbols = "0000000000000030 t _RNvMsg_3mapNtB2_7Mapping3new\n0000000000000200 t nvpm_dma_map\n";
        assert_eq!(text_at(&functions, symbols), Some(0xffff_ffff_c000_0010));
        let answer = "0x0000000000000033\n/rustc/1/library/core/src/slice/iter.rs:12\n/x/ours/source/src/sg.rs:7 (discriminator 3)\n\
                      /x/ours/source/src/dma/map.rs:9\n0x0000000000000040\n??:?\n";
        assert_eq!(lines_in(answer), BTreeMap::from([(0x33, "sg.rs:7".to_string())]));
    }

    #[test]
    fn rust_names_are_readable() {
        assert_eq!(plain("_RNvMNtCs1234_11peer_client3mapNtB2_7Mapping3new"), "<map::Mapping>::new");
        assert_eq!(plain("dma_map_phys"), "dma_map_phys");
    }
}
