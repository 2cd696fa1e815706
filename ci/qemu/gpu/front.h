/* SPDX-License-Identifier: GPL-2.0 */
/* The exports of NVIDIA's nv-p2p.c under the names that the command line gives them (Kbuild). */
#ifndef NVLAB_FRONT_H
#define NVLAB_FRONT_H

int nvidia_front_get_pages(uint64_t token, uint32_t va_space, uint64_t va, uint64_t len,
			   struct nvidia_p2p_page_table **table,
			   void (*free_callback)(void *data), void *data);
int nvidia_front_get_pages_persistent(uint64_t va, uint64_t len,
				      struct nvidia_p2p_page_table **table, uint32_t flags);
int nvidia_front_put_pages(uint64_t token, uint32_t va_space, uint64_t va,
			   struct nvidia_p2p_page_table *table);
int nvidia_front_put_pages_persistent(uint64_t va, struct nvidia_p2p_page_table *table,
				      uint32_t flags);
int nvidia_front_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			       struct nvidia_p2p_dma_mapping **mapping);
int nvidia_front_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
				 struct nvidia_p2p_dma_mapping *mapping);
void nvlab_no_drm(struct kref *ref);

#endif
