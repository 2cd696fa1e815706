// SPDX-License-Identifier: GPL-2.0

//! The places of files: the checkout, its build folder, and the cache outside of it.

use anyhow::{anyhow, Context, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

pub struct Lab {
    /// The checkout's top folder.
    pub repo: PathBuf,
    /// The folder for what belongs to this checkout alone: `build/lab`.
    pub build: PathBuf,
    /// The folder that all checkouts share, with downloads and finished artefacts.
    pub cache: PathBuf,
}

impl Lab {
    pub fn locate() -> Result<Self> {
        let cwd = std::env::current_dir().context("no current folder")?;
        let repo = cwd
            .ancestors()
            .find(|d| d.join("ci/qemu/lab/Cargo.toml").is_file())
            .ok_or_else(|| anyhow!("{} is not inside a checkout of nvidia-peermem: cd into one", cwd.display()))?
            .to_path_buf();
        let cache = std::env::var_os("NVPM_CACHE").context("NVPM_CACHE is not set: ci/lab.sh sets it")?.into();
        let build = repo.join("build/lab");
        std::fs::create_dir_all(&build).with_context(|| format!("cannot make {}", build.display()))?;
        Ok(Lab { repo, build, cache })
    }

    /// Writes `text` to a file of the checkout.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        std::fs::write(self.repo.join(file), text).with_context(|| format!("cannot write {file}"))
    }

    pub fn write_json(&self, file: &str, value: &impl Serialize) -> Result<()> {
        self.write(file, &(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Returns a path as a user would write it in the checkout.
    pub fn short<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.repo).unwrap_or(path).display()
    }
}
