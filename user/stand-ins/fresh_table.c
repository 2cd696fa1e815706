/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Written from gpumr.h alone, as it is since version 1.0: a program that calls its verbs by a table of
 * its own, asks for dma-bufs over PCIe where the GPU takes them, and keeps one lease over a free. It is
 * C99 and C++11. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

#include <gpumr.h>

#include "gpus.h"

#ifdef __cplusplus
extern "C" {
#endif
struct ibv_pd *stand_in_domain(void);
#ifdef __cplusplus
}
#endif

enum { SIZE = 1 << 20, FLAGS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };

/* What the table's functions get as their argument. */
struct nic {
	unsigned int by_address, by_dma_buf, ended, other_iova;
	int refuses;
};

static struct ibv_mr *reg_mr(void *argument, struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     unsigned int access)
{
	struct nic *nic = (struct nic *)argument;

	nic->by_address++;
	nic->other_iova += iova != (uintptr_t)addr;
	if (nic->refuses) {
		errno = nic->refuses;
		return NULL;
	}
	return ibv_reg_mr_iova2(pd, addr, length, iova, access);
}

static struct ibv_mr *reg_dmabuf_mr(void *argument, struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
				    int fd, int access)
{
	struct nic *nic = (struct nic *)argument;

	nic->by_dma_buf++;
	if (nic->refuses) {
		errno = nic->refuses;
		return NULL;
	}
	return ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

static int dereg_mr(void *argument, struct ibv_mr *mr)
{
	((struct nic *)argument)->ended++;
	return ibv_dereg_mr(mr);
}

/* Opens a cache by dma-buf, over PCIe if `flags` say so. The table need not outlive this call. */
static struct gpumr *open_cache(struct nic *nic, const char *way, uint32_t flags, int without_dma_buf)
{
	struct gpumr_verbs verbs;
	struct gpumr_options options;
	struct gpumr *cache;
	int error;

	memset(&verbs, 0, sizeof(verbs));
	verbs.size = sizeof(verbs);
	verbs.reg_mr = reg_mr;
	verbs.reg_dmabuf_mr = without_dma_buf ? NULL : reg_dmabuf_mr;
	verbs.dereg_mr = dereg_mr;
	verbs.argument = nic;
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.way = way;
	options.flags = flags;
	options.verbs = &verbs;
	error = gpumr_open(&cache, &options);
	memset(&verbs, 0xff, sizeof(verbs));
	if (error)
		printf("open: %d: %s\n", error, gpumr_error());
	return cache;
}

static struct gpumr_lease *registered(const char *what, struct gpumr *cache, uint64_t at)
{
	struct gpumr_lease *lease;
	int error = gpumr_register(cache, stand_in_domain(), (void *)(uintptr_t)at, SIZE, FLAGS, &lease);

	if (error)
		printf("%s: %d, %s\n", what, error, gpumr_error());
	else
		printf("%s: valid %d\n", what, gpumr_valid(lease));
	return lease;
}

int main(void)
{
	struct nic nic, poor;
	struct gpumr *cache, *pcie;
	struct gpumr_lease *lease, *other;
	struct gpumr_verbs holes;
	struct gpumr_options options;
	uint64_t at;

	memset(&nic, 0, sizeof(nic));
	memset(&poor, 0, sizeof(poor));
	if (start() || allocate(&at, SIZE))
		return 1;
	/* EOPNOTSUPP is the answer where this GPU exports nothing over PCIe. */
	pcie = open_cache(&nic, "dma-buf", GPUMR_PCIE, 0);
	lease = registered("over PCIe", pcie, at);
	gpumr_release(lease);
	gpumr_forget(pcie, stand_in_domain());
	gpumr_close(pcie);
	printf("by address %u, by dma-buf %u, ended %u\n", nic.by_address, nic.by_dma_buf, nic.ended);

	cache = open_cache(&nic, "dma-buf", 0, 0);
	lease = registered("by dma-buf", cache, at);
	other = registered("again", cache, at);
	printf("one region: %d\n", lease && gpumr_mr(lease) == gpumr_mr(other));
	gpumr_release(other);
	/* A free that is reported ends the region with its last lease. */
	printf("free: %d\n", gpumr_free(cache, (void *)(uintptr_t)at, SIZE));
	if (cuMemFree_v2(at))
		return 1;
	printf("valid %d, ended %u\n", gpumr_valid(lease), nic.ended);
	/* The table is called when the last lease ends, although the cache is closed. */
	gpumr_close(cache);
	gpumr_release(lease);
	printf("ended %u, another iova %u\n", nic.ended, nic.other_iova);

	if (allocate(&at, SIZE))
		return 1;
	/* A table without a way, and a NIC that refuses. */
	cache = open_cache(&poor, "dma-buf", 0, 1);
	lease = registered("no dma-buf in the table", cache, at);
	printf("out is NULL: %d\n", !lease);
	gpumr_close(cache);
	poor.refuses = EINVAL;
	cache = open_cache(&poor, "peer-memory", 0, 1);
	registered("refused", cache, at);
	gpumr_close(cache);

	/* A table without dereg_mr is no table. */
	memset(&holes, 0, sizeof(holes));
	memset(&options, 0, sizeof(options));
	holes.size = sizeof(holes);
	holes.reg_mr = reg_mr;
	options.size = sizeof(options);
	options.verbs = &holes;
	printf("holes: %d\n", gpumr_open(&cache, &options) == EINVAL && !cache);
	return 0;
}
