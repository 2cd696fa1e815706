// SPDX-License-Identifier: GPL-2.0

//! The functions of `src/ffi/sg.c` for scatterlists on std, for tests without a model.

/// Stands for an `sg_table`, the core's or the module's own.
#[derive(Default, Clone)]
pub struct Table {
    /// The DMA address and length of each entry.
    pub entries: Vec<(u64, u32)>,
    filled: usize,
}

#[no_mangle]
extern "C" fn nvpm_sg_alloc(entries: i32, _room: *mut std::ffi::c_void) -> *mut Table {
    Box::into_raw(Box::new(Table { entries: vec![(0, 0); entries as usize], filled: 0 }))
}
#[no_mangle]
unsafe extern "C" fn nvpm_sg_free(table: *mut Table) {
    // SAFETY: Made by `nvpm_sg_alloc()`, once.
    drop(unsafe { Box::from_raw(table) });
}
/// Returns the table itself as its first entry, because it is filled in order.
#[no_mangle]
extern "C" fn nvpm_sg_first(table: *mut Table) -> *mut Table {
    table
}
#[no_mangle]
unsafe extern "C" fn nvpm_sg_set(entry: *mut Table, dma: u64, length: u32) -> *mut Table {
    // SAFETY: The caller's promise: not shared yet.
    let table = unsafe { &mut *entry };
    table.entries[table.filled] = (dma, length);
    table.filled += 1;
    if table.filled == table.entries.len() {
        std::ptr::null_mut()
    } else {
        entry
    }
}
#[no_mangle]
unsafe extern "C" fn nvpm_sg_publish(to: *mut Table, from: *const Table) -> i32 {
    // SAFETY: The caller's promise.
    unsafe {
        *to = (*from).clone();
        i32::try_from((*to).entries.len()).expect("few")
    }
}
