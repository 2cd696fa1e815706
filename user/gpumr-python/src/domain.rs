// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Finds the protection domain of a Python object.

use gpumr::ibverbs::Pd;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyInt, PyList};
use std::ptr::NonNull;

/// The lowest address of an object. A smaller value is a number of something, like the kernel's
/// handle of a domain.
const LOWEST: u64 = 1 << 16;

/// A program that ends with 0 if pyverbs' `PD.pd` is an address. In rdma-core 44 it is the C
/// struct, taken for a Python object: reading it changes the struct, or ends the program where it
/// is NULL. Nothing else tells the two apart, so another process tries it.
const PROBE: &str = "import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.path[:] = sys.argv[1:]
from pyverbs.pd import PD
sys.exit(PD.__new__(PD).pd != 0)
";

/// Returns the domain that a `pyverbs.pd.PD` or an address stands for. Fails if it is neither, or
/// closed.
pub(crate) fn domain(of: &Bound<'_, PyAny>) -> PyResult<Pd> {
    let address = if is_number(of) {
        of.clone()
    } else {
        if of_pyverbs(of) && !tells_addresses(of.py())? {
            return Err(PyValueError::new_err(
                "this pyverbs does not tell where its domain is (rdma-core 44's does not, 59's does): take a newer \
                 one, or pass the address of a struct ibv_pd",
            ));
        }
        // pyverbs' PD has its address there, and 0 once it is closed.
        let address = of.getattr_opt(intern!(of.py(), "pd"))?.filter(is_number);
        address.ok_or_else(|| {
            let name = of.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
            let why = format!("pd is a {name}: pass a pyverbs.pd.PD, or the address of a struct ibv_pd");
            PyTypeError::new_err(why)
        })?
    };
    let address: u64 = address.extract()?;
    if address == 0 {
        return Err(PyValueError::new_err("the protection domain is NULL: it was closed"));
    }
    if address < LOWEST || address % align_of::<usize>() as u64 != 0 {
        let why = format!(
            "pd {address:#x} is no address of a struct ibv_pd: pass a pyverbs.pd.PD, or that address, not the \
             kernel's handle"
        );
        return Err(PyValueError::new_err(why));
    }
    let pd = NonNull::new(address as *mut _).ok_or_else(|| PyValueError::new_err("pd is NULL"))?;
    // SAFETY: README.md: it is a domain that lives, and is forgotten before it is closed.
    Ok(unsafe { Pd::new(pd) })
}

fn is_number(of: &Bound<'_, PyAny>) -> bool {
    of.is_instance_of::<PyInt>() && !of.is_instance_of::<PyBool>()
}

fn of_pyverbs(of: &Bound<'_, PyAny>) -> bool {
    let module = |class: Bound<'_, PyAny>| class.getattr("__module__").and_then(|name| name.extract::<String>());
    let of_pyverbs = |class| module(class).is_ok_and(|name| name.starts_with("pyverbs."));
    of.get_type().mro().iter().any(of_pyverbs)
}

/// Returns whether this process's pyverbs passes [`PROBE`], which runs once.
fn tells_addresses(py: Python<'_>) -> PyResult<bool> {
    static TELLS: PyOnceLock<bool> = PyOnceLock::new();
    let ask = || {
        let sys = py.import("sys")?;
        let words = PyList::new(py, [sys.getattr("executable")?, "-c".into_pyobject(py)?.into_any()])?;
        words.append(PROBE)?;
        let words = words.call_method1("__add__", (sys.getattr("path")?,))?;
        let quietly = PyDict::new(py);
        quietly.set_item("capture_output", true)?;
        let ran = py.import("subprocess")?.call_method("run", (words,), Some(&quietly))?;
        Ok::<_, PyErr>(ran.getattr("returncode")?.extract::<i32>()? == 0)
    };
    TELLS.get_or_try_init(py, ask).copied()
}
