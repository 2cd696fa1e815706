/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What rxe_peer.c finds in place of ../../include/rdma/ib_peer_lab.h on the
 * kernel's own RDMA core, which has no peer-memory API: no umem is a peer's, and
 * so nothing that takes one does anything.
 */
#ifndef RDMA_IB_PEER_LAB_H
#define RDMA_IB_PEER_LAB_H

#include <linux/version.h>
#include <rdma/ib_umem.h>

#define IB_PEER_MEM_INVAL_SUPP	0

static inline bool ib_peer_lab_is_peer(const struct ib_umem *umem)
{
	return false;
}

static inline struct ib_umem *
ib_umem_get_peer(struct ib_device *device, unsigned long addr, size_t size,
		 int access, unsigned long peer_mem_flags)
{
#if KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
	return ib_umem_get_va(device, addr, size, access);
#else
	return ib_umem_get(device, addr, size, access);
#endif
}

static inline void
ib_umem_activate_invalidation_notifier(struct ib_umem *umem,
				       void (*func)(struct ib_umem *, void *),
				       void *priv)
{
}

static inline void ib_umem_stop_invalidation_notifier(struct ib_umem *umem)
{
}

static inline int ib_peer_lab_set_dma_device(struct ib_device *ibdev,
					     struct device *dma_device)
{
	return 0;
}

static inline const char *ib_peer_lab_client_name(struct ib_umem *umem)
{
	return "none";
}

static inline void ib_peer_lab_hold_mkey(struct ib_umem *umem)
{
}

static inline void ib_peer_lab_hold_write(struct ib_umem *umem)
{
}

#endif
