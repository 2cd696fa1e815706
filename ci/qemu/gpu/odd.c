// SPDX-License-Identifier: GPL-2.0
/*
 * The odd flavour: NVIDIA's own front with answers that it never gives in the release
 * that the lab builds, and that our module and its tools must meet all the same.
 *
 * A layer around nv-p2p.c. Pins, keys, locks, the free callback, the records of pages
 * and of mappings are NVIDIA's; odd.sed gives its tables the last word of version 2, and
 * its dma-bufs a function for devices that attach. Models (docs/facts.md#nvidias-driver):
 * - tables of any version, page size, length and address (lab.c: table_version,
 *   page_size, the faults table_*). A client sees a copy of the page records, and before
 *   nv-p2p.c frees the table it gets its own back.
 * - all three page sizes that a table can name, of which dma_map_pages cannot take the
 *   smallest: -EIO and a warning here, where nv-p2p.c stops the machine.
 * - coherent memory, with the flag of tables of version 2. It is mapped at once by
 *   dma_map_sg() in pages of the CPU, so that behind an IOMMU one range of addresses has
 *   all of it. NVIDIA's nv-dma.c does the same and warns where it lacks memory, also to
 *   unmap; here no such warning comes, and unmapping needs no memory.
 * - memory is coherent by what it is, not by its address: what has a wrong one is not
 *   mapped (rm_p2p_dma_map_pages in NVIDIA's osapi.c asks the GPU).
 * - of later releases: the topology (gates.c), a page that fails ends the mapping
 *   (front.c), and a dma-buf refuses a NIC when it attaches, not in map: from 570 on
 *   (nv-dmabuf.c).
 *
 * Left out: the flag that a persistent get knows since 570 (any is refused, as before
 * that); translated addresses of a BAR (dma_mode); of coherent memory that is a BAR's,
 * that no check of the topology is for it, and its dma-bufs; of coherent memory, parts of
 * more than 4 GiB, which are mapped one by one; an importer that is no PCI device, which
 * is refused. The copies of records are not in table_bytes.
 */
#include <linux/dma-buf.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>

#include "os-interface.h"
#include "nv-linux.h"
#include "nv-p2p.h"

#include "nvlab.h"
#include "front.h"

/* A mapping of coherent memory. nv-p2p.c has a record of it and does not know this one. */
struct mapping {
	struct list_head node;
	struct nvidia_p2p_page_table *table;
	struct task_struct *maker;	/* until it is made */
	struct nvidia_p2p_dma_mapping *record;
	struct device *dev;
	struct sg_table pages;		/* while it is mapped */
};

static LIST_HEAD(mappings);	/* under mappings_lock */
static DEFINE_MUTEX(mappings_lock);

/* --- tables --- */

/*
 * Returns the bytes per page of a table: as configured, but 128 KiB only where the memory has such
 * pages.
 */
static u64 table_page_size(const struct nvidia_p2p_page_table *table)
{
	u64 size = nvlab_config(NVLAB_C_PAGE_SIZE), addr;
	u32 i;

	if (size <= NVLAB_GPU_PAGE)
		return size;
	if (table->entries % 2)
		return NVLAB_GPU_PAGE;
	for (i = 0; i < table->entries; i += 2) {
		addr = table->pages[i]->physical_address;
		if (!IS_ALIGNED(addr, size) ||
		    table->pages[i + 1]->physical_address != addr + NVLAB_GPU_PAGE)
			return NVLAB_GPU_PAGE;
	}
	return size;
}

/* Gives the table @entries records of its own, of pages of @size. */
static int copy_records(struct nvidia_p2p_page_table *table, u64 size, u32 entries)
{
	struct nvidia_p2p_page **pages, *records;
	u32 i, page;
	u64 at;

	pages = kvcalloc(max(entries, 1), sizeof(*pages) + sizeof(*records), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	records = (void *)(pages + entries);
	for (i = 0; i < entries; i++) {
		/* A table that is made too long goes on with the addresses behind its last page. */
		at = i * size;
		page = min_t(u64, at >> NVLAB_PAGE_SHIFT, table->entries - 1);
		records[i].physical_address = table->pages[page]->physical_address + at -
					      ((u64)page << NVLAB_PAGE_SHIFT);
		pages[i] = &records[i];
	}
	table->real.pages = table->pages;
	table->real.entries = table->entries;
	table->real.made = pages;
	table->pages = pages;
	table->entries = entries;
	return 0;
}

int nvlab_odd_spoil(struct nvidia_p2p_page_table *table)
{
	u64 size = table_page_size(table), v;
	u32 entries = table->entries * (NVLAB_GPU_PAGE / SZ_4K) / (size / SZ_4K), i;
	int err;

	v = nvlab_fault(NVLAB_F_TABLE_SHORT);
	entries -= min_t(u64, v, entries);
	entries += nvlab_fault(NVLAB_F_TABLE_LONG);
	err = copy_records(table, size, entries);
	if (err)
		return err;
	table->page_size = size == SZ_4K ? NVIDIA_P2P_PAGE_SIZE_4KB :
			   size == SZ_128K ? NVIDIA_P2P_PAGE_SIZE_128KB :
			   NVIDIA_P2P_PAGE_SIZE_64KB;
	table->version = nvlab_config(NVLAB_C_TABLE_VERSION);
	table->flags = table->real.coherent && table->version >> 16 >= 2;

	v = nvlab_fault(NVLAB_F_TABLE_VERSION);
	if (v)
		table->version = v;
	v = nvlab_fault(NVLAB_F_TABLE_PAGE_SIZE);
	if (v)
		table->page_size = v & 0xff;
	v = nvlab_fault(NVLAB_F_TABLE_MISALIGN);
	for (i = 0; i < entries; i++)
		table->pages[i]->physical_address += v;
	v = nvlab_fault(NVLAB_F_TABLE_WRAP);
	if (v && v <= entries)
		table->pages[v - 1]->physical_address = -(NVLAB_GPU_PAGE / 2);
	v = nvlab_fault(NVLAB_F_TABLE_OUTSIDE);
	if (v && v <= entries)
		table->pages[v - 1]->physical_address = NVLAB_BACKING_SIZE;
	v = nvlab_fault(NVLAB_F_TABLE_NULL_ENTRY);
	if (v && v <= entries)
		table->pages[v - 1] = NULL;
	if (nvlab_fault(NVLAB_F_TABLE_NULL_PAGES))
		table->pages = NULL;
	return 0;
}

static void mapping_free(struct mapping *mapping)
{
	if (mapping->pages.sgl) {
		dma_unmap_sgtable(mapping->dev, &mapping->pages, DMA_BIDIRECTIONAL, 0);
		sg_free_table(&mapping->pages);
	}
	kfree(mapping);
}

void nvlab_odd_mend(struct nvidia_p2p_page_table *table)
{
	struct mapping *mapping, *next;
	LIST_HEAD(left);

	mutex_lock(&mappings_lock);
	list_for_each_entry_safe(mapping, next, &mappings, node)
		if (mapping->table == table)
			list_move(&mapping->node, &left);
	mutex_unlock(&mappings_lock);
	list_for_each_entry_safe(mapping, next, &left, node)
		mapping_free(mapping);
	/* A table without copied records still has nv-p2p.c's own. */
	if (!table->real.made)
		return;
	kvfree(table->real.made);
	table->real.made = NULL;
	table->pages = table->real.pages;
	table->entries = table->real.entries;
}

/*
 * Spoils the table of a persistent pin. front.c does that for a revocable one, before it has its
 * callback, when a free may end it.
 */
int nvlab_odd_get_pages_persistent(u64 va, u64 len, struct nvidia_p2p_page_table **table,
				   u32 flags)
{
	int err = nvidia_front_get_pages_persistent(va, len, table, flags);

	if (err)
		return err;
	err = nvlab_odd_spoil(*table);
	if (err) {
		nvidia_front_put_pages_persistent(va, *table, 0);
		*table = NULL;
	}
	return err;
}

/* --- DMA --- */

/* Returns the pages of the CPU, @each for each of @count addresses. */
static struct page **pages_at(const u64 *addr, u32 count, u32 each)
{
	struct page **pages = kvmalloc_array(count * each, sizeof(*pages), GFP_KERNEL);
	u32 i;

	for (i = 0; pages && i < count * each; i++) {
		unsigned long pfn = PHYS_PFN(addr[i / each]) + i % each;

		if (!pfn_valid(pfn)) {
			kvfree(pages);
			return ERR_PTR(-EIO);
		}
		pages[i] = pfn_to_page(pfn);
	}
	return pages ?: ERR_PTR(-ENOMEM);
}

static int map_pages(struct mapping *mapping, u32 count, u32 each, u64 *addr)
{
	struct page **pages = pages_at(addr, count, each);
	struct sg_table *table = &mapping->pages;
	struct sg_dma_page_iter it;
	u64 next = 0;
	u32 i = 0;
	int err;

	if (IS_ERR(pages))
		return PTR_ERR(pages);
	err = sg_alloc_table_from_pages(table, pages, count * each, 0,
					(u64)count * each << PAGE_SHIFT, GFP_KERNEL);
	kvfree(pages);
	if (err)
		return err;
	if (dma_map_sgtable(mapping->dev, table, DMA_BIDIRECTIONAL, 0)) {
		sg_free_table(table);
		return -EIO;
	}
	/* A page of the table gets addresses in a row. */
	for_each_sgtable_dma_page(table, &it, 0) {
		u64 at = sg_page_iter_dma_address(&it);

		if (i % each == 0)
			addr[i / each] = at;
		else if (at != next)
			err = -EIO;
		next = at + PAGE_SIZE;
		i++;
	}
	return err;
}

/* Returns the mapping that this task makes, or NULL. Called under mappings_lock. */
static struct mapping *mapping_in_making(void)
{
	struct mapping *mapping;

	list_for_each_entry(mapping, &mappings, node)
		if (mapping->maker == current)
			return mapping;
	return NULL;
}

bool nvlab_odd_map(struct device *dev, u64 size, u32 count, u64 *addr, int *err)
{
	u64 partial;
	struct mapping *mapping;

	mutex_lock(&mappings_lock);
	mapping = mapping_in_making();
	mutex_unlock(&mappings_lock);
	/* Memory of a BAR has no pages, coherent or not. */
	if (!mapping || (count && !pfn_valid(PHYS_PFN(addr[0]))))
		return false;
	partial = nvlab_fault(NVLAB_F_MAP_PARTIAL);
	mapping->dev = dev;
	*err = partial && partial <= count ? -EIO :
	       map_pages(mapping, count, size / PAGE_SIZE, addr);
	return true;
}

int nvlab_odd_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			    struct nvidia_p2p_dma_mapping **record)
{
	struct mapping *mapping;
	int err;

	if (table && WARN_ON(table->page_size == NVIDIA_P2P_PAGE_SIZE_4KB ||
			     table->page_size >= NVIDIA_P2P_PAGE_SIZE_COUNT))
		return -EIO;
	if (!table || !table->real.coherent)
		return nvidia_front_dma_map_pages(peer, table, record);
	mapping = kzalloc_obj(*mapping);
	if (!mapping)
		return -ENOMEM;
	mapping->table = table;
	mapping->maker = current;
	mutex_lock(&mappings_lock);
	list_add(&mapping->node, &mappings);
	mutex_unlock(&mappings_lock);
	err = nvidia_front_dma_map_pages(peer, table, record);
	mutex_lock(&mappings_lock);
	/* If the table is gone, so is the mapping. */
	mapping = mapping_in_making();
	if (mapping && (err || !mapping->pages.sgl)) {
		list_del(&mapping->node);
	} else if (mapping) {
		mapping->maker = NULL;
		mapping->record = *record;
		mapping = NULL;
	}
	mutex_unlock(&mappings_lock);
	if (mapping)
		mapping_free(mapping);
	return err;
}

int nvlab_odd_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			      struct nvidia_p2p_dma_mapping *record)
{
	struct mapping *mapping, *found = NULL;

	mutex_lock(&mappings_lock);
	list_for_each_entry(mapping, &mappings, node)
		if (peer && record && mapping->table == table && mapping->record == record)
			found = mapping;
	if (found)
		list_del(&found->node);
	mutex_unlock(&mappings_lock);
	if (found)
		mapping_free(found);
	return nvidia_front_dma_unmap_pages(peer, table, record);
}

/* --- dma-buf --- */

int nvlab_odd_attach(struct dma_buf *buf, struct dma_buf_attachment *attach)
{
	/* The first word of nv-dmabuf.c's record of a buffer. */
	nv_state_t *nv = *(nv_state_t **)buf->priv;
	nv_dma_device_t peer;

	if (!dev_is_pci(attach->dev) || nvlab_fault(NVLAB_F_ATTACH_TOPOLOGY) ||
	    (attach->importer_ops && !attach->peer2peer))
		return -ENOTSUPP;
	peer = dma_device(attach->dev);
	if (!nv_grdma_pci_topology_supported(nv, &peer)) {
		pr_err("NVRM: dma-buf attach failed: PCI topology not supported for dma-buf\n");
		return -ENOTSUPP;
	}
	return 0;
}
