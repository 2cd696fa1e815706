// SPDX-License-Identifier: GPL-2.0

//! Attributes of addresses (docs/facts.md#cuda).

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::put;
use crate::code::{Code, Res};
use crate::driver::{Buffer, Place};
use cuda_driver::SYNC_MEMOPS;

/// The value of one pointer attribute, in the attribute's own type.
enum Fact {
    Word(u64),
    Int(u32),
    Flag(bool),
}

fn fact(attribute: c_int, b: &Buffer, address: u64) -> Option<Fact> {
    let managed = b.is_managed();
    // For a mapping, the range is the whole reservation, and it belongs to no context.
    let (start, size, context) = match b.place {
        Place::Mapped(_, start, size) => (start, size, 0),
        _ => (b.base, b.size, b.context),
    };
    Some(match attribute {
        1 => Fact::Word(context as u64),                             // CONTEXT
        2 => Fact::Int(if b.on_host() && !managed { 1 } else { 2 }), // MEMORY_TYPE
        3 => Fact::Word(address),                                    // DEVICE_POINTER
        4 if b.on_host() => Fact::Word(address),                     // HOST_POINTER
        SYNC_MEMOPS => Fact::Flag(true),
        7 => Fact::Word(b.id),           // BUFFER_ID
        8 => Fact::Flag(managed),        // IS_MANAGED
        9 => Fact::Int(b.device as u32), // DEVICE_ORDINAL
        10 => Fact::Flag(b.is_legacy_ipc_capable()),
        11 => Fact::Word(start), // RANGE_START_ADDR
        12 => Fact::Word(size),  // RANGE_SIZE
        13 => Fact::Flag(true),  // MAPPED
        14 => Fact::Word(match &b.place {
            // ALLOWED_HANDLE_TYPES
            Place::Mapped(physical, ..) => physical.handle_types as u64,
            _ => 0,
        }),
        15 => Fact::Flag(b.rdma_capable()), // IS_GPU_DIRECT_RDMA_CAPABLE
        16 => Fact::Int(3),                 // ACCESS_FLAGS: read and write
        17 => Fact::Word(0),                // MEMPOOL_HANDLE
        _ => return None,
    })
}

/// Writes the value of one attribute of an address in a buffer.
///
/// # Safety
///
/// `to` is NULL or good for writing the attribute's type.
pub unsafe fn attribute(to: *mut c_void, attribute: c_int, b: &Buffer, address: u64) -> Res<()> {
    // SAFETY: the caller's promise, for each type.
    unsafe {
        match fact(attribute, b, address).ok_or(Code::InvalidValue)? {
            Fact::Word(v) => put(to.cast(), v),
            Fact::Int(v) => put(to.cast(), v),
            Fact::Flag(v) => put(to.cast(), c_uint::from(v)),
        }
    }
}

/// Writes the value that `cuPointerGetAttributes` gives for an address that belongs to nobody.
///
/// # Safety
///
/// `to` is NULL or good for writing the attribute's type.
pub unsafe fn zero(to: *mut c_void, attribute: c_int) -> Res<()> {
    // SAFETY: the caller's promise, for each type.
    unsafe {
        match attribute {
            1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => put(to.cast(), 0u64),
            2 | SYNC_MEMOPS | 8 | 10 | 13 | 15 | 16 => put(to.cast(), 0u32),
            9 => put(to.cast(), -2i32),
            _ => Err(Code::InvalidValue),
        }
    }
}
