// SPDX-License-Identifier: GPL-2.0
/*
 * What nvidia-peermem alone has: its parameters, and weak references to the
 * peer-memory core's functions; see shim.h.
 */
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "neighbours.h"
#include "shim.h"

static_assert(sizeof(NVPM_VERSION) <= IB_PEER_MEMORY_VER_MAX - 1,
	      "the core reads at most 14 characters of version text");

MODULE_VERSION(NVPM_VERSION);
MODULE_SOFTDEP("pre: nvidia ib_uverbs");

static int peerdirect_support;
module_param(peerdirect_support, int, 0444);
MODULE_PARM_DESC(peerdirect_support,
		 "client: 0 = extended [default], 1 = plain, kept for old configuration files");

static int persistent_api_support = 1;
module_param(persistent_api_support, int, 0444);
MODULE_PARM_DESC(persistent_api_support,
		 "pins: 1 = persistent [default], 0 = revocable, persistent for what cannot be revoked");

/*
 * A parameter of its own and no third value of persistent_api_support: NVIDIA's
 * module refuses that, and ignores a parameter that it does not know. So one
 * modprobe.d file serves both modules.
 */
static int revocable_fallback;
module_param(revocable_fallback, int, 0444);
MODULE_PARM_DESC(revocable_fallback,
		 "memory that the GPU driver cannot pin persistently: 0 = refuse [default], 1 = pin revocably; only with persistent_api_support=1");

int nvpm_param_peerdirect_support(void)
{
	return peerdirect_support;
}

int nvpm_param_persistent_api_support(void)
{
	return persistent_api_support;
}

int nvpm_param_revocable_fallback(void)
{
	return revocable_fallback;
}

/* The peer-memory core, which may be missing. */

typeof(ib_register_peer_memory_client) ib_register_peer_memory_client __weak;
typeof(ib_unregister_peer_memory_client) ib_unregister_peer_memory_client __weak;

static struct {
	typeof(ib_register_peer_memory_client) *ib_register_peer_memory_client;
	typeof(ib_unregister_peer_memory_client) *ib_unregister_peer_memory_client;
} nvpm_neighbours __ro_after_init = {
	.ib_register_peer_memory_client = ib_register_peer_memory_client,
	.ib_unregister_peer_memory_client = ib_unregister_peer_memory_client,
};

int nvpm_core_present(void)
{
	return NVPM_AT(ib_register_peer_memory_client) &&
	       NVPM_AT(ib_unregister_peer_memory_client);
}

/*
 * Whether ib_uverbs, which exports the API in DOCA-OFED, is loaded. find_module()
 * is not exported; our own entry in /sys/module leads to all others.
 */
int nvpm_uverbs_loaded(void)
{
	struct kset *modules = THIS_MODULE->mkobj.kobj.kset;
	struct kobject *entry;
	int found = IS_BUILTIN(CONFIG_INFINIBAND_USER_ACCESS);

	spin_lock(&modules->list_lock);
	list_for_each_entry(entry, &modules->list, entry)
		found |= !strcmp(kobject_name(entry), "ib_uverbs");
	spin_unlock(&modules->list_lock);
	return found;
}

void *nvpm_core_register(const struct peer_memory_client *client,
			 invalidate_peer_memory *invalidate)
{
	return NVPM_CALL(ib_register_peer_memory_client)(client, invalidate);
}

void nvpm_core_unregister(void *handle)
{
	NVPM_CALL(ib_unregister_peer_memory_client)(handle);
}
