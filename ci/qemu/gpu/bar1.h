/* SPDX-License-Identifier: GPL-2.0 */
/*
 * BAR1 of one GPU: which 64 KiB of video memory lies behind which 64 KiB of the BAR. Memory is
 * mapped by extents, as RM maps it (docs/facts.md#pages): a pin takes those parts that are mapped
 * already from the extents that have them, and makes a new extent for each gap. So one pin may
 * consist of unrelated pieces of the BAR, and where an extent lies has nothing to do with the
 * memory.
 *
 * Where BAR1 is as large as the memory, RM may map all of it statically. That needs none of this;
 * rm.c has it.
 *
 * Nothing here locks: the caller holds the RM API lock. tests/host/bar1 compiles this file as it
 * is.
 */
#ifndef NVLAB_BAR1_H
#define NVLAB_BAR1_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include "bar1_host.h"
#endif

/* One BAR1, in pages of 64 KiB. */
struct bar1 {
	u32 pages;
	u32 used;
	u32 next;	/* where the last extent ended: the next one begins behind it */
	u32 *video;	/* the page of video memory behind each, BAR1_NONE for none */
};

#define BAR1_NONE	U32_MAX

/* A user of BAR1. RM counts for each subdevice object what it has mapped, in pages. */
struct bar1_user {
	u64 mapped;
};

struct bar1_extent {
	struct bar1_extent *next;
	u32 first;	/* page of the object */
	u32 count;
	u32 refs;	/* pins that need it, or a part of it */
	u32 at[];	/* pages of the BAR */
};

/* Memory as one of its users sees it: its extents, by address. */
struct bar1_object {
	struct bar1_extent *extents;
};

/* How the pages of an extent follow each other in the BAR. */
enum bar1_layout {
	BAR1_CONTIGUOUS,
	BAR1_BROKEN_2M,		/* each 2 MiB in one piece, in descending order */
	BAR1_BROKEN_64K,	/* descending page by page */
	BAR1_SHUFFLED,
};

/* What a user may map, in pages. */
struct bar1_limit {
	u64 size;
	u64 reserve;	/* stays free beside each new extent */
};

int bar1_init(struct bar1 *bar1, u32 pages);
void bar1_exit(struct bar1 *bar1);

/*
 * Pins @count pages of @object from @first on, and writes the pages of the BAR to @at. @video has
 * the object's pages in video memory; @random gives numbers for shuffling. Returns 0, or -ENOMEM
 * with nothing changed.
 */
int bar1_pin(struct bar1 *bar1, struct bar1_user *user,
	     struct bar1_object *object, u32 first, u32 count, const u32 *video,
	     enum bar1_layout layout, struct bar1_limit limit,
	     u32 (*random)(void *state), void *state, u32 *at);

/* Unmaps what the object's last pins left behind, if they were never unpinned. */
void bar1_forget(struct bar1 *bar1, struct bar1_user *user,
		 struct bar1_object *object);

/* Undoes one bar1_pin() of the same pages. */
void bar1_unpin(struct bar1 *bar1, struct bar1_user *user,
		struct bar1_object *object, u32 first, u32 count);

#endif
