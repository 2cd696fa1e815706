// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Code that the examples share which run on a GPU without a NIC.

use gpumr::{Access, Range, Verbs};
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Verbs that register nothing, and number what they are asked to register.
#[allow(dead_code, reason = "the storm's verbs know more")]
#[derive(Default)]
pub struct Counting(AtomicU32);

impl Verbs for Counting {
    type Pd = u32;
    type Mr = u32;

    fn register(&self, _: u32, _: Range, _: Access) -> io::Result<u32> {
        Ok(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn register_dma_buf(&self, _: u32, _: Range, _: u64, _: BorrowedFd<'_>, _: Access) -> io::Result<u32> {
        Ok(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn deregister(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn keys(&self, mr: &u32) -> (u32, u32) {
        (*mr, *mr)
    }
}

/// Turns the status of a call of libcuda into an error that names the call.
pub fn checked(name: &str, status: c_int) -> Result<(), Box<dyn Error>> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("{name}: CUDA error {status}").into())
    }
}

/// Calls libcuda by `checked()`, with arguments that have the types of cuda.h.
#[allow(unused_macros, reason = "not each example calls it")]
macro_rules! cuda {
    ($lib:expr, $name:ident($($value:expr => $kind:ty),*)) => {{
        // SAFETY: The types are those of cuda.h, and pointers lead to locals.
        let status = unsafe {
            let call = $lib.get::<unsafe extern "C" fn($($kind),*) -> c_int>(concat!(stringify!($name), "\0").as_bytes())?;
            call($($value),*)
        };
        checked(stringify!($name), status)
    }};
}

/// Asks `cuMemCreate()` for memory of a GPU that NICs can reach.
#[allow(dead_code, reason = "not each example maps memory")]
#[repr(C)]
pub struct Property {
    kind: c_int,
    handles: c_int,
    location: [c_int; 2],
    windows: *mut c_void,
    flags: [u8; 8],
}

#[allow(dead_code, reason = "not each example maps memory")]
impl Property {
    pub fn of(device: c_int) -> Self {
        let (location, flags) = ([1, device], [0, 1, 0, 0, 0, 0, 0, 0]);
        Self { kind: 1, handles: 0, location, windows: std::ptr::null_mut(), flags }
    }
}
