// SPDX-License-Identifier: GPL-2.0

//! The reasons of refusals in the words of this module: for admins of RDMA, with our parameters.

use crate::observe::reason::Reason;

/// Says what is wrong, and what to do about it.
pub(crate) fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::NotSupported => {
            "the GPU driver cannot pin this memory on this platform (vGPU, MIG, confidential computing; from driver 590 on localized memory of coherent platforms); use dma-buf"
        }
        Reason::NotPersistent => {
            "the GPU driver cannot pin this memory persistently on this platform (vGPU, MIG, confidential computing; from driver 590 on localized memory of coherent platforms); load with revocable_fallback=1, or use dma-buf"
        }
        Reason::LeavesAllocation => {
            "it starts in GPU memory but leaves its allocation, which revocable pins cannot follow; register each allocation by itself, or load with persistent_api_support=1 if it is 0"
        }
        Reason::PersistentFault => {
            "the GPU driver failed to pin it persistently (EIO), as it does where it cannot share an allocation: load with revocable_fallback=1, or use dma-buf; see the driver's NVRM lines in the kernel log"
        }
        Reason::Freed => "the memory was freed while it was being registered; keep it until ibv_reg_mr() has returned",
        Reason::OutsideBar => {
            "it is coherent memory, or lies in no BAR of a GPU, which the GPU driver maps only in pages of 64 KiB and for persistent pins: use dma-buf, or load with persistent_api_support=1 if it is 0 (pages of 4 KiB stay refused)"
        }
        Reason::NoDevice => "the RDMA device named no DMA device; a software device cannot reach a GPU",
        Reason::NotPci => {
            "it is coherent memory, or lies in no BAR of a GPU, and the GPU driver maps such memory for PCI devices only; use a PCI NIC"
        }
        Reason::Topology => {
            "the GPU driver says that this GPU and this NIC cannot reach each other on this platform (coherent memory: or it is in CDMM mode, in which drivers from 595 on map none); use another NIC, see peermemctl topo, or dma-buf"
        }
        Reason::DmaMapping => {
            "it could not be mapped for the NIC; see IOMMU and DMA lines in the kernel log. Without any: swiotlb=force, and from Linux 7.2 on an encrypted guest (SEV, TDX), refuse to map the memory of a device"
        }
        Reason::Order => {
            "the RDMA core asked for another range than it acquired, or out of order; update the RDMA core (DOCA-OFED)"
        }
        // These are the same for every driver.
        other => other.words(),
    }
}
