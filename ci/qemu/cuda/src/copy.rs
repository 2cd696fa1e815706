// SPDX-License-Identifier: GPL-2.0

//! Copies and fills memory, at once or by streams.

use std::sync::Arc;

use crate::abi::CuHandle;
use crate::code::{Code, Res};
use crate::driver::{driver, Buffer, Driver, Place};

/// One end of a copy.
enum End {
    Gpu(Arc<Buffer>, u64),
    Host(u64),
}

/// Returns what an address stands for in a copy of `size` bytes, and how many bytes follow there.
/// The next mapping may begin right behind them.
fn end(d: &Driver, at: u64, size: u64) -> Res<(End, u64)> {
    match d.buffer(at) {
        Some(b) if !b.on_host() => {
            let offset = at - b.base;
            let room = b.size - offset;
            if size > room && !b.is_mapping() {
                return Err(Code::InvalidValue);
            }
            Ok((End::Gpu(b, offset), room.min(size)))
        }
        _ => Ok((End::Host(at), size)),
    }
}

/// Copies after all work of the streams is done.
///
/// # Safety
///
/// Host addresses are good for `size` bytes.
pub unsafe fn copy(dst: u64, src: u64, size: usize) -> Res<()> {
    let d = driver()?;
    d.here()?;
    // The streams' work comes first, as with a stream that is not NON_BLOCKING.
    d.drain(None);
    // SAFETY: the caller's promise.
    unsafe { copy_now(d, dst, src, size) }
}

/// Gives the copy to a stream. The addresses are looked up now.
///
/// # Safety
///
/// Host addresses are good for `size` bytes until the stream has done the copy.
pub unsafe fn copy_later(dst: u64, src: u64, size: usize, stream: CuHandle) -> Res<()> {
    let d = driver()?;
    d.here()?;
    let Some(stream) = d.stream(stream as usize)? else {
        // SAFETY: the caller's promise.
        return unsafe { copy(dst, src, size) };
    };
    for at in [dst, src] {
        if at == 0 {
            return Err(Code::InvalidValue);
        }
        end(d, at, size as u64)?;
    }
    if [dst, src].iter().any(|at| d.buffer(*at).is_none()) {
        d.drain(Some(&stream));
        // SAFETY: the caller's promise.
        return unsafe { copy_now(d, dst, src, size) };
    }
    stream.give(Box::new(move || {
        // SAFETY: the caller's promise. An error is dropped, because no call is left to return it. A
        // card would have ended the context.
        let _ = unsafe { copy_now(d, dst, src, size) };
    }));
    Ok(())
}

/// Copies without waiting for a stream.
///
/// # Safety
/// Host addresses are good for `size` bytes.
unsafe fn copy_now(d: &Driver, dst: u64, src: u64, size: usize) -> Res<()> {
    let len = size as u64;
    let mapped = |at: u64| d.buffer(at).is_some_and(|b| b.is_mapping());
    // A copy must not cross the end of a mapping into memory that is none.
    for at in [dst, src] {
        if mapped(at) && !d.is_mapped(at, len) {
            return Err(Code::InvalidValue);
        }
    }
    let mut done = 0;
    while done < len {
        let ((to, to_room), (from, room)) = (end(d, dst + done, len - done)?, end(d, src + done, len - done)?);
        let n = to_room.min(room);
        // SAFETY: the caller vouches for host addresses.
        unsafe { copy_part(to, from, n)? };
        done += n;
    }
    Ok(())
}

/// Copies `len` bytes from one end to the other.
///
/// # Safety
///
/// Host addresses are good for `len` bytes.
unsafe fn copy_part(to: End, from: End, len: u64) -> Res<()> {
    let failed = |_| Code::InvalidValue;
    match (to, from) {
        (End::Gpu(to, at), End::Gpu(from, from_at)) => match (to.memory(), from.memory()) {
            (Some((to, to_begin)), Some((from, begin))) => {
                to.copy_from(to_begin + at, from, begin + from_at, len).map_err(failed)
            }
            _ => Err(Code::Unknown),
        },
        (End::Gpu(to, at), End::Host(from)) => match to.memory() {
            // SAFETY: the caller vouches for the host address.
            Some((to, begin)) => unsafe { to.write_from(begin + at, from as *const u8, len).map_err(failed) },
            None => Err(Code::Unknown),
        },
        (End::Host(to), End::Gpu(from, at)) => match from.memory() {
            // SAFETY: the caller vouches for the host address.
            Some((from, begin)) => unsafe { from.read_to(begin + at, to as *mut u8, len).map_err(failed) },
            None => Err(Code::Unknown),
        },
        (End::Host(to), End::Host(from)) => {
            // SAFETY: the caller vouches for both host addresses; they may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len as usize) };
            Ok(())
        }
    }
}

/// Repeats a word of `width` bytes `count` times, after all work of the streams is done.
pub fn fill(dst: u64, value: u32, width: u32, count: usize) -> Res<()> {
    let d = driver()?;
    d.here()?;
    d.drain(None);
    fill_now(d, dst, value, width, count)
}

/// Fills without waiting for a stream.
pub fn fill_now(d: &Driver, dst: u64, value: u32, width: u32, count: usize) -> Res<()> {
    let mut at = dst;
    let mut left = (count as u64).checked_mul(u64::from(width)).ok_or(Code::InvalidValue)?;
    if dst % u64::from(width) != 0 || d.buffer(dst).is_none_or(|b| b.is_mapping() && !d.is_mapped(dst, left)) {
        return Err(Code::InvalidValue);
    }
    while left != 0 {
        let b = d.buffer(at).ok_or(Code::InvalidValue)?;
        let offset = at - b.base;
        let len = if b.is_mapping() { left.min(b.size - offset) } else { left };
        if len > b.size - offset {
            return Err(Code::InvalidValue);
        }
        match (&b.place, b.memory()) {
            (_, Some((memory, begin))) => {
                memory.fill_wide(begin + offset, len, value, width).map_err(|_| Code::InvalidValue)?;
            }
            (Place::Host { pages, .. }, _) if pages.fill(offset, len, &value.to_le_bytes()[..width as usize]) => {}
            _ => return Err(Code::InvalidValue),
        }
        at += len;
        left -= len;
    }
    Ok(())
}
