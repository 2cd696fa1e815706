// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Finds the memory of a Python array: torch's tensors, `__cuda_array_interface__` and DLPack. It
//! reads or writes none of it.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// DLPack's kinds of devices that are CUDA's: `kDLCUDA`, `kDLCUDAHost`, `kDLCUDAManaged`. The cache
/// decides which of them can be registered.
const OF_CUDA: [i32; 3] = [2, 3, 13];

/// The memory from an array's first byte to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// `DLTensor`, as DLPack's header has it since version 0.2.
#[repr(C)]
struct Tensor {
    data: u64,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

impl Memory {
    /// Returns the memory of an array. Fails if it is no array, or none on a GPU.
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        if let Some(on_gpu) = array.getattr_opt(intern!(py, "is_cuda"))? {
            // torch offers CUDA's interface only for some types, and only for tensors without
            // gradients.
            return Self::of_torch(array, on_gpu.extract()?);
        }
        if let Some(interface) = array.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
            return Self::of_interface(&interface);
        }
        if array.hasattr(intern!(py, "__dlpack__"))? {
            return Self::of_dlpack(array);
        }
        let name = array.get_type().name()?;
        let why = format!("a {name} is no array on a GPU: it has neither __cuda_array_interface__ nor __dlpack__");
        Err(PyTypeError::new_err(why))
    }

    fn of_torch(tensor: &Bound<'_, PyAny>, on_gpu: bool) -> PyResult<Self> {
        let py = tensor.py();
        if !on_gpu {
            let device = tensor.getattr(intern!(py, "device"))?;
            return Err(elsewhere(&format!("a tensor on {device}")));
        }
        let size: i64 = tensor.call_method0(intern!(py, "element_size"))?.extract()?;
        let address = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let shape: Vec<i64> = tensor.getattr(intern!(py, "shape"))?.extract()?;
        let strides: Vec<i64> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
        Self::spanned(address, size, &shape, Some(&in_bytes(&strides, size)?))
    }

    fn of_interface(interface: &Bound<'_, PyAny>) -> PyResult<Self> {
        let kind: String = interface.get_item("typestr")?.extract()?;
        let size = kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().map_err(|_| {
            PyValueError::new_err(format!("__cuda_array_interface__ has the typestr {kind:?}, without a size"))
        })?;
        let (address, _): (u64, Bound<'_, PyAny>) = interface.get_item("data")?.extract()?;
        let shape: Vec<i64> = interface.get_item("shape")?.extract()?;
        // It may be missing.
        let strides = interface.call_method1("get", ("strides",))?.extract::<Option<Vec<i64>>>()?;
        Self::spanned(address, size, &shape, strides.as_deref())
    }

    fn of_dlpack(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let (device, _): (i32, i32) = array.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
        if !OF_CUDA.contains(&device) {
            return Err(elsewhere(&format!("an array on DLPack's device type {device}")));
        }
        // The call names no stream: JAX does not accept -1, which would mean that nobody waits. It
        // then waits for the default stream.
        let capsule = array.call_method0(intern!(py, "__dlpack__"))?;
        // The capsule is not consumed, so it frees itself with its last reference.
        let capsule = capsule.cast_into::<PyCapsule>()?;
        let tensor = capsule.pointer_checked(Some(c"dltensor"))?.cast::<Tensor>();
        // SAFETY: By its name the capsule has this struct, and lives until the end of this function; shape
        // and strides have so many numbers, or strides is null.
        let (tensor, shape, strides) = unsafe {
            let tensor = tensor.as_ref();
            let numbers = |at: *const i64| {
                let count = usize::try_from(tensor.dimensions).unwrap_or(0);
                (!at.is_null()).then(|| std::slice::from_raw_parts(at, count))
            };
            (tensor, numbers(tensor.shape).unwrap_or(&[]), numbers(tensor.strides))
        };
        let size = (i64::from(tensor.bits) * i64::from(tensor.lanes) + 7) / 8;
        let strides = strides.map(|strides| in_bytes(strides, size)).transpose()?;
        Self::spanned(tensor.data.wrapping_add(tensor.offset), size, shape, strides.as_deref())
    }

    /// Returns the range from the first byte of elements of `size` bytes to the last. Strides are
    /// in bytes; without them, elements lie side by side.
    fn spanned(address: u64, size: i64, shape: &[i64], strides: Option<&[i64]>) -> PyResult<Self> {
        let wrong = || {
            let why = format!("elements of {size} bytes, shape {shape:?} and strides {strides:?} fit no memory");
            PyValueError::new_err(why)
        };
        if shape.contains(&0) || size == 0 {
            return Ok(Self { address, length: 0 });
        }
        let (mut before, mut after) = (0i64, size);
        if let Some(strides) = strides {
            if strides.len() != shape.len() {
                return Err(wrong());
            }
            for (&count, &stride) in shape.iter().zip(strides) {
                let way = count.checked_sub(1).and_then(|steps| steps.checked_mul(stride)).ok_or_else(wrong)?;
                let end = if way < 0 { &mut before } else { &mut after };
                *end = end.checked_add(way).ok_or_else(wrong)?;
            }
        } else {
            for &count in shape {
                after = after.checked_mul(count).ok_or_else(wrong)?;
            }
        }
        let length = after.checked_sub(before).and_then(|length| u64::try_from(length).ok()).ok_or_else(wrong)?;
        let address = address.checked_add_signed(before).ok_or_else(wrong)?;
        Ok(Self { address, length })
    }
}

fn in_bytes(strides: &[i64], size: i64) -> PyResult<Vec<i64>> {
    let each = strides.iter().map(|stride| stride.checked_mul(size));
    let all: Option<_> = each.collect();
    all.ok_or_else(|| PyValueError::new_err(format!("strides {strides:?} fit no memory")))
}

fn elsewhere(what: &str) -> PyErr {
    PyValueError::new_err(format!("{what} is not on a CUDA GPU: move it there, or register it with ibv_reg_mr()"))
}
