// SPDX-License-Identifier: GPL-2.0
/*
 * Compares the layouts in our words with the vendors' own headers, where
 * preflight found them (NVPM_VENDOR_NV_P2P, NVPM_VENDOR_PEER_MEM). Compiles to
 * nothing. A header of table version 1 says nothing about version 2.
 */
#include <linux/build_bug.h>
#include <linux/stddef.h>
#include <linux/types.h>

struct scatterlist;

/* Our names step aside for the vendors'. */
#define peer_memory_client ours_peer_memory_client
#define peer_memory_client_ex ours_peer_memory_client_ex
#define invalidate_peer_memory ours_invalidate_peer_memory
#define ib_register_peer_memory_client ours_ib_register
#define ib_unregister_peer_memory_client ours_ib_unregister
#include "peer_mem.h"
#undef peer_memory_client
#undef peer_memory_client_ex
#undef invalidate_peer_memory
#undef ib_register_peer_memory_client
#undef ib_unregister_peer_memory_client

enum {
	OURS_NAME_MAX = IB_PEER_MEMORY_NAME_MAX,
	OURS_VER_MAX = IB_PEER_MEMORY_VER_MAX,
	OURS_UNMAPS = PEER_MEM_INVALIDATE_UNMAPS,
};

#undef IB_PEER_MEMORY_NAME_MAX
#undef IB_PEER_MEMORY_VER_MAX
#undef PEER_MEM_INVALIDATE_UNMAPS

#define nvidia_p2p_page ours_nvidia_p2p_page
#define nvidia_p2p_page_table ours_nvidia_p2p_page_table
#define nvidia_p2p_dma_mapping ours_nvidia_p2p_dma_mapping
#define nvidia_p2p_get_pages ours_get_pages
#define nvidia_p2p_put_pages ours_put_pages
#define nvidia_p2p_get_pages_persistent ours_get_pages_persistent
#define nvidia_p2p_put_pages_persistent ours_put_pages_persistent
#define nvidia_p2p_dma_map_pages ours_dma_map_pages
#define nvidia_p2p_dma_unmap_pages ours_dma_unmap_pages
#include "nv_p2p.h"
#undef nvidia_p2p_page
#undef nvidia_p2p_page_table
#undef nvidia_p2p_dma_mapping
#undef nvidia_p2p_get_pages
#undef nvidia_p2p_put_pages
#undef nvidia_p2p_get_pages_persistent
#undef nvidia_p2p_put_pages_persistent
#undef nvidia_p2p_dma_map_pages
#undef nvidia_p2p_dma_unmap_pages

enum {
	OURS_4KB = NVIDIA_P2P_PAGE_SIZE_4KB,
	OURS_64KB = NVIDIA_P2P_PAGE_SIZE_64KB,
	OURS_128KB = NVIDIA_P2P_PAGE_SIZE_128KB,
	OURS_CACHEABLE = NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE,
};

#undef NVIDIA_P2P_PAGE_SIZE_4KB
#undef NVIDIA_P2P_PAGE_SIZE_64KB
#undef NVIDIA_P2P_PAGE_SIZE_128KB
#undef NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE

#define SAME_FIELD(type, ours, theirs) \
	static_assert(offsetof(struct ours_##type, ours) == \
		      offsetof(struct type, theirs) && \
		      sizeof_field(struct ours_##type, ours) == \
		      sizeof_field(struct type, theirs))

#ifdef NVPM_VENDOR_PEER_MEM
#include NVPM_VENDOR_PEER_MEM

SAME_FIELD(peer_memory_client, name, name);
SAME_FIELD(peer_memory_client, version, version);
SAME_FIELD(peer_memory_client, acquire, acquire);
SAME_FIELD(peer_memory_client, get_pages, get_pages);
SAME_FIELD(peer_memory_client, dma_map, dma_map);
SAME_FIELD(peer_memory_client, dma_unmap, dma_unmap);
SAME_FIELD(peer_memory_client, put_pages, put_pages);
SAME_FIELD(peer_memory_client, get_page_size, get_page_size);
SAME_FIELD(peer_memory_client, release, release);
static_assert((int)OURS_NAME_MAX == IB_PEER_MEMORY_NAME_MAX);
static_assert((int)OURS_VER_MAX == IB_PEER_MEMORY_VER_MAX);
/* Old headers have no extended client; ours is shorter than their client. */
#ifdef NVPM_VENDOR_HAS_EX
SAME_FIELD(peer_memory_client_ex, ex_size, ex_size);
SAME_FIELD(peer_memory_client_ex, flags, flags);
static_assert(sizeof(struct ours_peer_memory_client_ex) ==
	      sizeof(struct peer_memory_client_ex));
static_assert((int)OURS_UNMAPS == (int)PEER_MEM_INVALIDATE_UNMAPS);
#endif
#endif

#ifdef NVPM_VENDOR_NV_P2P
#include NVPM_VENDOR_NV_P2P

SAME_FIELD(nvidia_p2p_page, physical_address, physical_address);
SAME_FIELD(nvidia_p2p_page, registers, registers);
static_assert(sizeof(struct ours_nvidia_p2p_page) ==
	      sizeof(struct nvidia_p2p_page));
SAME_FIELD(nvidia_p2p_page_table, version, version);
SAME_FIELD(nvidia_p2p_page_table, page_size, page_size);
SAME_FIELD(nvidia_p2p_page_table, pages, pages);
SAME_FIELD(nvidia_p2p_page_table, entries, entries);
SAME_FIELD(nvidia_p2p_page_table, gpu_uuid, gpu_uuid);
#if (NVIDIA_P2P_PAGE_TABLE_VERSION >> 16) >= 2
SAME_FIELD(nvidia_p2p_page_table, flags, flags);
static_assert((int)OURS_CACHEABLE ==
	      (int)NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE);
#endif
SAME_FIELD(nvidia_p2p_dma_mapping, version, version);
SAME_FIELD(nvidia_p2p_dma_mapping, page_size_type, page_size_type);
SAME_FIELD(nvidia_p2p_dma_mapping, entries, entries);
SAME_FIELD(nvidia_p2p_dma_mapping, dma_addresses, dma_addresses);
SAME_FIELD(nvidia_p2p_dma_mapping, private_data, private);
SAME_FIELD(nvidia_p2p_dma_mapping, pci_dev, pci_dev);
static_assert((int)OURS_4KB == (int)NVIDIA_P2P_PAGE_SIZE_4KB);
static_assert((int)OURS_64KB == (int)NVIDIA_P2P_PAGE_SIZE_64KB);
static_assert((int)OURS_128KB == (int)NVIDIA_P2P_PAGE_SIZE_128KB);
static_assert((NVIDIA_P2P_DMA_MAPPING_VERSION >> 16) ==
	      NVIDIA_P2P_DMA_MAPPING_MAJOR);
#endif
