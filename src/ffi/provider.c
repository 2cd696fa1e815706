// SPDX-License-Identifier: GPL-2.0
/* The provider, which may be missing, and the gate around its gets and puts; see shim.h. */
#include <linux/pci.h>
#include <linux/rwsem.h>

#include "neighbours.h"
#include "shim.h"

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
