//! Programs of this Debian that use what the module serves, or test the stack below it: UCX, and rdma-core's own test suite
//! with the Python that runs it. They are in images of their own, because they are ten times the rest.

use crate::image::{Files, LIB};
use crate::sh;
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

const PYTHON: &str = "/usr/bin/python3";
/// Parts of Python that no test imports.
const NOT_NEEDED: [&str; 9] = [
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "distutils",
    "pydoc_data",
    "EXTERNALLY-MANAGED",
];
const PYVERBS: &str = "/usr/lib/python3/dist-packages/pyverbs";
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// Where the guest looks for them.
const TESTS_THERE: &str = "usr/lib/pyverbs-tests";
const UCX: &str = "/usr/bin/ucx_info";

pub fn fill(files: &mut Files) -> Result<()> {
    ucx(files)?;
    python(files)?;
    pyverbs(files)
}

/// UCX finds its transports beside its libraries.
fn ucx(files: &mut Files) -> Result<()> {
    files.program(Path::new(UCX), &inside(UCX)?)?;
    tree(files, &Path::new("/").join(LIB).join("ucx"), |_| true)
}

fn python(files: &mut Files) -> Result<()> {
    let real = fs::canonicalize(PYTHON).with_context(|| format!("{PYTHON} is missing (ci/bootstrap.sh)"))?;
    files.program(&real, &inside(PYTHON)?)?;
    let where_it_is = "import os; print(os.path.dirname(os.__file__))";
    let library = sh::output(sh::command(files.lab, PYTHON).args(["-Ic", where_it_is]))?;
    let library = Path::new(library.trim());
    tree(files, library, |path| {
        let first = path.components().next().map(|c| c.as_os_str().to_string_lossy().into_owned()).unwrap_or_default();
        !NOT_NEEDED.contains(&first.as_str()) && !first.starts_with("config-")
    })
}

fn pyverbs(files: &mut Files) -> Result<()> {
    tree(files, Path::new(PYVERBS), |_| true)?;
    let there = files.root.join(TESTS_THERE);
    fs::create_dir_all(&there)?;
    let folder = fs::read_dir(TESTS).with_context(|| {
        format!(
            "{TESTS} is missing: install python3-pyverbs, with its documentation (dpkg may be told to leave it out)"
        )
    })?;
    for entry in folder {
        let from = entry?.path();
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // For hardware that is not here: they could only be skipped.
        if ["test_mlx5", "test_efa"].iter().any(|hardware| name.starts_with(hardware)) {
            continue;
        }
        let text = if name.ends_with(".gz") {
            sh::command(files.lab, "gzip").arg("-dc").arg(&from).output().context("cannot run gzip")?.stdout
        } else {
            fs::read(&from)?
        };
        fs::write(there.join(name.trim_end_matches(".gz")), text)?;
    }
    // An emulated processor takes longer to compile them than to run them.
    let mut compile = sh::command(files.lab, PYTHON);
    compile.args(["-m", "compileall", "-q", "-s"]).arg(files.root).args(["-p", "/"]).arg(&there);
    sh::output(&mut compile).map(drop)
}

/// Copies a folder of this machine, as far as `wanted` of the path within it, with the libraries that its programs need.
fn tree(files: &mut Files, from: &Path, wanted: impl Fn(&Path) -> bool) -> Result<()> {
    if !from.is_dir() {
        bail!("{} is missing: is its package installed? (ci/bootstrap.sh)", from.display());
    }
    for entry in WalkDir::new(from).follow_links(true).sort_by_file_name() {
        let entry = entry?;
        let path = entry.path();
        if !entry.file_type().is_file() || !wanted(path.strip_prefix(from)?) {
            continue;
        }
        let to = inside(path)?;
        if path.to_string_lossy().contains(".so") {
            files.program(path, &to)?;
        } else {
            files.copy(path, &to)?;
        }
    }
    Ok(())
}

fn inside(path: impl AsRef<Path>) -> Result<PathBuf> {
    Ok(path.as_ref().strip_prefix("/")?.to_path_buf())
}
