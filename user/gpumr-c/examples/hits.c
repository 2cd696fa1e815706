/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Measures what a hit and its release cost through the functions of libgpumr.so, as a program that is
 * linked with it calls them, on the thread that registered and on others, on this machine's GPU. Its
 * verbs only count. user/bench.sh builds and runs it. */
#include <dlfcn.h>
#include <gpumr.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SIZE = 2 << 20, ROUNDS = 400, HITS = 1000, MOST = 16 };

/* The beginning of struct ibv_mr. */
struct mr {
	uint64_t head[4];
	uint32_t handle, lkey, rkey;
};

static struct gpumr *cache;
static char domain[64];

static struct ibv_mr *reg_mr(void *argument, struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     unsigned int access)
{
	struct mr *mr = calloc(1, sizeof(*mr));

	(void)pd, (void)addr, (void)length, (void)iova, (void)access;
	mr->lkey = mr->rkey = ++*(uint32_t *)argument;
	return (struct ibv_mr *)mr;
}

static int dereg_mr(void *argument, struct ibv_mr *mr)
{
	(void)argument;
	free(mr);
	return 0;
}

static void check(const char *what, int status)
{
	if (status) {
		fprintf(stderr, "%s: %d: %s\n", what, status, gpumr_error());
		exit(1);
	}
}

static void *function(const char *name)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *found = lib ? dlsym(lib, name) : NULL;

	if (!found) {
		fprintf(stderr, "no %s: %s\n", name, dlerror());
		exit(1);
	}
	return found;
}

struct one {
	pthread_t thread;
	uint64_t at;
	double ns;
};

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Takes the median of many rounds of hits and releases, in nanoseconds. */
static void *hits(void *argument)
{
	static __thread double rounds[ROUNDS];
	struct one *one = argument;
	struct gpumr_lease *lease;
	struct timespec start, end;

	for (int i = 0; i < ROUNDS; i++) {
		clock_gettime(CLOCK_MONOTONIC, &start);
		for (int hit = 0; hit < HITS; hit++) {
			if (gpumr_register(cache, (struct ibv_pd *)domain, (void *)one->at, SIZE, 1, &lease))
				abort();
			if (!gpumr_mr(lease))
				abort();
			gpumr_release(lease);
		}
		clock_gettime(CLOCK_MONOTONIC, &end);
		rounds[i] = ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / HITS;
	}
	qsort(rounds, ROUNDS, sizeof(*rounds), ascending);
	one->ns = rounds[ROUNDS / 2];
	return NULL;
}

int main(void)
{
	static const unsigned int threads[] = { 1, 4, 8, 16 };
	static struct one all[MOST];
	uint32_t keys = 0;
	struct gpumr_verbs verbs = { sizeof(verbs), reg_mr, NULL, dereg_mr, &keys };
	struct gpumr_options options = { .size = sizeof(options), .way = "peer-memory", .verbs = &verbs };
	int (*init)(unsigned int flags), (*retain)(void **context, int device);
	int (*push)(void *context), (*allocate)(uint64_t *at, size_t size);
	void *context;

	*(void **)&init = function("cuInit");
	*(void **)&retain = function("cuDevicePrimaryCtxRetain");
	*(void **)&push = function("cuCtxPushCurrent_v2");
	*(void **)&allocate = function("cuMemAlloc_v2");
	check("CUDA", init(0) || retain(&context, 0) || push(context));
	for (int i = 0; i < MOST; i++)
		check("cuMemAlloc", allocate(&all[i].at, SIZE));
	check("gpumr_open", gpumr_open(&cache, &options));
	for (int hooks = 0; hooks < 2; hooks++) {
		const char *what = hooks ? "with hooks" : "identity checked";

		gpumr_hooks(cache, hooks);
		hits(&all[0]);
		printf("C, the first thread, %s: %.0f ns\n", what, all[0].ns);
		for (unsigned int n = 0; n < sizeof(threads) / sizeof(*threads); n++) {
			double fastest = 1e9, slowest = 0;

			for (unsigned int i = 0; i < threads[n]; i++)
				check("pthread_create", pthread_create(&all[i].thread, NULL, hits, &all[i]));
			for (unsigned int i = 0; i < threads[n]; i++) {
				pthread_join(all[i].thread, NULL);
				fastest = all[i].ns < fastest ? all[i].ns : fastest;
				slowest = all[i].ns > slowest ? all[i].ns : slowest;
			}
			printf("C, %u other threads, a buffer each, %s: %.0f to %.0f ns\n", threads[n], what, fastest,
			       slowest);
		}
	}
	gpumr_close(cache);
	return 0;
}
