// SPDX-License-Identifier: GPL-2.0
//! What the kernel says about itself: release, symbols, loaded modules, log.

use crate::log_words::is_on_topic;
use crate::root::{Missing, Root};
use std::collections::BTreeMap;

/// The symbols that the verdicts need by their names.
const SYMBOLS: [&str; 5] = [
    "ib_register_peer_memory_client",
    "ib_umem_get_peer",
    "ib_umem_dmabuf_get",
    "nvidia_p2p_get_pages",
    "nvidia_p2p_get_pages_persistent",
];

/// The end of the names of those functions in RDMA drivers that register dma-bufs.
pub const REGISTERS_DMA_BUF: &str = "_reg_user_mr_dmabuf";

/// Returns whether the verdicts need a symbol; a recorded tree keeps only these.
pub fn is_wanted(name: &str) -> bool {
    SYMBOLS.contains(&name) || name.ends_with(REGISTERS_DMA_BUF)
}

/// Returns the folder that has the modules of a kernel release.
pub fn modules_dir(release: &str) -> String {
    format!("/lib/modules/{release}")
}

/// Returns what `uname -r` prints.
pub fn release(root: &Root) -> Option<String> {
    root.line("/proc/sys/kernel/osrelease").filter(|release| !release.is_empty())
}

/// Returns whether the process numbers of /proc are those of the initial namespace, which the
/// module writes. In a container they are usually not: there the module's numbers belong to no
/// process, or to another one.
pub fn has_initial_pids(root: &Root) -> bool {
    // PROC_PID_INIT_INO is the same in every kernel.
    const INITIAL: &str = "pid:[4026531836]";
    // The namespace of a /proc is that of its process 1, which root may ask; our own is the same,
    // but where the host's /proc was mounted. A recorded tree has neither, and is of no container.
    let namespace = ["1", "self"].iter().find_map(|pid| root.link_name(&format!("/proc/{pid}/ns/pid")));
    namespace.is_none_or(|namespace| namespace == INITIAL)
}

/// Returns the wanted symbols that exist, with the module that has them (`None`: the kernel
/// itself). An error if the list cannot be read at all.
pub fn symbols(root: &Root) -> Result<BTreeMap<String, Option<String>>, Missing> {
    let text = root.text("/proc/kallsyms")?;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().skip(2);
        let Some(name) = words.next() else { continue };
        if is_wanted(name) {
            found.insert(name.to_owned(), words.next().map(|module| module.trim_matches(['[', ']']).to_owned()));
        }
    }
    Ok(found)
}

/// Returns the module whose installed file exports `symbol`, as depmod found it when it last looked
/// at the modules of `release`.
pub fn exporter(root: &Root, release: &str, symbol: &str) -> Option<String> {
    let list = root.text(&format!("{}/modules.symbols", modules_dir(release))).ok()?;
    let exports = |line: &str| exported_symbol(line) == Some(symbol);
    list.lines().find(|line| exports(line)).and_then(|line| line.split_ascii_whitespace().nth(2)).map(str::to_owned)
}

/// The folders in which OFED leaves what modules are built against. Below them are the architecture
/// and the kernel, or in older releases the kernel. The package for DKMS and the one with modules
/// have folders of their own.
pub const OFED_SOURCES: [&str; 2] = ["/usr/src/ofa_kernel", "/usr/src/ofa_kernel-dkms"];

/// Returns the file that has a kernel's configuration, and its text.
pub fn configuration(root: &Root, release: &str) -> Option<(String, String)> {
    let dir = modules_dir(release);
    let files = [format!("/boot/config-{release}"), format!("{dir}/config"), format!("{dir}/build/.config")];
    files.into_iter().find_map(|file| root.text_once(&file).ok().map(|text| (file, text.to_string())))
}

/// Returns whether verdicts look for a line of a kernel's configuration.
pub fn is_of_configuration(line: &str) -> bool {
    line.contains("CONFIG_INFINIBAND") || line.contains("CONFIG_ARM64_") && line.contains("_PAGES")
}

/// The folder in which DKMS has what it built of OFED. Below it are version, kernel and
/// architecture.
const OFED_DKMS: &str = "/var/lib/dkms/mlnx-ofed-kernel";

/// Returns the other kernels for which an RDMA core is installed that exports `symbol`: as depmod found it,
/// or as OFED or DKMS left what was built.
pub fn others_that_export(root: &Root, running: &str, symbol: &str) -> Vec<String> {
    let numbered = |folder: &str| -> Vec<String> {
        root.names(folder).into_iter().filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).collect()
    };
    let mut found = numbered("/lib/modules");
    found.retain(|release| exporter(root, release, symbol).is_some());
    let folders =
        OFED_SOURCES.iter().flat_map(|sources| ["", "/x86_64", "/aarch64"].map(|part| format!("{sources}{part}")));
    for folder in folders {
        let releases = numbered(&folder);
        let is_whole = |release: &String| root.exists(&format!("{folder}/{release}/Module.symvers"));
        found.extend(releases.into_iter().filter(is_whole));
    }
    let versions = numbered(OFED_DKMS);
    found.extend(versions.iter().flat_map(|version| numbered(&format!("{OFED_DKMS}/{version}"))));
    found.retain(|release| release != running);
    found.sort();
    found.dedup();
    found
}

/// Returns the symbol of a line of modules.symbols: `alias symbol:NAME MODULE`.
pub fn exported_symbol(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().nth(1)?.strip_prefix("symbol:")
}

/// A loaded module.
pub struct Loaded {
    /// How often it is used, which for nvidia-peermem is its number of live registrations. `None`
    /// if the kernel does not count, since it unloads no module.
    pub refcount: Option<i64>,
    /// Modules that use it.
    pub used_by: Vec<String>,
    /// `Live`, `Loading` or `Unloading`.
    pub state: String,
    /// Whether somebody else than the kernel's makers built it, apart from the kernel.
    pub out_of_tree: bool,
}

/// Returns all loaded modules by name (with underscores).
pub fn loaded_modules(root: &Root) -> BTreeMap<String, Loaded> {
    match root.text("/proc/modules") {
        Ok(text) => text.lines().filter_map(module).collect(),
        Err(_) => root.names("/sys/module").into_iter().filter_map(|name| module_in_sysfs(root, name)).collect(),
    }
}

/// Reads a module as sysfs shows it. What is built in has no state there.
fn module_in_sysfs(root: &Root, name: String) -> Option<(String, Loaded)> {
    let file = |file: &str| root.line(&format!("/sys/module/{name}/{file}"));
    let state = match file("initstate")?.as_str() {
        "live" => "Live",
        "going" => "Unloading",
        _ => "Loading",
    };
    let refcount = file("refcnt").and_then(|count| count.parse().ok());
    let used_by = root.names(&format!("/sys/module/{name}/holders"));
    let out_of_tree = root.line(&format!("/sys/module/{name}/taint")).is_some_and(|letters| letters.contains('O'));
    Some((name, Loaded { refcount, used_by, state: state.to_owned(), out_of_tree }))
}

/// Parses a line of /proc/modules: name, size, how often used, by whom, state, address, taint. An
/// odd line costs no other line, and an odd field does not cost the module's name; procfs-core
/// gives up on all of them.
fn module(line: &str) -> Option<(String, Loaded)> {
    let mut words = line.split_ascii_whitespace();
    let name = words.next()?.to_owned();
    let refcount = words.nth(1).and_then(|word| word.parse().ok());
    let used_by = words.next().unwrap_or_default().split(',');
    // "-" means that no module uses it, "[permanent]" that it cannot be unloaded.
    let used_by = used_by.filter(|user| !user.is_empty() && *user != "-" && !user.starts_with('['));
    let used_by = used_by.map(str::to_owned).collect();
    let state = words.next().unwrap_or_default().to_owned();
    // The taint follows the address: "(OE)".
    let out_of_tree = words.nth(1).is_some_and(|letters| letters.contains('O'));
    Some((name, Loaded { refcount, used_by, state, out_of_tree }))
}

/// Returns the lines of the kernel log that are about GPUs and RDMA, each with its time in
/// microseconds, as far as it reaches back, and whether more was there than is read.
pub fn log(root: &Root) -> (Result<Vec<(u64, String)>, Missing>, bool) {
    let (text, cut) = match root.kernel_log() {
        Ok(log) => log,
        Err(missing) => return (Err(missing), false),
    };
    // A record is "level,sequence,time,flags;text"; lines with a leading space belong to the record
    // before.
    let lines = text
        .lines()
        .filter(|line| !line.starts_with(' ') && is_on_topic(line))
        .filter_map(|line| {
            let (head, text) = line.split_once(';')?;
            let time = head.split(',').nth(2).and_then(|time| time.parse().ok());
            Some((time.unwrap_or(0), text.to_owned()))
        })
        .collect();
    (Ok(lines), cut)
}

/// Returns the releases of the installed kernels that are newer than the running one.
pub fn newer(root: &Root, running: &str) -> Vec<String> {
    root.names("/lib/modules")
        .into_iter()
        .filter(|release| numbers(release) > numbers(running))
        .filter(|release| root.exists(&format!("/lib/modules/{release}/modules.dep")))
        .collect()
}

/// Returns the numbers in a release, so that two can be compared.
pub fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_numbers_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        assert!(has_initial_pids(&root));
        let link = |pid: &str, target: &str| {
            let ns = dir.path().join(format!("proc/{pid}/ns"));
            std::fs::create_dir_all(&ns).unwrap();
            std::os::unix::fs::symlink(target, ns.join("pid")).unwrap();
        };
        link("self", "pid:[4026532281]");
        assert!(!has_initial_pids(&root));
        // The host's /proc, looked at from a container.
        link("1", "pid:[4026531836]");
        assert!(has_initial_pids(&root));
    }

    /// Tests what a sandbox that hides /proc/modules shows.
    #[test]
    fn sysfs_tells_what_is_loaded_where_proc_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join("sys/module").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("nvidia/initstate", "live\n");
        write("nvidia/refcnt", "7\n");
        write("nvidia/holders/nvidia_peermem", "");
        write("printk/parameters/time", "Y\n");
        let modules = loaded_modules(&Root::new(dir.path()));
        assert_eq!(modules.keys().collect::<Vec<_>>(), ["nvidia"]);
        let nvidia = &modules["nvidia"];
        assert_eq!(
            (nvidia.refcount, nvidia.used_by.as_slice(), nvidia.state.as_str()),
            (Some(7), &["nvidia_peermem".to_owned()][..], "Live")
        );
    }

    #[test]
    fn an_odd_line_loses_no_module() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let lines =
            "nvidia 14299136 - - Live 0xffffffffc0400000 (O)\nib_core 1 2 ib_uverbs,[permanent], Loading 0x0\n\nodd\n";
        std::fs::write(dir.path().join("proc/modules"), lines).unwrap();
        let modules = loaded_modules(&Root::new(dir.path()));
        assert_eq!(modules.keys().collect::<Vec<_>>(), ["ib_core", "nvidia", "odd"]);
        let (core, nvidia) = (&modules["ib_core"], &modules["nvidia"]);
        assert_eq!(
            (core.refcount, core.used_by.as_slice(), core.state.as_str()),
            (Some(2), &["ib_uverbs".to_owned()][..], "Loading")
        );
        assert_eq!((nvidia.refcount, nvidia.used_by.len(), nvidia.state.as_str()), (None, 0, "Live"));
    }
}
