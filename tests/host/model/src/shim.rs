// SPDX-License-Identifier: GPL-2.0

//! Says how the C functions of src/ffi/shim.h answer in the world of an execution.

use crate::gpu::{self, BAR, BAR_LEN};
use crate::raw;
use crate::rdma;
use crate::rt::{self, fail, rt, Rank};
use crate::world::{self, w, DmaMap, Fault, Mode, Sg, SgTable, World, MODULE, NIC, PROC, PUT_GATE, SG};
use kernel::ffi::{c_int, c_void};
use shim::{Host, Lists};

shim::host!(World);
shim::lists!(World);

fn pci(device: *mut raw::device) {
    if w().device_gone {
        fail(format!("uses the NIC's device {device:?} after it is gone"));
    }
}

fn entry(number: usize, index: usize) -> *mut raw::scatterlist {
    std::ptr::without_provenance_mut(number << 32 | (index + 1))
}

impl Host for World {
    fn nvpm_param_persistent_api_support() -> c_int {
        (w().mode != Mode::Legacy).into()
    }

    fn nvpm_param_revocable_fallback() -> c_int {
        (w().mode == Mode::Fallback).into()
    }

    fn nvpm_module_get() -> c_int {
        rt::touch(MODULE, false, "try_module_get");
        if w().going {
            return 0;
        }
        w().refs += 1;
        1
    }

    fn nvpm_module_put() {
        world::module_put();
    }

    unsafe fn nvpm_core_register(
        client: *const raw::peer_memory_client,
        invalidate: *mut raw::invalidate_peer_memory,
    ) -> *mut c_void {
        rdma::register_client(client, invalidate)
    }

    fn nvpm_core_unregister(handle: *mut c_void) {
        rdma::unregister_client(handle);
    }

    unsafe fn nvpm_p2p_get(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table, ticket: u64) -> c_int {
        gpu::get(false, true, va, length, table, None, ticket as usize)
    }

    fn nvpm_p2p_put(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
        gpu::put(true, table)
    }

    unsafe fn nvpm_p2p_get_persistent(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table) -> c_int {
        gpu::get(true, true, va, length, table, None, 0)
    }

    fn nvpm_p2p_put_persistent(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
        gpu::put_persistent(table)
    }

    unsafe fn nvpm_p2p_dma_map(
        device: *mut raw::device,
        table: *mut raw::nvidia_p2p_page_table,
        mapping: *mut *mut raw::nvidia_p2p_dma_mapping,
    ) -> c_int {
        pci(device);
        gpu::dma_map(table, mapping)
    }

    fn nvpm_p2p_dma_unmap(
        device: *mut raw::device,
        _table: *mut raw::nvidia_p2p_page_table,
        _mapping: *mut raw::nvidia_p2p_dma_mapping,
    ) -> c_int {
        pci(device);
        0
    }

    fn nvpm_put_gate_lock_shared() {
        rt::lock_shared(Rank::PutGate, PUT_GATE, "put gate (shared)");
    }

    fn nvpm_put_gate_unlock_shared() {
        rt::unlock_shared(PUT_GATE);
    }

    fn nvpm_put_gate_lock_exclusive() {
        rt::lock(Rank::PutGate, PUT_GATE, "put gate (exclusive)");
    }

    fn nvpm_put_gate_unlock_exclusive() {
        rt::unlock(PUT_GATE);
    }

    unsafe fn nvpm_current_process(process: *mut raw::nvpm_process) {
        let me = &w().processes[rt().me().process];
        // SAFETY: The caller's place.
        unsafe { process.write(raw::nvpm_process { start_ns: me.start_ns, tgid: me.tgid }) };
    }

    fn nvpm_current_task() -> u64 {
        rt().current as u64
    }

    fn nvpm_now_ns() -> u64 {
        // The clock stands still, because measured times decide nothing.
        1
    }

    fn nvpm_proc_create() -> c_int {
        rt::touch(PROC, true, "the proc files appear");
        w().proc_there = true;
        let no_readers = w().no_readers;
        rt().flags[no_readers] = true;
        0
    }

    fn nvpm_proc_remove() {
        rt::touch(PROC, true, "the proc files vanish");
        w().proc_there = false;
        rt::wait_flag(w().no_readers, "wait until nobody reads the proc files");
    }

    unsafe fn nvpm_proc_write(seq: *mut raw::seq_file, text: *const u8, length: usize) {
        if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
            fail("writes a proc file under a lock of its own".into());
        }
        if !seq.is_null() {
            // SAFETY: A piece of text of the module, for the reader below.
            unsafe { (*seq.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(text, length)) };
        }
    }

    fn nvpm_preempt_disable() {
        rt().me().preemptible = false;
    }

    fn nvpm_preempt_enable() {
        rt().me().preemptible = true;
    }

    fn nvpm_is_killed() -> c_int {
        w().fault(Fault::Killed).into()
    }

    fn nvpm_device_is_pci(device: *mut raw::device) -> c_int {
        pci(device);
        1
    }

    fn nvpm_device_number(device: *mut raw::device) -> u64 {
        pci(device);
        w().nic
    }

    fn nvpm_device_segment_limit(device: *mut raw::device) -> u64 {
        pci(device);
        2 << 30
    }

    unsafe fn nvpm_provider_bar(address: u64, bar: *mut raw::nvpm_bar) -> c_int {
        if !(BAR..BAR + BAR_LEN).contains(&address) {
            return gpu::ENODEV;
        }
        // SAFETY: The caller's place.
        unsafe {
            bar.write(raw::nvpm_bar { start: BAR, last: BAR + BAR_LEN - 1, bus_offset: w().bus_offset, device: 0x10 })
        };
        0
    }

    unsafe fn nvpm_dma_map(device: *mut raw::device, address: u64, length: u64, dma: *mut u64) -> c_int {
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

    fn nvpm_dma_unmap(device: *mut raw::device, dma: u64, length: u64) {
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
}

impl Lists for World {
    fn nvpm_sg_alloc(entries: c_int, _room: *mut raw::nvpm_sg_room) -> *mut raw::sg_table {
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

    unsafe fn nvpm_sg_free(table: *mut raw::sg_table) {
        // SAFETY: From `nvpm_sg_alloc()`; leaked so that a second free can be told.
        let number = unsafe { (*table.cast::<SgTable>()).number };
        rt::touch(SG + number as u64, true, "free an sg_table");
        let sg = &mut w().sgs[number];
        if std::mem::replace(&mut sg.freed, true) {
            fail("frees an sg_table twice".into());
        }
    }

    unsafe fn nvpm_sg_first(table: *mut raw::sg_table) -> *mut raw::scatterlist {
        // SAFETY: From `nvpm_sg_alloc()`.
        entry(unsafe { (*table.cast::<SgTable>()).number }, 0)
    }

    unsafe fn nvpm_sg_set(at: *mut raw::scatterlist, dma: u64, length: u32) -> *mut raw::scatterlist {
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

    unsafe fn nvpm_sg_publish(to: *mut raw::sg_table, from: *const raw::sg_table) -> c_int {
        // SAFETY: Both are tables of the model.
        let number = unsafe {
            (*to.cast::<SgTable>()).number = (*from.cast::<SgTable>()).number;
            (*to.cast::<SgTable>()).number
        };
        c_int::try_from(w().sgs[number].entries.len()).expect("few")
    }
}
