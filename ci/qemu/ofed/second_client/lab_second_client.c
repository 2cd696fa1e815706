// SPDX-License-Identifier: GPL-2.0
/*
 * A second vendor's peer-memory client: registers under a given name, says "not
 * mine" to everything and counts how often it was asked. Models the machine on
 * which nvidia-peermem is not the only client (docs/facts.md#calls);
 * leaves out everything behind acquire, which never says yes. How often it was
 * asked is in debugfs lab_second_client/acquire. Where the core refuses the name,
 * loading fails with -EINVAL.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/string.h>
#include <rdma/peer_mem.h>

static char *name = "second";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "name to register under");

static u64 asked;

static int acquire(unsigned long addr, size_t size, void *private_data,
		   char *peer_name, void **client_context)
{
	asked++;	/* under the core's mutex */
	return 0;
}

static int get_pages(unsigned long addr, size_t size, int write, int force,
		     struct sg_table *sg_head, void *client_context,
		     uint64_t core_context)
{
	return -EINVAL;
}

static int dma_map(struct sg_table *sg_head, void *client_context,
		   struct device *dma_device, int dmasync, int *nmap)
{
	return -EINVAL;
}

static int dma_unmap(struct sg_table *sg_head, void *client_context,
		     struct device *dma_device)
{
	return 0;
}

static void put_pages(struct sg_table *sg_head, void *client_context)
{
}

static unsigned long get_page_size(void *client_context)
{
	return PAGE_SIZE;
}

static struct peer_memory_client client = {
	.version = "1.0",
	.acquire = acquire,
	.get_pages = get_pages,
	.dma_map = dma_map,
	.dma_unmap = dma_unmap,
	.put_pages = put_pages,
	.get_page_size = get_page_size,
};

static void *handle;
static struct dentry *debugfs_dir;

static int __init second_client_init(void)
{
	if (strscpy(client.name, name) < 0) {
		pr_err("name=%s: longer than %zu characters\n", name,
		       sizeof(client.name) - 1);
		return -EINVAL;
	}
	handle = ib_register_peer_memory_client(&client, NULL);
	if (!handle) {
		pr_err("the core refused client %s\n", client.name);
		return -EINVAL;
	}
	debugfs_dir = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_u64("acquire", 0400, debugfs_dir, &asked);
	return 0;
}

static void __exit second_client_exit(void)
{
	debugfs_remove(debugfs_dir);
	ib_unregister_peer_memory_client(handle);
}

module_init(second_client_init);
module_exit(second_client_exit);
MODULE_DESCRIPTION("A second peer-memory client for the nvidia-peermem lab");
MODULE_LICENSE("GPL");
