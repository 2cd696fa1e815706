/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The exports of nvidia.ko. The six that bindings/nv_p2p.h describes come from
 * there; the rest is for modules that were written against NVIDIA's header.
 *
 * Closed flavour: a module with NVIDIA's licence may not call debugfs or the
 * fabric, so the work stays in nvlab_core.ko under names of its own and
 * nvidia.ko forwards to it (closed.c).
 */
#ifndef NVLAB_P2P_H
#define NVLAB_P2P_H

#include <linux/types.h>

struct nvidia_p2p_dma_mapping;
struct nvidia_p2p_page_table;
struct nvidia_p2p_params;
struct pci_dev;

#ifdef NVLAB_FORWARD
int nvlab_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			u64 length, struct nvidia_p2p_page_table **page_table,
			void (*free_callback)(void *data), void *data);
int nvlab_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			struct nvidia_p2p_page_table *page_table);
int nvlab_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				   struct nvidia_p2p_page_table **page_table,
				   u32 flags);
int nvlab_p2p_put_pages_persistent(u64 virtual_address,
				   struct nvidia_p2p_page_table *page_table,
				   u32 flags);
int nvlab_p2p_dma_map_pages(struct pci_dev *peer,
			    struct nvidia_p2p_page_table *page_table,
			    struct nvidia_p2p_dma_mapping **dma_mapping);
int nvlab_p2p_dma_unmap_pages(struct pci_dev *peer,
			      struct nvidia_p2p_page_table *page_table,
			      struct nvidia_p2p_dma_mapping *dma_mapping);
#elif defined(NVLAB_CLOSED_CORE)
#define nvidia_p2p_get_pages		nvlab_p2p_get_pages
#define nvidia_p2p_put_pages		nvlab_p2p_put_pages
#define nvidia_p2p_get_pages_persistent	nvlab_p2p_get_pages_persistent
#define nvidia_p2p_put_pages_persistent	nvlab_p2p_put_pages_persistent
#define nvidia_p2p_dma_map_pages	nvlab_p2p_dma_map_pages
#define nvidia_p2p_dma_unmap_pages	nvlab_p2p_dma_unmap_pages
#endif

#ifdef NVLAB_CLOSED_CORE
#define NVLAB_EXPORT(name)		EXPORT_SYMBOL(name)
#else
#define NVLAB_EXPORT(name)		EXPORT_SYMBOL_GPL(name)
#endif

#include "nv_p2p.h"

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping);
int nvidia_p2p_init_mapping(u64 p2p_token, struct nvidia_p2p_params *params,
			    void (*destroy_callback)(void *data), void *data);
int nvidia_p2p_destroy_mapping(u64 p2p_token);

#endif
