// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Code that the examples share which run on a GPU without a NIC.

use gpumr::{Access, Range, Verbs};
use std::error::Error;
use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Verbs that register nothing, and number what they are asked to register.
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
