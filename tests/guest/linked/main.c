/* SPDX-License-Identifier: GPL-2.0 */
/* Allocates GPU memory and has register.c register it: its own, or with PLUGIN that of a library, which it loads as
 * Python loads its extensions. */
#include <stdint.h>
#include <stdio.h>
#ifdef PLUGIN
#include <dlfcn.h>
#endif

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuMemAlloc_v2(uint64_t *at, size_t size);
int register_gpu_memory(void *gpu, size_t length);

int main(void)
{
	enum { LENGTH = 2 << 20 };
	int (*registers)(void *gpu, size_t length);
	uint64_t at;
	void *context;

#ifdef PLUGIN
	void *plugin = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);

	if (!plugin) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&registers = dlsym(plugin, "register_gpu_memory");
#else
	registers = register_gpu_memory;
#endif
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxPushCurrent_v2(context) || cuMemAlloc_v2(&at, LENGTH)) {
		fprintf(stderr, "no GPU memory\n");
		return 1;
	}
	return registers((void *)at, LENGTH);
}
