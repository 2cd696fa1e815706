/* SPDX-License-Identifier: GPL-2.0 */
/* Runs examples/lease.c on the stand-ins: GPU memory, no memory, no domain; then says what is left registered. */
#include <gpumr.h>
#include <stdio.h>

int cuInit(unsigned int flags);
int cuMemAlloc_v2(uint64_t *at, uint64_t size);
void stand_in_counts(unsigned int *counts);
int example(struct ibv_pd *pd, void *gpu_memory, size_t length, int access);

int main(void)
{
	char domain[64], host[64];
	unsigned int counts[3];
	uint64_t at;

	if (cuInit(0) || cuMemAlloc_v2(&at, 8192))
		return 1;
	int good = example((void *)domain, (void *)at, 8192, 1);
	int bad = example((void *)domain, host, sizeof(host), 1);
	int none = example(NULL, (void *)at, 8192, 1);

	stand_in_counts(counts);
	printf("results %d %d %d, live %u\n", good, bad, none, counts[2]);
	return 0;
}
