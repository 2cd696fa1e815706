/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Runs examples/data_direct.c on the stand-ins, with a libmlx5 of its own, and prints what was asked of
 * that and of libcuda. */
#include <gpumr.h>
#include <infiniband/verbs.h>
#include <stdio.h>

#include "gpus.h"

struct ibv_pd *stand_in_domain(void);
void stand_in_counts(unsigned int *counts);
unsigned long long stand_in_export_flags(void);
int open_data_direct(struct gpumr **cache, uint32_t flags);

struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
				    int access, int mlx5_access)
{
	printf("mlx5: access %d, mlx5_access %d\n", access, mlx5_access);
	return ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

int main(void)
{
	struct gpumr_lease *lease;
	unsigned int counts[3];
	struct gpumr *cache;
	uint64_t at;

	if (start() || allocate(&at, 1 << 20))
		return 1;
	for (int i = 0; i < 2; i++) {
		if (open_data_direct(&cache, i ? GPUMR_PCIE : 0) ||
		    gpumr_register(cache, stand_in_domain(), (void *)at, 1 << 20, IBV_ACCESS_REMOTE_READ, &lease)) {
			fprintf(stderr, "%s\n", gpumr_error());
			return 1;
		}
		gpumr_release(lease);
		stand_in_counts(counts);
		printf("by dma-buf %u, live %u, export flags %llu\n", counts[1], counts[2], stand_in_export_flags());
		gpumr_close(cache);
	}
	stand_in_counts(counts);
	printf("live %u\n", counts[2]);
	return 0;
}
