/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Registrations of GPU memory with RDMA NICs, cached and never stale.
 *
 * A program registers GPU memory by gpumr_register(), uses the region, and releases the lease once the
 * last work request that names the region has completed. The region stays registered, and the next
 * gpumr_register() of the same memory gets it again, if CUDA says that it is the same. The region may
 * be larger than what was asked for: use its keys with your own addresses, and do not read its addr
 * and length.
 *
 *	struct gpumr_options options = { .size = sizeof(options), .sweep_ms = 1000,
 *					 .free_bytes = GPUMR_FREE_BYTES_AUTO };
 *	struct gpumr_lease *lease;
 *	struct gpumr *cache;
 *
 *	gpumr_open(&cache, &options);
 *	gpumr_register(cache, pd, addr, length, IBV_ACCESS_LOCAL_WRITE, &lease);
 *	... gpumr_mr(lease)->lkey ...
 *	gpumr_release(lease);
 *	gpumr_forget(cache, pd);
 *	gpumr_close(cache);
 *
 * Include infiniband/verbs.h for struct ibv_mr, and link -lgpumr (pkg-config or CMake: gpumr).
 *
 * Functions that return int return 0 or an errno, but for gpumr_valid(). Where one fails, what it has
 * to fill in by `out` is NULL. Each line below is a cause; where an errno has several, gpumr_error()
 * says which it is. (What the NIC or the GPU driver answers by one number for two causes, it cannot
 * tell apart: 524, EIO by peer memory, and EINVAL by dma-buf; nor ENOMEM where /proc does not say what
 * is pinned. It then names both.) Where both ways were tried, the errno is that of the dma-buf's
 * registration if it came to that, else that of peer memory; gpumr_error() has both.
 *
 *   EINVAL      an argument makes no sense: NULL, no bytes, a range that wraps, an unknown way
 *   EINVAL      a struct has an unknown size
 *   EINVAL      a table has no dereg_mr, or neither reg_mr nor reg_dmabuf_mr, or not the one of
 *               the way that is asked for (gpumr_register())
 *   EINVAL      IBV_ACCESS_ZERO_BASED is asked for
 *   EINVAL      remote writes or remote atomics are asked for without IBV_ACCESS_LOCAL_WRITE
 *   EINVAL      the NIC does not take these access flags
 *   EINVAL      the NIC takes no dma-buf, as some virtual functions do not
 *   ENODEV      the program has not started CUDA (cuInit(), or its first call of the runtime)
 *   EIO         CUDA cannot say what the memory is: an earlier error broke its context
 *   EIO         the NIC was removed or reset: forget its domain, and open the device anew
 *   EIO         by peer memory: the GPU driver could not pin or map the memory: the kernel log says why
 *   EIO         a function of your table returned NULL and set no errno
 *   EFAULT      it is no memory of a GPU: freed, of another process, of the host, or managed
 *   EFAULT      it cannot be pinned for peer memory, as memory of a pool
 *   EFAULT      nvidia-peermem is not loaded
 *   EFAULT      nvidia-peermem is loaded, and BAR1 has not one free page
 *   EAGAIN      the memory was freed or replaced while it was registered, three times
 *   EAGAIN      gpumr_open(): no thread can be started for the sweep
 *   EPERM       this process is a child of the one that opened the cache: use exec()
 *   EPERM       by peer memory: this process may lock no memory (ulimit -l is 0)
 *   ENOMEM      by peer memory: the limit of locked memory (ulimit -l) is reached
 *   ENOMEM      BAR1 or the kernel's memory is full
 *   ENOSYS      libcuda or libibverbs is missing, or too old to have a function that is needed
 *   EOPNOTSUPP  the NIC's driver takes no dma-buf
 *   EOPNOTSUPP  the GPU driver exports no dma-buf of this memory
 *   EOPNOTSUPP  the GPU driver does not pin this memory for this NIC: the kernel log says why
 *   524         the GPU driver does not approve of the PCI topology between GPU and NIC
 *   524         an IOMMU keeps GPU and NIC apart
 *   other       what the NIC's driver answered
 *
 * Threads. All functions may be called from every thread, at once too, but for gpumr_close(): no other
 * call of that cache may go on or follow (those with its leases may), and on_gone may not make it,
 * since it waits for the sweep's thread. None may be called from a signal handler. Functions that
 * return nothing do nothing with NULL.
 *
 * Child processes. After fork() the caches and leases of the parent answer EPERM or do nothing, and
 * gpumr_mr() returns a region that is not the child's: leave them alone. A child may open a cache of
 * its own; CUDA works there only if the parent had not started it.
 *
 * The end. At exit() the library waits for a sweep under way, half a second at most, so that it asks
 * CUDA and NVML nothing any more. A cache need not be closed then. dlclose() never unloads the
 * library. Close a domain's device (ibv_close_device()) only after gpumr_forget() or gpumr_close(),
 * and the last release.
 *
 * CUDA. The library never calls cuInit(). For memory that belongs to no context (virtual memory,
 * pools) it retains the GPU's primary context, and makes it where none is active; it keeps one that it
 * made until the cache is closed. To make one takes hundreds of milliseconds, once for each GPU:
 * retain the primary context yourself, as CUDA's runtime does, to choose when.
 *
 * Frees. CUDA tells nobody of a free, so each hit asks it (docs/dma-buf.md says what that costs), and
 * a thread sweeps (sweep_ms). A program that reports all its frees by gpumr_free() may say so by
 * gpumr_hooks(): hits then ask CUDA nothing. Report whatever takes memory from this process:
 * cudaFree(), cuMemUnmap(), cudaIpcCloseMemHandle(), and cudaDeviceReset() by gpumr_free_all().
 *
 * Pools. Memory of cudaMallocAsync() cannot be pinned for peer memory, and CUDA exports the first
 * allocation of a pool only: use cudaMalloc() for what a NIC shall reach. (libcuda 580 was seen to
 * crash, rarely, where one thread registers memory of a pool by dma-buf and others allocate and free
 * in the pool.) What cudaFreeAsync() gives back and the pool gives out again is other memory to the
 * cache, as after cudaFree(): report that free, too.
 *
 * Memory pressure. Memory that is freed while it is registered by dma-buf, or pinned for good, stays
 * allocated until its registration ends. Call gpumr_shrink() where an allocation has failed, before
 * you free memory to try again (PyTorch: in a FreeMemoryCallback). Where no such place exists, set
 * free_bytes to what your largest allocations take (GPUMR_FREE_BYTES_AUTO suits PyTorch): what is
 * registered of a GPU that has less free then ends with its last lease. Free memory is looked at when
 * something is registered anew, not at a hit, and by the sweeping thread, which with free_bytes wakes
 * at least every 20 ms (sweep_ms 0: there is no thread). While enough is free, nobody asks more often.
 * NVML (libnvidia-ml.so.1) is asked, in no context of CUDA, and the first registration waits some
 * 20 ms for it to start. Where it is missing, or does not tell the memory of a GPU, what is registered
 * ends with its last lease. limits.bytes bounds what is kept at all. A cache with none of these, as
 * that of NULL options, may keep freed memory allocated for as long as it lives.
 *
 * Checkpoint and restore (cuda-checkpoint, CRIU) give the process new memory under old addresses and
 * numbers. A region that is registered keeps the old memory allocated: where a checkpoint is to empty
 * the GPU, release all leases and call gpumr_free_all() before it. The cache notices a restore by
 * itself, by the file /dev/nvidiactl that CUDA has open: the next gpumr_register() registers anew.
 * (Before CUDA 12.8, that another library closes that file, as nvmlShutdown() does, looks the same.) A
 * lease that is held over a checkpoint reaches the old memory: release it before, or ask gpumr_valid()
 * after. Where that file cannot be watched, each registration is new. Where CUDA has no such file
 * (WSL), call gpumr_free_all() before a checkpoint. */
#ifndef GPUMR_H
#define GPUMR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMR_VERSION_MAJOR 1
#define GPUMR_VERSION_MINOR 0
#define GPUMR_VERSION_PATCH 0
/* As gpumr_version() returns it. Libraries of one major version serve programs that were built with
 * an older minor one. A program that calls a function of a newer one does not start (GPUMR_1.0 and so
 * on are the versions of the symbols). */
#define GPUMR_VERSION (GPUMR_VERSION_MAJOR << 16 | GPUMR_VERSION_MINOR << 8 | GPUMR_VERSION_PATCH)

struct gpumr;
struct gpumr_lease;
struct ibv_pd;
struct ibv_mr;

/* Structs that begin with a size may grow at their ends: set size to sizeof() of the struct, and what
 * you do not use to 0. What the library knows beyond that counts as 0. */

/* This struct does not grow: a new limit will be a field of struct gpumr_options.
 * How much may stay registered that nobody uses: what was used longest ago goes first. What a lease
 * holds counts, too, and never goes. 0: no limit. bar1_bytes: of all GPUs together; what is registered
 * with several NICs counts for each. */
struct gpumr_limits {
	uint64_t entries;
	uint64_t bytes;
	uint64_t bar1_bytes;
};

/* Functions that call a libibverbs of your own, or more than it, as mlx5dv_reg_dmabuf_mr() for Data
 * Direct (in the source, user/examples/data_direct.c). They return what libibverbs' do, and set errno.
 * dereg_mr must be there, and reg_mr or reg_dmabuf_mr: the way of the other one then does not work.
 * The library writes the address into addr of a dma-buf's region, which libibverbs leaves empty. Each
 * thread may call them, at once too, also from gpumr_release() and while the last lease ends after
 * gpumr_close(): until then argument must be good, while the table itself is copied. No lock of the
 * library is held meanwhile. Without a table, each device is served by the libibverbs that opened it. */
struct gpumr_verbs {
	size_t size;
	/* As ibv_reg_mr_iova2(), after the argument below. iova is addr, here and for a dma-buf. */
	struct ibv_mr *(*reg_mr)(void *argument, struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				 unsigned int access);
	/* As ibv_reg_dmabuf_mr(). */
	struct ibv_mr *(*reg_dmabuf_mr)(void *argument, struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access);
	/* As ibv_dereg_mr(). */
	int (*dereg_mr)(void *argument, struct ibv_mr *mr);
	void *argument;
};

/* A region in use whose memory has gone. */
struct gpumr_gone {
	size_t size;
	uint64_t addr, length;
	uint32_t lkey, rkey;
	/* As gpumr_mr() returns it, since NICs may have the same keys. Only compare it: another thread
	 * may be releasing the region. */
	const struct ibv_mr *mr;
};

/* A region that has more rights than a request needs serves it. Whoever gives its rkey away gives
 * away those rights. */
#define GPUMR_SUPERSET 1u
/* Dma-bufs that the NIC reaches over PCIe, also where the GPU hangs on the processor (CUDA 12.8). Other
 * GPUs export none so, which is EOPNOTSUPP. */
#define GPUMR_PCIE 2u

#define GPUMR_FREE_BYTES_AUTO UINT64_MAX

struct gpumr_options {
	size_t size;
	/* "auto" (or NULL: whatever works, peer memory first where nvidia-peermem is loaded),
	 * "peer-memory" or "dma-buf". */
	const char *way;
	struct gpumr_limits limits;
	/* Freed memory stays registered at most so long: a thread of the library looks. 0: until
	 * gpumr_sweep(), or the next registration of that address. */
	uint32_t sweep_ms;
	/* GPUMR_SUPERSET, GPUMR_PCIE. */
	uint32_t flags;
	/* NULL: libibverbs. It is copied. */
	const struct gpumr_verbs *verbs;
	/* Called once for each region that a lease holds when its memory is found or reported to have
	 * gone, by the thread that noticed: one in a call of the cache, or the sweep's. (Without
	 * sweep_ms and calls nobody notices.) It must not wait for a thread that is in a call of the
	 * cache. It may make any call but gpumr_close() and gpumr_hooks(). It is not called any more
	 * once gpumr_close() has returned. NULL: nobody. */
	void (*on_gone)(void *argument, const struct gpumr_gone *gone);
	void *argument;
	/* While a GPU has fewer bytes free than this, what is registered of it ends as soon as nobody
	 * uses it. 0: never; GPUMR_FREE_BYTES_AUTO: 1 GiB, and of small GPUs a sixteenth. */
	uint64_t free_bytes;
	/* How many bytes may stay registered that nobody uses; what a lease holds does not count,
	 * unlike for limits.bytes. With it each hit takes a lock. 0: no such limit. */
	uint64_t idle_bytes;
};

struct gpumr_stats {
	size_t size;
	/* Calls that found a registration, and that made one. */
	uint64_t hits, misses;
	/* Registrations that ended: their memory had gone, as CUDA said; it was reported as freed; they
	 * made room. */
	uint64_t stale, freed, evicted;
	/* Registrations that worked after others had made room. Deregistrations that failed, as of a
	 * NIC that is gone. */
	uint64_t retried, lost;
	/* What is registered now, but for what leases alone hold. */
	uint64_t entries, bytes, bar1_bytes;
};

/* Of the library that runs: GPUMR_VERSION of the one that was built with. */
uint32_t gpumr_version(void);

/* options: NULL for a cache without limits and without a sweep. Strings and structs that they name are
 * copied, but what on_gone's argument points to must live until gpumr_close(), and the table's until
 * the last lease ended, too. A process may have several caches. */
int gpumr_open(struct gpumr **out, const struct gpumr_options *options);
/* Leases stay good; each must still be released. */
void gpumr_close(struct gpumr *cache);

/* access: IBV_ACCESS_... as ibv_reg_mr() takes them. A request with other flags is another region. */
int gpumr_register(struct gpumr *cache, struct ibv_pd *pd, void *addr, size_t length,
		   int access, struct gpumr_lease **out);
/* The same with several NICs: out has room for count leases, one for each domain. If one domain
 * fails, there is no lease at all, and what was registered by then stays cached. */
int gpumr_register_all(struct gpumr *cache, struct ibv_pd *const *pds, size_t count, void *addr, size_t length,
		       int access, struct gpumr_lease **out);
/* Until the lease is released. Do not deregister it, nor change it by ibv_rereg_mr(). */
struct ibv_mr *gpumr_mr(const struct gpumr_lease *lease);
/* 1 while the memory is what was registered. 0 if it was freed, replaced or restored from a
 * checkpoint, and where nobody can say: the cache is closed, or this is a forked child. */
int gpumr_valid(const struct gpumr_lease *lease);
/* Once for each gpumr_register(): several leases of one region may be the same pointer. */
void gpumr_release(struct gpumr_lease *lease);
/* Instead of gpumr_release(), when the region no longer works (its completions are errors, as after a
 * revocation, or when its NIC was removed): nobody gets it again. */
void gpumr_revoked(struct gpumr_lease *lease);

/* Ends what is registered in pd: before ibv_dealloc_pd(), and when the NIC is removed, which the
 * library does not notice by itself. Release the leases of pd before: what they hold ends with them.
 * gpumr_close() ends the regions of all domains, so before it this need not be called. */
int gpumr_forget(struct gpumr *cache, struct ibv_pd *pd);
/* Lets go of what was freed, with what other threads are just letting go of. */
void gpumr_sweep(struct gpumr *cache);
/* Lets go of all that nobody uses, with what other threads are just letting go of. Returns how many
 * bytes of registrations ended of memory that the program still has: what had been freed is not
 * counted, and the GPU has it again. */
uint64_t gpumr_shrink(struct gpumr *cache);

/* Memory is about to be freed or unmapped, or all of it with its context: nobody gets its
 * registrations again, and each ends now or with its last lease. From this call to the free no
 * thread may register that memory: only a sweep is sure to find such a registration. */
int gpumr_free(struct gpumr *cache, void *addr, size_t length);
void gpumr_free_all(struct gpumr *cache);
/* on: every free is reported so, also one that another thread has begun by now: report from the
 * start, and promise it then. Hits then do not ask CUDA. */
void gpumr_hooks(struct gpumr *cache, int on);

/* out->size says how much of it is filled in. */
int gpumr_get_stats(const struct gpumr *cache, struct gpumr_stats *out);
/* Which way is tried first, and why: a string that lives as long as the cache. */
const char *gpumr_reason(const struct gpumr *cache);
/* The last error of this thread, until its next. */
const char *gpumr_error(void);

#ifdef __cplusplus
}
#endif
#endif
