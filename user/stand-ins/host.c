/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A program that loads plugin.c's library as Python does, and with WITH_VERBS registers itself, too. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>

#include "gpus.h"

struct ibv_pd *stand_in_domain(void);

int main(void)
{
	void *lib = dlopen("./plugin.so", RTLD_NOW | RTLD_LOCAL);
	void (*plugin)(void *gpu, void *host);
	static char host[4096];
	uint64_t at;

	if (!lib) {
		printf("%s\n", dlerror());
		return 1;
	}
	*(void **)&plugin = dlsym(lib, "plugin");
	if (start() || allocate(&at, 8192))
		return 1;
	plugin((void *)at, host);
#ifdef WITH_VERBS
	struct ibv_mr *mr = ibv_reg_mr(stand_in_domain(), (void *)at, 4096, IBV_ACCESS_LOCAL_WRITE);

	printf("program: %s\n", mr ? "registered" : "refused");
	if (mr)
		ibv_dereg_mr(mr);
#endif
	plugin((void *)at, host);
	return 0;
}
