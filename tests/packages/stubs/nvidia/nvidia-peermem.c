// SPDX-License-Identifier: GPL-2.0
/* NVIDIA's file of this name, which needs NVIDIA's driver. */
#include <linux/module.h>
#include <linux/types.h>

int nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length, void **table, u32 flags);

static int __init stub_init(void)
{
	return nvidia_p2p_get_pages_persistent(0, 0, NULL, 0);
}
module_init(stub_init);

MODULE_DESCRIPTION("NVIDIA's nvidia-peermem, as far as packages see it");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(VERSION);
