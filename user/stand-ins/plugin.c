/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A plug-in of a program that has another libibverbs, or none: it comes with a copy of its own, as
 * those in Python's wheels do. */
#include <infiniband/verbs.h>
#include <stdio.h>

struct ibv_pd *stand_in_domain(void);
void stand_in_counts(unsigned int *counts);

void plugin(void *gpu, void *host)
{
	struct ibv_pd *pd = stand_in_domain();
	unsigned int counts[3];

	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, i ? host : gpu, 4096, IBV_ACCESS_LOCAL_WRITE);

		printf("plug-in, %s: %s\n", i ? "host" : "GPU", mr ? "registered" : "refused");
		if (mr)
			ibv_dereg_mr(mr);
	}
	stand_in_counts(counts);
	printf("plug-in: plain %u, dma-buf %u, live %u\n", counts[0], counts[1], counts[2]);
}
