// SPDX-License-Identifier: GPL-2.0
/*
 * What is known of the page tables of clients by their addresses, which are nothing but numbers
 * here: how many DMA mappings each has, and which of them nobody will free any more.
 */
#include <linux/xarray.h>

#include "nvlab.h"

/* Live DMA mappings of each table. */
static DEFINE_XARRAY(mappings);
/* Tables that nobody will free any more. */
static DEFINE_XARRAY(lost);

void nvlab_table_mapped(void *table, int by)
{
	unsigned long key = (unsigned long)table, before, after;
	void *entry;

	xa_lock(&mappings);
	entry = xa_load(&mappings, key);
	before = entry ? xa_to_value(entry) : 0;
	/* A table that was freed meanwhile has been forgotten. */
	after = by > 0 || (by < 0 && before) ? before + by : 0;
	if (!after)
		__xa_erase(&mappings, key);
	else if (xa_is_err(__xa_store(&mappings, key, xa_mk_value(after), GFP_ATOMIC)))
		after = before;
	xa_unlock(&mappings);
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, (s64)after - (s64)before);
}

unsigned int nvlab_table_mappings(void *table)
{
	void *entry = xa_load(&mappings, (unsigned long)table);

	return entry ? xa_to_value(entry) : 0;
}

void nvlab_table_lost(void *table)
{
	nvlab_count(NVLAB_ACCOUNT_LEAKED_TABLES);
	xa_store(&lost, (unsigned long)table, table, GFP_KERNEL);
}

void nvlab_table_found(void *table)
{
	xa_erase(&lost, (unsigned long)table);
}

void nvlab_tables_exit(void (*end)(void *table))
{
	unsigned long key;
	void *table;

	xa_destroy(&mappings);
	xa_for_each(&lost, key, table)
		end(table);
	xa_destroy(&lost);
}
