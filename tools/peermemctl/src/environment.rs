// SPDX-License-Identifier: GPL-2.0
//! The environment of a process, and the files that NCCL adds to it.

use crate::launcher::Launched;
use crate::root::{Missing, Root};
use crate::topology_file::Topology;
use anyhow::{bail, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Variables by name.
type Variables = BTreeMap<String, String>;

/// Whose environment is meant where nobody names another.
const OWN: &str = "this shell";

/// The topology that a platform gives NCCL.
const VIRTUAL_TOPOLOGY: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

/// The file that NCCL_TOPO_FILE names.
pub struct TopologyFile {
    /// The setting in words: the variable with its value, and where it is set.
    pub setting: String,
    /// The file, or why it is not understood.
    pub read: Result<Topology, String>,
}

/// What a process finds in its environment.
pub struct Environment {
    /// Whose it is, in words.
    pub whose: String,
    /// Whether somebody named a process or a command line, which the verdict is for then.
    pub is_chosen: bool,
    /// What may set variables in a way that is not understood, in words.
    pub not_understood: Vec<String>,
    variables: Variables,
    /// NCCL's files with their variables; the environment and the first file win.
    nccl: Vec<(String, Variables)>,
    /// The file from which NCCL takes the distances, if somebody names one.
    pub topology: Option<TopologyFile>,
}

impl Environment {
    /// That of this program, as the shell gave it. A recorded machine has none.
    pub fn own(root: &Root) -> Self {
        let all = std::env::vars_os().filter(|_| root.is_live());
        let text = |word: OsString| word.to_string_lossy().into_owned();
        Self::new(root, OWN.to_owned(), all.map(|(name, value)| (text(name), text(value))).collect())
    }

    /// That with which process `pid` was started. What it has set since is not seen.
    pub fn of_process(root: &Root, pid: u32) -> Result<Self> {
        let bytes = match root.bytes(&format!("/proc/{pid}/environ")) {
            Ok(bytes) => bytes,
            Err(Missing::Denied) => bail!("only root and its owner may read the environment of process {pid}"),
            Err(_) => bail!("there is no process {pid}"),
        };
        let variables = bytes.split(|byte| *byte == 0).filter_map(|entry| assignment(&String::from_utf8_lossy(entry)));
        let comm = root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
        Ok(Self::new(root, format!("process {pid} ({comm})"), variables.collect()))
    }

    /// Returns the environment that the program of a command line would have, as far as that is
    /// understood. Nothing is run.
    pub fn of_command(root: &Root, words: &[String]) -> Self {
        let own = Self::own(root).variables;
        let mut launched = Launched::read(own, words, root.is_live());
        for file in std::mem::take(&mut launched.files) {
            match root.text(&file) {
                // The command line wins over a file.
                Ok(text) => text.lines().filter_map(|line| assignment(line.trim())).for_each(|(name, value)| {
                    launched.variables.entry(name).or_insert(value);
                }),
                Err(_) => launched.not_understood.push(format!("not understood: {file}, which cannot be read")),
            }
        }
        let mut environment = Self::new(root, "that command line".to_owned(), launched.variables);
        environment.not_understood.splice(0..0, launched.not_understood);
        environment
    }

    fn new(root: &Root, whose: String, variables: Variables) -> Self {
        let home = variables.get("HOME").map(|home| format!("{home}/.nccl.conf"));
        let named = variables.get("NCCL_CONF_FILE").filter(|file| !file.is_empty()).cloned();
        let mut not_understood = Vec::new();
        if let Some(file) = named.as_ref().filter(|file| root.text(file).is_err()) {
            not_understood.push(format!("not understood: NCCL_CONF_FILE={file}, which cannot be read"));
        }
        let files = named.or(home).into_iter().chain(["/etc/nccl.conf".to_owned()]);
        let read = |file: String| {
            let text = root.text(&file).ok()?;
            let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
            Some((file, lines.filter_map(assignment).collect()))
        };
        let mut nccl: Vec<(String, Variables)> = files.filter_map(read).collect();
        // NCCL takes this file where nobody names another.
        if root.exists(VIRTUAL_TOPOLOGY) {
            let topology = ("NCCL_TOPO_FILE".to_owned(), VIRTUAL_TOPOLOGY.to_owned());
            nccl.push(("NCCL's own defaults".to_owned(), [topology].into_iter().collect()));
        }
        let mut environment = Self { is_chosen: whose != OWN, whose, not_understood, nccl, variables, topology: None };
        environment.topology = environment.topology_file(root);
        environment
    }

    /// Reads the file from which NCCL takes the distances.
    fn topology_file(&self, root: &Root) -> Option<TopologyFile> {
        let (file, place) = self.nccl("NCCL_TOPO_FILE").filter(|(file, _)| !file.is_empty())?;
        let read = match root.text(file) {
            Ok(text) => Topology::parse(&text),
            Err(Missing::Denied) => Err("it may not be read by this user".to_owned()),
            Err(_) => Err("it cannot be read here".to_owned()),
        };
        Some(TopologyFile { setting: format!("NCCL_TOPO_FILE={file} of {place}"), read })
    }

    /// Whom a verdict is for, in words: whose environment it is, or nobody in particular where that
    /// sets nothing.
    pub fn judged_for(&self) -> String {
        const OURS: [&str; 4] = ["NCCL_", "UCX_", "NVSHMEM_", "FI_"];
        let mut names = self.variables.keys().chain(self.nccl.iter().flat_map(|(_, variables)| variables.keys()));
        match names.any(|name| OURS.iter().any(|prefix| name.starts_with(prefix))) {
            true => format!("for {}", self.whose),
            false => "by default".to_owned(),
        }
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A variable of NCCL's, and where it is set.
    pub fn nccl(&self, name: &str) -> Option<(&str, &str)> {
        let own = self.get(name).map(|value| (value, self.whose.as_str()));
        own.or_else(|| {
            self.nccl.iter().find_map(|(file, variables)| Some((variables.get(name)?.as_str(), file.as_str())))
        })
    }

    /// Whether a variable says no, as UCX, NVSHMEM and libfabric read it.
    pub fn says_no(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "0" | "n" | "no" | "off" | "false"))
    }

    /// Whether a variable says yes.
    pub fn says_yes(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "y" | "yes" | "on" | "true"))
    }
}

/// Reads `NAME=VALUE`.
pub fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_nccl_come_after_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("etc/nccl.conf", "# all\nNCCL_IB_HCA=mlx5_1\nNCCL_NET_GDR_LEVEL=SYS\n"),
            ("home/u/.nccl.conf", "NCCL_IB_HCA=mlx5_2\n"),
            ("proc/7/environ", "HOME=/home/u\0NCCL_DMABUF_ENABLE=0\0"),
            ("proc/7/comm", "python\n"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::new(dir.path());
        let environment = Environment::of_process(&root, 7).unwrap();
        assert_eq!(environment.nccl("NCCL_DMABUF_ENABLE"), Some(("0", "process 7 (python)")));
        assert_eq!(environment.nccl("NCCL_IB_HCA"), Some(("mlx5_2", "/home/u/.nccl.conf")));
        assert_eq!(environment.nccl("NCCL_NET_GDR_LEVEL"), Some(("SYS", "/etc/nccl.conf")));
        assert!(Environment::of_process(&root, 8).is_err());
    }
}
