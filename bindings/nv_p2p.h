/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The part of NVIDIA's peer-to-peer ABI (nvidia.ko) that this module calls, in
 * our own words. Table layouts: major version 1 (drivers up to 575) and major
 * version 2 (580 and later, a trailing `flags` word). abi_check.c compares
 * offsets with the vendor's nv-p2p.h where one is installed.
 */
#ifndef BINDINGS_NV_P2P_H
#define BINDINGS_NV_P2P_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
#endif

struct pci_dev;

/* Values of nvidia_p2p_page_table.page_size. */
#define NVIDIA_P2P_PAGE_SIZE_4KB	0
#define NVIDIA_P2P_PAGE_SIZE_64KB	1
#define NVIDIA_P2P_PAGE_SIZE_128KB	2

struct nvidia_p2p_page {
	uint64_t physical_address;
	uint32_t registers[6];	/* Fermi's request registers; not used */
};

#define NVIDIA_P2P_PAGE_TABLE_MAJOR_V1	1
#define NVIDIA_P2P_PAGE_TABLE_MAJOR_V2	2

struct nvidia_p2p_page_table {
	uint32_t version;	/* major << 16 | minor */
	uint32_t page_size;
	struct nvidia_p2p_page **pages;
	uint32_t entries;
	uint8_t *gpu_uuid;
	uint32_t flags;		/* major version 2 only */
};

/* nvidia_p2p_page_table.flags: the pages are coherent, CPU-cacheable memory. */
#define NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE	1

struct nvidia_p2p_dma_mapping {
	uint32_t version;	/* major << 16 | minor; major is 2 since 2015 */
	uint32_t page_size_type;
	uint32_t entries;
	uint64_t *dma_addresses;
	void *private_data;
	struct pci_dev *pci_dev;
};

#define NVIDIA_P2P_DMA_MAPPING_MAJOR	2

int nvidia_p2p_get_pages(uint64_t p2p_token, uint32_t va_space,
			 uint64_t virtual_address, uint64_t length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(uint64_t p2p_token, uint32_t va_space,
			 uint64_t virtual_address,
			 struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_get_pages_persistent(uint64_t virtual_address, uint64_t length,
				    struct nvidia_p2p_page_table **page_table,
				    uint32_t flags);
int nvidia_p2p_put_pages_persistent(uint64_t virtual_address,
				    struct nvidia_p2p_page_table *page_table,
				    uint32_t flags);
int nvidia_p2p_dma_map_pages(struct pci_dev *peer,
			     struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping);
int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
			       struct nvidia_p2p_page_table *page_table,
			       struct nvidia_p2p_dma_mapping *dma_mapping);

#endif
