/* SPDX-License-Identifier: GPL-2.0 */
/* Between NVIDIA's nv-p2p.c, what it stands on (front.c) and what stands on it (exports.c). */
#ifndef NVLAB_FRONT_H
#define NVLAB_FRONT_H

/*
 * The callback of a revocable pin, from its get on until it was called or the pin is
 * put: RM calls nv-p2p.c's, which calls the client's.
 */
struct nvlab_callback {
	void (*client)(void *data);
	void *client_data;
	void (*front)(void *data);
	void *front_data;
	void *table;
};

/* That of the get that this task is in. */
struct nvlab_callback *nvlab_callback_of_get(void);

/* Moves the number of live mappings of @table by one, or with 0 forgets the table. */
void nvlab_front_mapped(void *table, int by);

/* Overwrites the page records of a table that is freed next. */
void nvlab_front_poison(struct nvidia_p2p_page_table *table);

/* nv-p2p.c's exports, under the names that the command line gives them (Kbuild). */
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

/* nv-dma.c's: addresses are translated for the peer. */
extern NvU32 nv_dma_remap_peer_mmio;
void nvlab_no_drm(struct kref *ref);

#endif
