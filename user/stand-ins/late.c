/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Ends while a cache sweeps all the time. The cache was opened before CUDA was started, or (with an
 * argument) in a child of a process that has a cache, too. */
#include <gpumr.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpus.h"

static char domain[64];

static int sweeps(int first)
{
	struct gpumr_options options = { .size = sizeof(options), .way = "dma-buf", .sweep_ms = 1 };
	struct gpumr_lease *lease;
	struct gpumr *cache;
	uint64_t at;

	if (first && gpumr_open(&cache, &options))
		return 1;
	if (start() || allocate(&at, 8192))
		return 2;
	if (!first && gpumr_open(&cache, &options))
		return 1;
	if (gpumr_register(cache, (void *)domain, (void *)at, 8192, 1, &lease))
		return 3;
	gpumr_release(lease);
	usleep(20000);
	return 0;
}

int main(int argc, char **argv)
{
	struct gpumr_options options = { .size = sizeof(options), .sweep_ms = 1 };
	struct gpumr *cache;
	int status = -1;

	(void)argv;
	if (argc == 1)
		return sweeps(1);
	if (gpumr_open(&cache, &options))
		return 1;
	if (!fork())
		exit(sweeps(0));
	wait(&status);
	printf("child: %x\n", status);
	return 0;
}
