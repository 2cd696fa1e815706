/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Between NVIDIA's own files, what they stand on (front.c, front_dmabuf.c) and what
 * stands on them (exports.c).
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

/* This task unmaps pages, and the fault unmap_nomem strikes or does not. */
void nvlab_front_unmaps(bool without_memory);

/* Moves the number of live mappings of @table by one, or with 0 forgets the table. */
void nvlab_front_mapped(void *table, int by);

/* Overwrites the page records of a table that is freed next. In the odd flavour mends it, too. */
void nvlab_front_poison(struct nvidia_p2p_page_table *table);

/*
 * What only later releases refuse (gates.c): that @peer maps memory of @gpu's BAR, and
 * that memory is pinned or mapped by a dma-buf, with PCIe forced or without.
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
 * The odd flavour (odd.c). Before a client sees a table, it may be made odd, or -ENOMEM;
 * before nv-p2p.c frees it, it is as that made it, and no mapping of odd.c is left.
 */
#ifdef NVLAB_ODD
int nvlab_odd_spoil(struct nvidia_p2p_page_table *table);
void nvlab_odd_mend(struct nvidia_p2p_page_table *table);
static inline void nvlab_odd_pinned(struct nvidia_p2p_page_table *table, bool coherent)
{
	table->real.coherent = coherent;
}

/*
 * In the midst of a dma_map_pages, under the RM API lock: maps for @dev what is coherent
 * memory by its table, or says in *@err why not. False: it is a BAR's.
 */
bool nvlab_odd_map(struct device *dev, u64 size, u32 count, u64 *addr, int *err);
/* What exports.c calls in place of nv-p2p.c's, and nv-dmabuf.c when a device attaches. */
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

/* nv-dma.c's: addresses are translated for the peer. */
extern NvU32 nv_dma_remap_peer_mmio;
void nvlab_no_drm(struct kref *ref);
/*
 * nv_dma_map_peer(), for nv-dmabuf.c (Kbuild), which says that the GPU's memory is in
 * the second of NVIDIA's BARs. QEMU's device has none there.
 */
NV_STATUS NV_API_CALL nvlab_dma_map_peer(nv_dma_device_t *peer, nv_dma_device_t *gpu, NvU8 bar,
					 NvU64 count, NvU64 *addr);

#endif
