/* SPDX-License-Identifier: GPL-2.0 */
/* A libcuda.so.1 for tests of verify, matrix and selftest. GPU memory is memory of the process in one
 * range (STAND_IN_GPU in stand_in.h), so that libibverbs.c knows it. Addresses are given out once,
 * unless STAND_IN_REUSE is set. A dma-buf is a memfd. STAND_IN_LOG: a file to which each export
 * writes its flags. STAND_IN_NO_DMA_BUF: the driver offers none. STAND_IN_EXPORT: the CUresult of
 * each export with the forced PCIe mapping. Left out: contexts of several threads, all costs. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "stand_in.h"

static uintptr_t next;

int cuInit(unsigned int flags)
{
	void *at = mmap((void *)STAND_IN_GPU, STAND_IN_SIZE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	(void)flags;
	next = next ? next : STAND_IN_GPU;
	return at == (void *)STAND_IN_GPU || next ? 0 : 999;
}

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuGetErrorName(int status, const char **name)
{
	*name = status == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR";
	return 0;
}

int cuDeviceGetByPCIBusId(int *device, const char *address)
{
	*device = 0;
	return address[0] ? 0 : 101;
}

int cuDeviceGetName(char *name, int length, int device)
{
	(void)device;
	snprintf(name, length, "stand-in");
	return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	*value = attribute == 124 && !getenv("STAND_IN_NO_DMA_BUF");
	return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	(void)device;
	*context = &next;
	return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	(void)device;
	return 0;
}

int cuCtxSetCurrent(void *context)
{
	(void)context;
	return 0;
}

int cuCtxSynchronize(void)
{
	return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	*free = *total = STAND_IN_SIZE;
	return 0;
}

int cuMemAlloc_v2(uint64_t *at, size_t size)
{
	*at = next;
	next += (size + (2 << 20) - 1) & ~((2ul << 20) - 1);
	return 0;
}

int cuMemFree_v2(uint64_t at)
{
	if (getenv("STAND_IN_REUSE"))
		next = at;
	return 0;
}

int cuPointerSetAttribute(const void *value, int attribute, uint64_t at)
{
	(void)value, (void)attribute, (void)at;
	return 0;
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t size)
{
	memset((void *)at, value, size);
	return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
	memcpy(to, (void *)from, size);
	return 0;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
	memcpy((void *)to, from, size);
	return 0;
}

int cuMemGetHandleForAddressRange(int *fd, uint64_t at, size_t size, int kind, unsigned long long flags)
{
	const char *log = getenv("STAND_IN_LOG"), *refused = getenv("STAND_IN_EXPORT");
	FILE *file = log ? fopen(log, "a") : NULL;

	if (file) {
		fprintf(file, "export flags %llu\n", flags);
		fclose(file);
	}
	if (kind != 1 || at % 4096 || size % 4096)
		return 1;
	if (refused && flags == 1)
		return atoi(refused);
	*fd = memfd_create("dma-buf", 0);
	return 0;
}
