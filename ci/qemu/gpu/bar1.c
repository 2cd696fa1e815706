// SPDX-License-Identifier: GPL-2.0
#ifdef __KERNEL__
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/slab.h>
#endif

#include "bar1.h"

/* Memory and BAR agree in their addresses below 2 MiB: the GPU has such pages. */
#define BLOCK	32u

int bar1_init(struct bar1 *bar1, u32 pages)
{
	u32 i;

	bar1->pages = pages;
	bar1->used = 0;
	bar1->next = 0;
	bar1->video = kvmalloc_array(pages, sizeof(*bar1->video), GFP_KERNEL);
	if (!bar1->video)
		return -ENOMEM;
	for (i = 0; i < pages; i++)
		bar1->video[i] = BAR1_NONE;
	return 0;
}

void bar1_exit(struct bar1 *bar1)
{
	kvfree(bar1->video);
}

/* Returns the lowest free area of @count pages in [@from, @to) that begins @into a block. */
static u32 find_in(struct bar1 *bar1, u32 from, u32 to, u32 count, u32 into)
{
	u32 start, i;

	from += (into + BLOCK - from % BLOCK) % BLOCK;
	for (start = from; start < to && count <= bar1->pages - start;
	     start += BLOCK) {
		for (i = 0; i < count; i++)
			if (bar1->video[start + i] != BAR1_NONE)
				break;
		if (i == count)
			return start;
		/* Nothing fits before the page that is taken. */
		start += i / BLOCK * BLOCK;
	}
	return BAR1_NONE;
}

/*
 * Returns a free area. It looks behind the last one first: an address that was unmapped is used
 * again as late as possible, so a NIC that still has it is found out.
 */
static u32 find_area(struct bar1 *bar1, u32 count, u32 into)
{
	u32 start = find_in(bar1, bar1->next, bar1->pages, count, into);

	return start == BAR1_NONE ? find_in(bar1, 0, bar1->next, count, into) :
				    start;
}

static void shuffle(u32 *at, u32 count, u32 (*random)(void *state), void *state)
{
	u32 i, j, other;

	for (i = count - 1; i > 0; i--) {
		j = random(state) % (i + 1);
		other = at[i];
		at[i] = at[j];
		at[j] = other;
	}
}

/* Chooses an area for the extent, and writes into at[] where each of its pages lies. */
static int place(struct bar1 *bar1, struct bar1_extent *extent,
		 enum bar1_layout layout, u32 (*random)(void *state),
		 void *state)
{
	u32 into = extent->first % BLOCK, blocks, start, i;
	u32 count = extent->count;

	blocks = (into + count + BLOCK - 1) / BLOCK;
	if (layout == BAR1_BROKEN_2M)
		start = find_area(bar1, blocks * BLOCK, 0);
	else
		start = find_area(bar1, count, into);
	if (start == BAR1_NONE)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		if (layout == BAR1_BROKEN_2M)
			extent->at[i] = start + (into + i) % BLOCK +
				(blocks - 1 - (into + i) / BLOCK) * BLOCK;
		else if (layout == BAR1_BROKEN_64K)
			extent->at[i] = start + count - 1 - i;
		else
			extent->at[i] = start + i;
	}
	if (layout == BAR1_SHUFFLED)
		shuffle(extent->at, count, random, state);
	bar1->next = start + (layout == BAR1_BROKEN_2M ? blocks * BLOCK : count);
	return 0;
}

static void extent_free(struct bar1 *bar1, struct bar1_user *user,
			struct bar1_extent **link)
{
	struct bar1_extent *extent = *link;
	u32 i;

	*link = extent->next;
	/* NICs read this while it changes, so each entry is written at once. */
	for (i = 0; i < extent->count; i++)
		WRITE_ONCE(bar1->video[extent->at[i]], BAR1_NONE);
	bar1->used -= extent->count;
	/* An empty BAR1 has no pieces. */
	if (!bar1->used)
		bar1->next = 0;
	user->mapped -= extent->count;
	kvfree(extent);
}

int bar1_pin(struct bar1 *bar1, struct bar1_user *user,
	     struct bar1_object *object, u32 first, u32 count, const u32 *video,
	     enum bar1_layout layout, struct bar1_limit limit,
	     u32 (*random)(void *state), void *state, u32 *at)
{
	struct bar1_extent **link = &object->extents, *extent;
	u32 done = 0, page, length, i;

	while (done < count) {
		page = first + done;
		while (*link && (*link)->first + (*link)->count <= page)
			link = &(*link)->next;
		extent = *link;
		length = count - done;
		if (extent && extent->first <= page) {
			length = min(length, extent->first + extent->count - page);
		} else {
			if (extent)
				length = min(length, extent->first - page);
			/* Only what is not mapped yet is asked for. */
			if (user->mapped + length + limit.reserve > limit.size ||
			    bar1->used + (u64)length > limit.size)
				goto undo;
			extent = kvzalloc(sizeof(*extent) +
					  length * sizeof(*extent->at),
					  GFP_KERNEL);
			if (!extent)
				goto undo;
			extent->first = page;
			extent->count = length;
			if (place(bar1, extent, layout, random, state)) {
				kvfree(extent);
				goto undo;
			}
			for (i = 0; i < length; i++)
				WRITE_ONCE(bar1->video[extent->at[i]],
					   video[page + i]);
			bar1->used += length;
			user->mapped += length;
			extent->next = *link;
			*link = extent;
		}
		extent->refs++;
		for (i = 0; i < length; i++)
			at[done + i] = extent->at[page - extent->first + i];
		done += length;
	}
	return 0;

undo:
	if (done)
		bar1_unpin(bar1, user, object, first, done);
	return -ENOMEM;
}

void bar1_forget(struct bar1 *bar1, struct bar1_user *user,
		 struct bar1_object *object)
{
	while (object->extents)
		extent_free(bar1, user, &object->extents);
}

void bar1_unpin(struct bar1 *bar1, struct bar1_user *user,
		struct bar1_object *object, u32 first, u32 count)
{
	struct bar1_extent **link = &object->extents;

	while (*link && (*link)->first < first + count) {
		if ((*link)->first + (*link)->count > first && !--(*link)->refs)
			extent_free(bar1, user, link);
		else
			link = &(*link)->next;
	}
}
