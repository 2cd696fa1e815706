/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The programs have two GPUs: each has every second allocation, and while memory of one is registered, a context
 * of the other is often current. */
#ifndef GPUS_H
#define GPUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *at, uint64_t size);
int cuMemFree_v2(uint64_t at);
#ifdef __cplusplus
}
#endif

static void *contexts[2];
static int current_gpu;

/* Starts CUDA, with a context of the first GPU current. */
static inline int start(void)
{
	return cuInit(0) || cuDevicePrimaryCtxRetain(&contexts[0], 0) || cuDevicePrimaryCtxRetain(&contexts[1], 1) ||
	       cuCtxSetCurrent(contexts[0]);
}

/* Makes the context of the other GPU current. */
static inline int turn(void)
{
	current_gpu = !current_gpu;
	return cuCtxSetCurrent(contexts[current_gpu]);
}

/* Allocates memory of the current GPU, and makes the context of the other one current. */
static inline int allocate(uint64_t *at, uint64_t size)
{
	int status = cuMemAlloc_v2(at, size);

	return status ? status : turn();
}

#endif
