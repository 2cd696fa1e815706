// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The Python module `gpumr`: the cache for tensors. README.md is its documentation for users,
//! `gpumr.pyi` that for editors.

mod array;
mod domain;

use crate::array::Memory;
use crate::domain::domain;
use gpumr::cuda::Cuda;
use gpumr::ibverbs::{IbVerbs, Pd};
use gpumr::{Access, Limits, Options, Policy, Sweeper, Way, FREE_BYTES_AUTO};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Inner = gpumr::Cache<Cuda, IbVerbs>;
type Held = gpumr::Lease<Cuda, IbVerbs>;

pyo3::create_exception!(gpumr, Error, PyOSError, "Why there is no registration: an errno, and words.");

fn failed(error: gpumr::Error) -> PyErr {
    Error::new_err((error.errno(), error.to_string()))
}

/// `IBV_ACCESS_LOCAL_WRITE`, `_REMOTE_WRITE` and `_REMOTE_READ`.
const ACCESS: i32 = Access::LOCAL_WRITE.bits() | Access::REMOTE_WRITE.bits() | Access::REMOTE_READ.bits();
/// The time for which freed memory stays registered by default.
const SWEEP_MS: u64 = 1000;

/// Registrations that are kept. `way` is "auto", "peer-memory" or "dma-buf". `entries`, `bytes` and
/// `bar1_bytes` limit what is kept that nobody uses. Freed memory stays registered for `sweep_ms` at
/// most; 0 stands for until `sweep()`. While a GPU has fewer than `free_bytes` free (1 GiB, and of small
/// GPUs a sixteenth; 0: never), nothing of it stays registered that nobody uses. `idle_bytes` limits
/// how much stays registered that nobody uses; what a lease holds does not count, unlike for `bytes`. With
/// `idle_bytes` each hit takes a lock. None and 0 set no such limit. With `superset` a region
/// that has more rights than a call needs serves it. `pcie` asks for dma-bufs that the NIC reaches over PCIe
/// (CUDA 12.8).
#[pyclass(frozen, module = "gpumr")]
struct Cache {
    cache: Inner,
    _sweeper: Option<Sweeper>,
}

#[pymethods]
impl Cache {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[pyo3(signature = (*, way = "auto", entries = None, bytes = None, bar1_bytes = None, sweep_ms = SWEEP_MS,
        free_bytes = None, idle_bytes = None, superset = false, pcie = false))]
    fn new(
        way: &str,
        entries: Option<u64>,
        bytes: Option<u64>,
        bar1_bytes: Option<u64>,
        sweep_ms: u64,
        free_bytes: Option<u64>,
        idle_bytes: Option<u64>,
        superset: bool,
        pcie: bool,
    ) -> PyResult<Self> {
        let none = Limits::default();
        let limits = none
            .with_entries(entries.unwrap_or(none.entries))
            .with_bytes(bytes.unwrap_or(none.bytes))
            .with_bar1_bytes(bar1_bytes.unwrap_or(none.bar1_bytes));
        let open = || {
            let policy = Policy::parse(way)?;
            let cuda = Cuda::open()?.with_dma_buf_flags(pcie.into());
            let mut options = Options::default();
            options.superset = superset;
            options.free_bytes = free_bytes.unwrap_or(FREE_BYTES_AUTO);
            options.idle_bytes = idle_bytes.unwrap_or(0);
            let cache = gpumr::Cache::with(cuda, IbVerbs::open()?, policy, limits, options);
            let sweep = Duration::from_millis(sweep_ms);
            let sweeper = (sweep_ms > 0).then(|| Sweeper::start(&cache, sweep)).transpose();
            Ok(Self { _sweeper: sweeper.map_err(gpumr::Error::Thread)?, cache })
        };
        open().map_err(failed)
    }

    /// Returns a lease of a region with the memory of `tensor`. `access` has verbs' flags; 7 lets
    /// others read and write.
    #[pyo3(signature = (tensor, pd, access = ACCESS))]
    fn register(&self, tensor: &Bound<'_, PyAny>, pd: &Bound<'_, PyAny>, access: i32) -> PyResult<Lease> {
        let (py, memory, domain) = (tensor.py(), Memory::of(tensor)?, domain(pd)?);
        let lease = py.detach(|| self.cache.register(domain, memory.address, memory.length, access));
        Ok(Lease::new(lease.map_err(failed)?, tensor, pd))
    }

    /// Returns a list of leases, one for each of `pds`. If one domain fails, it returns no lease, and what
    /// was registered by then stays cached. By dma-buf the NICs share one dma-buf.
    #[pyo3(signature = (tensor, pds, access = ACCESS))]
    fn register_all(&self, tensor: &Bound<'_, PyAny>, pds: Vec<Bound<'_, PyAny>>, access: i32) -> PyResult<Vec<Lease>> {
        let (py, memory) = (tensor.py(), Memory::of(tensor)?);
        if pds.is_empty() {
            return Err(PyValueError::new_err("there are no protection domains: pass at least one"));
        }
        let domains = pds.iter().map(domain).collect::<PyResult<Vec<_>>>()?;
        let leases = py.detach(|| self.cache.register_all(&domains, memory.address, memory.length, access));
        Ok(leases.map_err(failed)?.into_iter().zip(&pds).map(|(lease, pd)| Lease::new(lease, tensor, pd)).collect())
    }

    /// Releases what is registered in `pd`. Call it before `pd` is closed, and when its NIC is
    /// removed.
    fn forget(&self, pd: &Bound<'_, PyAny>) -> PyResult<()> {
        let domain: Pd = domain(pd)?;
        pd.py().detach(|| self.cache.forget(domain));
        Ok(())
    }

    /// Releases what was freed.
    fn sweep(&self, py: Python<'_>) {
        py.detach(|| self.cache.sweep());
    }

    /// Releases all that nobody uses, and returns its size in bytes. Call it before memory is freed
    /// to be allocated again.
    fn shrink(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.cache.shrink())
    }

    /// Returns a dict of what the cache did so far and what it holds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.cache.stats());
        let out = PyDict::new(py);
        for (name, value) in [
            ("hits", stats.hits),
            ("misses", stats.misses),
            ("stale", stats.stale),
            ("freed", stats.freed),
            ("evicted", stats.evicted),
            ("retried", stats.retried),
            ("lost", stats.lost),
            ("entries", stats.entries),
            ("bytes", stats.bytes),
            ("bar1_bytes", stats.bar1_bytes),
        ] {
            out.set_item(name, value)?;
        }
        Ok(out)
    }

    /// Returns which way is tried first, and why.
    #[getter]
    fn reason(&self) -> &'static str {
        self.cache.reason()
    }

    fn __repr__(&self) -> String {
        format!("<gpumr.Cache: {} registrations; {}>", self.cache.stats().entries, self.cache.reason())
    }
}

struct Kept {
    lease: Arc<Held>,
    /// This reference keeps an allocator of the program's from giving the memory to somebody else.
    _tensor: Py<PyAny>,
    /// This reference keeps the domain from being deallocated.
    _pd: Py<PyAny>,
}

/// A lease of a region. It ends with `release()`, with the end of its `with`, or with its last
/// reference. Until then its tensor lives.
#[pyclass(frozen, module = "gpumr")]
struct Lease(Mutex<Option<Kept>>);

impl Lease {
    fn new(lease: Held, tensor: &Bound<'_, PyAny>, pd: &Bound<'_, PyAny>) -> Self {
        let (lease, _tensor, _pd) = (Arc::new(lease), tensor.clone().unbind(), pd.clone().unbind());
        Self(Mutex::new(Some(Kept { lease, _tensor, _pd })))
    }

    fn held(&self) -> PyResult<Arc<Held>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = kept.as_ref().map(|kept| kept.lease.clone());
        lease.ok_or_else(|| PyValueError::new_err("this lease was released: register once more"))
    }
}

#[pymethods]
impl Lease {
    /// Returns where the memory begins, which work requests name.
    #[getter]
    fn addr(&self) -> PyResult<u64> {
        Ok(self.held()?.range().start())
    }

    /// Returns the number of bytes.
    #[getter]
    fn length(&self) -> PyResult<u64> {
        Ok(self.held()?.range().length())
    }

    /// Returns the key for requests of this machine.
    #[getter]
    fn lkey(&self) -> PyResult<u32> {
        Ok(self.held()?.lkey())
    }

    /// Returns the key for requests of others.
    #[getter]
    fn rkey(&self) -> PyResult<u32> {
        Ok(self.held()?.rkey())
    }

    /// Returns the address of its `struct ibv_mr`, which may cover more. Do not deregister it.
    #[getter]
    fn mr(&self) -> PyResult<usize> {
        Ok(self.held()?.mr().as_ptr() as usize)
    }

    /// Returns "peer-memory" or "dma-buf".
    #[getter]
    fn way(&self) -> PyResult<&'static str> {
        Ok(match self.held()?.way() {
            Way::PeerMemory => "peer-memory",
            Way::DmaBuf => "dma-buf",
            _ => "unknown",
        })
    }

    /// Returns whether the memory is still what was registered.
    fn valid(&self, py: Python<'_>) -> PyResult<bool> {
        let lease = self.held()?;
        Ok(py.detach(move || lease.valid()))
    }

    /// Ends the lease. A second call does nothing.
    fn release(&self, py: Python<'_>) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Kept { lease, .. }) = kept {
            // Dropping the lease may deregister.
            py.detach(move || drop(lease));
        }
    }

    fn __enter__(of: Py<Self>) -> Py<Self> {
        of
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.release(py);
    }

    fn __repr__(&self) -> String {
        match self.held() {
            Ok(lease) => {
                format!("<gpumr.Lease: {}, lkey {:#x}, rkey {:#x}>", lease.range(), lease.lkey(), lease.rkey())
            }
            Err(_) => "<gpumr.Lease: released>".into(),
        }
    }
}

/// Returns the process's cache, which is made when it is first asked for.
#[pyfunction]
fn cache(py: Python<'_>) -> PyResult<Py<Cache>> {
    static CACHE: PyOnceLock<Py<Cache>> = PyOnceLock::new();
    let make = || Py::new(py, Cache::new("auto", None, None, None, SWEEP_MS, None, None, false, false)?);
    Ok(CACHE.get_or_try_init(py, make)?.clone_ref(py))
}

/// Calls `cache().register(tensor, pd, access)`.
#[pyfunction]
#[pyo3(signature = (tensor, pd, access = ACCESS))]
fn register(tensor: &Bound<'_, PyAny>, pd: &Bound<'_, PyAny>, access: i32) -> PyResult<Lease> {
    cache(tensor.py())?.get().register(tensor, pd, access)
}

/// Calls `cache().register_all(tensor, pds, access)`.
#[pyfunction]
#[pyo3(signature = (tensor, pds, access = ACCESS))]
fn register_all(tensor: &Bound<'_, PyAny>, pds: Vec<Bound<'_, PyAny>>, access: i32) -> PyResult<Vec<Lease>> {
    cache(tensor.py())?.get().register_all(tensor, pds, access)
}

/// Registrations of GPU memory with RDMA NICs, cached and never stale.
#[pymodule]
#[pyo3(name = "gpumr")]
fn fill(this: &Bound<'_, PyModule>) -> PyResult<()> {
    this.add("__version__", env!("CARGO_PKG_VERSION"))?;
    this.add("Error", this.py().get_type::<Error>())?;
    this.add_class::<Cache>()?;
    this.add_class::<Lease>()?;
    this.add_function(wrap_pyfunction!(cache, this)?)?;
    this.add_function(wrap_pyfunction!(register, this)?)?;
    this.add_function(wrap_pyfunction!(register_all, this)?)
}
