/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A libnvidia-ml.so.1 of the GPUs that cuda.c has: of NVML's functions those that say how much memory
 * is free. As read on an H200 (driver 580): before nvmlInit_v2() each is UNINITIALIZED (1), and a UUID
 * that no GPU has is NOT_FOUND (6). */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void stand_in_memory(int device, uint64_t *free_bytes, uint64_t *all);

struct memory {
	uint64_t total, free, used;
};

static int started, devices[2] = { 0, 1 };

int nvmlInit_v2(void)
{
	started = 1;
	return 0;
}

int nvmlDeviceGetHandleByUUID(const char *name, int **device)
{
	char own[64];

	for (int i = 0; i < 2 && started; i++) {
		snprintf(own, sizeof(own), "GPU-abababab-abab-abab-abab-ababababab%02x", devices[i]);
		*device = devices + i;
		if (!strcmp(name, own))
			return 0;
	}
	return started ? 6 : 1;
}

int nvmlDeviceGetMemoryInfo(const int *device, struct memory *memory)
{
	if (!started)
		return 1;
	stand_in_memory(*device, &memory->free, &memory->total);
	memory->used = memory->total - memory->free;
	return 0;
}
