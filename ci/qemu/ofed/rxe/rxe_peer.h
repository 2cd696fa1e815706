/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declares what rxe's own files call in rxe_peer.c, for regions that are memory of another PCI
 * device: a peer client's or a dma-buf's.
 */
#ifndef RXE_PEER_H
#define RXE_PEER_H

#include <linux/version.h>

/* Returns the umem of a user MR: host memory, or memory of a peer client. */
struct ib_umem *rxe_peer_umem_get(struct rxe_dev *rxe, struct rxe_mr *mr,
				  u64 start, u64 length, int access);

/* Returns whether a umem is memory of a peer client. */
bool rxe_peer_is_umem(const struct ib_umem *umem);

/* Makes an MR. Takes over @umem, also when it fails. */
int rxe_peer_mr_init(struct rxe_dev *rxe, struct rxe_mr *mr,
		     struct ib_umem *umem);

/* ibv_reg_dmabuf_mr(). */
struct ib_mr *rxe_peer_reg_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				  u64 iova, int fd, int access,
#if KERNEL_VERSION(6, 17, 0) <= LINUX_VERSION_CODE
				  struct ib_dmah *dmah,
#endif
				  struct uverbs_attr_bundle *attrs);

/*
 * Arms the notifier of an MR. This function and the next three do nothing to an MR of host memory.
 */
void rxe_peer_mr_activate(struct rxe_mr *mr);
/* Stops the NIC. On an error it could not be stopped, and the MR stays as it is. */
int rxe_peer_mr_stop(struct rxe_mr *mr);
/*
 * Takes the MR off the list. This comes before the umem is released, because whoever reads the list
 * reads the umem, too.
 */
void rxe_peer_mr_unlist(struct rxe_mr *mr);
/*
 * Frees what belongs to the MR. This comes after the umem was released: until then an invalidation
 * may still come.
 */
void rxe_peer_mr_free(struct rxe_mr *mr);

/* Returns whether this ibv_rereg_mr() needs a new MR object. */
bool rxe_peer_rereg_recreates(struct rxe_mr *mr, int flags);

/* Access memory. The range was checked against the MR's for the first of them only. */
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
