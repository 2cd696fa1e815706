/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declares what nvidia.ko of the closed flavour calls in nvlab_core.ko. Kbuild makes these names.
 */
#ifndef NVLAB_CLOSED_H
#define NVLAB_CLOSED_H

#include "nv_p2p.h"

struct nvidia_p2p_params;

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

/*
 * These functions do nothing any more, as in nv-p2p.c. Modules written against NVIDIA's header may
 * still call them.
 */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping);
int nvidia_p2p_init_mapping(u64 p2p_token, struct nvidia_p2p_params *params,
			    void (*destroy_callback)(void *data), void *data);
int nvidia_p2p_destroy_mapping(u64 p2p_token);

#endif
