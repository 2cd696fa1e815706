/* SPDX-License-Identifier: GPL-2.0 */
/*
 * lab_pcie: the PCIe fabric of the lab, between a software NIC (rdma_rxe) and
 * the BAR of a software GPU.
 *
 * What it models. A NIC's DMA engine puts a bus address on PCIe. The IOMMU in
 * front of the NIC translates it through the NIC's own domain, or faults; the
 * BAR that claims the translated address answers, or nobody does
 * (docs/facts.md#map-resource). Therefore the initiator never sees a kernel
 * pointer of the memory, an address that was not mapped for this very device
 * faults, and the endpoint sees every access.
 *
 * What it leaves out. Time, ordering and posted writes: an access is done when
 * the call returns. The IOMMU itself: a translation is a walk of the kernel's
 * domain for this device, which QEMU's IOMMU never hears of, so a fault is the
 * domain's hole, not a DMAR event. Permissions: a translation is good for both
 * directions (the suite iommu asks dma-debug for each mapping's direction). A
 * stale IOTLB: an unmapped address faults at once, also where lazy invalidation
 * would let it live for 10 ms. ATS and peer-to-peer routing below a switch
 * (ACS). Host memory: RAM is unclaimed here, unless a GPU declares it as its
 * coherent memory (lab_pcie_add_memory()).
 */
#ifndef LAB_PCIE_H
#define LAB_PCIE_H

#include <linux/types.h>

struct device;
struct pci_dev;

/**
 * struct lab_pcie_bar_ops - what an endpoint says about accesses to its BAR
 * @access: called before any byte moves, once per piece of an access (a piece
 *	never crosses an IOMMU page of the initiator). 0: go on. A negative
 *	errno: the endpoint does not answer, no byte of the piece moves and the
 *	initiator gets that errno. May be called in any context except hard
 *	interrupt, inside an RCU read section: must not sleep.
 * @memory: after @access, where the piece that begins at @offset is; NULL:
 *	nothing is there, a write is lost and a read finds ones. Without this
 *	function the BAR is its memory.
 */
struct lab_pcie_bar_ops {
	int (*access)(void *priv, u64 offset, size_t len, bool write);
	void *(*memory)(void *priv, u64 offset);
};

/**
 * lab_pcie_add_bar - let a BAR answer
 * @pdev: the endpoint
 * @bar: number of its BAR, a memory BAR
 * @kva: where its bytes are mapped for the CPU, the whole BAR, plain memory
 *	(memremap(), not ioremap())
 * @ops: may be NULL: every access goes on
 * @priv: handed to @ops
 *
 * Return: 0; -EINVAL for a BAR that is not there; -EEXIST where the address
 * range overlaps one that answers already; -ENOMEM.
 */
int lab_pcie_add_bar(struct pci_dev *pdev, int bar, void *kva,
		     const struct lab_pcie_bar_ops *ops, void *priv);

/* When it returns, no access is running in @ops and none will start. Sleeps. */
void lab_pcie_remove_bar(struct pci_dev *pdev, int bar);

/*
 * Add and remove coherent memory of a GPU (Grace-Hopper), which is no BAR but memory of the
 * machine: @size bytes at the physical address @start. The rest is as with lab_pcie_add_bar().
 * Removing does not wait: call synchronize_rcu() before the memory is freed, once for any number of
 * removals. Offsets given to @ops count from @start.
 */
int lab_pcie_add_memory(phys_addr_t start, size_t size, void *kva,
			const struct lab_pcie_bar_ops *ops, void *priv);
void lab_pcie_remove_memory(phys_addr_t start);

/*
 * Make one DMA access of @initiator at the bus address @addr, in any context except hard interrupt.
 * Return 0, or -EFAULT for an address that the initiator's IOMMU does not translate or that no BAR
 * claims, or what the endpoint said. After an error a leading part of the bytes may have moved, as
 * on a real bus.
 */
int lab_pcie_write(struct device *initiator, dma_addr_t addr, const void *buf,
		   size_t len);
int lab_pcie_read(struct device *initiator, dma_addr_t addr, void *buf,
		  size_t len);

enum lab_pcie_atomic_op {
	LAB_PCIE_FETCH_ADD,	/* *addr += operand */
	LAB_PCIE_COMPARE_SWAP,	/* if (*addr == compare) *addr = operand */
};

/* Makes a PCIe AtomicOp of 8 bytes. Returns -EINVAL when @addr is not 8-byte aligned. */
int lab_pcie_atomic(struct device *initiator, dma_addr_t addr,
		    enum lab_pcie_atomic_op op, u64 operand, u64 compare,
		    u64 *old);

#endif
