// SPDX-License-Identifier: GPL-2.0
/*
 * The C half of nvidia-peermem; see shim.h. Nothing here decides anything.
 *
 * Both neighbours are referenced weakly, so that the module loads without
 * them and can say what is missing, instead of "Unknown symbol".
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/ratelimit.h>
#include <linux/rcupdate.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "shim.h"

static_assert(sizeof(NVPM_VERSION) <= IB_PEER_MEMORY_VER_MAX - 1,
	      "the core reads at most 14 characters of version text");

MODULE_VERSION(NVPM_VERSION);
MODULE_SOFTDEP("pre: nvidia ib_uverbs");

static int peerdirect_support;
module_param(peerdirect_support, int, 0444);
MODULE_PARM_DESC(peerdirect_support,
		 "core generation: 0 = extended client [default], 1 = plain client for old cores such as MLNX_OFED 4.9 LTS");

static int persistent_api_support = 1;
module_param(persistent_api_support, int, 0444);
MODULE_PARM_DESC(persistent_api_support,
		 "pins: 1 = persistent, revocable as fallback [default], 0 = revocable, persistent for what cannot be revoked");

int nvpm_param_peerdirect_support(void)
{
	return peerdirect_support;
}

int nvpm_param_persistent_api_support(void)
{
	return persistent_api_support;
}

int nvpm_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void nvpm_module_put(void)
{
	module_put(THIS_MODULE);
}

/* The peer-memory core. */

typeof(ib_register_peer_memory_client) ib_register_peer_memory_client __weak;
typeof(ib_unregister_peer_memory_client) ib_unregister_peer_memory_client __weak;

int nvpm_core_present(void)
{
	return ib_register_peer_memory_client && ib_unregister_peer_memory_client;
}

void *nvpm_core_register(const struct peer_memory_client *client,
			 invalidate_peer_memory *invalidate)
{
	return ib_register_peer_memory_client(client, invalidate);
}

void nvpm_core_unregister(void *handle)
{
	ib_unregister_peer_memory_client(handle);
}

/* The provider. */

typeof(nvidia_p2p_get_pages) nvidia_p2p_get_pages __weak;
typeof(nvidia_p2p_put_pages) nvidia_p2p_put_pages __weak;
typeof(nvidia_p2p_get_pages_persistent) nvidia_p2p_get_pages_persistent __weak;
typeof(nvidia_p2p_put_pages_persistent) nvidia_p2p_put_pages_persistent __weak;
typeof(nvidia_p2p_dma_map_pages) nvidia_p2p_dma_map_pages __weak;
typeof(nvidia_p2p_dma_unmap_pages) nvidia_p2p_dma_unmap_pages __weak;

int nvpm_provider_present(void)
{
	return nvidia_p2p_get_pages && nvidia_p2p_put_pages &&
	       nvidia_p2p_dma_map_pages && nvidia_p2p_dma_unmap_pages;
}

int nvpm_p2p_get(uint64_t va, uint64_t length,
		 struct nvidia_p2p_page_table **table,
		 void (*free_callback)(void *data), void *data)
{
	return nvidia_p2p_get_pages(0, 0, va, length, table, free_callback, data);
}

int nvpm_p2p_put(uint64_t va, struct nvidia_p2p_page_table *table)
{
	return nvidia_p2p_put_pages(0, 0, va, table);
}

/* A driver without the persistent API answers like a platform without it. */
int nvpm_p2p_get_persistent(uint64_t va, uint64_t length,
			    struct nvidia_p2p_page_table **table)
{
	if (!nvidia_p2p_get_pages_persistent || !nvidia_p2p_put_pages_persistent)
		return -ENOTSUPP;
	return nvidia_p2p_get_pages_persistent(va, length, table, 0);
}

int nvpm_p2p_put_persistent(uint64_t va, struct nvidia_p2p_page_table *table)
{
	return nvidia_p2p_put_pages_persistent(va, table, 0);
}

/* @dev must be a PCI device: nvpm_device_is_pci() is asked first. */
int nvpm_p2p_dma_map(struct device *dev, struct nvidia_p2p_page_table *table,
		     struct nvidia_p2p_dma_mapping **mapping)
{
	return nvidia_p2p_dma_map_pages(to_pci_dev(dev), table, mapping);
}

int nvpm_p2p_dma_unmap(struct device *dev, struct nvidia_p2p_page_table *table,
		       struct nvidia_p2p_dma_mapping *mapping)
{
	return nvidia_p2p_dma_unmap_pages(to_pci_dev(dev), table, mapping);
}

/* G. A semaphore and not a mutex: gets of different processes run in parallel. */

static DECLARE_RWSEM(nvpm_g);

void nvpm_g_lock_shared(void)
{
	down_read(&nvpm_g);
}

void nvpm_g_unlock_shared(void)
{
	up_read(&nvpm_g);
}

void nvpm_g_lock_exclusive(void)
{
	down_write(&nvpm_g);
}

void nvpm_g_unlock_exclusive(void)
{
	up_write(&nvpm_g);
}

/* Tasks and time. */

/*
 * A thread group is its number plus the start of its leader: exec by another
 * thread hands both on, and a reused number comes with another start. (struct
 * pid would say it in one word, but put_pid() is a GPL-only export.)
 */
void nvpm_current_process(struct nvpm_process *process)
{
	process->tgid = current->tgid;
	process->start_ns = READ_ONCE(current->group_leader)->start_boottime;
}

void nvpm_sleep_ms(uint32_t ms)
{
	msleep(ms);
}

void nvpm_cond_resched(void)
{
	cond_resched();
}

/* Waits until no task is preempted in the last instructions of a callback. */
void nvpm_drain_callback_tails(void)
{
#ifdef CONFIG_TASKS_RCU
	synchronize_rcu_tasks();
#endif
}

/*
 * Without tasks RCU synchronize_rcu_tasks() is synchronize_rcu(), which on a
 * preemptible kernel does not wait for a preempted callback tail.
 */
int nvpm_can_drain_callback_tails(void)
{
	return IS_ENABLED(CONFIG_TASKS_RCU) || !IS_ENABLED(CONFIG_PREEMPTION);
}

/* One line per burst and cause would need a state each; one budget is enough. */
int nvpm_log_allowed(void)
{
	static DEFINE_RATELIMIT_STATE(state, 5 * HZ, 10);

	return __ratelimit(&state);
}

/* DMA. */

uint64_t nvpm_page_size(void)
{
	return PAGE_SIZE;
}

int nvpm_device_is_pci(struct device *dev)
{
	return dev_is_pci(dev);
}

static u32 nvpm_pci_number(struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus) << 16 | pci_dev_id(pdev);
}

/* 0 where @dev is not PCI: the host bridge's number, which no HCA has. */
uint32_t nvpm_device_number(struct device *dev)
{
	return dev_is_pci(dev) ? nvpm_pci_number(to_pci_dev(dev)) : 0;
}

uint64_t nvpm_device_segment_limit(struct device *dev)
{
	return dma_get_max_seg_size(dev);
}

/*
 * The BAR around @address, if it belongs to a device that the provider's
 * driver (named "nvidia", as its module) drives. Takes no lock but the PCI
 * bus's own; may sleep. Returns 0 or -ENODEV.
 */
int nvpm_provider_bar(uint64_t address, struct nvpm_bar *bar)
{
	struct pci_dev *pdev = NULL;
	struct pci_bus_region bus;
	struct pci_driver *drv;
	struct resource *res;
	int i;

	while ((pdev = pci_get_device(PCI_ANY_ID, PCI_ANY_ID, pdev))) {
		drv = pci_dev_driver(pdev);
		if (!drv || strcmp(drv->name, "nvidia"))
			continue;
		for (i = 0; i < PCI_STD_NUM_BARS; i++) {
			res = &pdev->resource[i];
			if (!(res->flags & IORESOURCE_MEM) || !res->start ||
			    address < res->start || address > res->end)
				continue;
			pcibios_resource_to_bus(pdev->bus, &bus, res);
			bar->start = res->start;
			bar->last = res->end;
			bar->bus_offset = bus.start - res->start;
			bar->device = nvpm_pci_number(pdev);
			pci_dev_put(pdev);
			return 0;
		}
	}
	return -ENODEV;
}

/* Never under L: an IOMMU driver may allocate page tables. */
int nvpm_dma_map(struct device *dev, uint64_t address, uint64_t length,
		 uint64_t *dma)
{
	dma_addr_t mapped = dma_map_resource(dev, address, length,
					     DMA_BIDIRECTIONAL, 0);

	if (dma_mapping_error(dev, mapped))
		return -EIO;
	*dma = mapped;
	return 0;
}

/* Does not sleep. */
void nvpm_dma_unmap(struct device *dev, uint64_t dma, uint64_t length)
{
	dma_unmap_resource(dev, dma, length, DMA_BIDIRECTIONAL, 0);
}

/* sg_table. */

/* A table of exactly @entries, orig_nents == nents; NULL without memory. */
struct sg_table *nvpm_sg_alloc(uint32_t entries)
{
	struct sg_table *table = kmalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return NULL;
	if (sg_alloc_table(table, entries, GFP_KERNEL)) {
		kfree(table);
		return NULL;
	}
	return table;
}

void nvpm_sg_free(struct sg_table *table)
{
	sg_free_table(table);
	kfree(table);
}

struct scatterlist *nvpm_sg_first(struct sg_table *table)
{
	return table->sgl;
}

/*
 * Fills one entry and returns the next, NULL behind the last. There is no
 * struct page behind it, so the length is set directly: sg_set_page() would
 * do arithmetic on a page that does not exist.
 */
struct scatterlist *nvpm_sg_set(struct scatterlist *entry, uint64_t dma,
				uint32_t length)
{
	entry->offset = 0;
	entry->length = length;
	sg_dma_address(entry) = dma;
	sg_dma_len(entry) = length;
	return sg_next(entry);
}

void nvpm_sg_publish(struct sg_table *to, const struct sg_table *from)
{
	*to = *from;
}
