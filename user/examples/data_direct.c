/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Opens a cache whose dma-bufs are registered for Data Direct: the NIC then reaches the GPU by a PCIe
 * function of its own. It needs a NIC that has this function, and a libmlx5 with
 * mlx5dv_reg_dmabuf_mr().
 * cc -c data_direct.c $(pkg-config --cflags gpumr); link with -lgpumr -lmlx5 -libverbs
 */
#include <gpumr.h>
#include <infiniband/verbs.h>

/* As infiniband/mlx5dv.h declares it, where that is new enough, with
 * MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT. */
struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
				    int access, int mlx5_access);
enum { DATA_DIRECT = 1 << 0 };

static struct ibv_mr *reg_dmabuf_mr(void *argument, struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	(void)argument;
	return mlx5dv_reg_dmabuf_mr(pd, offset, length, iova, fd, access, DATA_DIRECT);
}

static int dereg_mr(void *argument, struct ibv_mr *mr)
{
	(void)argument;
	return ibv_dereg_mr(mr);
}

/* Returns 0 or an errno. flags: GPUMR_PCIE where the GPU hangs on the processor, or 0. */
int open_data_direct(struct gpumr **cache, uint32_t flags)
{
	struct gpumr_verbs verbs = { .size = sizeof(verbs), .reg_dmabuf_mr = reg_dmabuf_mr, .dereg_mr = dereg_mr };
	struct gpumr_options options = {
		.size = sizeof(options),
		.way = "dma-buf",
		.sweep_ms = 1000,
		.flags = flags,
		.verbs = &verbs,
	};

	return gpumr_open(cache, &options);
}
