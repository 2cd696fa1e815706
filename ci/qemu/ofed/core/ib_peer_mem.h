/* SPDX-License-Identifier: GPL-2.0 */
/* Declares what umem.c and peer_mem.c of the lab's ib_core call in each other. */
#ifndef IB_PEER_MEM_H
#define IB_PEER_MEM_H

#include <linux/types.h>

struct ib_umem;

/*
 * Offers the range of @old_umem, which get_user_pages refused with @old_ret, to the clients. On
 * success, @old_umem is freed and the new one returned. On error, @old_umem stays the caller's.
 */
struct ib_umem *ib_peer_umem_get(struct ib_umem *old_umem, int old_ret,
				 unsigned long peer_mem_flags);
void ib_peer_umem_release(struct ib_umem *umem);

/* Returns whether this generation never merges neighbouring sg entries for the page size. */
bool ib_peer_sg_entries_bound_pgsz(void);

void ib_peer_mem_init(void);
void ib_peer_mem_cleanup(void);

#endif
