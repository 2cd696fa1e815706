/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A program that knows nothing about dma-buf, and prints what happened. Its argument chooses
 * what it does. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpus.h"
#include "mr_attr.h"

int cuCtxCreate_v2(void **context, unsigned int flags, int device);
int cuCtxDestroy_v2(void *context);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active);
int cuMemAllocAsync(uint64_t *at, size_t size, void *stream);
int stand_in_started(void);
void stand_in_break(void);
void stand_in_checkpoint(void);
void stand_in_signal_inside(void);
unsigned int stand_in_primaries(void);
int cuMemAllocManaged(uint64_t *at, uint64_t size, unsigned int flags);
int cuMemHostAlloc(void **at, size_t size, unsigned int flags);
void stand_in_counts(unsigned int *counts);
unsigned int stand_in_access(struct ibv_mr *mr);
uint64_t stand_in_of_another(void);

static struct ibv_pd pd;

static struct ibv_mr *show(const char *what, struct ibv_mr *mr, uint64_t at)
{
	if (mr)
		printf("%s: addr %s\n", what, mr->addr == (void *)at ? "right" : "wrong");
	else
		printf("%s: %s\n", what, strerrorname_np(errno));
	return mr;
}

/* Calls the forms that verbs.h makes of ibv_reg_mr() and ibv_reg_mr_iova(). */
static void forms(uint64_t at)
{
	/* The compiler does not see a constant, so the macros call ibv_reg_mr_iova2(). */
	volatile int access = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *mr[6];
	char host[64];

	at += 100;
	mr[0] = show("constant", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	mr[1] = show("variable", ibv_reg_mr(&pd, (void *)at, 5000, access), at);
	mr[2] = show("optional", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_RELAXED_ORDERING), at);
	mr[3] = show("iova, constant", ibv_reg_mr_iova(&pd, (void *)at, 5000, 0, IBV_ACCESS_LOCAL_WRITE), at);
	mr[4] = show("iova, variable", ibv_reg_mr_iova(&pd, (void *)at, 5000, 0, access), at);
	mr[5] = show("host", ibv_reg_mr(&pd, host, sizeof(host), IBV_ACCESS_LOCAL_WRITE), (uintptr_t)host);
	for (int i = 0; i < 6; i++) {
		unsigned int wanted = i == 2 ? IBV_ACCESS_RELAXED_ORDERING : IBV_ACCESS_LOCAL_WRITE;

		if (!mr[i])
			continue;
		if (stand_in_access(mr[i]) != wanted)
			printf("registered with access %#x\n", stand_in_access(mr[i]));
		ibv_dereg_mr(mr[i]);
	}
}

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct mr_attr *attr);

/* Registers as perftest does if it finds the function: by address, with a hint, and with a
 * dma-buf. */
static void ex(uint64_t at)
{
	struct mr_attr attr = { .length = 5000, .access = 1, .comp_mask = 2, .addr = (void *)at };
	struct ibv_mr *mr;

	ibv_dereg_mr(show("by address", ibv_reg_mr_ex(&pd, &attr), at));
	attr.comp_mask |= 16;
	mr = show("with a hint", ibv_reg_mr_ex(&pd, &attr), at);
	if (stand_in_access(mr) != 1)
		printf("registered with access %#x\n", stand_in_access(mr));
	ibv_dereg_mr(mr);
	attr.comp_mask = 1 | 4 | 8;
	ibv_dereg_mr(show("a dma-buf", ibv_reg_mr_ex(&pd, &attr), 0));
}

static void twice(const char *what, uint64_t at)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_mr *mr = show(what, ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);

		if (mr)
			ibv_dereg_mr(mr);
	}
}

/* Registers memory of each GPU while a context of the other is current. */
static void other_gpu(uint64_t at)
{
	uint64_t pool;

	twice("of a context", at);
	if (cuMemAllocAsync(&pool, 8192, NULL) || turn())
		return;
	twice("of a pool", pool);
}

static void *destroys(void *context)
{
	cuCtxDestroy_v2(context);
	return NULL;
}

/* Registers after another thread destroyed the current context. */
static void destroyed(uint64_t at)
{
	pthread_t thread;
	void *context;

	if (cuCtxCreate_v2(&context, 0, 0))
		return;
	pthread_create(&thread, NULL, destroys, context);
	pthread_join(thread, NULL);
	twice("buffer", at);
}

static void broken(uint64_t at)
{
	stand_in_break();
	twice("buffer", at);
}

/* Registers, deregisters and registers by handles of its own, as NCCL does. */
static void handles(uint64_t at)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int), *mr;
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	int (*dereg)(struct ibv_mr *);

	*(void **)&reg = dlsym(lib, "ibv_reg_mr");
	*(void **)&dereg = dlsym(lib, "ibv_dereg_mr");
	for (int i = 0; i < 3; i++) {
		mr = show("handle", reg(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
		if (mr)
			dereg(mr);
	}
	/* The linked functions still deregister what they registered, at whatever address. */
	for (int i = 0; i < 3; i++) {
		mr = show("linked", ibv_reg_mr(&pd, (void *)(at + 4096 * i), 4096, IBV_ACCESS_LOCAL_WRITE), at + 4096 * i);
		if (mr)
			ibv_dereg_mr(mr);
	}
}

/* Registers and deregisters two buffers by handles of its own, and gives its domain back so. The
 * second region has the address of the first. */
static void handles_reused(uint64_t at)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int), *mr[2];
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	int (*dereg)(struct ibv_mr *), (*dealloc)(struct ibv_pd *);

	*(void **)&reg = dlsym(lib, "ibv_reg_mr");
	*(void **)&dereg = dlsym(lib, "ibv_dereg_mr");
	*(void **)&dealloc = dlsym(lib, "ibv_dealloc_pd");
	for (int i = 0; i < 2; i++) {
		mr[i] = show("handle", reg(&pd, (void *)(at + 4096 * i), 4096, IBV_ACCESS_LOCAL_WRITE), at + 4096 * i);
		if (!mr[i])
			return;
		dereg(mr[i]);
	}
	printf("at one address: %d\n", mr[0] == mr[1]);
	printf("dealloc by handle: %d\n", dealloc(&pd));
}

/* Deregisters and gives the domain back by handles of its own, and then closes the device. */
static void closes_late(uint64_t at)
{
	struct ibv_pd *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	static struct ibv_context device;
	int (*dereg)(struct ibv_mr *);
	struct ibv_mr *mr;

	*(void **)&dereg = dlsym(lib, "ibv_dereg_mr");
	own->context = &device;
	mr = show("buffer", ibv_reg_mr(own, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	if (mr)
		dereg(mr);
	munmap(own, 4096);
	ibv_close_device(&device);
}

/* Frees what it registered and deregistered by handles of its own, and needs most of the memory
 * again after the cache had time to notice. */
static void handles_freed(uint64_t at)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	int (*dereg)(struct ibv_mr *);
	uint64_t size = 31ul << 27;

	*(void **)&reg = dlsym(lib, "ibv_reg_mr");
	*(void **)&dereg = dlsym(lib, "ibv_dereg_mr");
	for (int i = 0; i < 2; i++) {
		int status = allocate(&at, size);
		struct ibv_mr *mr;

		printf("most of the memory: %d\n", status);
		if (status)
			return;
		mr = show("handle", reg(&pd, (void *)at, size, IBV_ACCESS_LOCAL_WRITE), at);
		if (mr)
			dereg(mr);
		cuMemFree_v2(at);
		/* Only this GPU's memory is missing. */
		turn();
		usleep(2500000);
	}
}

/* Registers the same buffer twice, and once more after it was freed and allocated again. */
static void again(uint64_t at)
{
	for (int i = 0; i < 3; i++) {
		struct ibv_mr *mr = show("buffer", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);

		if (mr)
			ibv_dereg_mr(mr);
		if (i == 1 && (cuMemFree_v2(at) || allocate(&at, 8192)))
			printf("no memory\n");
	}
}

/* Finds the functions by name, as NCCL and others do. NCCL finds both, and calls the second if
 * relaxed ordering is wanted. */
static void by_name(uint64_t at)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*reg_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	int (*dereg)(struct ibv_mr *);

	struct ibv_mr *mr[4];

	*(void **)&reg = dlsym(lib, "ibv_reg_mr");
	mr[0] = show("dlsym of a handle", reg(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	*(void **)&reg = dlvsym(lib, "ibv_reg_mr", "IBVERBS_1.1");
	mr[1] = show("dlvsym of a handle", reg(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	*(void **)&reg = dlsym(RTLD_DEFAULT, "ibv_reg_mr");
	mr[2] = show("dlsym of all", reg(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	*(void **)&reg_iova2 = dlvsym(lib, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	mr[3] = show("relaxed ordering, by a handle", reg_iova2(&pd, (void *)at, 5000, at, IBV_ACCESS_RELAXED_ORDERING), at);
	*(void **)&dereg = dlsym(lib, "ibv_dereg_mr");
	for (int i = 0; i < 4; i++)
		if (mr[i])
			i == 2 ? ibv_dereg_mr(mr[i]) : dereg(mr[i]);
}

/* Registers parts of a buffer, which a cache may have as a whole. */
static void parts_of(uint64_t at)
{
	static const struct {
		const char *name;
		uint64_t from, length;
		int access;
	} parts[] = { { "whole", 0, 8192, 0 },		{ "end", 4096, 4096, 0 },
		      { "beginning", 0, 100, 0 },	{ "end again", 4096, 4096, 0 },
		      { "zero-based", 0, 8192, IBV_ACCESS_ZERO_BASED } };

	for (unsigned int i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		uint64_t from = at + parts[i].from;
		struct ibv_mr *mr = ibv_reg_mr(&pd, (void *)from, parts[i].length, parts[i].access);

		show(parts[i].name, mr, from);
		if (!mr)
			continue;
		printf("length %zu\n", mr->length);
		ibv_dereg_mr(mr);
	}
}

/* Ends while a cache has its buffer. */
static void ends(uint64_t at)
{
	ibv_dereg_mr(ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE));
	exit(0);
}

/* Frees more memory than a cache should keep. */
static void kept(uint64_t at)
{
	unsigned int counts[3];

	for (int i = 0; i < 3; i++) {
		if (allocate(&at, 2ul << 30))
			return;
		ibv_dereg_mr(show("2 GiB", ibv_reg_mr(&pd, (void *)at, 2ul << 30, IBV_ACCESS_LOCAL_WRITE), at));
	}
	stand_in_counts(counts);
	printf("kept %u\n", counts[2]);
}

/* Has more memory registered than a cache should keep, as for weights, and uses small buffers. */
static void beside(uint64_t at)
{
	uint64_t large, size = 5ul << 30;
	struct ibv_mr *mr;

	if (allocate(&large, size))
		return;
	twice("before", at);
	mr = show("5 GiB", ibv_reg_mr(&pd, (void *)large, size, IBV_ACCESS_LOCAL_WRITE), large);
	twice("beside", at);
	if (mr)
		ibv_dereg_mr(mr);
}

/* Frees and allocates again once memory is short, like PyTorch's allocator. Short means less
 * than 1 GiB, or a sixteenth of all. */
static void shortage(uint64_t at)
{
	const char *big = "most of the memory";
	uint64_t size = 31ul << 27;
	int status;

	for (int i = 0; i < 3; i++) {
		if (allocate(&at, size))
			return;
		ibv_dereg_mr(show(big, ibv_reg_mr(&pd, (void *)at, size, IBV_ACCESS_LOCAL_WRITE), at));
		/* The program works for a while. */
		usleep(300000);
		if (cuMemFree_v2(at) || turn())
			return;
		status = allocate(&at, size);
		printf("again: %d\n", status);
		if (status)
			return;
		cuMemFree_v2(at);
	}
}

static void exit_in_handler(int number)
{
	(void)number;
	if (write(STDOUT_FILENO, "exits\n", 6) == 6)
		exit(0);
}

/* Ends in a signal handler that interrupted CUDA. */
static void exits(uint64_t at)
{
	signal(SIGUSR1, exit_in_handler);
	ibv_dereg_mr(ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE));
	stand_in_signal_inside();
}

/* Ends in a signal handler that interrupted a registration, while a cache has another. */
static void exits_registering(uint64_t at)
{
	signal(SIGUSR1, exit_in_handler);
	ibv_dereg_mr(ibv_reg_mr(&pd, (void *)at, 4096, IBV_ACCESS_LOCAL_WRITE));
	setenv("STAND_IN_SIGNAL", "1", 1);
	ibv_dereg_mr(ibv_reg_mr(&pd, (void *)(at + 4096), 4096, IBV_ACCESS_LOCAL_WRITE));
}

/* Makes contexts, a primary one and one of its own, and ends them while a cache has their memory. */
static void contexts_go(uint64_t at)
{
	cuDevicePrimaryCtxRelease_v2(1);
	for (int i = 0; i < 8; i++) {
		int primary = i & 1;
		void *context;

		if (primary ? cuDevicePrimaryCtxRetain(&context, 1) || cuCtxPushCurrent_v2(context) :
			      cuCtxCreate_v2(&context, 0, 1))
			return;
		if (cuMemAlloc_v2(&at, 8192))
			return;
		ibv_dereg_mr(show("buffer", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at));
		usleep(70000);
		if (primary ? cuCtxPopCurrent_v2(&context) || cuDevicePrimaryCtxRelease_v2(1) : cuCtxDestroy_v2(context))
			return;
	}
}

/* Resets a primary context while a cache has its memory, like a program that calls cudaDeviceReset(). */
static void resets(uint64_t at)
{
	unsigned int flags;
	void *context;
	int active;

	for (int i = 0; i < 8; i++) {
		if (cuDevicePrimaryCtxRetain(&context, 1) || cuCtxPushCurrent_v2(context) || cuMemAlloc_v2(&at, 8192))
			return;
		ibv_dereg_mr(show("buffer", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at));
		usleep(70000);
		if (cuCtxPopCurrent_v2(&context) || cuDevicePrimaryCtxReset_v2(1))
			return;
		usleep(30000);
		if (cuDevicePrimaryCtxGetState(1, &flags, &active) || active)
			return;
	}
}

/* Shuts NVML down more often than it has started it, between two uses. */
static void nvml_down(uint64_t at)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	int (*shut_down)(void) = nvml ? (int (*)(void))dlsym(nvml, "nvmlShutdown") : NULL;

	twice("before", at);
	while (shut_down && !shut_down())
		;
	/* The sweeper asks meanwhile. */
	usleep(100000);
	twice("after", at);
}

/* Goes through a checkpoint between two uses. It takes longer than a tick of the coarse clock,
 * as on a card. */
static void restored(uint64_t at)
{
	twice("before", at);
	stand_in_checkpoint();
	usleep(30000);
	twice("after", at);
}

static void *other(void *at)
{
	ibv_dereg_mr(show("buffer", ibv_reg_mr(&pd, at, 5000, IBV_ACCESS_LOCAL_WRITE), (uintptr_t)at));
	return NULL;
}

/* Registers in a thread that only talks to NICs and has no context. */
static void threads(uint64_t at)
{
	pthread_t thread;

	pthread_create(&thread, NULL, other, (void *)at);
	pthread_join(thread, NULL);
}

/* Does the same if the program made its context, and no primary one is active. */
static void threads_own(uint64_t at)
{
	uint64_t own, pool;
	unsigned int before = stand_in_primaries();
	void *context;

	(void)at;
	cuDevicePrimaryCtxRelease_v2(1);
	if (cuCtxCreate_v2(&context, 0, 1) || cuMemAlloc_v2(&own, 8192) || cuMemAllocAsync(&pool, 8192, NULL))
		return;
	threads(own);
	threads(own + 100);
	printf("primaries made: %u\n", stand_in_primaries() - before);
	for (int i = 0; i < 3; i++)
		threads(pool + i);
	printf("primaries made for a pool: %u\n", stand_in_primaries() - before);
}

static void wrong(uint64_t at)
{
	uint64_t hole, beyond, managed, another;
	void *host;

	/* Each is in blocks of its own, because memory that shares a block stays while the
	 * others do. */
	if (allocate(&at, 2 << 20) || allocate(&hole, 2 << 20) || allocate(&beyond, 2 << 20) || cuMemAllocManaged(&managed, 8192, 1) ||
	    cuMemHostAlloc(&host, 8192, 0) || cuMemFree_v2(hole))
		return;
	show("no bytes", ibv_reg_mr(&pd, (void *)at, 0, IBV_ACCESS_LOCAL_WRITE), at);
	show("wrapping", ibv_reg_mr(&pd, (void *)at, -4096ul, IBV_ACCESS_LOCAL_WRITE), at);
	show("freed", ibv_reg_mr(&pd, (void *)hole, 4096, IBV_ACCESS_LOCAL_WRITE), hole);
	another = stand_in_of_another();
	show("another's", ibv_reg_mr(&pd, (void *)another, 4096, IBV_ACCESS_LOCAL_WRITE), another);
	show("hole", ibv_reg_mr(&pd, (void *)at, beyond + 4096 - at, IBV_ACCESS_LOCAL_WRITE), at);
	struct ibv_mr *mr[] = {
		show("managed", ibv_reg_mr(&pd, (void *)managed, 4096, IBV_ACCESS_LOCAL_WRITE), managed),
		show("host of CUDA", ibv_reg_mr(&pd, host, 4096, IBV_ACCESS_LOCAL_WRITE), (uintptr_t)host),
	};
	for (int i = 0; i < 2; i++)
		if (mr[i])
			ibv_dereg_mr(mr[i]);
}

/* Forks a child that has its parent's regions in memory, and must end none. */
static void forked(uint64_t at)
{
	struct ibv_mr *mr = show("parent", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	unsigned int counts[3];
	int status = -1;

	fflush(stdout);
	if (!fork()) {
		ibv_dereg_mr(mr);
		stand_in_counts(counts);
		_exit(counts[2]);
	}
	wait(&status);
	printf("child leaves %d\n", WEXITSTATUS(status));
	ibv_dereg_mr(mr);
}

static void *busy(void *stop)
{
	char at[64];

	while (!*(volatile int *)stop) {
		struct ibv_mr *mr = ibv_reg_mr(&pd, at, sizeof(at), IBV_ACCESS_LOCAL_WRITE);

		ibv_dereg_mr(mr);
	}
	return NULL;
}

/* Forks while another thread registers and deregisters. A child that waits for ever is killed. */
static void forks(uint64_t at)
{
	struct ibv_mr *mr = ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE);
	int stop = 0, stuck = 0, status;
	pthread_t thread;

	pthread_create(&thread, NULL, busy, &stop);
	for (int i = 0; i < 500 && !stuck; i++) {
		pid_t child = fork();

		if (!child) {
			alarm(10);
			ibv_dereg_mr(mr);
			_exit(0);
		}
		waitpid(child, &status, 0);
		stuck += status != 0;
	}
	stop = 1;
	pthread_join(thread, NULL);
	printf("stuck children: %d\n", stuck);
	ibv_dereg_mr(mr);
}

/* Forks in the same way, and changes a region in the child, until one child could not know. */
static void rereg_forks(uint64_t at)
{
	struct ibv_mr *mr = ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE);
	int stop = 0, other = 0, refused = 0, status;
	pthread_t thread;

	pthread_create(&thread, NULL, busy, &stop);
	for (int i = 0; i < 300 || (!refused && i < 30000); i++) {
		pid_t child = fork();

		if (!child) {
			alarm(10);
			status = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)at, 100, 0);
			_exit(!status ? 0 : status == -1 && errno == EOPNOTSUPP ? 2 : 1);
		}
		waitpid(child, &status, 0);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
			refused++;
		else
			other += status != 0;
	}
	stop = 1;
	pthread_join(thread, NULL);
	printf("other answers: %d, refused: %s\n", other, refused ? "some" : "none");
	ibv_dereg_mr(mr);
}

static void *without_context(void *at)
{
	cuCtxSetCurrent(NULL);
	ibv_dereg_mr(show("without a context", ibv_reg_mr(&pd, at, 100, IBV_ACCESS_LOCAL_WRITE), (uintptr_t)at));
	return NULL;
}

/* Registers a part of a small allocation whose first page begins in a neighbour that is freed. */
static void beside_freed(uint64_t at)
{
	uint64_t neighbour, memory;
	pthread_t thread;

	(void)at;
	if (cuMemAlloc_v2(&neighbour, 512) || allocate(&memory, 65536) || cuMemFree_v2(neighbour))
		return;
	printf("the page begins %s\n", memory % 4096 && memory == neighbour + 512 ? "in the neighbour" : "elsewhere");
	memory += 10;
	ibv_dereg_mr(show("with a context", ibv_reg_mr(&pd, (void *)memory, 100, IBV_ACCESS_LOCAL_WRITE), memory));
	pthread_create(&thread, NULL, without_context, (void *)memory);
	pthread_join(thread, NULL);
	cuMemFree_v2(memory - 10);
}

/* Closes its device without deallocating the domain. */
static void closes(uint64_t at)
{
	/* main() gives the domain back, which still names the device then. */
	static struct ibv_context device, other;

	pd.context = &device;
	struct ibv_mr *mr = show("buffer", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);

	ibv_dereg_mr(mr);
	ibv_close_device(&other);
	ibv_close_device(&device);
}

/* Changes a region and keeps it while it registers the same memory again. */
static void rereg(uint64_t at)
{
	struct ibv_mr *mr = show("buffer", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at), *other;
	int status = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)at, 100, 0);
	unsigned int counts[3];

	printf("rereg: %d, length %zu\n", status, mr->length);
	other = show("buffer", ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE), at);
	printf("length %zu, then %zu\n", other->length, mr->length);
	ibv_dereg_mr(mr);
	ibv_dereg_mr(other);
	stand_in_counts(counts);
	printf("kept %u\n", counts[2]);
}

static int wrong_regions;

/* Registers again and again, and changes what it gets if `length` is another. */
static void registers(uint64_t at, size_t length)
{
	for (int i = 0; i < 1000; i++) {
		struct ibv_mr *mr = ibv_reg_mr(&pd, (void *)at, 5000, IBV_ACCESS_LOCAL_WRITE);

		if (mr->length != 5000)
			__atomic_add_fetch(&wrong_regions, 1, __ATOMIC_RELAXED);
		if (length != 5000)
			ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)at, length, 0);
		sched_yield();
		if (mr->length != length)
			__atomic_add_fetch(&wrong_regions, 1, __ATOMIC_RELAXED);
		ibv_dereg_mr(mr);
	}
}

static void *registers_beside(void *at)
{
	registers((uintptr_t)at, 5000);
	return NULL;
}

static void rereg_beside(uint64_t at)
{
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(threads + i, NULL, registers_beside, (void *)at);
	registers(at, 100);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	printf("wrong regions: %d\n", wrong_regions);
}

/* Counts the descriptors, except for the one by which a cache watches CUDA. */
static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *file;
	int count = 0;

	while (folder && (file = readdir(folder))) {
		char path[300], target[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%s", file->d_name);
		count += readlink(path, target, sizeof(target) - 1) < 0 || strcmp(target, "anon_inode:[eventpoll]");
	}
	closedir(folder);
	return count;
}

/* Has CUDA and does not use it itself, but its children do. */
static int lazy(void)
{
	char host[64];
	int status;

	ibv_dereg_mr(show("host", ibv_reg_mr(&pd, host, sizeof(host), IBV_ACCESS_LOCAL_WRITE), (uintptr_t)host));
	printf("started %d\n", stand_in_started());
	fflush(stdout);
	if (!fork())
		_exit(cuInit(0));
	wait(&status);
	printf("child: %d\n", WEXITSTATUS(status));
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(uint64_t at);
	} parts[] = { { "forms", forms }, { "again", again }, { "by-name", by_name }, { "wrong", wrong },
		      { "forked", forked }, { "forks", forks }, { "closes", closes }, { "rereg", rereg }, { "rereg-beside", rereg_beside },
		      { "rereg-forks", rereg_forks }, { "beside-freed", beside_freed },
		      { "parts", parts_of }, { "ends", ends }, { "threads", threads }, { "ex", ex },
		      { "exits", exits }, { "exits-registering", exits_registering }, { "kept", kept }, { "beside", beside }, { "shortage", shortage }, { "restored", restored },
		      { "other-gpu", other_gpu }, { "destroyed", destroyed }, { "contexts-go", contexts_go }, { "resets", resets },
		      { "nvml-down", nvml_down }, { "broken", broken },
		      { "handles", handles }, { "handles-freed", handles_freed }, { "handles-reused", handles_reused },
		      { "closes-late", closes_late }, { "threads-own", threads_own } };
	int open;
	unsigned int counts[3];
	uint64_t at;

	if (argc == 2 && !strcmp(argv[1], "lazy"))
		return lazy();
	if (argc < 2 || start() || allocate(&at, 8192))
		return 1;
	open = descriptors();
	for (unsigned int i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (!strcmp(argv[1], parts[i].name))
			parts[i].run(at);
	printf("dealloc: %d\n", ibv_dealloc_pd(&pd));
	stand_in_counts(counts);
	printf("plain %u, dma-buf %u, live %u\n", counts[0], counts[1], counts[2]);
	if (descriptors() != open)
		printf("%d descriptors are left open\n", descriptors() - open);
	return 0;
}
