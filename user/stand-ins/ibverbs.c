/* SPDX-License-Identifier: GPL-2.0 */
/* A libibverbs.so.1 that counts. It models: symbol versions as in rdma-core 44 (libibverbs.map), ibv_reg_mr() that fails
 * with EFAULT on GPU memory (without the peer-memory API, as mainline's ib_umem_get()), ibv_reg_dmabuf_mr() that leaves
 * addr empty, ibv_dealloc_pd() that fails with EBUSY while regions live. Left out: devices, queues, data. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#undef ibv_reg_mr

extern int stand_in_is_gpu(const void *addr) __attribute__((weak));
static unsigned int plain, dma_buf, live;

static struct ibv_mr *make(struct ibv_pd *pd, void *addr, size_t length)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = ++live;
	return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	plain++;
	if (stand_in_is_gpu && stand_in_is_gpu(addr) && !getenv("STAND_IN_PEER_MEMORY")) {
		errno = EFAULT;
		return NULL;
	}
	return make(pd, addr, length);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

#ifndef WITHOUT_DMA_BUF
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	dma_buf++;
	return make(pd, NULL, length);
}
#endif

int ibv_dereg_mr(struct ibv_mr *mr)
{
	live--;
	free(mr);
	return 0;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return live ? EBUSY : 0;
}

void stand_in_counts(unsigned int *counts)
{
	counts[0] = plain;
	counts[1] = dma_buf;
	counts[2] = live;
}
