// SPDX-License-Identifier: GPL-2.0
/*
 * nvidia.ko of the closed flavour: it has NVIDIA's licence and plain exports
 * (docs/facts.md#licence), so that tests can show which modules may not link to it. A module with
 * that licence may not call debugfs or the fabric. So nvlab_core.ko does the work, which may use
 * what GPL modules may use: NVIDIA's open front, under names of its own (Kbuild). This flavour has
 * no dma-buf.
 */
#include <linux/export.h>
#include <linux/module.h>

#include "closed.h"
#include "nvlab.h"

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 u64 length, struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data)
{
	return nvlab_p2p_get_pages(p2p_token, va_space, virtual_address, length,
				   page_table, free_callback, data);
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	return nvlab_p2p_put_pages(p2p_token, va_space, virtual_address,
				   page_table);
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				    struct nvidia_p2p_page_table **page_table,
				    u32 flags)
{
	return nvlab_p2p_get_pages_persistent(virtual_address, length,
					      page_table, flags);
}
EXPORT_SYMBOL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(u64 virtual_address,
				    struct nvidia_p2p_page_table *page_table,
				    u32 flags)
{
	return nvlab_p2p_put_pages_persistent(virtual_address, page_table,
					      flags);
}
EXPORT_SYMBOL(nvidia_p2p_put_pages_persistent);

int nvidia_p2p_dma_map_pages(struct pci_dev *peer,
			     struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping)
{
	return nvlab_p2p_dma_map_pages(peer, page_table, dma_mapping);
}
EXPORT_SYMBOL(nvidia_p2p_dma_map_pages);

int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
			       struct nvidia_p2p_page_table *page_table,
			       struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return nvlab_p2p_dma_unmap_pages(peer, page_table, dma_mapping);
}
EXPORT_SYMBOL(nvidia_p2p_dma_unmap_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);

int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_dma_mapping);

int nvidia_p2p_init_mapping(u64 p2p_token, struct nvidia_p2p_params *params,
			    void (*destroy_callback)(void *data), void *data)
{
	return -ENOTSUPP;
}
EXPORT_SYMBOL(nvidia_p2p_init_mapping);

int nvidia_p2p_destroy_mapping(u64 p2p_token)
{
	return -ENOTSUPP;
}
EXPORT_SYMBOL(nvidia_p2p_destroy_mapping);

MODULE_DESCRIPTION("Lab stand-in for NVIDIA's kernel driver, closed flavour");
MODULE_LICENSE("NVIDIA");
MODULE_VERSION(NVLAB_VERSION);
MODULE_INFO(lab_driver, NVLAB_DRIVER);
