// SPDX-License-Identifier: GPL-2.0
//! The environment of a process, and the files that NCCL adds to it.

use crate::root::{Missing, Root};
use anyhow::{bail, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Variables by name.
type Variables = BTreeMap<String, String>;

/// What a process finds in its environment.
pub struct Environment {
    /// Whose it is, in words.
    pub whose: String,
    variables: Variables,
    /// NCCL's files with their variables; the environment and the first file win.
    nccl: Vec<(String, Variables)>,
}

impl Environment {
    /// That of this program, as the shell gave it. A recorded machine has none.
    pub fn own(root: &Root) -> Self {
        let all = std::env::vars_os().filter(|_| root.is_live());
        let text = |word: OsString| word.to_string_lossy().into_owned();
        Self::new(root, "this shell".to_owned(), all.map(|(name, value)| (text(name), text(value))).collect())
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

    /// That of this program, and what a command line adds: assignments before the program (with or
    /// without `env`), `-x NAME=VALUE` of Open MPI, `-env NAME VALUE` and `-genv NAME VALUE` of
    /// MPICH, `--export=NAME=VALUE,...` of Slurm. Nothing is run.
    pub fn of_command(root: &Root, words: &[String]) -> Self {
        let mut environment = Self::own(root);
        environment.whose = "that command line".to_owned();
        let mut before_program = true;
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            let mut set = |found: Option<(String, String)>| {
                environment.variables.extend(found);
            };
            match word {
                "env" => {}
                "-x" => set(words.next().and_then(assignment)),
                "-env" | "-genv" => set(words.next().zip(words.next()).map(|(n, v)| (n.to_owned(), v.to_owned()))),
                _ => match word.strip_prefix("--export=") {
                    Some(list) => list.split(',').for_each(|entry| set(assignment(entry))),
                    None if before_program && assignment(word).is_some() => set(assignment(word)),
                    None => before_program = false,
                },
            }
        }
        environment
    }

    fn new(root: &Root, whose: String, variables: Variables) -> Self {
        let home = variables.get("HOME").map(|home| format!("{home}/.nccl.conf"));
        let named = variables.get("NCCL_CONF_FILE").filter(|file| !file.is_empty()).cloned();
        let files = named.or(home).into_iter().chain(["/etc/nccl.conf".to_owned()]);
        let read = |file: String| {
            let text = root.text(&file).ok()?;
            let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
            Some((file, lines.filter_map(assignment).collect()))
        };
        Self { whose, nccl: files.filter_map(read).collect(), variables }
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

/// `NAME=VALUE`.
fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_launchers() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Environment::of_command(&root, &words)
        };
        for line in [
            "NCCL_IB_HCA=mlx5_0 ./app",
            "env A=1 NCCL_IB_HCA=mlx5_0 ./app",
            "mpirun -np 2 -x NCCL_IB_HCA=mlx5_0 ./app",
            "mpiexec -genv NCCL_IB_HCA mlx5_0 ./app",
            "srun --export=ALL,NCCL_IB_HCA=mlx5_0 ./app",
        ] {
            assert_eq!(of(line).get("NCCL_IB_HCA"), Some("mlx5_0"), "{line}");
        }
        // An argument of the program is none.
        assert_eq!(of("./app NCCL_IB_HCA=mlx5_0").get("NCCL_IB_HCA"), None);
    }

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
