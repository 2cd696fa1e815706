/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declares what NVIDIA's own files call in those below them (front.c, front_dmabuf.c), and what the
 * file above them (exports.c) calls in both.
 */
#ifndef NVLAB_FRONT_H
#define NVLAB_FRONT_H

static inline NV_STATUS status_of(int err)
{
	switch (err) {
	case 0:
		return NV_OK;
	case -ENOMEM:
		return NV_ERR_NO_MEMORY;
	case -EINVAL:
		return NV_ERR_INVALID_ARGUMENT;
	case -ENOENT:
		return NV_ERR_OBJECT_NOT_FOUND;
	case -ENOTSUPP:
		return NV_ERR_NOT_SUPPORTED;
	case -EBUSY:
		return NV_ERR_STATE_IN_USE;
	case -ENODEV:
		return NV_ERR_GPU_UUID_NOT_FOUND;
	default:
		return NV_ERR_INVALID_STATE;
	}
}

static inline nv_dma_device_t dma_device(struct device *dev)
{
	return (nv_dma_device_t){
		.dev = dev,
		.addressable_range.limit = *dev->dma_mask,
	};
}

/*
 * The callback of a revocable pin, which lives from the get until it was called or the pin is put.
 * RM calls nv-p2p.c's callback, and that one calls the client's.
 */
struct nvlab_callback {
	void (*client)(void *data);
	void *client_data;
	void (*front)(void *data);
	void *front_data;
	void *table;
};

/* Note and forget the callback of the revocable get that this task is in. */
int nvlab_front_get_begins(struct nvlab_callback *callback);
void nvlab_front_get_ends(void);

/* Says whether the fault unmap_nomem strikes while this task unmaps pages. */
void nvlab_front_unmaps(bool without_memory);

/*
 * Overwrites the page records of a table that is freed next. In the odd flavour it mends the table,
 * too.
 */
void nvlab_front_poison(struct nvidia_p2p_page_table *table);

/*
 * Ask what only later releases refuse (gates.c): whether @peer may map memory of @gpu's BAR, and
 * whether memory may be pinned or mapped by a dma-buf, with PCIe forced or without.
 */
#if defined(NVLAB_GATES) || defined(NVLAB_ODD)
NV_STATUS nvlab_gate_map(struct nvlab_gpu *gpu, nv_dma_device_t *peer);
NV_STATUS nvlab_gate_pin(bool coherent, bool forced);
#else
static inline NV_STATUS nvlab_gate_map(struct nvlab_gpu *gpu, nv_dma_device_t *peer)
{
	return NV_OK;
}

static inline NV_STATUS nvlab_gate_pin(bool coherent, bool forced)
{
	return NV_OK;
}
#endif

/*
 * The odd flavour (odd.c). nvlab_odd_spoil() may make a table odd before a client sees it, and
 * returns 0 or -ENOMEM. nvlab_odd_mend() makes it again what nv-p2p.c has made, before that frees
 * it, and leaves no mapping of odd.c.
 */
#ifdef NVLAB_ODD
int nvlab_odd_spoil(struct nvidia_p2p_page_table *table);
void nvlab_odd_mend(struct nvidia_p2p_page_table *table);
static inline void nvlab_odd_pinned(struct nvidia_p2p_page_table *table, bool coherent)
{
	table->real.coherent = coherent;
}

/*
 * Maps for @dev what is coherent memory by its table, or says in *@err why not. Returns false if it
 * is memory of a BAR. Called in a dma_map_pages, under the RM API lock.
 */
bool nvlab_odd_map(struct device *dev, u64 size, u32 count, u64 *addr, int *err);
/*
 * exports.c calls these in place of nv-p2p.c's, and nv-dmabuf.c the last one when a device
 * attaches.
 */
int nvlab_odd_get_pages_persistent(u64 va, u64 len, struct nvidia_p2p_page_table **table,
				   u32 flags);
int nvlab_odd_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			    struct nvidia_p2p_dma_mapping **record);
int nvlab_odd_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			      struct nvidia_p2p_dma_mapping *record);
struct dma_buf;
struct dma_buf_attachment;
int nvlab_odd_attach(struct dma_buf *buf, struct dma_buf_attachment *attach);
NvBool NV_API_CALL nv_grdma_pci_topology_supported(nv_state_t *nv, nv_dma_device_t *peer);
#else
static inline int nvlab_odd_spoil(struct nvidia_p2p_page_table *table)
{
	return 0;
}

static inline void nvlab_odd_mend(struct nvidia_p2p_page_table *table)
{
}

static inline void nvlab_odd_pinned(struct nvidia_p2p_page_table *table, bool coherent)
{
}

static inline bool nvlab_odd_map(struct device *dev, u64 size, u32 count, u64 *addr, int *err)
{
	return false;
}
#endif

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

/* A switch of nv-dma.c: whether addresses are translated for the peer. */
extern NvU32 nv_dma_remap_peer_mmio;
void nvlab_no_drm(struct kref *ref);
/*
 * Calls nv_dma_map_peer() for nv-dmabuf.c (Kbuild). That says that the GPU's memory is in the
 * second of NVIDIA's BARs, where QEMU's device has none.
 */
NV_STATUS NV_API_CALL nvlab_dma_map_peer(nv_dma_device_t *peer, nv_dma_device_t *gpu, NvU8 bar,
					 NvU64 count, NvU64 *addr);

#endif
