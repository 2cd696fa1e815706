// SPDX-License-Identifier: GPL-2.0

//! The plainest runtime for the stand-in of the kernel crate (see `kernel::rt`), and scatterlists in user memory.

use crate::raw;
use kernel::rt::Touch;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Sizes that were asked for, while somebody listens.
    pub static ASKED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// How often this thread took a mutex.
    pub static LOCKED: Cell<u64> = const { Cell::new(0) };
}

/// How often a mutex was taken, an atomic or a count touched.
pub static STEPS: AtomicU64 = AtomicU64::new(0);

fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

#[no_mangle]
extern "C" fn rt_epoch() -> u64 {
    1
}

#[no_mangle]
extern "C" fn rt_new_id() -> u64 {
    0
}

#[no_mangle]
extern "C" fn rt_lock(_: u64, _: *const u8, _: usize) {
    LOCKED.set(LOCKED.get() + 1);
    step();
}

#[no_mangle]
extern "C" fn rt_unlock(_: u64) {}

#[no_mangle]
extern "C" fn rt_atomic(_: usize, _: Touch, _: bool) {
    step();
}

#[no_mangle]
extern "C" fn rt_count(_: u64, _: bool) {
    step();
}

#[no_mangle]
extern "C" fn rt_may_allocate(bytes: usize) -> bool {
    ASKED.with_borrow_mut(|asked| asked.push(bytes));
    true
}

#[no_mangle]
extern "C" fn rt_allocated(_: isize) {}

#[no_mangle]
extern "C" fn rt_retire(memory: *mut u8, free: unsafe extern "C" fn(*mut u8)) {
    // SAFETY: Handed over, and nothing here looks at dead objects.
    unsafe { free(memory) };
}

#[no_mangle]
extern "C" fn rt_violation(text: *const u8, len: usize) {
    // SAFETY: UTF-8, by the contract in `kernel::rt`.
    let text = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(text, len)) };
    eprintln!("{text}");
    std::process::abort();
}

#[no_mangle]
extern "C" fn rt_print(_: std::ffi::c_char, _: *const u8, _: usize) {}

/// What `struct sg_table` is here.
pub struct List {
    pub entries: Vec<(u64, u32)>,
    filled: usize,
}

#[no_mangle]
extern "C" fn nvpm_sg_alloc(entries: u32) -> *mut raw::sg_table {
    Box::into_raw(Box::new(List { entries: vec![(0, 0); entries as usize], filled: 0 })).cast()
}

#[no_mangle]
extern "C" fn nvpm_sg_free(table: *mut raw::sg_table) {
    // SAFETY: From `nvpm_sg_alloc()`, once.
    drop(unsafe { Box::from_raw(table.cast::<List>()) });
}

#[no_mangle]
extern "C" fn nvpm_sg_first(table: *mut raw::sg_table) -> *mut raw::scatterlist {
    // An entry is its table, which knows how far it is filled.
    table.cast()
}

#[no_mangle]
extern "C" fn nvpm_sg_set(entry: *mut raw::scatterlist, dma: u64, length: u32) -> *mut raw::scatterlist {
    // SAFETY: From `nvpm_sg_first()`.
    let list = unsafe { &mut *entry.cast::<List>() };
    list.entries[list.filled] = (dma, length);
    list.filled += 1;
    if list.filled == list.entries.len() {
        std::ptr::null_mut()
    } else {
        entry
    }
}

#[no_mangle]
extern "C" fn nvpm_sg_publish(to: *mut raw::sg_table, from: *const raw::sg_table) {
    // SAFETY: `from` from `nvpm_sg_alloc()`, `to` a place of the test.
    unsafe { *to.cast::<Vec<(u64, u32)>>() = (*from.cast::<List>()).entries.clone() };
}
