// SPDX-License-Identifier: GPL-2.0
/*
 * NVIDIA's driver package as DKMS, depmod and the module's build see it.
 *
 * Models (docs/facts.md#nvidias-driver): module names and version; exports that
 * nvidia-peermem imports, whose CRCs change from one series to the next, as
 * they do when a type of the interface changes; nvidia-peermem.ko beside it.
 *
 * Leaves out: everything that happens when it is loaded. Nobody loads it.
 */
#include <linux/module.h>
#include <linux/types.h>

#define NAME_OF(x, abi)		x##abi
#define NAME(x, abi)		NAME_OF(x, abi)

#define nvidia_p2p_page_table	NAME(nvidia_p2p_page_table_, ABI)
struct nvidia_p2p_page_table;

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*callback)(void *data), void *data);
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *table);
int nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				    struct nvidia_p2p_page_table **table, u32 flags);
int nvidia_p2p_put_pages_persistent(u64 virtual_address, struct nvidia_p2p_page_table *table, u32 flags);

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*callback)(void *data), void *data)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *table)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				    struct nvidia_p2p_page_table **table, u32 flags)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(u64 virtual_address, struct nvidia_p2p_page_table *table, u32 flags)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages_persistent);

MODULE_DESCRIPTION("NVIDIA's driver, as far as packages see it");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(VERSION);
