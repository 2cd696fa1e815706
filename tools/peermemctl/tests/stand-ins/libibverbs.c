/* SPDX-License-Identifier: GPL-2.0 */
/* A libibverbs.so.1 whose NIC copies within the process, for tests of verify, matrix and selftest.
 * Devices: any that is named in STAND_IN_NICS. What is wrong with it:
 * STAND_IN_PLAIN, STAND_IN_DMA_BUF: the errno of registering GPU memory by this way.
 * STAND_IN_LOSE=plain|dma-buf: the NIC writes nothing to GPU memory of this way, and says that it did.
 * STAND_IN_SHIFT: it writes a byte too far. STAND_IN_SLOW: microseconds of each request with GPU memory.
 * STAND_IN_UNEVEN: every other of these takes twice as long.
 * STAND_IN_HANG: no request ends. STAND_IN_STUCK: registering GPU memory never returns.
 * STAND_IN_NO_RC: it makes no reliable connections, as an EFA.
 * STAND_IN_LOCKED: the bytes of host memory of which more cannot be registered (ENOMEM).
 * STAND_IN_LOG: a file to which each registration of GPU memory writes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include "stand_in.h"
#undef ibv_reg_mr

enum { REGIONS = 4096, DONE = 64 };

struct region {
	struct ibv_mr mr;
	uintptr_t begin;
	size_t length;
	int live, gpu, dma_buf;
};

static struct region regions[REGIONS];
static struct ibv_context context;
static struct ibv_pd pd = { .context = &context };
static struct ibv_cq cq = { .context = &context };
static struct ibv_wc done[DONE];
static unsigned int first, last, number;
static struct ibv_recv_wr receive;
static struct ibv_sge into;
static struct ibv_device devices[16];
static struct ibv_device *list[17];

static int is_set(const char *name)
{
	return getenv(name) != NULL;
}

static void say(const char *what)
{
	const char *log = getenv("STAND_IN_LOG");
	FILE *file = log ? fopen(log, "a") : NULL;

	if (file) {
		fprintf(file, "%s\n", what);
		fclose(file);
	}
}

struct ibv_device **ibv_get_device_list(int *count)
{
	char *names = strdup(getenv("STAND_IN_NICS") ?: "mlx5_0");

	*count = 0;
	for (char *name = strtok(names, ","); name && *count < 16; name = strtok(NULL, ",")) {
		snprintf(devices[*count].name, sizeof(devices[0].name), "%s", name);
		list[*count] = &devices[*count];
		++*count;
	}
	free(names);
	return list;
}

void ibv_free_device_list(struct ibv_device **all)
{
	(void)all;
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static struct region *find(uint32_t key)
{
	return key && key <= REGIONS && regions[key - 1].live ? &regions[key - 1] : NULL;
}

static void complete(uint64_t id, int status)
{
	done[last++ % DONE] = (struct ibv_wc){ .wr_id = id, .status = status };
}

static int poll_cq(struct ibv_cq *queue, int count, struct ibv_wc *wc)
{
	(void)queue, (void)count;
	if (is_set("STAND_IN_HANG") || first == last)
		return 0;
	*wc = done[first++ % DONE];
	return 1;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)bad;
	into = *wr->sg_list;
	receive = *wr;
	return 0;
}

/* Whether the NIC's bytes for this region go nowhere. */
static int loses(const struct region *region)
{
	const char *lost = getenv("STAND_IN_LOSE");

	return lost && region && region->gpu && !strcmp(lost, region->dma_buf ? "dma-buf" : "plain");
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct region *near = find(wr->sg_list->lkey), *far;
	char *local = (char *)wr->sg_list->addr, *remote;
	uint32_t length = wr->sg_list->length;
	const char *slow = getenv("STAND_IN_SLOW");
	uint64_t word;

	(void)qp, (void)bad;
	if (wr->opcode == IBV_WR_SEND) {
		far = find(into.lkey);
		remote = (char *)into.addr;
	} else {
		uint32_t key = wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;

		far = find(key);
		remote = (char *)wr->wr.rdma.remote_addr;
	}
	if (!near || !far || (uintptr_t)remote < far->begin || (uintptr_t)remote + length > far->begin + far->length) {
		complete(wr->wr_id, IBV_WC_REM_ACCESS_ERR);
		return 0;
	}
	if (slow && (near->gpu || far->gpu)) {
		static unsigned int requests;
		long times = is_set("STAND_IN_UNEVEN") && requests++ % 2 ? 2 : 1;
		struct timespec span = { .tv_nsec = atol(slow) * 1000 * times };

		nanosleep(&span, NULL);
	}
	if (is_set("STAND_IN_SHIFT") && far->gpu)
		remote++;
	switch (wr->opcode) {
	case IBV_WR_RDMA_READ:
		memmove(local, remote, length);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		memcpy(&word, remote, 8);
		memcpy(local, &word, 8);
		word += wr->wr.atomic.compare_add;
		memcpy(remote, &word, 8);
		break;
	default:
		if (!loses(far))
			memmove(remote, local, length);
	}
	complete(wr->wr_id, IBV_WC_SUCCESS);
	if (wr->opcode == IBV_WR_SEND)
		complete(receive.wr_id, IBV_WC_SUCCESS);
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	context.device = device;
	context.ops.poll_cq = poll_cq;
	context.ops.post_send = post_send;
	context.ops.post_recv = post_recv;
	return &context;
}

int ibv_close_device(struct ibv_context *opened)
{
	(void)opened;
	return 0;
}

int ibv_query_device(struct ibv_context *opened, struct ibv_device_attr *attributes)
{
	(void)opened;
	memset(attributes, 0, sizeof(*attributes));
	attributes->atomic_cap = is_set("STAND_IN_NO_ATOMICS") ? IBV_ATOMIC_NONE : IBV_ATOMIC_HCA;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *opened)
{
	(void)opened;
	return &pd;
}

int ibv_dealloc_pd(struct ibv_pd *domain)
{
	(void)domain;
	return 0;
}

static struct ibv_mr *make(uintptr_t begin, size_t length, int gpu, int dma_buf, const char *refused)
{
	if (gpu && refused) {
		errno = atoi(refused);
		return NULL;
	}
	if (gpu && is_set("STAND_IN_STUCK"))
		pause();
	for (int n = 0; n < REGIONS; n++) {
		struct region *region = &regions[n];

		if (region->live)
			continue;
		*region = (struct region){ .begin = begin, .length = length, .live = 1, .gpu = gpu, .dma_buf = dma_buf };
		region->mr = (struct ibv_mr){ .context = &context, .pd = &pd, .lkey = n + 1, .rkey = n + 1 };
		return &region->mr;
	}
	errno = ENOMEM;
	return NULL;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *addr, size_t length, int access)
{
	const char *locked = getenv("STAND_IN_LOCKED");
	int gpu = (uintptr_t)addr - STAND_IN_GPU < STAND_IN_SIZE;

	(void)domain, (void)access;
	if (locked && length > strtoul(locked, NULL, 0)) {
		errno = ENOMEM;
		return NULL;
	}
	if (gpu)
		say("plain");
	return make((uintptr_t)addr, length, gpu, 0, getenv("STAND_IN_PLAIN"));
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *domain, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)domain, (void)fd, (void)access;
	say("dma-buf");
	if (offset % 4096 != iova % 4096) {
		errno = EINVAL;
		return NULL;
	}
	return make(iova, length, 1, 1, getenv("STAND_IN_DMA_BUF"));
}

/* libmlx5's. */
struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *domain, uint64_t offset, size_t length, uint64_t iova, int fd,
				    int access, int mlx5_access)
{
	(void)domain, (void)offset, (void)fd, (void)access;
	say(mlx5_access == 1 ? "Data Direct" : "mlx5dv");
	return make(iova, length, 1, 1, getenv("STAND_IN_DATA_DIRECT"));
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	((struct region *)mr)->live = 0;
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *opened, int entries, void *user, struct ibv_comp_channel *channel, int vector)
{
	(void)opened, (void)entries, (void)user, (void)channel, (void)vector;
	return &cq;
}

int ibv_destroy_cq(struct ibv_cq *queue)
{
	(void)queue;
	first = last;
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *init)
{
	struct ibv_qp *qp = calloc(1, sizeof(*qp));

	(void)domain, (void)init;
	if (is_set("STAND_IN_NO_RC")) {
		free(qp);
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp->context = &context;
	qp->qp_num = ++number;
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
	(void)qp, (void)attributes, (void)mask;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}
