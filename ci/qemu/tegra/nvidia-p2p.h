/* SPDX-License-Identifier: GPL-2.0 */
/* The functions of nvidia-p2p.c, with the signatures that L4T's have. */
#ifndef LAB_NVIDIA_P2P_H
#define LAB_NVIDIA_P2P_H

#include <linux/dma-direction.h>
#include <linux/types.h>

struct device;
struct nvidia_p2p_page_table;
struct nvidia_p2p_dma_mapping;

int nvidia_p2p_get_pages(u64 vaddr, u64 size,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_dma_map_pages(struct device *dev,
			     struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping,
			     enum dma_data_direction direction);
int nvidia_p2p_dma_unmap_pages(struct nvidia_p2p_dma_mapping *dma_mapping);
int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping);

#endif
