// SPDX-License-Identifier: GPL-2.0
/*
 * DOCA-OFED's kernel package as DKMS, depmod and the module's build see it.
 *
 * Models (docs/facts.md#the-rdma-core): its ib_uverbs replaces the kernel's and
 * exports the peer-memory API, with CRCs of its own; the build leaves
 * Module.symvers in /usr/src/ofa_kernel/<arch>/<kernel>, and `default` points
 * to the folder of the last build.
 *
 * Leaves out: RDMA.
 */
#include <linux/module.h>

#define NAME_OF(x, abi)		x##abi
#define NAME(x, abi)		NAME_OF(x, abi)

#define peer_memory_client	NAME(peer_memory_client_, ABI)
struct peer_memory_client;

void *ib_register_peer_memory_client(const struct peer_memory_client *client, void *hook);
void ib_unregister_peer_memory_client(void *handle);

void *ib_register_peer_memory_client(const struct peer_memory_client *client, void *hook)
{
	return NULL;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *handle)
{
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

MODULE_DESCRIPTION("DOCA-OFED, as far as packages see it");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_VERSION(VERSION);
