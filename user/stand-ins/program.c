/* SPDX-License-Identifier: GPL-2.0 */
/* A program that knows nothing of dma-buf: registers GPU memory and host memory, as arguments say; prints what happened. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

int cuInit(unsigned int flags);
int cuMemAlloc_v2(uint64_t *at, uint64_t size);
int cuMemFree_v2(uint64_t at);
void stand_in_counts(unsigned int *counts);

static void show(const char *what, struct ibv_mr *mr, uint64_t at)
{
	if (mr)
		printf("%s: addr %s\n", what, mr->addr == (void *)at ? "right" : "wrong");
	else
		printf("%s: %s\n", what, strerrorname_np(errno));
}

int main(int argc, char **argv)
{
	struct ibv_pd pd = { 0 };
	/* Not constant for the compiler: the macro then calls ibv_reg_mr_iova2(). */
	volatile int access = IBV_ACCESS_LOCAL_WRITE;
	unsigned int counts[3];
	struct ibv_mr *mr[3];
	char host[64];
	uint64_t at;

	if (cuInit(0) || cuMemAlloc_v2(&at, 8192))
		return 1;
	mr[0] = ibv_reg_mr(&pd, (void *)(at + 100), 5000, IBV_ACCESS_LOCAL_WRITE);
	show("constant", mr[0], at + 100);
	mr[1] = ibv_reg_mr(&pd, (void *)(at + 100), 5000, access);
	show("variable", mr[1], at + 100);
	mr[2] = ibv_reg_mr(&pd, host, sizeof(host), IBV_ACCESS_LOCAL_WRITE);
	show("host", mr[2], (uintptr_t)host);
	for (int i = 0; i < 3; i++)
		if (mr[i])
			ibv_dereg_mr(mr[i]);
	cuMemFree_v2(at);
	if (cuMemAlloc_v2(&at, 8192))
		return 1;
	mr[0] = ibv_reg_mr(&pd, (void *)(at + 100), 5000, IBV_ACCESS_LOCAL_WRITE);
	if (mr[0])
		ibv_dereg_mr(mr[0]);
	printf("dealloc: %d\n", ibv_dealloc_pd(&pd));
	stand_in_counts(counts);
	printf("plain %u, dma-buf %u, live %u\n", counts[0], counts[1], counts[2]);
	return 0;
}
