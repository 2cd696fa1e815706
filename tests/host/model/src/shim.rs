// SPDX-License-Identifier: GPL-2.0

//! The C functions of src/ffi/shim.h as the module finds them in the world of an execution. Those that
//! count references to the module are in `world.rs`, which gives one back after a free callback.

use crate::gpu::{self, BAR, BAR_LEN};
use crate::raw;
use crate::rdma;
use crate::rt::{self, fail, rt, Rank};
use crate::world::{w, DmaMap, Fault, Mode, Sg, SgTable, NIC, PROC, PUT_GATE, SG};
use kernel::ffi::{c_int, c_void};

fn pci(device: *mut raw::device) {
    if w().device_gone {
        fail(format!("uses the NIC's device {device:?} after it is gone"));
    }
}

#[no_mangle]
extern "C" fn nvpm_param_peerdirect_support() -> c_int {
    0
}

#[no_mangle]
extern "C" fn nvpm_param_persistent_api_support() -> c_int {
    (w().mode != Mode::Legacy).into()
}

#[no_mangle]
extern "C" fn nvpm_param_revocable_fallback() -> c_int {
    (w().mode == Mode::Fallback).into()
}

#[no_mangle]
extern "C" fn nvpm_core_present() -> c_int {
    1
}

#[no_mangle]
extern "C" fn nvpm_uverbs_loaded() -> c_int {
    1
}

#[no_mangle]
extern "C" fn nvpm_core_register(
    client: *const raw::peer_memory_client,
    invalidate: *mut raw::invalidate_peer_memory,
) -> *mut c_void {
    rdma::register_client(client, invalidate)
}

#[no_mangle]
extern "C" fn nvpm_core_unregister(handle: *mut c_void) {
    rdma::unregister_client(handle);
}

#[no_mangle]
extern "C" fn nvpm_provider_present() -> c_int {
    1
}

#[no_mangle]
extern "C" fn nvpm_p2p_get(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table, ticket: u64) -> c_int {
    gpu::get(false, true, va, length, table, None, ticket as usize)
}

#[no_mangle]
extern "C" fn nvpm_p2p_put(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
    gpu::put(true, table)
}

#[no_mangle]
extern "C" fn nvpm_p2p_get_persistent(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table) -> c_int {
    gpu::get(true, true, va, length, table, None, 0)
}

#[no_mangle]
extern "C" fn nvpm_p2p_put_persistent(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
    gpu::put_persistent(table)
}

#[no_mangle]
extern "C" fn nvpm_p2p_dma_map(
    device: *mut raw::device,
    table: *mut raw::nvidia_p2p_page_table,
    mapping: *mut *mut raw::nvidia_p2p_dma_mapping,
) -> c_int {
    pci(device);
    gpu::dma_map(table, mapping)
}

#[no_mangle]
extern "C" fn nvpm_p2p_dma_unmap(
    device: *mut raw::device,
    _table: *mut raw::nvidia_p2p_page_table,
    _mapping: *mut raw::nvidia_p2p_dma_mapping,
) -> c_int {
    pci(device);
    0
}

#[no_mangle]
extern "C" fn nvpm_put_gate_lock_shared() {
    rt::lock_shared(Rank::PutGate, PUT_GATE, "put gate (shared)");
}

#[no_mangle]
extern "C" fn nvpm_put_gate_unlock_shared() {
    rt::unlock_shared(PUT_GATE);
}

#[no_mangle]
extern "C" fn nvpm_put_gate_lock_exclusive() {
    rt::lock(Rank::PutGate, PUT_GATE, "put gate (exclusive)");
}

#[no_mangle]
extern "C" fn nvpm_put_gate_unlock_exclusive() {
    rt::unlock(PUT_GATE);
}

#[no_mangle]
extern "C" fn nvpm_current_process(process: *mut raw::nvpm_process) {
    let me = &w().processes[rt().me().process];
    // SAFETY: The caller's place.
    unsafe { process.write(raw::nvpm_process { start_ns: me.start_ns, tgid: me.tgid }) };
}

#[no_mangle]
extern "C" fn nvpm_current_comm(comm: *mut u8) {
    // SAFETY: The caller's place of 16 bytes.
    unsafe { comm.write_bytes(0, 16) };
}

#[no_mangle]
extern "C" fn nvpm_current_task() -> u64 {
    rt().current as u64
}

#[no_mangle]
extern "C" fn nvpm_now_ns() -> u64 {
    // The clock stands still, because measured times decide nothing.
    1
}

#[no_mangle]
extern "C" fn nvpm_real_ns() -> u64 {
    nvpm_now_ns()
}

#[no_mangle]
extern "C" fn nvpm_proc_create() -> c_int {
    rt::touch(PROC, true, "the proc files appear");
    w().proc_there = true;
    let no_readers = w().no_readers;
    rt().flags[no_readers] = true;
    0
}

#[no_mangle]
extern "C" fn nvpm_proc_remove() {
    rt::touch(PROC, true, "the proc files vanish");
    w().proc_there = false;
    rt::wait_flag(w().no_readers, "wait until nobody reads the proc files");
}

#[no_mangle]
extern "C" fn nvpm_proc_write(seq: *mut c_void, text: *const u8, length: usize) {
    if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
        fail("writes a proc file under a lock of its own".into());
    }
    if !seq.is_null() {
        // SAFETY: A piece of text of the module, for the reader below.
        unsafe { (*seq.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(text, length)) };
    }
}

// The values passed to tracepoints are not looked at.

/// Somebody listens, so that tracepoints are emitted.
#[no_mangle]
#[allow(non_upper_case_globals)]
static nvpm_trace_listened: u32 = 1;

#[no_mangle]
extern "C" fn nvpm_trace_registration() {}

#[no_mangle]
extern "C" fn nvpm_trace_late_callback() {}

#[no_mangle]
extern "C" fn nvpm_trace_failure() {}

#[no_mangle]
extern "C" fn nvpm_cond_resched() {}

#[no_mangle]
extern "C" fn nvpm_pause() {}

#[no_mangle]
extern "C" fn nvpm_preempt_disable() {
    rt().me().preemptible = false;
}

#[no_mangle]
extern "C" fn nvpm_preempt_enable() {
    rt().me().preemptible = true;
}

#[no_mangle]
extern "C" fn nvpm_is_killed() -> c_int {
    w().fault(Fault::Killed).into()
}

#[no_mangle]
extern "C" fn nvpm_page_size() -> u64 {
    4096
}

#[no_mangle]
extern "C" fn nvpm_device_is_pci(device: *mut raw::device) -> c_int {
    pci(device);
    1
}

#[no_mangle]
extern "C" fn nvpm_device_number(device: *mut raw::device) -> u64 {
    pci(device);
    w().nic
}

#[no_mangle]
extern "C" fn nvpm_device_segment_limit(device: *mut raw::device) -> u64 {
    pci(device);
    2 << 30
}

#[no_mangle]
extern "C" fn nvpm_provider_bar(address: u64, bar: *mut raw::nvpm_bar) -> c_int {
    if !(BAR..BAR + BAR_LEN).contains(&address) {
        return gpu::ENODEV;
    }
    // SAFETY: The caller's place.
    unsafe {
        bar.write(raw::nvpm_bar { start: BAR, last: BAR + BAR_LEN - 1, bus_offset: w().bus_offset, device: 0x10 })
    };
    0
}

#[no_mangle]
extern "C" fn nvpm_forget_gpus() {}

#[no_mangle]
extern "C" fn nvpm_dma_map(device: *mut raw::device, address: u64, length: u64, dma: *mut u64) -> c_int {
    pci(device);
    if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
        fail("maps for DMA, which may allocate, under a state or registry lock".into());
    }
    let first = !w().maps.iter().any(|m| m.live);
    if first && w().fault(Fault::DmaMap) || !first && w().fault(Fault::SecondDmaMap) {
        return gpu::EIO;
    }
    let Some(umem) = rt().me().umem else { fail("maps for DMA outside dma_map".into()) };
    let world = w();
    let chance = world.first_iova_is_physical && !world.maps.iter().any(|m| m.live);
    let at = if world.iommu && !chance { (64 << 32) + ((world.maps.len() as u64) << 28) } else { address };
    world.maps.push(DmaMap { phys: address, len: length, dma: at, live: true, umem });
    // SAFETY: The caller's place.
    unsafe { dma.write(at) };
    0
}

#[no_mangle]
extern "C" fn nvpm_dma_unmap(device: *mut raw::device, dma: u64, length: u64) {
    pci(device);
    let Some(at) = w().maps.iter().position(|m| m.live && m.dma == dma && m.len == length) else {
        fail(format!("unmaps {dma:#x}, which is not mapped (any more)"));
    };
    let umem = w().maps[at].umem;
    for &pin in &w().core.umems[umem].pins {
        rt::touch(NIC + pin as u64, true, "unmap for DMA");
    }
    w().maps[at].live = false;
    for &pin in &w().core.umems[umem].pins {
        rdma::check_dma(pin, "its DMA mapping is gone");
    }
}

#[no_mangle]
extern "C" fn nvpm_sg_alloc(entries: i32, _room: *mut raw::nvpm_sg_room) -> *mut raw::sg_table {
    if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
        fail("allocates an sg_table under a state or registry lock".into());
    }
    let umem = rt().me().umem;
    let world = w();
    if world.fault(Fault::SgAlloc) {
        return std::ptr::null_mut();
    }
    world.sgs.push(Sg { entries: vec![(0, 0); entries as usize], freed: false, umem });
    Box::into_raw(Box::new(SgTable { number: world.sgs.len() - 1 })).cast()
}

#[no_mangle]
extern "C" fn nvpm_sg_free(table: *mut raw::sg_table) {
    // SAFETY: From `nvpm_sg_alloc()`; leaked so that a second free can be told.
    let number = unsafe { (*table.cast::<SgTable>()).number };
    rt::touch(SG + number as u64, true, "free an sg_table");
    let sg = &mut w().sgs[number];
    if std::mem::replace(&mut sg.freed, true) {
        fail("frees an sg_table twice".into());
    }
}

fn entry(number: usize, index: usize) -> *mut raw::scatterlist {
    std::ptr::without_provenance_mut(number << 32 | (index + 1))
}

#[no_mangle]
extern "C" fn nvpm_sg_first(table: *mut raw::sg_table) -> *mut raw::scatterlist {
    // SAFETY: From `nvpm_sg_alloc()`.
    entry(unsafe { (*table.cast::<SgTable>()).number }, 0)
}

#[no_mangle]
extern "C" fn nvpm_sg_set(at: *mut raw::scatterlist, dma: u64, length: u32) -> *mut raw::scatterlist {
    let (number, index) = (at.addr() >> 32, (at.addr() & 0xffff_ffff) - 1);
    let sg = &mut w().sgs[number];
    if sg.freed {
        fail("writes an sg_table that is freed".into());
    }
    sg.entries[index] = (dma, length);
    if index + 1 < sg.entries.len() {
        entry(number, index + 1)
    } else {
        std::ptr::null_mut()
    }
}

#[no_mangle]
extern "C" fn nvpm_sg_publish(to: *mut raw::sg_table, from: *const raw::sg_table) -> i32 {
    // SAFETY: Both are tables of the model.
    let number = unsafe {
        (*to.cast::<SgTable>()).number = (*from.cast::<SgTable>()).number;
        (*to.cast::<SgTable>()).number
    };
    i32::try_from(w().sgs[number].entries.len()).expect("few")
}
