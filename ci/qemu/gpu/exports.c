// SPDX-License-Identifier: GPL-2.0
/*
 * The exported nvidia_p2p_* functions: those of NVIDIA's nv-p2p.c, which the
 * compiler's command line renames (Kbuild), with counters, times, hold points and
 * faults around each. In the odd flavour odd.c comes between, by the same means. In the
 * closed one these are nvlab_core.ko's, under names of its own, and closed.c's call them.
 *
 * A put that fails does so in RM (front.c), and the rest is nv-p2p.c's: it warns,
 * and what it forgets is only noted here. nv-p2p.c never calls a callback twice: that
 * fault is for the module's defences alone.
 */
#include <linux/error-injection.h>

#include "nv-linux.h"
#include "nv-p2p.h"

#include "lab_mark.h"
#include "nvlab.h"
#include "front.h"

#ifdef NVLAB_CLOSED
#define NVLAB_EXPORT(name)	EXPORT_SYMBOL(name)
#else
#define NVLAB_EXPORT(name)	EXPORT_SYMBOL_GPL(name)
#endif

static void call_client(const struct nvlab_callback *callback)
{
	nvlab_count(NVLAB_ACCOUNT_CALLBACKS);
	callback->client(callback->client_data);
}

/* Calls the client. nv-p2p.c calls this in its place, before it frees the table. */
static void call(void *data)
{
	struct nvlab_callback *callback = data;
	u64 start = ktime_get_ns();

	lab_mark_begin();
	call_client(callback);
	lab_mark_end();
	nvlab_add_since(NVLAB_ACCOUNT_CALLBACK_NS, start);
	if (nvlab_fault(NVLAB_F_CALLBACK_DOUBLE))
		call_client(callback);
	nvlab_front_poison(callback->table);
}

static int get(u64 token, u32 va_space, u64 va, u64 len, struct nvidia_p2p_page_table **table,
	       void (*free_callback)(void *data), void *data)
{
	struct nvlab_callback *callback;
	int err;

	*table = NULL;
	if (!free_callback)
		return nvidia_front_get_pages(token, va_space, va, len, table, NULL, data);
	callback = kzalloc_obj(*callback);
	if (!callback)
		return -ENOMEM;
	callback->client = free_callback;
	callback->client_data = data;
	err = nvlab_front_get_begins(callback);
	if (!err) {
		err = nvidia_front_get_pages(token, va_space, va, len, table, call, callback);
		nvlab_front_get_ends();
	}
	/* After a success, the callback belongs to the table, which may be gone already. */
	if (err)
		kfree(callback);
	return err;
}

static void ended(int err, enum nvlab_counter failures, enum nvlab_counter ns, u64 start)
{
	if (err)
		nvlab_count(failures);
	nvlab_add_since(ns, start);
}

noinline int nvidia_p2p_get_pages(uint64_t token, uint32_t va_space, uint64_t va, uint64_t len,
				  struct nvidia_p2p_page_table **table,
				  void (*free_callback)(void *data), void *data)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_GETS);
	err = get(token, va_space, va, len, table, free_callback, data);
	if (!err)
		nvlab_hold(NVLAB_H_GET_DONE);
	ended(err, NVLAB_ACCOUNT_GET_FAILURES, NVLAB_ACCOUNT_GET_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_get_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_get_pages, ERRNO);

noinline int nvidia_p2p_get_pages_persistent(uint64_t va, uint64_t len,
					     struct nvidia_p2p_page_table **table,
					     uint32_t flags)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_PERSISTENT_GETS);
	err = nvidia_front_get_pages_persistent(va, len, table, flags);
	if (!err)
		nvlab_hold(NVLAB_H_PGET_DONE);
	ended(err, NVLAB_ACCOUNT_PERSISTENT_GET_FAILURES, NVLAB_ACCOUNT_GET_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_get_pages_persistent);
ALLOW_ERROR_INJECTION(nvidia_p2p_get_pages_persistent, ERRNO);

noinline int nvidia_p2p_put_pages(uint64_t token, uint32_t va_space, uint64_t va,
				  struct nvidia_p2p_page_table *table)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_PUTS);
	nvlab_hold(NVLAB_H_PUT_BEFORE);
	err = nvidia_front_put_pages(token, va_space, va, table);
	ended(err, NVLAB_ACCOUNT_PUT_FAILURES, NVLAB_ACCOUNT_PUT_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_put_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_put_pages, ERRNO);

noinline int nvidia_p2p_put_pages_persistent(uint64_t va, struct nvidia_p2p_page_table *table,
					     uint32_t flags)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_PERSISTENT_PUTS);
	nvlab_hold(NVLAB_H_PPUT_BEFORE);
	err = nvidia_front_put_pages_persistent(va, table, flags);
	/* If a pin could not be put, nobody frees its table. */
	if (err && table && !flags)
		nvlab_table_lost(table);
	nvlab_hold(NVLAB_H_PPUT_AFTER);
	ended(err, NVLAB_ACCOUNT_PERSISTENT_PUT_FAILURES, NVLAB_ACCOUNT_PUT_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_put_pages_persistent);
ALLOW_ERROR_INJECTION(nvidia_p2p_put_pages_persistent, ERRNO);

noinline int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
				      struct nvidia_p2p_dma_mapping **mapping)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_DMA_MAPS);
	/* After the call the table may be gone, and the mapping with it. */
	nvlab_table_mapped(table, 1);
	err = nvidia_front_dma_map_pages(peer, table, mapping);
	if (err)
		nvlab_table_mapped(table, -1);
	nvlab_add_since(NVLAB_ACCOUNT_MAP_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_dma_map_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_dma_map_pages, ERRNO);

noinline int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
					struct nvidia_p2p_page_table *table,
					struct nvidia_p2p_dma_mapping *mapping)
{
	u64 start = ktime_get_ns();
	/*
	 * nv-p2p.c also returns 0 if there is no such mapping. That shows only if the table has
	 * none.
	 */
	unsigned int before = nvlab_table_mappings(table);
	bool lacks = nvlab_fault(NVLAB_F_UNMAP_NOMEM);
	int err;

	if (lacks)
		nvlab_front_unmaps(true);
	err = nvidia_front_dma_unmap_pages(peer, table, mapping);
	if (lacks)
		nvlab_front_unmaps(false);
	if (!err && before)
		nvlab_table_mapped(table, -1);
	nvlab_count(NVLAB_ACCOUNT_DMA_UNMAPS);
	nvlab_add_since(NVLAB_ACCOUNT_UNMAP_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_dma_unmap_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_dma_unmap_pages, ERRNO);
