/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A libnvidia-ml.so.1 of the GPUs that cuda.c has: of NVML's functions those that say how much memory
 * is free. As read on an H200 (driver 580): before nvmlInit_v2() each is UNINITIALIZED (1), also after
 * the last nvmlShutdown(), a handle from before the last start is INVALID_ARGUMENT (2), and a UUID that
 * no GPU has is NOT_FOUND (6). With STAND_IN_NVML_SILENT the memory of a GPU is NOT_SUPPORTED (3), as
 * reported of GB10. Left out: partitions, starts in a child, and what a checkpoint does. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void stand_in_memory(int device, uint64_t *free_bytes, uint64_t *all);

struct memory {
	uint64_t total, free, used;
};

/* Each start has handles of its own. */
enum { STARTS = 64 };
static int users, starts, devices[STARTS][2];

int nvmlInit_v2(void)
{
	if (!users++ && starts < STARTS - 1)
		devices[++starts][1] = 1;
	return 0;
}

int nvmlShutdown(void)
{
	if (!users)
		return 1;
	users--;
	return 0;
}

int nvmlDeviceGetHandleByUUID(const char *name, int **device)
{
	char own[64];

	for (int i = 0; i < 2 && users; i++) {
		snprintf(own, sizeof(own), "GPU-00112233-4455-6677-8899-aabbccddee%02x", i);
		*device = devices[starts] + i;
		if (!strcmp(name, own))
			return 0;
	}
	return users ? 6 : 1;
}

int nvmlDeviceGetMemoryInfo(const int *device, struct memory *memory)
{
	if (!users)
		return 1;
	if (device < devices[starts] || device > devices[starts] + 1)
		return 2;
	if (getenv("STAND_IN_NVML_SILENT"))
		return 3;
	stand_in_memory(*device, &memory->free, &memory->total);
	memory->used = memory->total - memory->free;
	return 0;
}
