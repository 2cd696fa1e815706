/* SPDX-License-Identifier: GPL-2.0 */
/* Stands for libgpumr-preload.so: a plain registration of GPU memory that fails becomes one of a dma-buf. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include "stand_in.h"
#undef ibv_reg_mr

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *(*real)(struct ibv_pd *, void *, size_t, int) = dlsym(RTLD_NEXT, "ibv_reg_mr");
	struct ibv_mr *mr = real(pd, addr, length, access);

	if (mr || (uintptr_t)addr - STAND_IN_GPU >= STAND_IN_SIZE)
		return mr;
	return ibv_reg_dmabuf_mr(pd, (uintptr_t)addr % 4096, length, (uintptr_t)addr, 0, access);
}
