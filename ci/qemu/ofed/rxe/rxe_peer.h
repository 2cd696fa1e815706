/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Regions of rdma_rxe that are memory of another PCI device, a peer client's or
 * a dma-buf's: what rxe's own files call (rxe_peer.c).
 */
#ifndef RXE_PEER_H
#define RXE_PEER_H

#include <linux/version.h>

/* The umem of a user MR: host memory, or a peer client's. */
struct ib_umem *rxe_peer_umem_get(struct rxe_dev *rxe, struct rxe_mr *mr,
				  u64 start, u64 length, int access);

/* Is that a peer client's? */
bool rxe_peer_is_umem(const struct ib_umem *umem);

/* Takes over @umem, also when it fails. */
int rxe_peer_mr_init(struct rxe_dev *rxe, struct rxe_mr *mr,
		     struct ib_umem *umem);

/* ibv_reg_dmabuf_mr(). */
struct ib_mr *rxe_peer_reg_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				  u64 iova, int fd, int access,
#if KERNEL_VERSION(6, 17, 0) <= LINUX_VERSION_CODE
				  struct ib_dmah *dmah,
#endif
				  struct uverbs_attr_bundle *attrs);

/* The next four do nothing to an MR of host memory. */
void rxe_peer_mr_activate(struct rxe_mr *mr);
/* An error: the NIC could not be stopped, and the MR stays as it is. */
int rxe_peer_mr_stop(struct rxe_mr *mr);
/* Before the umem is released: whoever reads the list reads the umem, too. */
void rxe_peer_mr_unlist(struct rxe_mr *mr);
/* After it: until then an invalidation may still come. */
void rxe_peer_mr_free(struct rxe_mr *mr);

/* Does this ibv_rereg_mr() need a new MR object? */
bool rxe_peer_rereg_recreates(struct rxe_mr *mr, int flags);

/* Accesses; the range was checked against the MR's for the first one only. */
int rxe_peer_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length,
		  enum rxe_mr_copy_dir dir);
enum resp_states rxe_peer_atomic_op(struct rxe_mr *mr, u64 iova, int opcode,
				    u64 compare, u64 swap_add, u64 *orig_val);
enum resp_states rxe_peer_atomic_write(struct rxe_mr *mr, u64 iova, u64 value);

int rxe_peer_add_dev(struct rxe_dev *rxe, struct net_device *ndev);
void rxe_peer_remove_dev(struct rxe_dev *rxe);
void rxe_peer_disassociate_ucontext(struct ib_ucontext *ibcontext);
void rxe_peer_module_init(void);
void rxe_peer_module_exit(void);

#endif
