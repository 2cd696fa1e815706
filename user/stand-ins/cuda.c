/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A libcuda.so.1 of two GPUs. As read on an H200 and on two H100s (driver 580):
 * - Before cuInit(), and in a child of a process that called it, everything is NOT_INITIALIZED (3).
 * - BUFFER_ID grows with each allocation, and is INVALID_VALUE (1) once freed; addresses come back.
 * - Memory of up to 1 MiB begins at multiples of 512 bytes and shares blocks of 2 MiB; larger memory
 *   has blocks of its own. An export that begins where nothing is allocated covers the whole of the
 *   first allocation after that, or is INVALID_VALUE.
 * - Attributes need no context. cuMemGetAddressRange() needs one of the memory's GPU: without one it
 *   is INVALID_CONTEXT (201), in that of another GPU NOT_FOUND (500), and in one that another thread
 *   destroyed CONTEXT_IS_DESTROYED (709). An export needs any context that lives. To push one that
 *   is destroyed succeeds.
 * - Memory dies with its context. That of a pool belongs to none, and cannot be pinned; only the
 *   first allocation of a pool is exported. Exports need whole pages and may run over several blocks;
 *   managed and host memory has none.
 * - An export with the PCIe flag is NOT_SUPPORTED (801).
 * - A checkpoint closes the driver's files, and a restore opens them again under the same numbers; the
 *   memory is new, and nothing that CUDA says of it changes (stand_in_checkpoint()). Other libraries
 *   have that file open, too (stand_in_nvml()).
 * - A primary context is made when it is first retained, and goes with its last user: making one
 *   takes 400 ms, which stand_in_primaries() counts instead. A reset ends it whoever uses it. Its
 *   users stay users, and the next one makes it anew.
 * As NVIDIA's manual says: cuPointerGetAttributes() answers 0 for memory that it does not know, and
 * no error; a context must not be destroyed or reset while a thread is in a call in it, as cuMemGetInfo(), which
 * may take long (STAND_IN_SLOW_INFO). With STAND_IN_COHERENT the GPUs hang on the processor, and the
 * PCIe flag is accepted; stand_in_export_flags() returns the flags of the last export. When a program
 * ends, it ends, too, by what cuInit() registers with atexit() (not read: it may be later), and must
 * not be asked any more; this may take long
 * (STAND_IN_SLOW_EXIT). Managed memory has pages of the CPU, unless STAND_IN_MANAGED_ON_GPU is set.
 * After stand_in_break() each question is answered with ILLEGAL_ADDRESS (700), as after a kernel's
 * fault. Pages are of 64 KiB with LARGE_PAGES, as on arm64. cuCheckpointProcessLock() makes each call
 * wait until the process is unlocked. A segment of virtual memory has a number of its own; its range is
 * the whole reservation, and it belongs to no context. Left out: costs, peer access. STAND_IN_MEMORY bounds the bytes of each GPU that allocations of more than 1 MiB may take, in
 * whole blocks; what is exported stays taken until the last descriptor of its dma-buf is closed and the
 * last region of it deregistered (lock_file()). */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOST = 1, DEVICE = 2, BLOCKS = 256, CONTEXTS = 8, GPUS = 2 };
#define GRANULE 512ul
#define BACKING (2ul << 20)
#define ARENA (16ul << 30)
#ifdef LARGE_PAGES
#define PAGE (64ul << 10)

long sysconf(int name)
{
	static long (*real)(int name);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "sysconf");
	return name == _SC_PAGESIZE ? (long)PAGE : real(name);
}
#else
#define PAGE 4096ul
#endif

struct context {
	int device, live;
	/* The number of questions under way. */
	int asked;
};

static uint64_t arena;
static struct block {
	uint64_t at, size, id;
	unsigned int type, managed, pooled;
	int device, first;
	struct context *context;
	struct reservation {
		uint64_t at, size;
	} * reserved;
} blocks[BLOCKS];
static struct reservation reservations[BLOCKS];
/* Whoever reads or changes memory or contexts has this. A locked process has it until it is unlocked. */
static pthread_mutex_t memory = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static uint64_t last_id;
static struct context primaries[GPUS];
static unsigned int users[GPUS], made;
static __thread struct context *contexts[CONTEXTS];
static __thread int current;
static pid_t started;
static volatile int over, broken;

__attribute__((destructor)) static void end(void)
{
	if (over)
		return;
	over = 1;
	if (getenv("STAND_IN_SLOW_EXIT"))
		usleep(1500000);
}

/* Returns the error that precedes any answer. */
static int state(void)
{
	if (over)
		abort();
	if (started != getpid())
		return 3;
	return broken ? 700 : 0;
}

static int context(void)
{
	int status = state();

	if (status)
		return status;
	if (!contexts[current])
		return 201;
	return contexts[current]->live ? 0 : 709;
}

void stand_in_break(void)
{
	broken = 1;
}

/* Returns how often a primary context was made. */
unsigned int stand_in_primaries(void)
{
	return made;
}

int stand_in_started(void)
{
	return started == getpid();
}

static struct block *find(uint64_t at)
{
	for (struct block *b = blocks; b < blocks + BLOCKS; b++)
		if (b->id && at - b->at < b->size)
			return b;
	return NULL;
}

/* Returns whether there is or was GPU memory, for which the CPU has no page. */
int stand_in_is_gpu(const void *addr)
{
	struct block *b;
	int is;

	pthread_mutex_lock(&memory);
	b = find((uintptr_t)addr);
	if (b && b->managed)
		is = getenv("STAND_IN_MANAGED_ON_GPU") != NULL;
	else
		is = arena && (uintptr_t)addr - arena < ARENA && (!b || b->type == DEVICE);
	pthread_mutex_unlock(&memory);
	return is;
}

/* The driver's file, which nothing is read from. STAND_IN_CONTROL says what it is: by default a
 * pipe, which epoll accepts as it accepts the driver's file; "file", which it does not; "path",
 * which cannot be watched in any way. */
static int control = -1, nvml = -1;
static volatile int checkpointed;

static int opened(void)
{
	const char *kind = getenv("STAND_IN_CONTROL");
	char path[4096];
	Dl_info info;
	int fd;

	if (!dladdr((void *)find, &info))
		abort();
	snprintf(path, sizeof(path), "%s", info.dli_fname);
	*(strrchr(path, '/') ? strrchr(path, '/') : path) = 0;
	if (kind) {
		strcat(path, "/plain");
		mkdir(path, 0700);
	}
	strcat(path, "/nvidiactl");
	if (!kind)
		mkfifo(path, 0600);
	else if (strcmp(kind, "path"))
		close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	fd = open(path, (kind && !strcmp(kind, "path") ? O_PATH : O_RDWR) | O_CLOEXEC);
	if (fd < 0)
		abort();
	return fd;
}

static void open_control(void)
{
	control = opened();
}

/* A library that has the driver's file open for itself: nvmlInit(), nvmlShutdown(). */
void stand_in_nvml(int on)
{
	if (on)
		nvml = opened();
	else
		close(nvml);
}

static int old_control;

void stand_in_checkpoint_begin(void)
{
	checkpointed = 1;
	old_control = control;
	close(control);
}

void stand_in_checkpoint_end(void)
{
	open_control();
	/* Open it under its old number, unless somebody has that by now. */
	if (control != old_control && fcntl(old_control, F_GETFD) < 0) {
		dup3(control, old_control, O_CLOEXEC);
		close(control);
		control = old_control;
	}
	checkpointed = 0;
}

void stand_in_checkpoint(void)
{
	stand_in_checkpoint_begin();
	stand_in_checkpoint_end();
}

#ifndef WITHOUT_NEW_CUDA
int cuCheckpointProcessGetState(int pid, int *out)
{
	*out = checkpointed ? 2 : 0;
	return pid == getpid() ? 0 : 101;
}
#endif

/* The lock that each question takes. A thread that is interrupted and never comes back has it. */
static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;

/* Gets a signal while it has the lock, and others have been waiting for that for a while. */
void stand_in_signal_inside(void)
{
	pthread_mutex_lock(&driver);
	usleep(1500000);
	raise(SIGUSR1);
	pthread_mutex_unlock(&driver);
}

/* dma-bufs: each is the file beside this library, opened anew, with a lock on the byte of its number.
 * The lock goes with the last descriptor, wherever that is. */
enum { EXPORTS = 4096, KEPT = 4096 };
static struct export {
	uint64_t from, to;
	int fd;
} exports[EXPORTS];
static pthread_mutex_t exporting = PTHREAD_MUTEX_INITIALIZER;
/* Memory that is freed, and kept by these exports. */
static struct kept {
	uint64_t from, to;
	int device;
} kept[KEPT];

static int lock_file(void)
{
	char path[4096];
	Dl_info info;

	if (!dladdr((void *)find, &info))
		abort();
	snprintf(path, sizeof(path), "%s", info.dli_fname);
	*(strrchr(path, '/') ? strrchr(path, '/') : path) = 0;
	strcat(path, "/dma-buf");
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static int is_open(int number)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1 };
	int fd = lock_file(), status = fcntl(fd, F_OFD_GETLK, &lock);

	close(fd);
	return status == 0 && lock.l_type != F_UNLCK;
}

static int is_exported(uint64_t from, uint64_t to)
{
	int found = 0;

	pthread_mutex_lock(&exporting);
	for (int n = 0; n < EXPORTS && !found; n++)
		if (exports[n].from < to && from < exports[n].to) {
			found = is_open(n);
			if (!found)
				exports[n].to = 0;
		}
	pthread_mutex_unlock(&exporting);
	return found;
}

/* Returns whether this is a dma-buf that is open, and which memory it has. */
int stand_in_exported(int fd, uint64_t *from, uint64_t *to)
{
	int found = 0;

	pthread_mutex_lock(&exporting);
	for (int n = 0; n < EXPORTS && !found; n++)
		if (exports[n].to && exports[n].fd == fd && is_open(n)) {
			*from = exports[n].from;
			*to = exports[n].to;
			found = 1;
		}
	pthread_mutex_unlock(&exporting);
	return found;
}

static uint64_t backing(uint64_t size)
{
	return size > BACKING / 2 ? (size + BACKING - 1) & -BACKING : 0;
}

static uint64_t total(void)
{
	return getenv("STAND_IN_MEMORY") ? strtoull(getenv("STAND_IN_MEMORY"), NULL, 0) : ARENA;
}

static uint64_t taken(int device)
{
	uint64_t bytes = 0;

	for (struct block *b = blocks; b < blocks + BLOCKS; b++)
		if (b->id && b->type == DEVICE && b->device == device)
			bytes += backing(b->size);
	for (struct kept *k = kept; k < kept + KEPT; k++) {
		if (k->to && !is_exported(k->from, k->to))
			k->to = 0;
		if (k->to && k->device == device)
			bytes += backing(k->to - k->from);
	}
	return bytes;
}

/* Frees this memory, except for what is exported of it. */
static void give_back(struct block *b)
{
	b->id = 0;
	if (!backing(b->size) || b->type != DEVICE || !is_exported(b->at, b->at + b->size))
		return;
	for (struct kept *k = kept; k < kept + KEPT; k++)
		if (!k->to) {
			*k = (struct kept){ b->at, b->at + b->size, b->device };
			return;
		}
	abort();
}

/* Returns whether `new` can lie at its address beside all others. */
static int fits(const struct block *new)
{
	for (struct block *b = blocks; b < blocks + BLOCKS; b++) {
		uint64_t from = b->at & -BACKING, to = (b->at + b->size + BACKING - 1) & -BACKING;
		int shares = b->type == new->type && b->managed == new->managed && b->pooled == new->pooled &&
			     b->device == new->device;

		if (!b->id)
			continue;
		if (new->at < b->at + b->size && b->at < new->at + new->size)
			return 0;
		if (new->at < to && from < new->at + new->size && !(shares && new->size <= BACKING / 2))
			return 0;
		/* A large one shares its memory with none that was there before. */
		if (new->size > BACKING / 2 && (new->at & -BACKING) < to && from < ((new->at + new->size + BACKING - 1) & -BACKING))
			return 0;
	}
	for (struct reservation *r = reservations; r < reservations + BLOCKS; r++)
		if (r->size && r != new->reserved && (new->at & -BACKING) < r->at + r->size && r->at < new->at + new->size)
			return 0;
	return new->at + new->size <= arena + ARENA;
}

static int arena_made(void)
{
	char *at;

	if (control < 0)
		open_control();
	if (arena)
		return 1;
	at = mmap(NULL, ARENA + BACKING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at != MAP_FAILED)
		arena = ((uintptr_t)at + BACKING - 1) & -BACKING;
	return at != MAP_FAILED;
}

/* Puts a block at its address, or at the first at which it can lie. */
static int place(struct block *new)
{
	struct block *slot = NULL;

	for (struct block *b = blocks; b < blocks + BLOCKS; b++) {
		if (!b->id && !slot)
			slot = b;
		if (b->id && b->pooled)
			new->first = 0;
	}
	if (!new->at)
		for (new->at = arena; new->at < arena + ARENA; new->at += new->size > BACKING / 2 ? BACKING : GRANULE)
			if (fits(new))
				break;
	if (!slot || !new->size || new->at >= arena + ARENA)
		return 2;
	if (new->type == DEVICE && backing(new->size) && taken(new->device) + backing(new->size) > total())
		return 2;
	new->id = ++last_id;
	*slot = *new;
	return 0;
}

static int allocate(uint64_t *out, uint64_t size, unsigned int type, unsigned int managed, unsigned int pooled)
{
	struct block new = { .size = size, .type = type, .managed = managed, .pooled = pooled, .first = 1 };
	int status = context();

	if (status)
		return status;
	pthread_mutex_lock(&memory);
	new.device = contexts[current]->device;
	new.context = pooled ? NULL : contexts[current];
	status = arena_made() ? place(&new) : 2;
	pthread_mutex_unlock(&memory);
	if (!status)
		*out = new.at;
	return status;
}

int cuInit(unsigned int flags)
{
#ifdef WITHOUT_GPU
	return 100;
#endif
	if (started && started != getpid())
		return 3;
	if (!started)
		atexit(end);
	started = getpid();
	return flags ? 1 : 0;
}

int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
	int status = state();

	if (status)
		return status;
	if (device < 0 || device >= GPUS)
		return 101;
	pthread_mutex_lock(&memory);
	users[device]++;
	if (!primaries[device].live)
		made++;
	primaries[device].device = device;
	primaries[device].live = 1;
	pthread_mutex_unlock(&memory);
	*context = primaries + device;
	return 0;
}

static void destroy(struct context *context)
{
	if (__atomic_load_n(&context->asked, __ATOMIC_ACQUIRE)) {
		fprintf(stderr, "a context is destroyed while a thread asks in it\n");
		abort();
	}
	context->live = 0;
	for (struct block *b = blocks; b < blocks + BLOCKS; b++)
		if (b->id && b->context == context)
			give_back(b);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	int status = state();

	if (status)
		return status;
	if (device < 0 || device >= GPUS || !users[device])
		return 101;
	pthread_mutex_lock(&memory);
	if (!--users[device] && primaries[device].live)
		destroy(primaries + device);
	pthread_mutex_unlock(&memory);
	return 0;
}

int cuDevicePrimaryCtxReset_v2(int device)
{
	int status = state();

	if (status)
		return status;
	if (device < 0 || device >= GPUS)
		return 101;
	pthread_mutex_lock(&memory);
	if (primaries[device].live)
		destroy(primaries + device);
	pthread_mutex_unlock(&memory);
	return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	int status = state();

	if (status)
		return status;
	if (device < 0 || device >= GPUS)
		return 101;
	*flags = 0;
	*active = primaries[device].live;
	return 0;
}

/* Contexts are never freed, so that one that was destroyed can be recognised. */
int cuCtxCreate_v2(struct context **out, unsigned int flags, int device)
{
	int status = state();

	if (status || flags || device < 0 || device >= GPUS || current == CONTEXTS - 1)
		return status ? status : 1;
	*out = malloc(sizeof(**out));
	**out = (struct context){ device, 1, 0 };
	contexts[++current] = *out;
	return 0;
}

int cuCtxDestroy_v2(struct context *context)
{
	int status = state();

	if (status || !context || !context->live)
		return status ? status : 201;
	destroy(context);
	if (contexts[current] == context && current)
		current--;
	return 0;
}

int cuCtxSetCurrent(struct context *context)
{
	int status = state();

	if (!status)
		contexts[current] = context;
	return status;
}

int cuCtxGetCurrent(struct context **context)
{
	int status = state();

	if (!status)
		*context = contexts[current];
	return status;
}

int cuDeviceGetCount(int *count)
{
	*count = GPUS;
	return state();
}

int cuCtxPushCurrent_v2(struct context *context)
{
	int status = state();

	if (status || !context || current == CONTEXTS - 1)
		return status ? status : 201;
	contexts[++current] = context;
	return 0;
}

int cuCtxPopCurrent_v2(struct context **context)
{
	int status = state();

	if (status || !current)
		return status ? status : 201;
	*context = contexts[current--];
	return 0;
}

int cuMemAlloc_v2(uint64_t *at, uint64_t size)
{
	return allocate(at, size, DEVICE, 0, 0);
}

int cuMemAllocAsync(uint64_t *at, size_t size, void *stream)
{
	return stream ? 400 : allocate(at, size, DEVICE, 0, 1);
}

int cuMemAllocManaged(uint64_t *at, uint64_t size, unsigned int flags)
{
	return flags == 1 ? allocate(at, size, DEVICE, 1, 0) : 1;
}

int cuMemHostAlloc(void **at, size_t size, unsigned int flags)
{
	uint64_t block;
	int status = allocate(&block, size, HOST, 0, 0);

	(void)flags;
	if (!status)
		*at = (void *)block;
	return status;
}

int cuMemFree_v2(uint64_t at)
{
	struct block *b;
	int status = context();

	if (status)
		return status;
	pthread_mutex_lock(&memory);
	b = find(at);
	status = b && b->at == at ? 0 : 1;
	if (!status)
		give_back(b);
	pthread_mutex_unlock(&memory);
	return status;
}

/* A stand-in has done what it was asked to when it returns. */
int cuCtxSynchronize(void)
{
	return context();
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t count)
{
	struct block *b;
	int status = context();

	if (status)
		return status;
	pthread_mutex_lock(&memory);
	b = find(at);
	status = b && count <= b->at + b->size - at ? 0 : 1;
	if (!status)
		memset((void *)at, value, count);
	pthread_mutex_unlock(&memory);
	return status;
}

int cuMemFreeAsync(uint64_t at, void *stream)
{
	return stream ? 400 : cuMemFree_v2(at);
}

int cuStreamSynchronize(void *stream)
{
	return stream ? 400 : context();
}

#ifndef WITHOUT_NEW_CUDA
int cuMemAddressReserve(uint64_t *at, size_t size, size_t alignment, uint64_t wanted, unsigned long long flags)
{
	struct block new = { .size = size };
	struct reservation *r = reservations;
	int status = state();

	if (status || size % BACKING || alignment || wanted || flags)
		return status ? status : 1;
	pthread_mutex_lock(&memory);
	while (r < reservations + BLOCKS && r->size)
		r++;
	if (!arena_made() || r == reservations + BLOCKS)
		status = 2;
	for (new.at = arena; !status && !fits(&new); new.at += BACKING)
		if (new.at + size > arena + ARENA)
			status = 2;
	if (!status)
		*r = (struct reservation){ *at = new.at, size };
	pthread_mutex_unlock(&memory);
	return status;
}

static struct reservation *reserved(uint64_t at, uint64_t size)
{
	for (struct reservation *r = reservations; r < reservations + BLOCKS; r++)
		if (r->size && at >= r->at && at + size <= r->at + r->size)
			return r;
	return NULL;
}

int cuMemAddressFree(uint64_t at, size_t size)
{
	struct reservation *r;
	int status;

	pthread_mutex_lock(&memory);
	r = reserved(at, size);
	status = !r || r->at != at || r->size != size;
	for (struct block *b = blocks; b < blocks + BLOCKS && !status; b++)
		status = b->id && b->at >= at && b->at < at + size;
	if (!status)
		r->size = 0;
	pthread_mutex_unlock(&memory);
	return status;
}

/* A handle says the GPU only: memory has its number once it is mapped. */
int cuMemCreate(uint64_t *handle, size_t size, const int *property, unsigned long long flags)
{
	*handle = 1 + property[3];
	return state() ? state() : size % BACKING || flags;
}

int cuMemMap(uint64_t at, size_t size, size_t offset, uint64_t handle, unsigned long long flags)
{
	struct block new = { .at = at, .size = size, .type = DEVICE, .first = 1, .device = (int)handle - 1 };
	int status = state();

	if (status || offset || flags)
		return status ? status : 1;
	pthread_mutex_lock(&memory);
	new.reserved = reserved(at, size);
	status = new.reserved && fits(&new) ? place(&new) : 1;
	pthread_mutex_unlock(&memory);
	return status;
}

int cuMemSetAccess(uint64_t at, size_t size, const void *access, size_t count)
{
	(void)at, (void)size, (void)access;
	return state() ? state() : count != 1;
}

int cuMemUnmap(uint64_t at, size_t size)
{
	struct block *b;
	int status = state();

	if (status)
		return status;
	pthread_mutex_lock(&memory);
	b = find(at);
	status = b && b->reserved && b->at == at && b->size == size ? 0 : 1;
	if (!status)
		give_back(b);
	pthread_mutex_unlock(&memory);
	return status;
}

int cuMemRelease(uint64_t handle)
{
	return state() ? state() : !handle;
}

int cuCheckpointProcessLock(int pid, void *arguments)
{
	(void)arguments;
	if (pid != getpid())
		return 101;
	pthread_mutex_lock(&memory);
	return 0;
}

int cuCheckpointProcessCheckpoint(int pid, void *arguments)
{
	(void)pid, (void)arguments;
	stand_in_checkpoint_begin();
	return 0;
}

int cuCheckpointProcessRestore(int pid, void *arguments)
{
	(void)pid, (void)arguments;
	/* No checkpoint is restored within a tick of the coarse clock. */
	usleep(50000);
	stand_in_checkpoint_end();
	return 0;
}

int cuCheckpointProcessUnlock(int pid, void *arguments)
{
	(void)pid, (void)arguments;
	pthread_mutex_unlock(&memory);
	return 0;
}
#endif

int cuMemGetInfo_v2(size_t *free_bytes, size_t *all)
{
	int status = context();

	if (status)
		return status;
	__atomic_add_fetch(&contexts[current]->asked, 1, __ATOMIC_ACQ_REL);
	if (getenv("STAND_IN_SLOW_INFO"))
		usleep(60000);
	*all = total();
	pthread_mutex_lock(&memory);
	*free_bytes = *all - taken(contexts[current]->device);
	pthread_mutex_unlock(&memory);
	__atomic_sub_fetch(&contexts[current]->asked, 1, __ATOMIC_ACQ_REL);
	return 0;
}

#ifndef WITHOUT_NEW_CUDA
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	int status = state();

	if (status || device < 0 || device >= GPUS)
		return status ? status : 101;
	for (int i = 0; i < 16; i++)
		uuid[i] = i * 0x11;
	uuid[15] = device;
	return 0;
}
#endif

/* Answers for NVML, which needs no context and no cuInit(). */
void stand_in_memory(int device, uint64_t *free_bytes, uint64_t *all)
{
	*all = total();
	pthread_mutex_lock(&memory);
	*free_bytes = *all - taken(device);
	pthread_mutex_unlock(&memory);
}

static int attribute_of(void *out, int attribute, uint64_t at)
{
	struct block *b = find(at);

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
		*(int *)out = b->device;
		return 0;
	case 15:
		*(unsigned int *)out = b->type == DEVICE && !b->managed && !b->pooled;
		return 0;
	}
#ifndef WITHOUT_NEW_CUDA
	switch (attribute) {
	case 11:
	case 19:
		*(uint64_t *)out = attribute == 19 ? b->at & -BACKING : b->reserved ? b->reserved->at : b->at;
		return 0;
	case 12:
		*(uint64_t *)out = b->reserved ? b->reserved->size : b->size;
		return 0;
	case 17:
		*(void **)out = b->pooled ? blocks : NULL;
		return 0;
	case 18:
		*(uint64_t *)out = ((b->at + b->size + BACKING - 1) & -BACKING) - (b->at & -BACKING);
		return 0;
	}
#endif
	return 1;
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t at)
{
	int status = state();

	pthread_mutex_lock(&driver);
	pthread_mutex_unlock(&driver);
	if (status)
		return status;
	pthread_mutex_lock(&memory);
	status = attribute_of(out, attribute, at);
	pthread_mutex_unlock(&memory);
	return status;
}

#ifndef WITHOUT_NEW_CUDA
int cuPointerGetAttributes(unsigned int count, int *attributes, void **out, uint64_t at)
{
	int status = state();

	/* The answers are of one moment. */
	pthread_mutex_lock(&driver);
	pthread_mutex_unlock(&driver);
	if (status)
		return status;
	pthread_mutex_lock(&memory);
	for (unsigned int i = 0; i < count && !status; i++) {
		*(uint64_t *)out[i] = 0;
		if (attributes[i] == 7 || attributes[i] == 11 || attributes[i] == 12)
			attribute_of(out[i], attributes[i], at);
		else
			status = 1;
	}
	pthread_mutex_unlock(&memory);
	return status;
}
#endif

int cuMemGetAddressRange_v2(uint64_t *base, uint64_t *size, uint64_t at)
{
	struct block *b;
	int status = context();

	if (status)
		return status;
	pthread_mutex_lock(&memory);
	b = find(at);
	if (!b || (b->type == DEVICE && !b->managed && b->device != contexts[current]->device)) {
		status = 500;
	} else {
		*base = b->at;
		*size = b->size;
	}
	pthread_mutex_unlock(&memory);
	return status;
}

#ifndef WITHOUT_NEW_CUDA
/* Returns whether memory of a block that can be exported lies behind this page. */
static int backs(const struct block *b, uint64_t page)
{
	return b->id && b->type == DEVICE && !b->managed && (!b->pooled || b->first) &&
	       page - (b->at & -BACKING) < ((b->at + b->size + BACKING - 1) & -BACKING) - (b->at & -BACKING);
}

/* Returns whether an export begins in a block, or has all of the first block in it. */
static int begins_well(uint64_t at, uint64_t size)
{
	struct block *first = NULL;

	if (find(at))
		return 1;
	for (struct block *b = blocks; b < blocks + BLOCKS; b++)
		if (b->id && b->at - at < size && (!first || b->at < first->at))
			first = b;
	return first && first->at + first->size <= at + size;
}

static unsigned long long export_flags;

unsigned long long stand_in_export_flags(void)
{
	return export_flags;
}

int cuMemGetHandleForAddressRange(int *fd, uint64_t at, uint64_t size, int type, unsigned long long flags)
{
	int status = context();

	if (status)
		return status;
	if ((at | size) & (PAGE - 1) || !size || type != 1 || flags > 1)
		return 1;
	if (flags && !getenv("STAND_IN_COHERENT"))
		return 801;
	pthread_mutex_lock(&memory);
	status = !begins_well(at, size);
	for (uint64_t page = at; page < at + size && !status; page += PAGE) {
		struct block *b = blocks;

		while (b < blocks + BLOCKS && !backs(b, page))
			b++;
		status = b == blocks + BLOCKS;
	}
	pthread_mutex_unlock(&memory);
	if (status)
		return status;
	/* Two threads must not take one number. */
	pthread_mutex_lock(&exporting);
	status = 2;
	for (int n = 0; n < EXPORTS && status == 2; n++) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n, .l_len = 1 };

		if (exports[n].to && is_open(n))
			continue;
		*fd = lock_file();
		status = *fd < 0 || fcntl(*fd, F_OFD_SETLK, &lock) ? 999 : 0;
		if (!status) {
			exports[n] = (struct export){ at, at + size, *fd };
			export_flags = flags;
		}
	}
	pthread_mutex_unlock(&exporting);
	return status;
}
#endif

int cuGetErrorName(int status, const char **name)
{
	*name = status == 1   ? "CUDA_ERROR_INVALID_VALUE" :
		status == 3   ? "CUDA_ERROR_NOT_INITIALIZED" :
		status == 100 ? "CUDA_ERROR_NO_DEVICE" :
		status == 201 ? "CUDA_ERROR_INVALID_CONTEXT" :
		status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" :
		status == 709 ? "CUDA_ERROR_CONTEXT_IS_DESTROYED" :
		status == 801 ? "CUDA_ERROR_NOT_SUPPORTED" :
				"CUDA_ERROR_UNKNOWN";
	return 0;
}

/* Returns an address at which another process has memory and this one has none. */
uint64_t stand_in_of_another(void)
{
	return arena + ARENA - BACKING;
}
