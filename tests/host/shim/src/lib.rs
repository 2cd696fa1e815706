// SPDX-License-Identifier: GPL-2.0

//! This has the C functions of `src/ffi/shim.h` that the module calls, each once, for programs that run
//! the module's files on std. A program implements [`Host`], where it says what differs from the answers here, and
//! `shim::host!(TYPE)` defines the functions. [`Lists`] and `shim::lists!(TYPE)` are those for
//! scatterlists.
//!
//! The signatures are compared with the bindings, so that a new parameter of a function is an error
//! here, and then in each program that has an answer of its own.

pub use kernel::ffi::{c_int, c_void};

/// Has the ABIs of the module's neighbours and of its shim a second time, because those of the module
/// are private.
pub mod raw {
    #![allow(dead_code, non_camel_case_types, clippy::all)]

    include!("../../../../bindings/peer_mem.rs");
    include!("../../../../bindings/nv_p2p.rs");
    include!("../../../../bindings/shim.rs");
}

/// Makes a trait of the functions, and a macro that defines them by a type that implements it. `$d` is
/// the sign `$` for that macro. A lifetime never follows `unsafe` or `;`: these repetitions say only
/// whether the word is there.
macro_rules! twin {
    ($d:tt $export:ident $(#[$doc:meta])* pub trait $trait:ident {$(
        $(unsafe $($is_unsafe:lifetime)?)? fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?
        $(; $($is_required:lifetime)?)? $($default:block)?
    )*}) => {
        $(#[$doc])*
        #[allow(clippy::missing_safety_doc)]
        pub trait $trait {$(
            $(unsafe $($is_unsafe)?)? fn $name($($arg: $type),*) $(-> $ret)?
            $(; $($is_required)?)? $($default)?
        )*}

        $(const _: unsafe extern "C" fn($($type),*) $(-> $ret)? = raw::$name;)*

        #[macro_export]
        macro_rules! $export {
            ($d host:ty) => {
                const _: () = {
                    use $crate::*;
                    $(
                        #[no_mangle]
                        $(unsafe $($is_unsafe)?)? extern "C" fn $name($($arg: $type),*) $(-> $ret)? {
                            // SAFETY: The caller's promise.
                            $(unsafe $($is_unsafe)?)? { <$d host as $trait>::$name($($arg),*) }
                        }
                    )*
                };
            };
        }
    };
}

twin! { $ host
/// Stands for what surrounds the module. The program answers where a function has no body. The caller
/// of an unsafe one keeps what `src/ffi/shim.h` says.
pub trait Host {
    fn nvpm_param_peerdirect_support() -> c_int { 0 }
    fn nvpm_param_persistent_api_support() -> c_int;
    fn nvpm_param_revocable_fallback() -> c_int;
    fn nvpm_module_get() -> c_int;
    fn nvpm_module_put();

    fn nvpm_core_present() -> c_int { 1 }
    fn nvpm_uverbs_loaded() -> c_int { 1 }
    unsafe fn nvpm_core_register(
        client: *const raw::peer_memory_client,
        invalidate: *mut raw::invalidate_peer_memory
    ) -> *mut c_void;
    fn nvpm_core_unregister(handle: *mut c_void);

    fn nvpm_provider_present() -> c_int { 1 }
    unsafe fn nvpm_p2p_get(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table, ticket: u64) -> c_int;
    fn nvpm_p2p_put(va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int;
    unsafe fn nvpm_p2p_get_persistent(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table) -> c_int;
    fn nvpm_p2p_put_persistent(va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int;
    unsafe fn nvpm_p2p_dma_map(
        device: *mut raw::device,
        table: *mut raw::nvidia_p2p_page_table,
        mapping: *mut *mut raw::nvidia_p2p_dma_mapping
    ) -> c_int;
    fn nvpm_p2p_dma_unmap(
        _device: *mut raw::device,
        _table: *mut raw::nvidia_p2p_page_table,
        _mapping: *mut raw::nvidia_p2p_dma_mapping
    ) -> c_int { 0 }

    fn nvpm_put_gate_lock_shared();
    fn nvpm_put_gate_unlock_shared();
    fn nvpm_put_gate_lock_exclusive();
    fn nvpm_put_gate_unlock_exclusive();

    unsafe fn nvpm_current_process(process: *mut raw::nvpm_process);
    unsafe fn nvpm_current_comm(comm: *mut u8) {
        // SAFETY: The caller's place of 16 bytes.
        unsafe { comm.write_bytes(0, 16) };
    }
    fn nvpm_current_task() -> u64;
    fn nvpm_now_ns() -> u64;
    fn nvpm_real_ns() -> u64 { Self::nvpm_now_ns() }
    fn nvpm_cond_resched() {}
    fn nvpm_pause() {}
    fn nvpm_preempt_disable() {}
    fn nvpm_preempt_enable() {}
    fn nvpm_is_killed() -> c_int { 0 }

    fn nvpm_page_size() -> u64 { 4096 }
    fn nvpm_device_is_pci(_device: *mut raw::device) -> c_int { 1 }
    fn nvpm_device_number(device: *mut raw::device) -> u64;
    fn nvpm_device_segment_limit(device: *mut raw::device) -> u64;
    unsafe fn nvpm_provider_bar(address: u64, bar: *mut raw::nvpm_bar) -> c_int;
    fn nvpm_forget_gpus() {}
    unsafe fn nvpm_dma_map(device: *mut raw::device, address: u64, length: u64, dma: *mut u64) -> c_int;
    fn nvpm_dma_unmap(device: *mut raw::device, dma: u64, length: u64);

    fn nvpm_trace_registration(_event: u32, _traced: *const raw::nvpm_traced, _ret: c_int, _ns: u64) {}
    fn nvpm_trace_late_callback(_ticket: u64) {}
    fn nvpm_trace_failure(_va: u64, _length: u64, _err: c_int, _reason: *const u8, _reason_length: usize) {}

    fn nvpm_proc_create() -> c_int { 0 }
    fn nvpm_proc_remove() {}
    unsafe fn nvpm_proc_write(seq: *mut raw::seq_file, text: *const u8, length: usize) {
        // SAFETY: The vector of the one who reads the file, and `length` bytes of the module.
        unsafe { (*seq.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(text, length)) };
    }
}
}

/// Somebody listens, so that tracepoints are emitted.
#[no_mangle]
#[allow(non_upper_case_globals)]
static nvpm_trace_listened: u32 = 1;

/// Stands for an `sg_table`, the core's or the module's own.
#[derive(Default, Clone)]
pub struct Table {
    /// The DMA address and length of each entry.
    pub entries: Vec<(u64, u32)>,
    filled: usize,
}

twin! { $ lists
/// Stands for `src/ffi/sg.c`: an `sg_table` is a [`Table`], which is also its own first entry, because
/// it is filled in order.
pub trait Lists {
    fn nvpm_sg_alloc(entries: c_int, _room: *mut raw::nvpm_sg_room) -> *mut raw::sg_table {
        Box::into_raw(Box::new(Table { entries: vec![(0, 0); entries as usize], filled: 0 })).cast()
    }
    unsafe fn nvpm_sg_free(table: *mut raw::sg_table) {
        // SAFETY: Made by `nvpm_sg_alloc()`, once.
        drop(unsafe { Box::from_raw(table.cast::<Table>()) });
    }
    unsafe fn nvpm_sg_first(table: *mut raw::sg_table) -> *mut raw::scatterlist { table.cast() }
    unsafe fn nvpm_sg_set(entry: *mut raw::scatterlist, dma: u64, length: u32) -> *mut raw::scatterlist {
        // SAFETY: The caller's promise: not shared yet.
        let table = unsafe { &mut *entry.cast::<Table>() };
        table.entries[table.filled] = (dma, length);
        table.filled += 1;
        if table.filled == table.entries.len() {
            std::ptr::null_mut()
        } else {
            entry
        }
    }
    unsafe fn nvpm_sg_publish(to: *mut raw::sg_table, from: *const raw::sg_table) -> c_int {
        // SAFETY: The caller's promise.
        unsafe {
            *to.cast::<Table>() = (*from.cast::<Table>()).clone();
            c_int::try_from((*to.cast::<Table>()).entries.len()).expect("few")
        }
    }
}
}
