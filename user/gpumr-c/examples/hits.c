/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Measures what a hit and its release cost through the functions of libgpumr.so, as a program that is
 * linked with it calls them, on the thread that registered and on others, on this machine's GPU. Beside
 * a hit that asks CUDA stands what the same question costs without the library. Where frees are
 * reported, beside a hit stands the report of a free of memory that is not registered. Its verbs only
 * count. user/bench.sh builds and runs it. */
#include <dlfcn.h>
#include <gpumr.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SIZE = 2 << 20, ROUNDS = 400, CALLS = 1000, MOST = 16 };
/* CU_POINTER_ATTRIBUTE_... of cuda.h. */
enum { BUFFER_ID = 7, RANGE_START = 11, RANGE_SIZE = 12 };

/* The beginning of struct ibv_mr. */
struct mr {
	uint64_t head[4];
	uint32_t handle, lkey, rkey;
};

static struct gpumr *cache;
static char domain[64];
static int (*get_attributes)(unsigned int count, int *attributes, void **data, uint64_t at);
/* Memory that is not registered. */
static uint64_t elsewhere;

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
	void (*call)(const struct one *one);
	uint64_t at;
	double ns;
};

static void hit(const struct one *one)
{
	struct gpumr_lease *lease;

	if (gpumr_register(cache, (struct ibv_pd *)domain, (void *)one->at, SIZE, 1, &lease))
		abort();
	if (!gpumr_mr(lease))
		abort();
	gpumr_release(lease);
}

/* Asks CUDA what a hit asks it. */
static void raw(const struct one *one)
{
	int attributes[] = { BUFFER_ID, RANGE_START, RANGE_SIZE };
	uint64_t id = 0, start = 0, size = 0;
	void *data[] = { &id, &start, &size };

	if (get_attributes(3, attributes, data, one->at) || start != one->at)
		abort();
}

static void report(const struct one *one)
{
	(void)one;
	if (gpumr_free(cache, (void *)elsewhere, SIZE))
		abort();
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Takes the median of many rounds of calls, in nanoseconds. */
static void *measure(void *argument)
{
	static __thread double rounds[ROUNDS];
	struct one *one = argument;
	struct timespec start, end;

	for (int i = 0; i < ROUNDS; i++) {
		clock_gettime(CLOCK_MONOTONIC, &start);
		for (int call = 0; call < CALLS; call++)
			one->call(one);
		clock_gettime(CLOCK_MONOTONIC, &end);
		rounds[i] = ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / CALLS;
	}
	qsort(rounds, ROUNDS, sizeof(*rounds), ascending);
	one->ns = rounds[ROUNDS / 2];
	return NULL;
}

static struct one all[MOST];

/* Prints the medians of the fastest and the slowest of so many new threads, or of this one for 0. */
static void print(unsigned int threads, void (*call)(const struct one *one))
{
	double fastest = 1e9, slowest = 0;

	for (int i = 0; i < MOST; i++)
		all[i].call = call;
	if (!threads) {
		measure(&all[0]);
		printf("%.0f ns", all[0].ns);
		return;
	}
	for (unsigned int i = 0; i < threads; i++)
		check("pthread_create", pthread_create(&all[i].thread, NULL, measure, &all[i]));
	for (unsigned int i = 0; i < threads; i++) {
		pthread_join(all[i].thread, NULL);
		fastest = all[i].ns < fastest ? all[i].ns : fastest;
		slowest = all[i].ns > slowest ? all[i].ns : slowest;
	}
	printf("%.0f to %.0f ns", fastest, slowest);
}

int main(void)
{
	static const unsigned int threads[] = { 0, 1, 4, 8, 16 };
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
	*(void **)&get_attributes = function("cuPointerGetAttributes");
	check("CUDA", init(0) || retain(&context, 0) || push(context));
	for (int i = 0; i < MOST; i++)
		check("cuMemAlloc", allocate(&all[i].at, SIZE));
	check("cuMemAlloc", allocate(&elsewhere, SIZE));
	check("gpumr_open", gpumr_open(&cache, &options));
	for (int hooks = 0; hooks < 2; hooks++) {
		gpumr_hooks(cache, hooks);
		for (unsigned int n = 0; n < sizeof(threads) / sizeof(*threads); n++) {
			if (threads[n])
				printf("C, %u other threads, a buffer each, ", threads[n]);
			else
				printf("C, the first thread, ");
			printf(hooks ? "with hooks: " : "identity checked: ");
			print(threads[n], hit);
			printf(hooks ? "; a report of a free: " : "; cuPointerGetAttributes() alone: ");
			print(threads[n], hooks ? report : raw);
			printf("\n");
		}
	}
	gpumr_close(cache);
	return 0;
}
