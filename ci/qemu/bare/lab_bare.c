// SPDX-License-Identifier: GPL-2.0
/*
 * Both neighbours of nvidia-peermem in the least form that lets it load and
 * register, for kernels that the lab's RDMA stack and GPU are not made for
 * (Debian 12's 6.1).
 *
 * Models (docs/facts.md#the-rdma-core, #nvidias-driver): the order in which a
 * core of 25.10 calls a client and with what, which client is asked first,
 * the invalidate hook, after which a client with the UNMAPS flag hears of
 * release alone; nvidia.ko's page tables of version 2 for one allocation of
 * 2 MiB at a fixed GPU address, both kinds of pin, the free callback with the
 * GPU driver's lock held.
 *
 * Leaves out: RDMA, the NIC and the data; every lock of ib_core; errors; more
 * than one registration at a time; clients with the hook and without the flag,
 * which are refused; the provider's own mapping; who owns the memory (everybody
 * does).
 */
#include <linux/debugfs.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nv_p2p.h"
#include "peer_mem.h"

#define GPU_VA		0x200000000ULL
#define GPU_SIZE	SZ_2M
#define GPU_PAGE	SZ_64K
#define CORE_CONTEXT	5

/* The GPU: BAR 2 of QEMU's ivshmem. */

static struct pci_dev *gpu;

static int gpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	gpu = pdev;
	return 0;
}

static void gpu_remove(struct pci_dev *pdev)
{
	gpu = NULL;
}

static const struct pci_device_id gpu_ids[] = {
	{ PCI_DEVICE(0x1af4, 0x1110) },
	{ }
};
MODULE_DEVICE_TABLE(pci, gpu_ids);

/* A client knows the provider's devices by this name. */
static struct pci_driver gpu_driver = {
	.name = "nvidia",
	.id_table = gpu_ids,
	.probe = gpu_probe,
	.remove = gpu_remove,
};

/* The provider. The RM API lock, and the pins under it. */

struct pin {
	struct nvidia_p2p_page_table table;
	struct nvidia_p2p_page pages[GPU_SIZE / GPU_PAGE];
	struct nvidia_p2p_page *pointers[GPU_SIZE / GPU_PAGE];
	void (*callback)(void *data);
	void *data;
};

static DEFINE_MUTEX(r);
static struct pin *revocable;
static unsigned int live_pins;

static int get_pages(u64 va, u64 length, struct nvidia_p2p_page_table **table,
		     void (*callback)(void *data), void *data)
{
	/* kzalloc_obj() is newer than 6.1. */
	const size_t room = sizeof(struct pin);
	struct pin *pin;
	u64 i;

	if (va % GPU_PAGE || length % GPU_PAGE || va < GPU_VA ||
	    length > GPU_SIZE || va - GPU_VA > GPU_SIZE - length || !length)
		return -EINVAL;
	pin = kzalloc(room, GFP_KERNEL);
	if (!pin)
		return -ENOMEM;
	pin->table.version = NVIDIA_P2P_PAGE_TABLE_MAJOR_V2 << 16;
	pin->table.page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	pin->table.entries = length / GPU_PAGE;
	pin->table.pages = pin->pointers;
	for (i = 0; i < pin->table.entries; i++) {
		pin->pages[i].physical_address =
			pci_resource_start(gpu, 2) + va - GPU_VA + i * GPU_PAGE;
		pin->pointers[i] = &pin->pages[i];
	}
	pin->callback = callback;
	pin->data = data;
	mutex_lock(&r);
	live_pins++;
	if (callback)
		revocable = pin;
	mutex_unlock(&r);
	*table = &pin->table;
	return 0;
}

static void put_locked(struct pin *pin)
{
	live_pins--;
	if (revocable == pin)
		revocable = NULL;
	kfree(pin);
}

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 u64 length, struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data)
{
	return get_pages(virtual_address, length, page_table, free_callback,
			 data);
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages);

/* Puts the pin that has this table. If it is gone, that is no error. */
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	mutex_lock(&r);
	if (revocable && page_table == &revocable->table)
		put_locked(revocable);
	mutex_unlock(&r);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);

int nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				    struct nvidia_p2p_page_table **page_table,
				    u32 flags)
{
	return get_pages(virtual_address, length, page_table, NULL, NULL);
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(u64 virtual_address,
				    struct nvidia_p2p_page_table *page_table,
				    u32 flags)
{
	mutex_lock(&r);
	put_locked(container_of(page_table, struct pin, table));
	mutex_unlock(&r);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages_persistent);

int nvidia_p2p_dma_map_pages(struct pci_dev *peer,
			     struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping)
{
	return -EINVAL;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_dma_map_pages);

int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
			       struct nvidia_p2p_page_table *page_table,
			       struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return -EINVAL;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_dma_unmap_pages);

/* Frees the memory: calls the callbacks first, with the RM API lock held. */
static void free_memory(void)
{
	mutex_lock(&r);
	if (revocable) {
		revocable->callback(revocable->data);
		put_locked(revocable);
	}
	mutex_unlock(&r);
}

/* The core. */

static DEFINE_MUTEX(clients_mutex);
static const struct peer_memory_client *clients[4];
static unsigned int invalidations;
static bool invalidated;	/* the registration that there is */

/*
 * Notes an invalidation. The client unmaps by itself, so from here on the core has nothing to
 * unmap.
 */
static int invalidate(void *reg_handle, u64 core_context)
{
	if (core_context == CORE_CONTEXT) {
		invalidations++;
		invalidated = true;
	}
	return 0;
}

static bool unmaps(const struct peer_memory_client *client)
{
	const struct peer_memory_client_ex *ex =
		container_of(client, struct peer_memory_client_ex, client);

	return client->version[IB_PEER_MEMORY_VER_MAX - 1] &&
	       ex->ex_size >= offsetofend(struct peer_memory_client_ex, flags) &&
	       ex->flags & PEER_MEM_INVALIDATE_UNMAPS;
}

void *ib_register_peer_memory_client(const struct peer_memory_client *client,
				     invalidate_peer_memory *hook)
{
	void *handle = NULL;
	int i;

	if (hook && !unmaps(client))
		return NULL;
	mutex_lock(&clients_mutex);
	for (i = 0; i < ARRAY_SIZE(clients) && !handle; i++) {
		if (clients[i])
			continue;
		clients[i] = client;
		handle = &clients[i];
		if (hook)
			*hook = invalidate;
	}
	mutex_unlock(&clients_mutex);
	return handle;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *reg_handle)
{
	mutex_lock(&clients_mutex);
	*(const struct peer_memory_client **)reg_handle = NULL;
	mutex_unlock(&clients_mutex);
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

/* Returns the physical address at which what the NIC puts on the bus arrives. */
static phys_addr_t arrives(struct device *nic, dma_addr_t dma)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(nic);

	if (domain)
		return iommu_iova_to_phys(domain, dma);
	return dma - pci_bus_address(gpu, 2) + pci_resource_start(gpu, 2);
}

static int map_and_check(const struct peer_memory_client *client, void *context,
			 struct device *nic, unsigned long va, size_t size,
			 bool free)
{
	phys_addr_t phys = pci_resource_start(gpu, 2) + va - GPU_VA;
	struct sg_table sg = {};
	int nmap = 0;
	int ret;

	invalidated = false;
	ret = client->get_pages(va, size, 1, 0, NULL, context, CORE_CONTEXT);
	if (ret)
		return ret;
	ret = client->dma_map(&sg, context, nic, 0, &nmap);
	if (!ret) {
		dma_addr_t dma = sg_dma_address(sg.sgl);

		/* Contiguous memory: one entry, exactly the range. */
		if (nmap != 1 || sg_dma_len(sg.sgl) != size ||
		    arrives(nic, dma) != phys ||
		    arrives(nic, dma + size - 1) != phys + size - 1 ||
		    client->get_page_size(context) != PAGE_SIZE)
			ret = -EILSEQ;
		if (free)
			free_memory();
		if (invalidated)
			return ret;
		client->dma_unmap(&sg, context, nic);
	}
	client->put_pages(&sg, context);
	return ret;
}

/* Registers and deregisters. With @free, the memory goes in between. */
static int registration(unsigned long va, size_t size, bool free)
{
	struct pci_dev *nic =
		pci_get_class(PCI_CLASS_NETWORK_ETHERNET << 8, NULL);
	void *context;
	int ret = -EFAULT;
	int i;

	if (!nic || !gpu) {
		pci_dev_put(nic);
		return -ENODEV;
	}
	/* As an RDMA NIC's driver says; PCI's defaults are 64 KiB and 32 bits. */
	dma_set_max_seg_size(&nic->dev, SZ_2G);
	dma_set_mask(&nic->dev, DMA_BIT_MASK(64));
	mutex_lock(&clients_mutex);
	for (i = 0; i < ARRAY_SIZE(clients); i++) {
		if (!clients[i] || clients[i]->acquire(va, size, NULL, NULL,
						       &context) <= 0)
			continue;
		ret = map_and_check(clients[i], context, &nic->dev, va, size,
				    free);
		clients[i]->release(context);
		break;
	}
	mutex_unlock(&clients_mutex);
	pci_dev_put(nic);
	return ret;
}

/* debugfs lab_bare/: `register` takes `keep` or `free`. */

static ssize_t register_write(struct file *file, const char __user *text,
			      size_t count, loff_t *pos)
{
	char word[8] = {};
	int ret;

	if (count >= sizeof(word) || copy_from_user(word, text, count))
		return -EINVAL;
	ret = registration(GPU_VA + PAGE_SIZE, 3 * GPU_PAGE,
			   sysfs_streq(word, "free"));
	return ret ?: count;
}

static const struct file_operations register_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = register_write,
};

static struct dentry *dir;

static int __init bare_init(void)
{
	int ret = pci_register_driver(&gpu_driver);

	if (ret)
		return ret;
	dir = debugfs_create_dir("lab_bare", NULL);
	debugfs_create_file("register", 0200, dir, NULL, &register_fops);
	debugfs_create_u32("live_pins", 0400, dir, &live_pins);
	debugfs_create_u32("invalidations", 0400, dir, &invalidations);
	return 0;
}

static void __exit bare_exit(void)
{
	debugfs_remove(dir);
	pci_unregister_driver(&gpu_driver);
}

module_init(bare_init);
module_exit(bare_exit);
MODULE_DESCRIPTION("The least of ib_core and nvidia.ko that nvidia-peermem registers with");
MODULE_LICENSE("GPL");
