/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Opens a cache, on a machine where a library may be missing, and registers GPU memory. */
#include <dlfcn.h>
#include <gpumr.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	int (*retain)(void **context, int device), (*push)(void *context);
	int (*allocate)(uint64_t *at, uint64_t size), (*init)(unsigned int flags);
	static char domain[64];
	struct gpumr_lease *lease;
	struct gpumr *cache;
	void *lib, *context;
	uint64_t at;
	int error;

	struct gpumr_options options = { .size = sizeof(options), .way = "dma-buf" };

	error = gpumr_open(&cache, &options);
	if (error) {
		printf("open: %s: %s\n", strerrorname_np(error), gpumr_error());
		return 0;
	}
	lib = dlopen("libcuda.so.1", RTLD_NOW);
	error = gpumr_register(cache, (void *)domain, domain, 8, 1, &lease);
	if (error)
		printf("unstarted: %s: %s\n", strerrorname_np(error), gpumr_error());
	*(void **)&init = dlsym(lib, "cuInit");
	if (init(0))
		return 0;
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&push = dlsym(lib, "cuCtxPushCurrent_v2");
	*(void **)&allocate = dlsym(lib, "cuMemAlloc_v2");
	/* The context of another GPU is current when memory of the first is registered. */
	if (retain(&context, 0) || push(context) || allocate(&at, 8192) || retain(&context, 1) || push(context))
		return 1;
	error = gpumr_register(cache, (void *)domain, (void *)at, 8192, 1, &lease);
	if (error)
		printf("register: %s: %s\n", strerrorname_np(error), gpumr_error());
	gpumr_close(cache);
	return 0;
}
