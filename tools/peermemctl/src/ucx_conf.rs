// SPDX-License-Identifier: GPL-2.0
//! The configuration files of UCX, as ucs_config_parse_config_files() in src/ucs/config/parser.c and
//! src/ucs/config/ini.c of UCX 017c771c899a read them. The last file with a variable wins, and the
//! environment wins over all files.

use crate::root::{Missing, Root};
use std::collections::BTreeMap;

/// The file in the folder of the system.
pub const SYSTEM: &str = "/etc/ucx/ucx.conf";

/// The variables that decide whether UCX registers GPU memory, and with which NIC.
const DECIDING: [&str; 4] = ["UCX_CUDA_COPY_DMABUF", "UCX_IB_GPU_DIRECT_RDMA", "UCX_NET_DEVICES", "UCX_TLS"];

/// Names that are no variables: what follows in their section is for such machines only.
const FILTERS: [&str; 2] = ["CPU vendor", "CPU model"];
/// UCX has another such name for the product's name in DMI.
const FILTER_WORD: &str = "product";

/// UCX reads lines in pieces of this length.
const LONGEST: usize = 198;

/// A variable, as a file sets it.
#[derive(Clone)]
pub struct Assigned {
    pub value: String,
    pub file: String,
    /// The reason why that may not count.
    doubt: Option<String>,
}

/// What UCX finds in its files.
#[derive(Clone, Default)]
pub struct Files {
    assigned: BTreeMap<String, Assigned>,
    /// Files that could not be read, or are not understood, in words.
    not_understood: Vec<String>,
}

/// The places where a process looks for its files, as far as they are known.
#[derive(Default)]
pub struct Places {
    /// The folder below which its root is.
    pub below: String,
    /// The folder from which it loaded libucs.so.
    pub library: Option<String>,
    /// HOME of its environment.
    pub home: Option<String>,
    /// UCX_CONFIG_DIR of its environment.
    pub config_dir: Option<String>,
    /// Says whether it runs somewhere else, where none of these files is.
    pub is_unknown: bool,
    /// Its working directory, from this program's root on.
    pub working_directory: Option<String>,
}

impl Files {
    /// Reads all files, in UCX's order.
    pub fn read(root: &Root, places: &Places) -> Self {
        let Places { below, library, home, config_dir, working_directory, is_unknown } = places;
        let mut files = Self::default();
        if *is_unknown {
            return files;
        }
        let is_of_system = |folder: &String| ["/usr/lib", "/lib"].iter().any(|of_system| folder.starts_with(of_system));
        let doubt = library
            .as_ref()
            .filter(|folder| !is_of_system(folder))
            .map(|folder| format!("whether the UCX in {folder} reads {SYSTEM} is not known"));
        files.add(root, below, SYSTEM, doubt.as_deref());
        if let Some(folder) = library {
            files.add(root, below, &format!("{folder}/../etc/ucx/ucx.conf"), None);
        }
        for folder in home.iter().chain(config_dir).filter(|folder| folder.starts_with('/')) {
            files.add(root, below, &format!("{folder}/ucx.conf"), None);
        }
        if let Some(folder) = working_directory {
            if let Some(relative) = config_dir.as_ref().filter(|folder| !folder.starts_with('/')) {
                files.add(root, "", &format!("{folder}/{relative}/ucx.conf"), None);
            }
            files.add(root, "", &format!("{folder}/ucx.conf"), None);
        }
        files
    }

    fn add(&mut self, root: &Root, below: &str, file: &str, doubt: Option<&str>) {
        let text = match root.text(&format!("{below}{file}")) {
            Ok(text) => text,
            Err(Missing::Absent) => return,
            Err(_) => {
                let note = format!("not understood: UCX reads {file}, which only its owner may read");
                return self.not_understood.push(note);
            }
        };
        let (assignments, is_cut) = assignments(&text);
        if is_cut {
            let note = format!("not understood: {file} with a line of more than {LONGEST} characters, which UCX cuts");
            self.not_understood.push(note);
        }
        for (name, value, is_filtered) in assignments {
            let of_some = || format!("{file} sets {name} in a section that is for some processors or products only");
            let doubt = doubt.map(str::to_owned).or_else(|| is_filtered.then(of_some));
            self.assigned.insert(name, Assigned { value, file: file.to_owned(), doubt });
        }
    }

    /// Returns a variable as the last file sets it that has it, unless that is in doubt.
    pub fn get(&self, name: &str) -> Option<&Assigned> {
        self.assigned.get(name).filter(|setting| setting.doubt.is_none() && self.not_understood.is_empty())
    }

    /// Returns whether a file sets a variable by which verdicts go.
    pub fn decide(&self) -> bool {
        DECIDING.iter().any(|name| self.assigned.contains_key(*name))
    }

    /// Returns what is not understood of the files, where the environment does not set `is_set`.
    pub fn doubt(&self, is_set: impl Fn(&str) -> bool) -> Option<String> {
        let open = || DECIDING.iter().filter(|name| !is_set(name));
        let note = self.not_understood.first().filter(|_| open().next().is_some());
        let doubt = || open().find_map(|name| self.assigned.get(*name)?.doubt.as_ref());
        note.or_else(doubt).cloned()
    }
}

/// Returns the variables of a file in their order, each with whether a filter stands before it in its
/// section; and whether a line is longer than UCX reads at once.
fn assignments(text: &str) -> (Vec<(String, String, bool)>, bool) {
    let (mut found, mut is_filtered, mut is_cut) = (Vec::new(), false, false);
    let mut before = String::new();
    for line in text.trim_start_matches('\u{feff}').lines() {
        is_cut |= line.len() > LONGEST;
        let text = line.trim();
        if text.is_empty() || text.starts_with([';', '#']) {
            continue;
        }
        // An indented line is another value of the variable before.
        if line.starts_with(char::is_whitespace) && !before.is_empty() {
            found.push((before.clone(), text.to_owned(), is_filtered));
            continue;
        }
        if text.starts_with('[') {
            (is_filtered, before) = (false, String::new());
            continue;
        }
        let Some((name, value)) = without_comment(text).split_once(['=', ':']) else { continue };
        let name = name.trim_end();
        before = name.to_owned();
        is_filtered |= FILTERS.contains(&name) || name.to_ascii_lowercase().contains(FILTER_WORD);
        found.push((name.to_owned(), value.trim().to_owned(), is_filtered));
    }
    (found, is_cut)
}

/// Returns a line up to a `;` behind a blank.
fn without_comment(line: &str) -> &str {
    let mut heads = line.match_indices(';').filter_map(|(at, _)| line.get(..at));
    heads.find(|head| head.ends_with([' ', '\t'])).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_ucx_does() {
        for (text, wanted) in [
            ("UCX_TLS=tcp", vec![("UCX_TLS", "tcp", false)]),
            ("# UCX_TLS=tcp\n;UCX_TLS=tcp\n", vec![]),
            ("UCX_TLS : rc,cuda ; for now", vec![("UCX_TLS", "rc,cuda", false)]),
            ("UCX_TLS=a;b", vec![("UCX_TLS", "a;b", false)]),
            ("[one]\nCPU model=Grace\nUCX_TLS=tcp\n[two]\nUCX_RNDV=1", {
                vec![("CPU model", "Grace", true), ("UCX_TLS", "tcp", true), ("UCX_RNDV", "1", false)]
            }),
            ("UCX_TLS=rc\n  tcp\n", vec![("UCX_TLS", "rc", false), ("UCX_TLS", "tcp", false)]),
            ("  UCX_TLS=tcp\n", vec![("UCX_TLS", "tcp", false)]),
            ("no assignment\n", vec![]),
        ] {
            let (found, is_cut) = assignments(text);
            let found: Vec<_> = found.iter().map(|(name, value, of)| (name.as_str(), value.as_str(), *of)).collect();
            assert_eq!((found, is_cut), (wanted, false), "{text}");
        }
        assert!(assignments(&format!("UCX_NET_DEVICES={}", "mlx5_0:1,".repeat(30))).1);
    }
}
