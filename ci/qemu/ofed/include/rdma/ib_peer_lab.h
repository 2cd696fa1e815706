/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the lab adds to the peer-memory core and no real core has: a DMA device
 * for a software NIC, and a look at a peer umem from the NIC driver.
 */
#ifndef RDMA_IB_PEER_LAB_H
#define RDMA_IB_PEER_LAB_H

#include <linux/types.h>
#include <rdma/ib_umem.h>

struct device;
struct ib_device;

/* Returns whether a umem is memory of a peer client. */
static inline bool ib_peer_lab_is_peer(const struct ib_umem *umem)
{
	return umem->is_peer;
}

/*
 * Gives clients of @ibdev's umems @dma_device in place of ibdev->dma_device: rdma_rxe leaves that
 * NULL, which means "virtual DMA" to the rest of the stack and must stay so for host memory. NULL
 * forgets the entry. Returns 0 or -ENOMEM.
 */
int ib_peer_lab_set_dma_device(struct ib_device *ibdev,
			       struct device *dma_device);

/* Returns the name of the client that owns this peer umem. */
const char *ib_peer_lab_client_name(struct ib_umem *umem);

/* Hold point "nic_mkey": the NIC is about to make a key for this peer umem. */
void ib_peer_lab_hold_mkey(struct ib_umem *umem);

/* Hold point "nic_write": the NIC is about to write to this peer umem. */
void ib_peer_lab_hold_write(struct ib_umem *umem);

#endif
