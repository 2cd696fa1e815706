/* SPDX-License-Identifier: GPL-2.0 */
/* A libcuda.so.1 of a megabyte of "GPU memory". As read on an H200 (driver 580): BUFFER_ID grows
 * with each allocation, and is INVALID_VALUE (1) once freed; addresses come back, blocks lie side
 * by side; exports need whole pages, may run over several blocks, and managed and host memory has
 * none. As NVIDIA's manual says: cuPointerGetAttributes() answers 0 for memory that it does not
 * know, and no error. A thread without a context may ask for attributes, and for nothing else;
 * memory of a pool belongs to no context, and any serves for it. When a program ends, it ends, too,
 * and must not be asked any more; this may take long (STAND_IN_SLOW_EXIT). Managed memory has pages
 * of the CPU, unless STAND_IN_MANAGED_ON_GPU is set. Left out: costs, contexts, sizes of 2 MiB,
 * virtual memory. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOST = 1, DEVICE = 2, PAGE = 4096, BLOCKS = 16, CONTEXTS = 8 };

static char memory[1 << 20] __attribute__((aligned(PAGE)));
static struct block {
	uint64_t at, size, id;
	unsigned int type, managed;
	void *context;
} blocks[BLOCKS];
static uint64_t last_id;
static char primary;
static __thread void *contexts[CONTEXTS];
static __thread int current;
static volatile int over;

__attribute__((destructor)) static void end(void)
{
	over = 1;
	if (getenv("STAND_IN_SLOW_EXIT"))
		usleep(1500000);
}

static struct block *find(uint64_t at)
{
	for (struct block *b = blocks; b < blocks + BLOCKS; b++)
		if (b->id && at - b->at < b->size)
			return b;
	return NULL;
}

/* GPU memory that is or was: where the CPU has no page. */
int stand_in_is_gpu(const void *addr)
{
	struct block *b = find((uintptr_t)addr);

	if (b && b->managed)
		return getenv("STAND_IN_MANAGED_ON_GPU") != NULL;
	return (uintptr_t)addr - (uintptr_t)memory < sizeof(memory) && (!b || b->type == DEVICE);
}

static int allocate(uint64_t *out, uint64_t size, unsigned int type, unsigned int managed)
{
	uint64_t at = (uintptr_t)memory, end = at + sizeof(memory);
	struct block *new = NULL, *b;

	if (!contexts[current])
		return 201;
	for (b = blocks; b < blocks + BLOCKS && !new; b++)
		if (!b->id)
			new = b;
	size = (size + PAGE - 1) & -(uint64_t)PAGE;
	/* The first gap. */
	for (b = blocks; b < blocks + BLOCKS; b++)
		if (b->id && at < b->at + b->size && b->at < at + size) {
			at = b->at + b->size;
			b = blocks - 1;
		}
	if (!new || !size || size > end - at)
		return 2;
	*new = (struct block){ at, size, ++last_id, type, managed, contexts[current] };
	*out = at;
	return 0;
}

int cuInit(unsigned int flags)
{
#ifdef WITHOUT_GPU
	return 100;
#endif
	return flags ? 1 : 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &primary;
	return device ? 101 : 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	return device ? 101 : 0;
}

int cuCtxPushCurrent_v2(void *context)
{
	if (!context || current == CONTEXTS - 1)
		return 201;
	contexts[++current] = context;
	return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
	if (!current)
		return 201;
	*context = contexts[current--];
	return 0;
}

int cuMemAlloc_v2(uint64_t *at, uint64_t size)
{
	return allocate(at, size, DEVICE, 0);
}

int cuMemAllocAsync(uint64_t *at, size_t size, void *stream)
{
	int status = allocate(at, size, DEVICE, 0);

	if (!status)
		find(*at)->context = NULL;
	return stream ? 400 : status;
}

int cuMemAllocManaged(uint64_t *at, uint64_t size, unsigned int flags)
{
	return flags == 1 ? allocate(at, size, DEVICE, 1) : 1;
}

int cuMemHostAlloc(void **at, size_t size, unsigned int flags)
{
	uint64_t block;
	int status = allocate(&block, size, HOST, 0);

	(void)flags;
	if (!status)
		*at = (void *)block;
	return status;
}

int cuMemFree_v2(uint64_t at)
{
	struct block *b = find(at);

	if (!b || b->at != at)
		return 1;
	b->id = 0;
	return 0;
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t at)
{
	struct block *b = find(at);

	if (over)
		abort();
	if (!b)
		return 1;
	switch (attribute) {
	case 1:
		*(void **)out = b->context;
		return 0;
	case 2:
		*(unsigned int *)out = b->type;
		return 0;
	case 7:
		*(uint64_t *)out = b->id;
		return 0;
	case 8:
		*(unsigned int *)out = b->managed;
		return 0;
	case 9:
		*(int *)out = 0;
		return 0;
	case 11:
		*(uint64_t *)out = b->at;
		return 0;
	case 12:
		*(uint64_t *)out = b->size;
		return 0;
	}
	return 1;
}

#ifndef WITHOUT_NEW_CUDA
int cuPointerGetAttributes(unsigned int count, int *attributes, void **out, uint64_t at)
{
	for (unsigned int i = 0; i < count; i++) {
		if (attributes[i] != 7 && attributes[i] != 11 && attributes[i] != 12)
			return 1;
		*(uint64_t *)out[i] = 0;
		cuPointerGetAttribute(out[i], attributes[i], at);
	}
	return 0;
}
#endif

int cuMemGetAddressRange_v2(uint64_t *base, uint64_t *size, uint64_t at)
{
	struct block *b = find(at);

	if (!contexts[current])
		return 201;
	if (!b)
		return 1;
	*base = b->at;
	*size = b->size;
	return 0;
}

#ifndef WITHOUT_NEW_CUDA
int cuMemGetHandleForAddressRange(int *fd, uint64_t at, uint64_t size, int type, unsigned long long flags)
{
	if (!contexts[current])
		return 201;
	if ((at | size) & (PAGE - 1) || !size || type != 1 || flags)
		return 1;
	for (uint64_t page = at; page < at + size; page += PAGE) {
		struct block *b = find(page);

		if (!b || b->type != DEVICE || b->managed)
			return 1;
	}
	*fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	return *fd < 0 ? 999 : 0;
}
#endif

int cuGetErrorName(int status, const char **name)
{
	*name = status == 1   ? "CUDA_ERROR_INVALID_VALUE" :
		status == 100 ? "CUDA_ERROR_NO_DEVICE" :
				"CUDA_ERROR_UNKNOWN";
	return 0;
}

/* Where another process has memory, and this one has none. */
uint64_t stand_in_of_another(void)
{
	uint64_t at = 0;
	int ends[2];

	if (pipe(ends))
		return 0;
	if (!fork()) {
		if (cuMemAlloc_v2(&at, 4096) || write(ends[1], &at, sizeof(at)) < 0)
			_exit(1);
		_exit(0);
	}
	close(ends[1]);
	if (read(ends[0], &at, sizeof(at)) < 0)
		at = 0;
	close(ends[0]);
	wait(NULL);
	return at;
}
