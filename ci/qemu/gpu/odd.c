// SPDX-License-Identifier: GPL-2.0
/*
 * The exported nvidia_p2p_* functions of the odd flavour: what NVIDIA's own front
 * (front.c) does not do in the release that the lab builds, and our module must
 * meet all the same.
 *
 * Models (docs/facts.md#nvidias-driver): page tables with any version, page size,
 * length and address; coherent memory, with the flag of tables of version 2, mapped
 * at once by dma_map_sg() in pages of the CPU, so that behind an IOMMU one range of
 * addresses has all of it, however it is laid out; raw bus addresses from
 * dma_map_pages; all three page sizes that a table can name, of which
 * dma_map_pages cannot take the smallest; the check of the PCI topology that drivers
 * from 580 on make (nv_grdma_pci_topology_supported in their nv-pci.c), without its
 * parameter. The closed flavour stands on it, too.
 *
 * Otherwise it is as plain as can be: the table, its records in one piece, and
 * what a client can see of get, put and the free callback. Most hold points, the
 * faults of put, and addresses that are used again at once are the other flavour's.
 *
 * Left out: the request registers of Fermi, rsync, NVLink address compression; the
 * flag that a persistent get knows since 570 (any is
 * refused, as before that); of coherent memory, parts of more than 4 GiB, which are
 * mapped one by one.
 */
#define pr_fmt(fmt) "NVRM: " fmt

#include <linux/dma-mapping.h>
#include <linux/error-injection.h>
#include <linux/export.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "lab_mark.h"
#include "nvlab.h"
#include "p2p.h"

#define MAPPING_VERSION		((NVIDIA_P2P_DMA_MAPPING_MAJOR << 16) | 3)

/* What hangs on one page table. The table's address is the key that RM knows. */
struct mem_info {
	struct nvidia_p2p_page_table table;	/* first: its address is the key */
	struct list_head mappings;
	struct mutex mappings_lock;
	void (*free_callback)(void *data);
	void *data;
	struct nvlab_gpu *gpu;
	struct nvlab_dup *dup;
	struct nvidia_p2p_page *records;	/* in one piece */
	u32 pages_made;
	u32 pages_room;
	bool coherent;
	struct list_head node;		/* among the leaked ones */
};

enum mapping_how { MAPPED_RAW, MAPPED_RESOURCE, MAPPED_PAGES };

struct mapping {
	struct nvidia_p2p_dma_mapping pub;
	struct list_head node;
	enum mapping_how how;
	u64 page_size;
	struct sg_table pages;	/* of MAPPED_PAGES, while it is mapped */
};

static DEFINE_MUTEX(leaked_lock);
static LIST_HEAD(leaked);	/* under leaked_lock */

/* Bytes that a client's pin costs the provider, beside the mappings. */
static s64 info_bytes(struct mem_info *info)
{
	return sizeof(*info) + NVLAB_UUID_LEN + (s64)info->pages_room *
	       (sizeof(*info->table.pages) + sizeof(**info->table.pages));
}

static struct mem_info *info_of(struct nvidia_p2p_page_table *table)
{
	return container_of(table, struct mem_info, table);
}

/* RM's "object not found" is no errno of these functions. */
static int status(int err)
{
	return err == -ENOENT ? -EINVAL : err;
}

static struct mem_info *info_alloc(void)
{
	struct mem_info *info = kzalloc_obj(*info);

	if (!info)
		return NULL;
	INIT_LIST_HEAD(&info->mappings);
	mutex_init(&info->mappings_lock);
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, info_bytes(info));
	return info;
}

static void info_free(struct mem_info *info)
{
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, -info_bytes(info));
	mutex_destroy(&info->mappings_lock);
	kfree(info);
}

/* --- DMA mappings --- */

static void mapping_undo(struct mapping *map, u32 count)
{
	struct device *dev = &map->pub.pci_dev->dev;
	u32 i;

	if (map->how == MAPPED_RESOURCE)
		for (i = 0; i < count; i++)
			dma_unmap_resource(dev, map->pub.dma_addresses[i],
					   map->page_size, DMA_BIDIRECTIONAL,
					   0);
	if (map->pages.sgl) {
		dma_unmap_sgtable(dev, &map->pages, DMA_BIDIRECTIONAL, 0);
		sg_free_table(&map->pages);
	}
}

static void mapping_free(struct mapping *map)
{
	mapping_undo(map, map->pub.entries);
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, -1);
	kvfree(map->pub.dma_addresses);
	kfree(map);
}

/* Take this mapping, or any when @wanted is NULL, off the table. */
static struct mapping *mapping_take(struct mem_info *info,
				    struct nvidia_p2p_dma_mapping *wanted)
{
	struct mapping *map, *found = NULL;

	mutex_lock(&info->mappings_lock);
	list_for_each_entry(map, &info->mappings, node) {
		if (!wanted || wanted == &map->pub) {
			list_del(&map->node);
			found = map;
			break;
		}
	}
	mutex_unlock(&info->mappings_lock);
	return found;
}

unsigned int nvlab_p2p_mappings(void *key)
{
	struct mem_info *info = info_of(key);
	unsigned int n;

	mutex_lock(&info->mappings_lock);
	n = list_count_nodes(&info->mappings);
	mutex_unlock(&info->mappings_lock);
	return n;
}

static void table_free(struct mem_info *info)
{
	struct nvidia_p2p_page_table *table = &info->table;
	struct mapping *map;

	while ((map = mapping_take(info, NULL)))
		mapping_free(map);
	kvfree(info->records);
	kvfree(table->pages);
	kfree(table->gpu_uuid);
	info_free(info);
}

void nvlab_p2p_leak(void *key)
{
	struct mem_info *info = info_of(key);

	nvlab_count(NVLAB_ACCOUNT_LEAKED_TABLES);
	mutex_lock(&leaked_lock);
	list_add(&info->node, &leaked);
	mutex_unlock(&leaked_lock);
}

/* --- get --- */

/* What the fault switches make of a good table. */
static void table_spoil(struct mem_info *info)
{
	struct nvidia_p2p_page_table *table = &info->table;
	u64 v;
	u32 i;

	v = nvlab_fault(NVLAB_F_TABLE_VERSION);
	if (v)
		table->version = v;
	v = nvlab_fault(NVLAB_F_TABLE_PAGE_SIZE);
	if (v)
		table->page_size = v & 0xff;
	v = nvlab_fault(NVLAB_F_TABLE_MISALIGN);
	for (i = 0; v && i < info->pages_made; i++)
		table->pages[i]->physical_address += v;
	v = nvlab_fault(NVLAB_F_TABLE_WRAP);
	if (v && v <= info->pages_made)
		table->pages[v - 1]->physical_address = -(NVLAB_GPU_PAGE / 2);
	v = nvlab_fault(NVLAB_F_TABLE_OUTSIDE);
	if (v && v <= info->pages_made)
		table->pages[v - 1]->physical_address = NVLAB_BACKING_SIZE;
	v = nvlab_fault(NVLAB_F_TABLE_NULL_ENTRY);
	if (v && v <= info->pages_made)
		table->pages[v - 1] = NULL;
	if (nvlab_fault(NVLAB_F_TABLE_NULL_PAGES)) {
		kvfree(table->pages);
		table->pages = NULL;
	}
}

/*
 * Bytes per page of the table: what the configuration says, but 128 KiB only
 * where the memory consists of such pages.
 */
static u64 table_page_size(const u64 *phys, u32 count)
{
	u64 size = nvlab_config(NVLAB_C_PAGE_SIZE);
	u32 i;

	if (size <= NVLAB_GPU_PAGE)
		return size;
	if (count % 2)
		return NVLAB_GPU_PAGE;
	for (i = 0; i < count; i += 2)
		if (!IS_ALIGNED(phys[i], size) ||
		    phys[i + 1] != phys[i] + NVLAB_GPU_PAGE)
			return NVLAB_GPU_PAGE;
	return size;
}

static u64 code_bytes(u32 code)
{
	switch (code) {
	case NVIDIA_P2P_PAGE_SIZE_4KB:
		return SZ_4K;
	case NVIDIA_P2P_PAGE_SIZE_128KB:
		return SZ_128K;
	default:
		return NVLAB_GPU_PAGE;
	}
}

static u32 bytes_code(u64 bytes)
{
	switch (bytes) {
	case SZ_4K:
		return NVIDIA_P2P_PAGE_SIZE_4KB;
	case SZ_128K:
		return NVIDIA_P2P_PAGE_SIZE_128KB;
	default:
		return NVIDIA_P2P_PAGE_SIZE_64KB;
	}
}

static int table_build(struct mem_info *info, const u64 *phys, u32 count)
{
	struct nvidia_p2p_page_table *table = &info->table;
	u64 size = table_page_size(phys, count), change, at;
	u32 entries = ((u64)count << NVLAB_PAGE_SHIFT) / size;
	u32 i, page;

	change = nvlab_fault(NVLAB_F_TABLE_SHORT);
	if (change)
		entries -= min_t(u64, change, entries);
	entries += nvlab_fault(NVLAB_F_TABLE_LONG);

	table->pages = kvcalloc(max(entries, 1), sizeof(*table->pages), GFP_KERNEL);
	if (!table->pages)
		return -ENOMEM;
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, -info_bytes(info));
	info->pages_room = entries;
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, info_bytes(info));
	table->version = nvlab_config(NVLAB_C_TABLE_VERSION);
	info->records = kvcalloc(max(entries, 1), sizeof(*info->records), GFP_KERNEL);
	if (!info->records)
		return -ENOMEM;
	for (i = 0; i < entries; i++) {
		/* Behind the end, where the table is made too long, it goes on. */
		at = i * size;
		page = min_t(u64, at >> NVLAB_PAGE_SHIFT, count - 1);
		info->records[i].physical_address =
			phys[page] + at - ((u64)page << NVLAB_PAGE_SHIFT);
		table->pages[i] = &info->records[i];
	}
	info->pages_made = entries;
	table->entries = entries;
	table->page_size = bytes_code(size);
	if (info->coherent &&
	    table->version >> 16 >= NVIDIA_P2P_PAGE_TABLE_MAJOR_V2)
		table->flags = NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE;
	table_spoil(info);
	return 0;
}

/* What RM calls when memory is freed: the client first, then the table goes. */
static void mem_info_free_callback(void *data)
{
	struct mem_info *info = data;
	u64 start = ktime_get_ns();

	nvlab_count(NVLAB_ACCOUNT_CALLBACKS);
	lab_mark_begin();
	info->free_callback(info->data);
	lab_mark_end();
	nvlab_add_since(NVLAB_ACCOUNT_CALLBACK_NS, start);
	table_free(info);
}

static bool range_is_good(u64 va, u64 len)
{
	return len && va + len >= va && IS_ALIGNED(va | len, NVLAB_GPU_PAGE);
}

/* The persistent half of get: find the GPU, hold it, duplicate the memory. */
static int get_persistent(ktime_t *start, struct mem_info *info, u64 va,
			  u64 len, u64 *phys, u32 count,
			  struct nvlab_pinned *pinned)
{
	int err;

	err = nvlab_rm_gpu_info(start, va, len, &info->gpu);
	if (err)
		return err;
	err = nvlab_gpu_pin(info->gpu);
	nvlab_gpu_put(info->gpu);
	if (err)
		return err;
	err = nvlab_rm_get_persistent(start, va, len, info, phys, count, pinned,
				      &info->dup);
	if (err) {
		nvlab_gpu_unpin(info->gpu);
		return err;
	}
	/* A pinned GPU keeps its driver. */
	__module_get(THIS_MODULE);
	return 0;
}

/*
 * The reference of the GPU goes whatever RM answers, and with it what keeps the
 * driver loaded. After an error the pin stays, without either, and its table is
 * leaked. A second put then takes away a reference that somebody else has.
 */
static int put_persistent(struct mem_info *info)
{
	struct nvlab_gpu *gpu = info->gpu;
	ktime_t start = ktime_get();
	u64 len;
	int err;

	err = nvlab_rm_put_persistent(&start, info->dup, &len);
	nvlab_gpu_unpin(gpu);
	module_put(THIS_MODULE);
	if (err) {
		nvlab_p2p_leak(info);
		return err;
	}
	table_free(info);
	nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, len,
		    NVLAB_ALL);
	return 0;
}

/* The revocable one; -ENOENT and nothing done where RM does not know the key. */
static int put_revocable(struct nvidia_p2p_page_table *table)
{
	ktime_t start = ktime_get();
	u64 len;
	int err;

	/* The table may be gone: until RM knows it, it is a number. */
	err = nvlab_rm_put(&start, table, &len);
	if (err)
		return err;
	table_free(info_of(table));
	nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, len,
		    NVLAB_ALL);
	return 0;
}

static int get(bool persistent, u64 va, u64 len,
	       struct nvidia_p2p_page_table **table,
	       void (*free_callback)(void *data), void *data)
{
	ktime_t start = ktime_get();
	struct nvlab_pinned pinned;
	struct mem_info *info;
	bool got = false;
	u64 *phys = NULL;
	u32 count;
	int err;

	if (!range_is_good(va, len))
		return -EINVAL;
	*table = NULL;
	info = info_alloc();
	if (!info)
		return -ENOMEM;
	*table = &info->table;
	count = len >> NVLAB_PAGE_SHIFT;

	/* Before anybody knows whose range this is. */
	err = -ENOMEM;
	if (nvlab_fault_is(NVLAB_F_GET_NOMEM, 1))
		goto failed;
	phys = kvmalloc_array(count, sizeof(*phys), GFP_KERNEL | __GFP_NOWARN);
	if (!phys)
		goto failed;

	err = persistent ? get_persistent(&start, info, va, len, phys, count,
					  &pinned) :
			   nvlab_rm_get(&start, va, len, info, phys, count,
					&pinned);
	if (err)
		goto failed;
	got = true;
	info->gpu = pinned.gpu;
	info->coherent = pinned.coherent;

	err = -ENOMEM;
	info->table.gpu_uuid = kmemdup(pinned.gpu->uuid, NVLAB_UUID_LEN,
				       GFP_KERNEL);
	if (!info->table.gpu_uuid)
		goto failed;
	err = table_build(info, phys, count);
	if (err)
		goto failed;
	nvlab_spend(start, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB, len, NVLAB_ALL);
	if (!persistent) {
		info->free_callback = free_callback;
		info->data = data;
		err = nvlab_rm_register(va, len, info, mem_info_free_callback,
					info);
		if (err)
			goto failed;
		/* From here on the callback may run, and info be gone. */
	}
	kvfree(phys);
	return 0;

failed:
	kvfree(phys);
	if (!got) {
		table_free(info);	/* and *table keeps pointing there */
	} else if (persistent) {
		put_persistent(info);
		*table = NULL;
	} else {
		if (put_revocable(&info->table))
			nvlab_p2p_leak(info);	/* freed meanwhile */
		*table = NULL;
	}
	return status(err);
}

noinline int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space,
				  u64 virtual_address, u64 length,
				  struct nvidia_p2p_page_table **page_table,
				  void (*free_callback)(void *data), void *data)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_GETS);
	if (!free_callback)
		err = -EINVAL;
	else
		err = get(false, virtual_address, length, page_table,
			  free_callback, data);
	if (err)
		nvlab_count(NVLAB_ACCOUNT_GET_FAILURES);
	nvlab_add_since(NVLAB_ACCOUNT_GET_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_get_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_get_pages, ERRNO);

noinline int
nvidia_p2p_get_pages_persistent(u64 virtual_address, u64 length,
				struct nvidia_p2p_page_table **page_table,
				u32 flags)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_PERSISTENT_GETS);
	if (flags)
		err = -EINVAL;
	else
		err = get(true, virtual_address, length, page_table, NULL,
			  NULL);
	if (err)
		nvlab_count(NVLAB_ACCOUNT_PERSISTENT_GET_FAILURES);
	nvlab_add_since(NVLAB_ACCOUNT_GET_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_get_pages_persistent);
ALLOW_ERROR_INJECTION(nvidia_p2p_get_pages_persistent, ERRNO);

/* --- put --- */

noinline int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space,
				  u64 virtual_address,
				  struct nvidia_p2p_page_table *page_table)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_PUTS);
	if (!page_table)
		return 0;
	err = put_revocable(page_table);
	nvlab_add_since(NVLAB_ACCOUNT_PUT_NS, start);
	if (err == -ENOENT) {
		nvlab_count(NVLAB_ACCOUNT_PUTS_NOT_FOUND);
		return 0;
	}
	if (err) {
		WARN_ON(err);
		nvlab_count(NVLAB_ACCOUNT_PUT_FAILURES);
		return status(err);
	}
	return 0;
}
NVLAB_EXPORT(nvidia_p2p_put_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_put_pages, ERRNO);

noinline int
nvidia_p2p_put_pages_persistent(u64 virtual_address,
				struct nvidia_p2p_page_table *page_table,
				u32 flags)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_PERSISTENT_PUTS);
	if (!page_table)
		return 0;
	if (flags) {
		nvlab_count(NVLAB_ACCOUNT_PERSISTENT_PUT_FAILURES);
		return -EINVAL;
	}
	err = put_persistent(info_of(page_table));
	nvlab_add_since(NVLAB_ACCOUNT_PUT_NS, start);
	if (err)
		nvlab_count(NVLAB_ACCOUNT_PERSISTENT_PUT_FAILURES);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_put_pages_persistent);
ALLOW_ERROR_INJECTION(nvidia_p2p_put_pages_persistent, ERRNO);

/* --- DMA mapping --- */

int nvlab_map_peer(struct nvlab_gpu *gpu, struct device *peer, bool remap,
		   u64 len, u64 *addr)
{
	struct resource *res = &gpu->pdev->resource[2];

	/* The resource's end is inclusive, which costs the last page. */
	if (*addr < res->start || *addr + len > res->end)
		return -EIO;
	if (!remap) {
		*addr += pci_bus_address(gpu->pdev, 2) - res->start;
		return 0;
	}
	*addr = dma_map_resource(peer, *addr, len, DMA_BIDIRECTIONAL, 0);
	return dma_mapping_error(peer, *addr) ? -EIO : 0;
}

/* A bridge above both is a switch, or a root port with several devices. */
bool nvlab_topology_supported(struct nvlab_gpu *gpu, struct pci_dev *peer)
{
	struct pci_dev *above, *port;

	if (!nvlab_config(NVLAB_C_UNAPPROVED_CHIPSET))
		return true;
	for (above = pci_upstream_bridge(gpu->pdev); above; above = pci_upstream_bridge(above))
		for (port = pci_upstream_bridge(peer); port; port = pci_upstream_bridge(port))
			if (port == above)
				return true;
	return false;
}

/* The pages of coherent memory in the order of the table; NULL for -ENOMEM. */
static struct page **pages_of(const struct mapping *map, u32 count)
{
	const u32 each = map->page_size / PAGE_SIZE;
	struct page **pages = kvmalloc_array(max(count, 1), sizeof(*pages),
					     GFP_KERNEL);
	u32 i;

	for (i = 0; pages && i < count; i++) {
		unsigned long pfn = PHYS_PFN(map->pub.dma_addresses[i / each]) +
				    i % each;

		if (!pfn_valid(pfn)) {
			kvfree(pages);
			return ERR_PTR(-EIO);
		}
		pages[i] = pfn_to_page(pfn);
	}
	return pages;
}

/* Coherent memory, all at once. Under the RM API lock. */
static int map_pages(struct mapping *map)
{
	const u32 each = map->page_size / PAGE_SIZE;
	const u32 count = map->pub.entries * each;
	struct device *dev = &map->pub.pci_dev->dev;
	struct page **pages = pages_of(map, count);
	struct sg_dma_page_iter it;
	u64 next = 0;
	int err, i = 0;

	if (IS_ERR_OR_NULL(pages))
		return pages ? PTR_ERR(pages) : -ENOMEM;
	err = sg_alloc_table_from_pages(&map->pages, pages, count, 0,
					(u64)count << PAGE_SHIFT, GFP_KERNEL);
	kvfree(pages);
	if (err)
		return err;
	if (dma_map_sgtable(dev, &map->pages, DMA_BIDIRECTIONAL, 0)) {
		sg_free_table(&map->pages);
		return -EIO;
	}
	for_each_sgtable_dma_page(&map->pages, &it, 0) {
		u64 addr = sg_page_iter_dma_address(&it);

		if (i % each == 0)
			map->pub.dma_addresses[i / each] = addr;
		else if (addr != next)
			err = -EIO;
		next = addr + PAGE_SIZE;
		i++;
	}
	if (err)
		mapping_undo(map, 0);
	return err;
}

static int map_all(struct mapping *map, struct mem_info *info)
{
	u64 partial = nvlab_fault(NVLAB_F_MAP_PARTIAL);
	int err = 0;
	u32 i;

	if (map->how == MAPPED_PAGES)
		return partial && partial <= map->pub.entries ? -EIO : map_pages(map);
	for (i = 0; i < map->pub.entries; i++) {
		err = i + 1 == partial ? -EIO :
		      nvlab_map_peer(info->gpu, &map->pub.pci_dev->dev,
				     map->how == MAPPED_RESOURCE,
				     map->page_size,
				     &map->pub.dma_addresses[i]);
		if (!err)
			continue;
		mapping_undo(map, i);
		break;
	}
	return err;
}

static int dma_map(struct pci_dev *peer,
		   struct nvidia_p2p_page_table *page_table,
		   struct nvidia_p2p_dma_mapping **dma_mapping)
{
	struct mem_info *info = info_of(page_table);
	struct mapping *map;
	u64 wrong;
	int err;
	u32 i;

	*dma_mapping = NULL;
	map = kzalloc_obj(*map);
	if (!map)
		return -ENOMEM;
	/* The table is read here, and nothing keeps it from being freed. */
	map->pub.entries = page_table->entries;
	map->pub.dma_addresses = kvmalloc_array(max(map->pub.entries, 1),
						sizeof(u64), GFP_KERNEL);
	if (!map->pub.dma_addresses) {
		kfree(map);
		return -ENOMEM;
	}
	if (WARN_ON(page_table->page_size == NVIDIA_P2P_PAGE_SIZE_4KB ||
		    page_table->page_size > NVIDIA_P2P_PAGE_SIZE_128KB)) {
		err = -EIO;	/* the real one stops the machine */
		goto free;
	}
	for (i = 0; i < map->pub.entries; i++)
		map->pub.dma_addresses[i] =
			page_table->pages[i]->physical_address;
	map->pub.version = MAPPING_VERSION;
	map->pub.page_size_type = page_table->page_size;
	map->page_size = code_bytes(page_table->page_size);
	map->pub.pci_dev = peer;
	/* Coherent memory has pages; where it is a BAR's, the lab's has none. */
	if (info->coherent)
		map->how = map->pub.entries && pfn_valid(PHYS_PFN(map->pub.dma_addresses[0])) ?
			   MAPPED_PAGES : MAPPED_RESOURCE;
	else
		map->how = MAPPED_RAW;

	err = nvlab_api_lock("dma_map_pages");
	if (err)
		goto free;
	if (nvlab_fault(NVLAB_F_MAP_TOPOLOGY) ||
	    (!info->coherent && !nvlab_topology_supported(info->gpu, peer)))
		err = -ENOTSUPP;
	wrong = err ? 0 : nvlab_fault(NVLAB_F_MAP_ERRNO);
	if (wrong)
		err = -(int)wrong;
	if (!err)
		err = map_all(map, info);
	nvlab_api_unlock();
	if (err)
		goto free;
	mutex_lock(&info->mappings_lock);
	list_add_tail(&map->node, &info->mappings);
	mutex_unlock(&info->mappings_lock);
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, 1);
	nvlab_add(NVLAB_ACCOUNT_MAPPED_PAGES, map->pub.entries);
	*dma_mapping = &map->pub;
	return 0;
free:
	kvfree(map->pub.dma_addresses);
	kfree(map);
	return err;
}

noinline int
nvidia_p2p_dma_map_pages(struct pci_dev *peer,
			 struct nvidia_p2p_page_table *page_table,
			 struct nvidia_p2p_dma_mapping **dma_mapping)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_count(NVLAB_ACCOUNT_DMA_MAPS);
	if (!peer || !page_table || !dma_mapping || !page_table->gpu_uuid)
		err = -EINVAL;
	else
		err = dma_map(peer, page_table, dma_mapping);
	nvlab_add_since(NVLAB_ACCOUNT_MAP_NS, start);
	return err;
}
NVLAB_EXPORT(nvidia_p2p_dma_map_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_dma_map_pages, ERRNO);

noinline int
nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
			   struct nvidia_p2p_page_table *page_table,
			   struct nvidia_p2p_dma_mapping *dma_mapping)
{
	u64 start = ktime_get_ns();
	struct mapping *map;

	nvlab_count(NVLAB_ACCOUNT_DMA_UNMAPS);
	if (!peer || !page_table || !dma_mapping)
		return -EINVAL;
	/* After the callback this reads freed memory, as the real one does. */
	map = mapping_take(info_of(page_table), dma_mapping);
	if (!map)
		return 0;
	WARN_ON(peer != map->pub.pci_dev);
	mapping_free(map);
	nvlab_add_since(NVLAB_ACCOUNT_UNMAP_NS, start);
	return 0;
}
NVLAB_EXPORT(nvidia_p2p_dma_unmap_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_dma_unmap_pages, ERRNO);

#ifndef NVLAB_CLOSED_CORE
#include "noops.h"
#endif

void nvlab_p2p_exit(void)
{
	struct mem_info *info, *next;

	/* Nobody is left to race with. */
	list_for_each_entry_safe(info, next, &leaked, node)
		table_free(info);
}
