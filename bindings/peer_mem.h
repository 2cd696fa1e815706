/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The client ABI of the peer-memory core (MLNX_OFED / DOCA-OFED, linux-nvidia
 * kernels), in our own words. Layouts and contracts were read off the cores
 * named in docs/abi.md; abi_check.c compares every offset with the vendor's
 * header where one is installed.
 *
 * One object serves every core generation: cores without the extended client
 * read the words behind `release` as two optional function pointers, so both
 * must be zero there.
 */
#ifndef BINDINGS_PEER_MEM_H
#define BINDINGS_PEER_MEM_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stddef.h>
#include <stdint.h>
#endif

#define IB_PEER_MEMORY_NAME_MAX	64
/* The last byte is no text: non-zero there announces peer_memory_client_ex. */
#define IB_PEER_MEMORY_VER_MAX	16

/* The client unmaps and unpins by itself when it calls the invalidate hook. */
#define PEER_MEM_INVALIDATE_UNMAPS	1

struct device;
struct sg_table;

struct peer_memory_client {
	char name[IB_PEER_MEMORY_NAME_MAX];
	char version[IB_PEER_MEMORY_VER_MAX];
	int (*acquire)(unsigned long addr, size_t size, void *private_data,
		       char *peer_name, void **client_context);
	int (*get_pages)(unsigned long addr, size_t size, int write, int force,
			 struct sg_table *sg_head, void *client_context,
			 uint64_t core_context);
	int (*dma_map)(struct sg_table *sg_head, void *client_context,
		       struct device *dma_device, int dmasync, int *nmap);
	int (*dma_unmap)(struct sg_table *sg_head, void *client_context,
			 struct device *dma_device);
	void (*put_pages)(struct sg_table *sg_head, void *client_context);
	unsigned long (*get_page_size)(void *client_context);
	void (*release)(void *client_context);
};

struct peer_memory_client_ex {
	struct peer_memory_client client;
	size_t ex_size;
	uint32_t flags;
};

typedef int (*invalidate_peer_memory)(void *reg_handle, uint64_t core_context);

void *ib_register_peer_memory_client(const struct peer_memory_client *client,
				     invalidate_peer_memory *invalidate);
void ib_unregister_peer_memory_client(void *reg_handle);

#endif
