/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A plug-in of a program that has another libibverbs, or none. It comes with a copy of its own
 * (OWN), like those in Python's wheels. Its domain is of that copy, but the linker binds its
 * calls to the first libibverbs that the program has. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>

void stand_in_counts(unsigned int *counts);

void plugin(void *gpu, void *host)
{
	void *lib = dlopen(OWN, RTLD_NOW | RTLD_NOLOAD);
	struct ibv_pd *(*domain)(void), *pd;
	unsigned int counts[3];
	struct ibv_mr *own;

	*(void **)&domain = dlsym(lib, "stand_in_domain");
	pd = domain();

	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, i ? host : gpu, 4096, IBV_ACCESS_LOCAL_WRITE);

		printf("plug-in, %s: %s\n", i ? "host" : "GPU", mr ? "registered" : "refused");
		if (mr)
			ibv_dereg_mr(mr);
	}
	own = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE);
	printf("plug-in, own dma-buf: %s\n", own ? "registered" : "refused");
	if (own)
		ibv_dereg_mr(own);
	stand_in_counts(counts);
	printf("plug-in: plain %u, dma-buf %u, live %u\n", counts[0], counts[1], counts[2]);
}
