// SPDX-License-Identifier: GPL-2.0

//! `kernel-lite/helpers.c` on std, for tests without a model checker.
//!
//! Memory has its size in front, so that a free of what was not allocated is found, and everything
//! allocated is counted. A mutex is one word that a thread reads until it is free: it is held only
//! briefly, and Miri sees every step.

use kernel::backend::Touch;
use std::alloc::{alloc, dealloc, Layout};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// The number of bytes in front of each allocation.
const HEADER: usize = 16;
/// The allocator's kind, which the header holds besides the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Kind {
    Kmalloc = 0x6b6d_616c,
    Kvmalloc = 0x6b76_6d61,
}

thread_local! {
    /// The number of allocations of this thread that were not freed.
    static LIVE: Cell<i64> = const { Cell::new(0) };
    /// The number of allocations that still succeed. Negative: all.
    static BUDGET: Cell<i64> = const { Cell::new(-1) };
    /// The sizes of this thread's allocations, while somebody asks for them.
    static SIZES: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
    /// The number of times that this thread took a mutex.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The lines that all threads logged.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the number of allocations that this thread made and nobody freed, less those that it
/// freed for others.
pub fn live() -> i64 {
    LIVE.get()
}

/// Makes `count` allocations of this thread succeed from now on, and all later ones fail.
pub fn fail_after(count: i64) {
    BUDGET.set(count);
}

/// Makes allocations of this thread succeed again.
pub fn fail_never() {
    BUDGET.set(-1);
}

/// Returns the size of each allocation of this thread while `f` runs.
pub fn sizes(f: impl FnOnce()) -> Vec<usize> {
    SIZES.set(Some(Vec::new()));
    f();
    SIZES.take().unwrap_or_default()
}

/// Returns how often this thread took a mutex.
pub fn locked() -> u64 {
    TAKEN.get()
}

/// Returns everything that was logged since the last call.
pub fn take_log() -> Vec<String> {
    std::mem::take(&mut *LOG.lock().unwrap())
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size.checked_add(HEADER).unwrap(), HEADER).unwrap()
}

fn allocate(size: usize, kind: Kind) -> *mut c_void {
    assert_ne!(size, 0, "an allocation of nothing");
    match BUDGET.get() {
        0 => return std::ptr::null_mut(),
        left if left > 0 => BUDGET.set(left - 1),
        _ => {}
    }
    LIVE.set(LIVE.get() + 1);
    SIZES.with_borrow_mut(|sizes| sizes.as_mut().map(|sizes| sizes.push(size)));
    // SAFETY: The size is not zero; the header has room for both words.
    unsafe {
        let base = alloc(layout(size)).cast::<u64>();
        base.write(u64::try_from(size).unwrap());
        base.add(1).write(kind as u64);
        base.cast::<u8>().add(HEADER).cast()
    }
}

/// Frees memory.
///
/// # Safety
///
/// `memory` came from [`allocate`] of `kind`, or is NULL.
unsafe fn release(memory: *const c_void, kind: Kind) {
    if memory.is_null() {
        return;
    }
    LIVE.set(LIVE.get() - 1);
    // SAFETY: By this function's contract there is a header in front.
    unsafe {
        let base = memory.cast_mut().cast::<u8>().sub(HEADER).cast::<u64>();
        assert_eq!(base.add(1).read(), kind as u64, "freed by the wrong function");
        dealloc(base.cast(), layout(usize::try_from(base.read()).unwrap()));
    }
}

#[no_mangle]
extern "C" fn kl_kmalloc(size: usize) -> *mut c_void {
    allocate(size, Kind::Kmalloc)
}

#[no_mangle]
unsafe extern "C" fn kl_kfree(memory: *const c_void) {
    // SAFETY: The caller's promise.
    unsafe { release(memory, Kind::Kmalloc) }
}

#[no_mangle]
extern "C" fn kl_kvmalloc(size: usize) -> *mut c_void {
    allocate(size, Kind::Kvmalloc)
}

#[no_mangle]
unsafe extern "C" fn kl_kvfree(memory: *const c_void) {
    // SAFETY: The caller's promise.
    unsafe { release(memory, Kind::Kvmalloc) }
}

/// The states of a mutex. An uninitialised one is all zeroes, or was never written at all.
const UNLOCKED: u64 = 0x756e_6c6f_636b;
const LOCKED: u64 = 0x6c6f_636b;

#[no_mangle]
unsafe extern "C" fn kl_mutex_init(mutex: *mut AtomicU64, name: *const std::ffi::c_char, key: *mut c_void) {
    assert!(!name.is_null() && !key.is_null());
    // SAFETY: The caller's promise: valid for writing, and nobody else looks at it yet.
    unsafe { mutex.write(AtomicU64::new(UNLOCKED)) }
}

#[no_mangle]
unsafe extern "C" fn kl_mutex_lock(mutex: *const AtomicU64) {
    // SAFETY: The caller's promise: a mutex.
    let word = unsafe { &*mutex };
    while let Err(state) = word.compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed) {
        assert!(state == LOCKED, "locked before it was initialised");
        std::thread::yield_now();
    }
    TAKEN.set(TAKEN.get() + 1);
}

#[no_mangle]
unsafe extern "C" fn kl_mutex_trylock(mutex: *const AtomicU64) -> i32 {
    // SAFETY: The caller's promise: a mutex.
    let word = unsafe { &*mutex };
    word.compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok().into()
}

#[no_mangle]
unsafe extern "C" fn kl_mutex_unlock(mutex: *const AtomicU64) {
    // SAFETY: The caller's promise: a mutex.
    let before = unsafe { &*mutex }.swap(UNLOCKED, Ordering::Release);
    assert_eq!(before, LOCKED, "unlocked without being locked");
}

#[no_mangle]
unsafe extern "C" fn kl_print(level: u8, prefix: *const std::ffi::c_char, text: *const u8, length: usize) {
    // SAFETY: The caller's promise: a terminated prefix and `length` bytes.
    let (prefix, text) = unsafe { (std::ffi::CStr::from_ptr(prefix), std::slice::from_raw_parts(text, length)) };
    let line = format!("<{}>{}: {}", char::from(level), prefix.to_str().unwrap(), String::from_utf8_lossy(text));
    LOG.lock().unwrap().push(line);
}

/// Does nothing, because no scheduler chooses the next thread here.
#[no_mangle]
extern "C" fn kl_touch(_place: *mut c_void, _size: usize, _touch: Touch, _relaxed: bool) {}
