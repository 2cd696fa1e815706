/* SPDX-License-Identifier: GPL-2.0 */
/* A libcuda.so.1 of one block of "GPU memory". As read on an H200 (driver 580): BUFFER_ID grows with each allocation, and
 * is INVALID_VALUE (1) once freed; addresses come back; exports need whole pages. Left out: everything else. */
#include <stdint.h>
#include <fcntl.h>

static char memory[1 << 20] __attribute__((aligned(4096)));
static uint64_t id, last_id;

static int within(uint64_t at)
{
	return id && at - (uint64_t)(uintptr_t)memory < sizeof(memory);
}

int stand_in_is_gpu(const void *addr)
{
	return within((uintptr_t)addr);
}

int cuInit(unsigned int flags)
{
	return flags ? 1 : 0;
}

int cuMemAlloc_v2(uint64_t *at, uint64_t size)
{
	if (id || size > sizeof(memory))
		return 2;
	id = ++last_id;
	*at = (uintptr_t)memory;
	return 0;
}

int cuMemFree_v2(uint64_t at)
{
	if (!within(at))
		return 1;
	id = 0;
	return 0;
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t at)
{
	if (!within(at))
		return 1;
	switch (attribute) {
	case 2:
		*(unsigned int *)out = 2;
		return 0;
	case 7:
		*(uint64_t *)out = id;
		return 0;
	case 8:
		*(unsigned int *)out = 0;
		return 0;
	}
	return 1;
}

int cuMemGetAddressRange_v2(uint64_t *base, uint64_t *size, uint64_t at)
{
	if (!within(at))
		return 1;
	*base = (uintptr_t)memory;
	*size = sizeof(memory);
	return 0;
}

int cuMemGetHandleForAddressRange(int *fd, uint64_t at, uint64_t size, int type, unsigned long long flags)
{
	if (!within(at) || (at | size) & 4095 || type != 1)
		return 1;
	*fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	return *fd < 0;
}

int cuGetErrorName(int status, const char **name)
{
	*name = status == 1 ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
	return 0;
}
