//! Where things lie: the checkout, its build folder, and the cache outside of it.

use anyhow::{anyhow, Context, Result};
use std::path::{Path, PathBuf};

pub struct Lab {
    /// The checkout's top folder.
    pub repo: PathBuf,
    /// What belongs to this checkout: `build/lab`.
    pub build: PathBuf,
    /// What every checkout shares: downloads and finished artefacts.
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
        let cache = cache_dir(
            std::env::var_os("NVPM_CACHE").map(PathBuf::from),
            std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            std::env::var_os("HOME").map(PathBuf::from),
        )?;
        let build = repo.join("build/lab");
        std::fs::create_dir_all(&build).with_context(|| format!("cannot make {}", build.display()))?;
        Ok(Lab { repo, build, cache })
    }

    /// A path as a user in the checkout would write it.
    pub fn short<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.repo).unwrap_or(path).display()
    }
}

fn cache_dir(own: Option<PathBuf>, xdg: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf> {
    let dir = match (own, xdg, home) {
        (Some(own), _, _) => own,
        (None, Some(xdg), _) => xdg.join("nvidia-peermem"),
        (None, None, Some(home)) => home.join(".cache/nvidia-peermem"),
        (None, None, None) => return Err(anyhow!("none of NVPM_CACHE, XDG_CACHE_HOME and HOME is set: set one")),
    };
    if !dir.is_absolute() {
        return Err(anyhow!("the cache folder {} is not an absolute path: set NVPM_CACHE to one", dir.display()));
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_folder_by_precedence() {
        let p = |s: &str| Some(PathBuf::from(s));
        assert_eq!(cache_dir(p("/a"), p("/b"), p("/c")).unwrap(), PathBuf::from("/a"));
        assert_eq!(cache_dir(None, p("/b"), p("/c")).unwrap(), PathBuf::from("/b/nvidia-peermem"));
        assert_eq!(cache_dir(None, None, p("/c")).unwrap(), PathBuf::from("/c/.cache/nvidia-peermem"));
        assert!(cache_dir(None, None, None).is_err());
        assert!(cache_dir(p("relative"), None, None).is_err());
    }
}
