/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Written from gpumr.h alone: a program with two NICs that registers what it receives into,
 * learns of memory that goes, and keeps going. It is C99 and C++11. */
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

enum { NICS = 2, SIZE = 1 << 20 };

struct receiver {
	struct gpumr *cache;
	struct ibv_pd *pd[NICS];
	struct gpumr_lease *lease[NICS];
	unsigned int gone;
};

static void on_gone(void *argument, const struct gpumr_gone *gone)
{
	struct receiver *receiver = (struct receiver *)argument;

	for (int nic = 0; nic < NICS; nic++)
		if (receiver->lease[nic] && gpumr_mr(receiver->lease[nic]) == gone->mr)
			receiver->gone++;
}

static int receive_into(struct receiver *receiver, uint64_t at)
{
	int error = gpumr_register_all(receiver->cache, receiver->pd, NICS, (void *)(uintptr_t)at, SIZE,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, receiver->lease);

	if (error)
		printf("%d: %s\n", error, gpumr_error());
	return error;
}

static void release(struct receiver *receiver)
{
	for (int nic = 0; nic < NICS; nic++) {
		gpumr_release(receiver->lease[nic]);
		receiver->lease[nic] = NULL;
	}
}

int main(void)
{
	struct receiver receiver;
	struct gpumr_options options;
	struct gpumr_stats stats;
	struct ibv_pd second = *stand_in_domain();
	struct gpumr_lease *none = NULL;
	struct gpumr *nothing;
	uint64_t at;
	int error;

	memset(&receiver, 0, sizeof(receiver));
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.way = "dma-buf";
	options.limits.bytes = 1ul << 30;
	options.flags = GPUMR_SUPERSET;
	options.free_bytes = GPUMR_FREE_BYTES_AUTO;
	options.on_gone = on_gone;
	options.argument = &receiver;
	receiver.pd[0] = stand_in_domain();
	receiver.pd[1] = &second;
	if (gpumr_version() >> 16 != GPUMR_VERSION_MAJOR)
		return 1;
	if (gpumr_open(&receiver.cache, &options)) {
		printf("%s\n", gpumr_error());
		return 1;
	}
	if (start() || allocate(&at, SIZE))
		return 1;
	for (int round = 0; round < 3; round++) {
		if (receive_into(&receiver, at))
			return 1;
		release(&receiver);
	}
	if (receive_into(&receiver, at) || cuMemFree_v2(at))
		return 1;
	gpumr_sweep(receiver.cache);
	printf("gone %u, valid %d\n", receiver.gone, gpumr_valid(receiver.lease[0]));
	release(&receiver);
	receiver.lease[0] = receiver.lease[1] = (struct gpumr_lease *)&receiver;
	error = receive_into(&receiver, at);
	printf("freed: %d, out is NULL: %d\n", error == EFAULT, !receiver.lease[0] && !receiver.lease[1]);
	release(&receiver);

	/* These calls do what the header says about NULL. */
	nothing = receiver.cache;
	options.way = "no way";
	printf("NULL: %d %d %d %d %d %d %d\n", gpumr_open(NULL, NULL), gpumr_open(&nothing, &options),
	       gpumr_register(NULL, receiver.pd[0], &at, 1, 0, &none),
	       gpumr_register(receiver.cache, receiver.pd[0], &at, 1, 0, NULL), gpumr_forget(NULL, receiver.pd[0]),
	       gpumr_free(NULL, &at, 1), gpumr_get_stats(receiver.cache, NULL));
	printf("nothing: %d\n", !nothing && !none && !gpumr_mr(NULL) && !gpumr_valid(NULL) && !gpumr_shrink(NULL));
	gpumr_release(NULL);
	gpumr_revoked(NULL);
	gpumr_sweep(NULL);
	gpumr_hooks(NULL, 1);
	gpumr_free_all(NULL);
	gpumr_close(NULL);
	puts(gpumr_reason(NULL));

	memset(&stats, 0, sizeof(stats));
	stats.size = sizeof(stats);
	if (gpumr_get_stats(receiver.cache, &stats))
		return 1;
	printf("hits %lu, misses %lu, stale %lu, entries %lu\n", (unsigned long)stats.hits, (unsigned long)stats.misses,
	       (unsigned long)stats.stale, (unsigned long)stats.entries);
	for (int nic = 0; nic < NICS; nic++)
		gpumr_forget(receiver.cache, receiver.pd[nic]);
	gpumr_close(receiver.cache);
	return 0;
}
