/* SPDX-License-Identifier: GPL-2.0 */
/* Runs examples/lease.c on the stand-ins, then wrong input, hooks and a removed NIC; prints what each call answered, and
 * what is left registered. */
#include <errno.h>
#include <gpumr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuMemAlloc_v2(uint64_t *at, uint64_t size);
int cuMemAllocManaged(uint64_t *at, uint64_t size, unsigned int flags);
int cuMemHostAlloc(void **at, size_t size, unsigned int flags);
int cuMemFree_v2(uint64_t at);
void stand_in_counts(unsigned int *counts);
uint64_t stand_in_of_another(void);
int example(struct ibv_pd *pd, void *gpu_memory, size_t length, int access);

static char domain[64];
static struct ibv_pd *pd = (void *)domain;

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
	uint64_t first, hole, last, block, managed;
	struct gpumr_lease *lease, *again;
	struct gpumr_stats stats;
	struct gpumr *cache;
	char plain[64];
	void *host;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&host, 0) || cuCtxPushCurrent_v2(host) || cuMemAlloc_v2(&first, 8192) || cuMemAlloc_v2(&hole, 8192) || cuMemAlloc_v2(&last, 8192) ||
	    cuMemAlloc_v2(&block, 2 << 20) || cuMemAllocManaged(&managed, 4096, 1) || cuMemHostAlloc(&host, 4096, 0) || cuMemFree_v2(hole))
		return 1;
	printf("example: %d, live %u\n", example(pd, (void *)first, 8192, 1), live());

	if (gpumr_open(&cache, "fast", NULL, 0))
		printf("way: %s\n", gpumr_error());
	if (gpumr_open(&cache, "dma-buf", NULL, 0))
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

	/* What is reported is let go, promised or not. */
	gpumr_release(ask("reported", cache, pd, first, 8192));
	gpumr_free(cache, (void *)(first + 4096), 1);
	printf("reported: live %u\n", live());

	/* What hooks report is another buffer at once. */
	gpumr_hooks(cache, 1);
	lease = ask("hooked", cache, pd, first, 8192);
	again = ask("again", cache, pd, first, 8192);
	printf("the same: %d\n", gpumr_mr(lease) == gpumr_mr(again));
	gpumr_release(lease);
	gpumr_release(again);
	gpumr_free(cache, (void *)first, 8192);
	printf("freed: live %u\n", live());
	gpumr_hooks(cache, 0);

	/* A lease that no longer works is nobody's, and one outlives its cache. */
	lease = ask("revoked", cache, pd, first, 8192);
	gpumr_revoked(lease);
	printf("revoked: live %u\n", live());
	lease = ask("outlives", cache, pd, first, 8192);
	setenv("STAND_IN_REMOVED", "1", 1);
	gpumr_forget(cache, pd);
	gpumr_release(lease);
	gpumr_get_stats(cache, &stats);
	printf("NIC removed: lost %lu, entries %lu\n", stats.lost, stats.entries);
	unsetenv("STAND_IN_REMOVED");
	lease = ask("outlives", cache, pd, first, 8192);
	gpumr_close(cache);
	printf("closed: live %u\n", live());
	gpumr_release(lease);
	printf("released: live %u\n", live());
	return 0;
}
