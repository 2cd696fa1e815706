// SPDX-License-Identifier: GPL-2.0
/*
 * The C half of the pin layer; see shim.h. nvidia-peermem and the sample driver
 * each have it in their module.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include "neighbours.h"
#include "shim.h"

int nvpm_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void nvpm_module_put(void)
{
	module_put(THIS_MODULE);
}

/* The provider, which may be missing. */

typeof(nvidia_p2p_get_pages) nvidia_p2p_get_pages __weak;
typeof(nvidia_p2p_put_pages) nvidia_p2p_put_pages __weak;
typeof(nvidia_p2p_get_pages_persistent) nvidia_p2p_get_pages_persistent __weak;
typeof(nvidia_p2p_put_pages_persistent) nvidia_p2p_put_pages_persistent __weak;
typeof(nvidia_p2p_dma_map_pages) nvidia_p2p_dma_map_pages __weak;
typeof(nvidia_p2p_dma_unmap_pages) nvidia_p2p_dma_unmap_pages __weak;

static struct {
	typeof(nvidia_p2p_get_pages) *nvidia_p2p_get_pages;
	typeof(nvidia_p2p_put_pages) *nvidia_p2p_put_pages;
	typeof(nvidia_p2p_get_pages_persistent) *nvidia_p2p_get_pages_persistent;
	typeof(nvidia_p2p_put_pages_persistent) *nvidia_p2p_put_pages_persistent;
	typeof(nvidia_p2p_dma_map_pages) *nvidia_p2p_dma_map_pages;
	typeof(nvidia_p2p_dma_unmap_pages) *nvidia_p2p_dma_unmap_pages;
} nvpm_neighbours __ro_after_init = {
	.nvidia_p2p_get_pages = nvidia_p2p_get_pages,
	.nvidia_p2p_put_pages = nvidia_p2p_put_pages,
	.nvidia_p2p_get_pages_persistent = nvidia_p2p_get_pages_persistent,
	.nvidia_p2p_put_pages_persistent = nvidia_p2p_put_pages_persistent,
	.nvidia_p2p_dma_map_pages = nvidia_p2p_dma_map_pages,
	.nvidia_p2p_dma_unmap_pages = nvidia_p2p_dma_unmap_pages,
};

int nvpm_provider_present(void)
{
	if (!NVPM_AT(nvidia_p2p_get_pages) || !NVPM_AT(nvidia_p2p_put_pages) ||
	    !NVPM_AT(nvidia_p2p_dma_map_pages) || !NVPM_AT(nvidia_p2p_dma_unmap_pages))
		return 0;
	return NVPM_AT(nvidia_p2p_get_pages_persistent) &&
	       NVPM_AT(nvidia_p2p_put_pages_persistent) ? 1 : -ENOTSUPP;
}

int nvpm_p2p_get(uint64_t va, uint64_t length,
		 struct nvidia_p2p_page_table **table, uint64_t ticket)
{
	return NVPM_CALL(nvidia_p2p_get_pages)(0, 0, va, length, table, nvpm_free_callback,
				    (void *)(uintptr_t)ticket);
}

int nvpm_p2p_put(uint64_t va, struct nvidia_p2p_page_table *table)
{
	return NVPM_CALL(nvidia_p2p_put_pages)(0, 0, va, table);
}

int nvpm_p2p_get_persistent(uint64_t va, uint64_t length,
			    struct nvidia_p2p_page_table **table)
{
	return NVPM_CALL(nvidia_p2p_get_pages_persistent)(va, length, table, 0);
}

int nvpm_p2p_put_persistent(uint64_t va, struct nvidia_p2p_page_table *table)
{
	return NVPM_CALL(nvidia_p2p_put_pages_persistent)(va, table, 0);
}

/* @dev must be a PCI device: nvpm_device_is_pci() is asked first. */
int nvpm_p2p_dma_map(struct device *dev, struct nvidia_p2p_page_table *table,
		     struct nvidia_p2p_dma_mapping **mapping)
{
	return NVPM_CALL(nvidia_p2p_dma_map_pages)(to_pci_dev(dev), table, mapping);
}

int nvpm_p2p_dma_unmap(struct device *dev, struct nvidia_p2p_page_table *table,
		       struct nvidia_p2p_dma_mapping *mapping)
{
	return NVPM_CALL(nvidia_p2p_dma_unmap_pages)(to_pci_dev(dev), table, mapping);
}

/*
 * The put gate. A semaphore and not a mutex: gets of different processes run
 * in parallel.
 */

static DECLARE_RWSEM(nvpm_put_gate);

void nvpm_put_gate_lock_shared(void)
{
	down_read(&nvpm_put_gate);
}

void nvpm_put_gate_unlock_shared(void)
{
	up_read(&nvpm_put_gate);
}

void nvpm_put_gate_lock_exclusive(void)
{
	down_write(&nvpm_put_gate);
}

void nvpm_put_gate_unlock_exclusive(void)
{
	up_write(&nvpm_put_gate);
}

/* Tasks and time. */

/*
 * A thread group is its number plus the start of its leader: exec by another
 * thread hands both on, and a reused number comes with another start. (struct
 * pid would say it in one word, but put_pid() is a GPL-only export.)
 */
void nvpm_current_process(struct nvpm_process *process)
{
	process->tgid = current->tgid;
	process->start_ns = READ_ONCE(current->group_leader)->start_boottime;
}

void nvpm_current_comm(uint8_t comm[16])
{
	static_assert(TASK_COMM_LEN == 16);

	/* The kernel pads it with zeros. A rename in between mixes two names. */
	memcpy(comm, current->comm, TASK_COMM_LEN);
	comm[TASK_COMM_LEN - 1] = 0;
}

/* To be compared only, and only while that task runs. */
uint64_t nvpm_current_task(void)
{
	return (uintptr_t)current;
}

/* ktime_get() is a GPL-only export, this is not. */
uint64_t nvpm_now_ns(void)
{
	struct timespec64 now;

	ktime_get_raw_ts64(&now);
	return timespec64_to_ns(&now);
}

uint64_t nvpm_real_ns(void)
{
	struct timespec64 now;

	ktime_get_real_ts64(&now);
	return timespec64_to_ns(&now);
}

void nvpm_cond_resched(void)
{
	cond_resched();
}

void nvpm_pause(void)
{
	msleep(20);
}

void nvpm_preempt_disable(void)
{
	preempt_disable();
}

void nvpm_preempt_enable(void)
{
	preempt_enable();
}

int nvpm_is_killed(void)
{
	return fatal_signal_pending(current);
}

/* DMA. */

uint64_t nvpm_page_size(void)
{
	return PAGE_SIZE;
}

int nvpm_device_is_pci(struct device *dev)
{
	return dev_is_pci(dev);
}

uint64_t nvpm_device_segment_limit(struct device *dev)
{
	return dma_get_max_seg_size(dev);
}

/*
 * The kernel's DMA debugging takes the eighth mapping of an address for a leak.
 * Each registration of a buffer maps it, so it is told that this is meant, where
 * the kernel has a flag for that.
 */
#ifdef DMA_ATTR_DEBUGGING_IGNORE_CACHELINES
#define NVPM_DMA_ATTRS DMA_ATTR_DEBUGGING_IGNORE_CACHELINES
#else
#define NVPM_DMA_ATTRS 0
#endif

/* Never under a state lock: an IOMMU driver may allocate page tables. */
int nvpm_dma_map(struct device *dev, uint64_t address, uint64_t length,
		 uint64_t *dma)
{
	dma_addr_t mapped = dma_map_resource(dev, address, length,
					     DMA_BIDIRECTIONAL, NVPM_DMA_ATTRS);

	if (dma_mapping_error(dev, mapped))
		return -EIO;
	*dma = mapped;
	return 0;
}

/* Does not sleep. */
void nvpm_dma_unmap(struct device *dev, uint64_t dma, uint64_t length)
{
	dma_unmap_resource(dev, dma, length, DMA_BIDIRECTIONAL, NVPM_DMA_ATTRS);
}

/* sg_table. */

struct nvpm_sg_one {
	struct sg_table head;
	struct scatterlist entry;
};

static_assert(sizeof(struct nvpm_sg_one) <= sizeof(struct nvpm_sg_room));

/*
 * A table of exactly @entries, orig_nents == nents; NULL without memory. A
 * table of one entry is in @room, which stays until nvpm_sg_free().
 */
struct sg_table *nvpm_sg_alloc(int entries, struct nvpm_sg_room *room)
{
	struct nvpm_sg_one *one = (struct nvpm_sg_one *)room;
	struct sg_table *table;

	if (entries == 1) {
		one->entry = (struct scatterlist){ };
		sg_mark_end(&one->entry);
		one->head.sgl = &one->entry;
		one->head.nents = 1;
		one->head.orig_nents = 1;
		return &one->head;
	}
	table = kmalloc(sizeof(*table), GFP_KERNEL);
	if (table && sg_alloc_table(table, entries, GFP_KERNEL)) {
		kfree(table);
		table = NULL;
	}
	return table;
}

void nvpm_sg_free(struct sg_table *table)
{
	if (table->orig_nents == 1)
		return;
	sg_free_table(table);
	kfree(table);
}

struct scatterlist *nvpm_sg_first(struct sg_table *table)
{
	return table->sgl;
}

/*
 * Fills one entry and returns the next, NULL behind the last. There is no
 * struct page behind it, so the CPU's length stays 0, as it was allocated, and
 * only the DMA length is set: ib_umem_copy_from() of a queue's umem then
 * copies nothing, where it would follow the missing page for as long as the
 * CPU's length says.
 */
#ifndef CONFIG_NEED_SG_DMA_LENGTH
#error "sg_dma_len() is the CPU's length on this architecture"
#endif

struct scatterlist *nvpm_sg_set(struct scatterlist *entry, uint64_t dma,
				uint32_t length)
{
	sg_dma_address(entry) = dma;
	sg_dma_len(entry) = length;
	return sg_next(entry);
}

/* Returns the number of entries. */
int nvpm_sg_publish(struct sg_table *to, const struct sg_table *from)
{
	*to = *from;
	return from->nents;
}
