// SPDX-License-Identifier: GPL-2.0
// Made from src/ffi/shim.h by `make bindings`.

pub const NVPM_TRACE_ACQUIRE: u32 = 0;
pub const NVPM_TRACE_PIN: u32 = 1;
pub const NVPM_TRACE_MAP: u32 = 2;
pub const NVPM_TRACE_UNMAP: u32 = 3;
pub const NVPM_TRACE_PUT: u32 = 4;
pub const NVPM_TRACE_REVOKE: u32 = 5;
pub const NVPM_TRACE_ORPHAN: u32 = 6;
pub const NVPM_PROC_REGISTRATIONS: u32 = 0;
pub const NVPM_PROC_FAILURES: u32 = 1;
pub const NVPM_PROC_CALLBACKS: u32 = 2;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct scatterlist {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct seq_file {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Default, Copy, Clone)]
pub struct nvpm_process {
    pub start_ns: u64,
    pub tgid: u32,
}
#[repr(C)]
#[derive(Default, Copy, Clone)]
pub struct nvpm_bar {
    pub start: u64,
    pub last: u64,
    pub bus_offset: u64,
    pub device: u64,
}
#[repr(C)]
#[derive(Default, Copy, Clone)]
pub struct nvpm_traced {
    pub ticket: u64,
    pub va: u64,
    pub length: u64,
    pub revocable: u32,
}
#[repr(C)]
#[derive(Default, Copy, Clone)]
pub struct nvpm_sg_room {
    pub words: [u64; 6usize],
}
unsafe extern "C" {
    pub fn nvpm_param_peerdirect_support() -> ::kernel::ffi::c_int;
    pub fn nvpm_param_persistent_api_support() -> ::kernel::ffi::c_int;
    pub fn nvpm_param_revocable_fallback() -> ::kernel::ffi::c_int;
    pub fn nvpm_module_get() -> ::kernel::ffi::c_int;
    pub fn nvpm_module_put();
    pub fn nvpm_core_present() -> ::kernel::ffi::c_int;
    pub fn nvpm_uverbs_loaded() -> ::kernel::ffi::c_int;
    pub fn nvpm_core_register(
        client: *const peer_memory_client,
        invalidate: *mut invalidate_peer_memory,
    ) -> *mut ::kernel::ffi::c_void;
    pub fn nvpm_core_unregister(handle: *mut ::kernel::ffi::c_void);
    pub fn nvpm_provider_present() -> ::kernel::ffi::c_int;
    pub fn nvpm_p2p_get(
        va: u64,
        length: u64,
        table: *mut *mut nvidia_p2p_page_table,
        ticket: u64,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_p2p_put(
        va: u64,
        table: *mut nvidia_p2p_page_table,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_p2p_get_persistent(
        va: u64,
        length: u64,
        table: *mut *mut nvidia_p2p_page_table,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_p2p_put_persistent(
        va: u64,
        table: *mut nvidia_p2p_page_table,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_p2p_dma_map(
        dev: *mut device,
        table: *mut nvidia_p2p_page_table,
        mapping: *mut *mut nvidia_p2p_dma_mapping,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_p2p_dma_unmap(
        dev: *mut device,
        table: *mut nvidia_p2p_page_table,
        mapping: *mut nvidia_p2p_dma_mapping,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_on_free(data: *mut ::kernel::ffi::c_void) -> ::kernel::ffi::c_int;
    pub fn nvpm_free_callback(data: *mut ::kernel::ffi::c_void);
    pub fn nvpm_put_gate_lock_shared();
    pub fn nvpm_put_gate_unlock_shared();
    pub fn nvpm_put_gate_lock_exclusive();
    pub fn nvpm_put_gate_unlock_exclusive();
    pub fn nvpm_current_process(process: *mut nvpm_process);
    pub fn nvpm_current_comm(comm: *mut u8);
    pub fn nvpm_current_task() -> u64;
    pub fn nvpm_now_ns() -> u64;
    pub fn nvpm_real_ns() -> u64;
    pub fn nvpm_cond_resched();
    pub fn nvpm_pause();
    pub fn nvpm_preempt_disable();
    pub fn nvpm_preempt_enable();
    pub fn nvpm_is_killed() -> ::kernel::ffi::c_int;
    pub fn nvpm_page_size() -> u64;
    pub fn nvpm_device_is_pci(dev: *mut device) -> ::kernel::ffi::c_int;
    pub fn nvpm_device_number(dev: *mut device) -> u64;
    pub fn nvpm_device_segment_limit(dev: *mut device) -> u64;
    pub fn nvpm_provider_bar(address: u64, bar: *mut nvpm_bar) -> ::kernel::ffi::c_int;
    pub fn nvpm_forget_gpus();
    pub fn nvpm_dma_map(
        dev: *mut device,
        address: u64,
        length: u64,
        dma: *mut u64,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_dma_unmap(dev: *mut device, dma: u64, length: u64);
    pub static mut nvpm_trace_listened: u32;
    pub fn nvpm_trace_registration(
        event: u32,
        traced: *const nvpm_traced,
        ret: ::kernel::ffi::c_int,
        ns: u64,
    );
    pub fn nvpm_trace_late_callback(ticket: u64);
    pub fn nvpm_trace_failure(
        va: u64,
        length: u64,
        err: ::kernel::ffi::c_int,
        reason: *const u8,
        reason_length: usize,
    );
    pub fn nvpm_sg_alloc(
        entries: ::kernel::ffi::c_int,
        room: *mut nvpm_sg_room,
    ) -> *mut sg_table;
    pub fn nvpm_sg_free(table: *mut sg_table);
    pub fn nvpm_sg_first(table: *mut sg_table) -> *mut scatterlist;
    pub fn nvpm_sg_set(
        entry: *mut scatterlist,
        dma: u64,
        length: u32,
    ) -> *mut scatterlist;
    pub fn nvpm_sg_publish(
        to: *mut sg_table,
        from: *const sg_table,
    ) -> ::kernel::ffi::c_int;
    pub fn nvpm_proc_create() -> ::kernel::ffi::c_int;
    pub fn nvpm_proc_remove();
    pub fn nvpm_proc_write(seq: *mut seq_file, text: *const u8, length: usize);
    pub fn nvpm_proc_stats(seq: *mut seq_file);
    pub fn nvpm_proc_seek(list: u32, at: *mut u64) -> ::kernel::ffi::c_int;
    pub fn nvpm_proc_row(list: u32, at: u64, seq: *mut seq_file);
}
