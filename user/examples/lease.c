/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Registers GPU memory twice. The second time is a hit.
 * cc lease.c $(pkg-config --cflags --libs gpumr) -lcuda -libverbs
 */
#include <gpumr.h>
#include <stdio.h>

int example(struct ibv_pd *pd, void *gpu_memory, size_t length, int access)
{
	/* Freed memory stays registered for at most a second. */
	struct gpumr_options options = { .size = sizeof(options), .limits.entries = 1000, .sweep_ms = 1000 };
	struct gpumr_lease *lease;
	struct gpumr_stats stats = { .size = sizeof(stats) };
	struct gpumr *cache;

	if (gpumr_open(&cache, &options)) {
		fprintf(stderr, "%s\n", gpumr_error());
		return 1;
	}
	for (int i = 0; i < 2; i++) {
		if (gpumr_register(cache, pd, gpu_memory, length, access, &lease)) {
			fprintf(stderr, "%s\n", gpumr_error());
			gpumr_close(cache);
			return 1;
		}
		/* Here gpumr_mr(lease)->lkey and ->rkey are good. */
		gpumr_release(lease);
	}
	gpumr_get_stats(cache, &stats);
	printf("%s; hits %lu, misses %lu\n", gpumr_reason(cache), stats.hits, stats.misses);
	gpumr_forget(cache, pd);
	gpumr_close(cache);
	return 0;
}
