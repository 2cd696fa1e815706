/* SPDX-License-Identifier: GPL-2.0 */
/* A libibverbs.so.1 that counts. It models: symbol versions as in rdma-core 44 (libibverbs.map);
 * ibv_reg_mr() that fails with EFAULT on GPU memory (without the peer-memory API), and with EINVAL
 * on no bytes and on ranges that wrap, as mainline's ib_umem_get(); ibv_reg_mr() and
 * ibv_reg_mr_iova() that call ibv_reg_mr_iova2(), which a library before this one may catch, as in
 * Debian's libibverbs1 44; ibv_reg_dmabuf_mr() that leaves addr empty; ibv_dealloc_pd() that fails
 * with EBUSY while regions live; ibv_dereg_mr() that answers EIO once its NIC was removed
 * (STAND_IN_REMOVED). Left out: devices, queues, data. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

extern int stand_in_is_gpu(const void *addr) __attribute__((weak));
static unsigned int plain, dma_buf, live, keys;

static struct ibv_mr *make(struct ibv_pd *pd, void *addr, size_t length)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = ++keys;
	live++;
	return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)iova, (void)access;
	plain++;
	if (!length || (uintptr_t)addr + length < length) {
		errno = EINVAL;
		return NULL;
	}
	if (stand_in_is_gpu && stand_in_is_gpu(addr) && !getenv("STAND_IN_PEER_MEMORY")) {
		errno = EFAULT;
		return NULL;
	}
	return make(pd, addr, length);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

#ifndef WITHOUT_DMA_BUF
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)offset, (void)iova, (void)fd, (void)access;
	dma_buf++;
	return make(pd, NULL, length);
}
#endif

int ibv_dereg_mr(struct ibv_mr *mr)
{
	if (getenv("STAND_IN_REMOVED"))
		return EIO;
	live--;
	free(mr);
	return 0;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	(void)pd;
	return live ? EBUSY : 0;
}

/* What is still registered goes with the device, and no region of it may be touched any more. */
int ibv_close_device(struct ibv_context *context)
{
	(void)context;
	printf("close: %u regions are left\n", live);
	return 0;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)flags, (void)pd, (void)access;
	mr->addr = addr;
	mr->length = length;
	return 0;
}

void stand_in_counts(unsigned int *counts)
{
	counts[0] = plain;
	counts[1] = dma_buf;
	counts[2] = live;
}
