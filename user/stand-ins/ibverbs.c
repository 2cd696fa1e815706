/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A libibverbs.so.1 that counts. It models: symbol versions as in rdma-core 65 (ibverbs.map);
 * ibv_reg_mr() that fails with EFAULT on GPU memory (without the peer-memory API: as the stand-in
 * libcuda says or, with STAND_IN_REFUSES=gpu, any libcuda; all memory with STAND_IN_REFUSES=all), and
 * with EINVAL on no bytes and on ranges that wrap, as mainline's ib_umem_get(); ibv_reg_mr() and
 * ibv_reg_mr_iova() that call ibv_reg_mr_iova2(), which a library before this one may catch, as in
 * Debian's libibverbs1 44; ibv_reg_mr_ex() as in rdma-core 59; ibv_reg_dmabuf_mr() that leaves addr empty;
 * devices with functions of this library, as in ibv_open_device(); ibv_dealloc_pd() that fails
 * with EBUSY while regions live; registration and ibv_dereg_mr() that answer EIO once the NIC was removed
 * (STAND_IN_REMOVED); keys that several NICs have alike (STAND_IN_KEY); a signal to a thread that is in
 * ibv_reg_dmabuf_mr() for long (STAND_IN_SIGNAL); a region of another copy of the library that is
 * deregistered here, which ends the program. Each region keeps the flags that it was registered with
 * (stand_in_access()). Left out: queues, data. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mr_attr.h"
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

extern int stand_in_is_gpu(const void *addr) __attribute__((weak));
extern int stand_in_exported(int fd, uint64_t *from, uint64_t *to) __attribute__((weak));
static _Atomic unsigned int plain, dma_buf, live, keys;
static struct ibv_context device;

static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	(void)cq, (void)entries, (void)wc;
	return 0;
}

/* Returns a domain of a device of this library's. */
struct ibv_pd *stand_in_domain(void)
{
	static struct ibv_pd pd = { .context = &device };

	device.ops.poll_cq = poll_cq;
	return &pd;
}

static void ours(const struct ibv_context *context)
{
	if (context && context->ops.poll_cq && context->ops.poll_cq != poll_cq) {
		fprintf(stderr, "an object of another libibverbs\n");
		abort();
	}
}

/* Returns whether a registration fails, with the errno that the test sets. The test may choose the
 * domains by their handle. */
static int refused(const struct ibv_pd *pd)
{
	const char *number = getenv("STAND_IN_ERRNO");
	const char *handle = getenv("STAND_IN_HANDLE");

	if (getenv("STAND_IN_REMOVED")) {
		errno = EIO;
		return 1;
	}
	if (!number || (handle && pd->handle != (uint32_t)atoi(handle)))
		return 0;
	errno = atoi(number);
	return 1;
}

/* A region keeps its dma-buf. */
struct region {
	struct ibv_mr mr;
	int fd;
	unsigned int access;
};

/* The region that was deregistered last. The next one has its address, as allocators do it. */
static struct region *spare;

static void give_back(struct region *region)
{
	free(__atomic_exchange_n(&spare, region, __ATOMIC_ACQ_REL));
}

static struct ibv_mr *make(struct ibv_pd *pd, void *addr, size_t length, int fd, unsigned int access)
{
	struct region *region = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQ_REL);
	struct ibv_mr *mr;

	if (!region)
		region = malloc(sizeof(*region));
	memset(region, 0, sizeof(*region));
	mr = &region->mr;
	ours(pd->context);
	if (refused(pd)) {
		give_back(region);
		return NULL;
	}
	region->access = access;
	region->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	mr->context = pd->context;
	mr->pd = pd;
	mr->handle = keys;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = ++keys;
	if (getenv("STAND_IN_KEY"))
		mr->lkey = mr->rkey = atoi(getenv("STAND_IN_KEY"));
	live++;
	return mr;
}

/* Returns whether the plain call fails here, as without the peer-memory API. */
static int needs_peer_memory(const void *addr)
{
	int (*ask)(void *out, int attribute, uint64_t at);
	const char *refuses = getenv("STAND_IN_REFUSES");
	unsigned int type = 0;
	void *cuda;

	if (getenv("STAND_IN_PEER_MEMORY"))
		return 0;
	if (stand_in_is_gpu && stand_in_is_gpu(addr))
		return 1;
	if (!refuses || strcmp(refuses, "gpu"))
		return refuses && !strcmp(refuses, "all");
	cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!cuda)
		return 0;
	*(void **)&ask = dlsym(cuda, "cuPointerGetAttribute");
	/* CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE. */
	return !ask(&type, 2, (uintptr_t)addr) && type == 2;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)iova;
	plain++;
	if (!length || (uintptr_t)addr + length < length) {
		errno = EINVAL;
		return NULL;
	}
	if (needs_peer_memory(addr)) {
		errno = EFAULT;
		return NULL;
	}
	return make(pd, addr, length, -1, access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

/* Returns whether the region lies in the dma-buf and, if its address is one of there, at its own place. */
static int lies_in(int fd, uint64_t offset, size_t length, uint64_t iova)
{
	uint64_t from, to;

	if (!stand_in_exported || !stand_in_exported(fd, &from, &to))
		return 1;
	if (offset + length <= to - from && (iova < from || iova >= to || iova == from + offset))
		return 1;
	fprintf(stderr, "offset %#llx of a dma-buf leads to other memory\n", (unsigned long long)offset);
	errno = EINVAL;
	return 0;
}

#ifndef WITHOUT_DMA_BUF
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	dma_buf++;
	if (!lies_in(fd, offset, length, iova))
		return NULL;
	if (getenv("STAND_IN_SIGNAL")) {
		usleep(1500000);
		raise(SIGUSR1);
	}
	return make(pd, NULL, length, fd, access);
}
#endif

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct mr_attr *attr)
{
	if (attr->comp_mask & 4) {
		dma_buf++;
		if (!lies_in(attr->fd, attr->fd_offset, attr->length, attr->comp_mask & 2 ? attr->iova : 0))
			return NULL;
		return make(pd, NULL, attr->length, attr->fd, attr->access);
	}
	return ibv_reg_mr_iova2(pd, attr->addr, attr->length, (uintptr_t)attr->addr, attr->access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	ours(mr->context);
	if (getenv("STAND_IN_REMOVED"))
		return EIO;
	live--;
	if (((struct region *)mr)->fd >= 0)
		close(((struct region *)mr)->fd);
	give_back((struct region *)mr);
	return 0;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	(void)pd;
	return live ? EBUSY : 0;
}

/* Regions that are still registered go with the device, and may not be touched any more. */
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

unsigned int stand_in_access(struct ibv_mr *mr)
{
	return ((struct region *)mr)->access;
}

void stand_in_counts(unsigned int *counts)
{
	counts[0] = plain;
	counts[1] = dma_buf;
	counts[2] = live;
}
