/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Runs examples/lease.c on the stand-ins, then wrong input, hooks and a removed NIC; prints what each call answered, and
 * what is left registered. */
#include <errno.h>
#include <gpumr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpus.h"

int cuMemAllocManaged(uint64_t *at, uint64_t size, unsigned int flags);
int cuMemHostAlloc(void **at, size_t size, unsigned int flags);
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
int ibv_dereg_mr(struct ibv_mr *mr);
void stand_in_counts(unsigned int *counts);
unsigned int stand_in_access(struct ibv_mr *mr);
unsigned long long stand_in_export_flags(void);
uint64_t stand_in_of_another(void);
int example(struct ibv_pd *pd, void *gpu_memory, size_t length, int access);

static char domain[64];
static struct ibv_pd *pd = (void *)domain;

static char other_domain[64];
static unsigned int regs, deregs;

/* What a program's table has: functions that find the program's own state. */
static struct ibv_mr *own_dma_buf(void *argument, struct ibv_pd *of, uint64_t offset, size_t length, uint64_t iova,
				  int fd, int access)
{
	regs += argument == &regs;
	return ibv_reg_dmabuf_mr(of, offset, length, iova, fd, access);
}

static struct ibv_mr *own_reg(void *argument, struct ibv_pd *of, void *addr, size_t length, uint64_t iova,
			      unsigned int access)
{
	regs += argument == &regs;
	return ibv_reg_mr_iova2(of, addr, length, iova, access);
}

/* Fails, and sets no errno. */
static struct ibv_mr *silent_reg(void *argument, struct ibv_pd *of, void *addr, size_t length, uint64_t iova,
				 unsigned int access)
{
	(void)argument, (void)of, (void)addr, (void)length, (void)iova, (void)access;
	return NULL;
}

static int own_dereg(void *argument, struct ibv_mr *mr)
{
	deregs += argument == &regs;
	return ibv_dereg_mr(mr);
}

static void gone(void *argument, const struct gpumr_gone *gone)
{
	*(unsigned int *)argument += gone->size == sizeof(*gone) && gone->length == 8192;
}

static void refuse(const char *what, const struct gpumr_options *options)
{
	struct gpumr *cache;

	if (gpumr_open(&cache, options) != EINVAL)
		exit(1);
	printf("%s: %s\n", what, gpumr_error());
}

static struct gpumr_lease *ask(const char *what, struct gpumr *cache, struct ibv_pd *of, uint64_t at, size_t length)
{
	struct gpumr_lease *lease = NULL;
	int error = gpumr_register(cache, of, (void *)at, length, 1, &lease);

	if (error)
		printf("%s: %s: %s\n", what, strerrorname_np(error), gpumr_error());
	else
		printf("%s: good\n", what);
	return lease;
}

static unsigned int live(void)
{
	unsigned int counts[3];

	stand_in_counts(counts);
	return counts[2];
}

int main(void)
{
	uint64_t first, hole, last, there, block, managed;
	struct gpumr_lease *lease, *again;
	struct gpumr_options options = { .size = sizeof(options) };
	struct gpumr_verbs verbs = { .size = sizeof(verbs) };
	struct {
		struct gpumr_options options;
		uint64_t more;
	} newer;
	struct gpumr_stats stats = { .size = sizeof(stats) };
	struct gpumr_lease *several[2];
	struct ibv_pd *pds[2] = { pd, (void *)other_domain };
	unsigned int told = 0;
	struct gpumr *cache;
	char plain[64];
	void *host;

	if (start() || cuMemAlloc_v2(&first, 8192) || cuMemAlloc_v2(&hole, 8192) || allocate(&last, 8192) ||
	    cuMemAlloc_v2(&there, 8192) || cuMemAlloc_v2(&block, 2 << 20) || cuMemAllocManaged(&managed, 4096, 1) || cuMemHostAlloc(&host, 4096, 0) || cuMemFree_v2(hole))
		return 1;
	printf("example: %d, live %u\n", example(pd, (void *)first, 8192, 1), live());

	if (gpumr_version() != GPUMR_VERSION)
		printf("version %x\n", gpumr_version());
	options.way = "fast";
	refuse("way", &options);
	options.way = "dma-buf";
	options.flags = 4;
	refuse("flags", &options);
	options.flags = 0;
	options.size = 0;
	refuse("size", &options);
	/* These options are of a newer version, and ask for more. */
	newer.options = options;
	newer.options.size = sizeof(newer);
	newer.more = 1;
	refuse("newer", &newer.options);
	newer.more = 0;
	if (gpumr_open(&cache, &newer.options))
		return 1;
	gpumr_close(cache);
	/* These options are of an older version, which knows only the way. */
	options.size = offsetof(struct gpumr_options, limits);
	if (gpumr_open(&cache, &options))
		return 1;
	gpumr_close(cache);
	options.size = sizeof(options);
	options.verbs = &verbs;
	refuse("no functions", &options);
	verbs.reg_dmabuf_mr = own_dma_buf;
	verbs.argument = &regs;
	refuse("no dereg", &options);
	verbs.dereg_mr = own_dereg;
	options.way = "peer-memory";
	if (gpumr_open(&cache, &options))
		return 1;
	ask("hole in the table", cache, pd, first, 8192);
	gpumr_close(cache);
	/* What the kernel says of the other way counts, if there is one. */
	verbs.reg_dmabuf_mr = NULL;
	verbs.reg_mr = own_reg;
	for (int i = 0; i < 2; i++) {
		options.way = i ? "auto" : "dma-buf";
		if (gpumr_open(&cache, &options))
			return 1;
		ask("the other hole", cache, pd, first, 8192);
		gpumr_close(cache);
	}
	verbs.reg_mr = silent_reg;
	options.way = "peer-memory";
	if (gpumr_open(&cache, &options))
		return 1;
	ask("no errno", cache, pd, first, 8192);
	several[0] = (struct gpumr_lease *)&options;
	printf("no errno, two NICs: %d\n", gpumr_register_all(cache, pds, 2, (void *)first, 8192, 1, several) == EIO && !several[0]);
	gpumr_close(cache);
	verbs.reg_dmabuf_mr = own_dma_buf;
	verbs.reg_mr = NULL;
	options.way = "dma-buf";
	options.on_gone = gone;
	options.argument = &told;
	options.flags = GPUMR_SUPERSET;
	if (gpumr_open(&cache, &options))
		return 1;
	lease = ask("own functions", cache, pd, first, 8192);
	printf("valid %d\n", gpumr_valid(lease));
	if (gpumr_register(cache, pd, (void *)first, 8192, 0, &again))
		return 1;
	printf("superset: %d\n", gpumr_mr(lease) == gpumr_mr(again));
	gpumr_release(again);
	gpumr_free(cache, (void *)first, 8192);
	printf("told %u times\n", told);
	gpumr_release(lease);
	printf("own functions %u and %u times\n", regs, deregs);
	if (gpumr_register_all(cache, pds, 0, (void *)first, 8192, 1, several))
		printf("no domains: %s\n", gpumr_error());
	several[0] = several[1] = lease;
	if (gpumr_register_all(cache, NULL, 2, (void *)first, 8192, 1, several))
		printf("no domains, out is NULL: %d\n", !several[0] && !several[1]);
	if (gpumr_register_all(cache, pds, 2, (void *)first, 8192, 1, several))
		return 1;
	printf("two NICs: %d\n", gpumr_mr(several[0]) != gpumr_mr(several[1]));
	gpumr_release(several[0]);
	gpumr_release(several[1]);
	printf("shrunk by %lu\n", gpumr_shrink(cache));
	lease = ask("outlives", cache, pd, first, 8192);
	gpumr_close(cache);
	printf("valid %d after the cache\n", gpumr_valid(lease));
	gpumr_release(lease);
	options = (struct gpumr_options){ .size = sizeof(options), .way = "dma-buf" };
	if (gpumr_open(&cache, &options))
		return 1;
	ask("no domain", cache, NULL, first, 8192);
	ask("no bytes", cache, pd, first, 0);
	ask("wrapping", cache, pd, first, -1ul);
	ask("freed", cache, pd, hole, 100);
	ask("hole", cache, pd, first, last + 100 - first);
	ask("another's", cache, pd, stand_in_of_another(), 100);
	ask("plain host", cache, pd, (uintptr_t)plain, sizeof(plain));
	ask("host", cache, pd, (uintptr_t)host, 100);
	ask("managed", cache, pd, managed, 100);
	ask("into managed", cache, pd, block, managed + 100 - block);
	if (gpumr_free(cache, (void *)first, 0))
		printf("free: %s\n", gpumr_error());
	printf("live %u\n", live());

	/* A reported free ends the registration, promised or not. */
	gpumr_release(ask("reported", cache, pd, first, 8192));
	gpumr_free(cache, (void *)(first + 4096), 1);
	printf("reported: live %u\n", live());

	/* A buffer that hooks report is another buffer at once. */
	gpumr_hooks(cache, 1);
	lease = ask("hooked", cache, pd, first, 8192);
	again = ask("again", cache, pd, first, 8192);
	printf("the same: %d\n", gpumr_mr(lease) == gpumr_mr(again));
	gpumr_release(lease);
	gpumr_release(again);
	gpumr_free(cache, (void *)first, 8192);
	printf("freed: live %u\n", live());
	gpumr_hooks(cache, 0);

	/* Nobody gets a lease that no longer works, and one lease outlives its cache. */
	lease = ask("revoked", cache, pd, first, 8192);
	gpumr_revoked(lease);
	printf("revoked: live %u\n", live());
	lease = ask("outlives", cache, pd, first, 8192);
	setenv("STAND_IN_REMOVED", "1", 1);
	gpumr_forget(cache, pd);
	gpumr_release(lease);
	gpumr_get_stats(cache, &stats);
	printf("NIC removed: lost %lu, entries %lu\n", stats.lost, stats.entries);
	ask("NIC removed", cache, pd, first, 8192);
	unsetenv("STAND_IN_REMOVED");
	lease = ask("outlives", cache, pd, first, 8192);
	gpumr_close(cache);
	printf("closed: live %u\n", live());
	gpumr_release(lease);
	printf("released: live %u\n", live());

	/* Less memory is free than the program wants. */
	options.free_bytes = UINT64_MAX - 1;
	if (gpumr_open(&cache, &options))
		return 1;
	gpumr_release(ask("short of memory", cache, pd, first, 8192));
	printf("short of memory: live %u\n", live());
	gpumr_close(cache);

	/* Of two regions that nobody uses, one may stay, whatever their GPUs. What is in use does not count. */
	options = (struct gpumr_options){ .size = sizeof(options), .idle_bytes = 8192 };
	if (gpumr_open(&cache, &options))
		return 1;
	lease = ask("in use", cache, pd, first, 8192);
	gpumr_release(ask("idle", cache, pd, there, 8192));
	printf("one in use and one idle: live %u\n", live());
	gpumr_release(lease);
	printf("two idle: live %u\n", live());
	gpumr_close(cache);

	/* The way over PCIe, which only GPUs that hang on the processor have beside another. */
	options = (struct gpumr_options){ .size = sizeof(options), .way = "dma-buf", .flags = GPUMR_PCIE };
	if (gpumr_open(&cache, &options))
		return 1;
	ask("over PCIe", cache, pd, first, 8192);
	setenv("STAND_IN_COHERENT", "1", 1);
	gpumr_release(ask("over PCIe", cache, pd, first, 8192));
	printf("export flags %llu\n", stand_in_export_flags());
	gpumr_close(cache);

	/* Verbs get the flags that the program passed, by each way. */
	setenv("STAND_IN_PEER_MEMORY", "1", 1);
	for (int way = 0; way < 2; way++) {
		options = (struct gpumr_options){ .size = sizeof(options), .way = way ? "peer-memory" : "dma-buf" };
		if (gpumr_open(&cache, &options))
			return 1;
		for (int access = 7; access; access = access == 7 ? 7 | 1 << 20 : 0) {
			if (gpumr_register(cache, pd, (void *)first, 8192, access, &lease))
				return 1;
			printf("%s: access %#x\n", options.way, stand_in_access(gpumr_mr(lease)));
			gpumr_release(lease);
		}
		printf("export flags %llu\n", stand_in_export_flags());
		gpumr_close(cache);
	}
	return 0;
}
