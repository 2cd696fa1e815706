// SPDX-License-Identifier: GPL-2.0
/* An sg_table and its entries; see shim.h. */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "shim.h"

struct nvpm_sg_one {
	struct sg_table head;
	struct scatterlist entry;
};

static_assert(sizeof(struct nvpm_sg_one) <= sizeof(struct nvpm_sg_room));

/*
 * A table of exactly @entries, orig_nents == nents; NULL without memory. A
 * table of one entry is in @room, which stays until nvpm_sg_free().
 */
struct sg_table *nvpm_sg_alloc(int entries, struct nvpm_sg_room *room)
{
	struct nvpm_sg_one *one = (struct nvpm_sg_one *)room;
	struct sg_table *table;

	if (entries == 1) {
		one->entry = (struct scatterlist){ };
		sg_mark_end(&one->entry);
		one->head.sgl = &one->entry;
		one->head.nents = 1;
		one->head.orig_nents = 1;
		return &one->head;
	}
	table = kmalloc(sizeof(*table), GFP_KERNEL);
	if (table && sg_alloc_table(table, entries, GFP_KERNEL)) {
		kfree(table);
		table = NULL;
	}
	return table;
}

void nvpm_sg_free(struct sg_table *table)
{
	if (table->orig_nents == 1)
		return;
	sg_free_table(table);
	kfree(table);
}

struct scatterlist *nvpm_sg_first(struct sg_table *table)
{
	return table->sgl;
}

/*
 * Fills one entry and returns the next, NULL behind the last. There is no
 * struct page behind it, so the CPU's length stays 0, as it was allocated, and
 * only the DMA length is set: a driver whose CPU copies from such a table then
 * copies nothing (rule 13), where it would follow the missing page for as long
 * as the CPU's length says.
 */
#ifndef CONFIG_NEED_SG_DMA_LENGTH
#error "sg_dma_len() is the CPU's length on this architecture"
#endif

struct scatterlist *nvpm_sg_set(struct scatterlist *entry, uint64_t dma,
				uint32_t length)
{
	sg_dma_address(entry) = dma;
	sg_dma_len(entry) = length;
	return sg_next(entry);
}

/* Returns the number of entries. */
int nvpm_sg_publish(struct sg_table *to, const struct sg_table *from)
{
	*to = *from;
	return from->nents;
}
