/* SPDX-License-Identifier: GPL-2.0 */
/* Registrations of GPU memory with RDMA NICs, cached and never stale.
 * Functions that return int give 0 or an errno; gpumr_error() says it in words.
 * All may be called from every thread; in a child after fork() they fail or do nothing. */
#ifndef GPUMR_H
#define GPUMR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpumr;
struct gpumr_lease;
struct ibv_pd;
struct ibv_mr;

/* 0 means no limit. What is in use is never evicted. bar1_bytes: of all GPUs together; what is
 * registered with several NICs counts for each. */
struct gpumr_limits {
	uint64_t entries;
	uint64_t bytes;
	uint64_t bar1_bytes;
};

struct gpumr_stats {
	uint64_t hits, misses, stale, freed, evicted, retried, lost;
	uint64_t entries, bytes, bar1_bytes;
};

/* way: "auto" (or NULL), "peer-memory" or "dma-buf". limits: NULL for none.
 * sweep_ms: freed memory stays registered at most so long; 0: until gpumr_sweep(). */
int gpumr_open(struct gpumr **out, const char *way, const struct gpumr_limits *limits,
	       uint32_t sweep_ms);
/* Leases stay good; each must still be released. */
void gpumr_close(struct gpumr *cache);

int gpumr_register(struct gpumr *cache, struct ibv_pd *pd, void *addr, size_t length,
		   int access, struct gpumr_lease **out);
/* Until the lease is released. Do not deregister it. */
struct ibv_mr *gpumr_mr(const struct gpumr_lease *lease);
void gpumr_release(struct gpumr_lease *lease);
/* Instead of gpumr_release(), when the region no longer works: nobody gets it again. */
void gpumr_revoked(struct gpumr_lease *lease);

/* Before ibv_dealloc_pd(), and when the NIC is removed. Release its leases, too. */
int gpumr_forget(struct gpumr *cache, struct ibv_pd *pd);
void gpumr_sweep(struct gpumr *cache);

/* Memory is about to be freed or unmapped, or all of it with its context: nobody gets its
 * registrations again, and each ends now or with its last lease. From this call to the free no
 * thread may register that memory: only a sweep is sure to find such a registration. */
int gpumr_free(struct gpumr *cache, void *addr, size_t length);
void gpumr_free_all(struct gpumr *cache);
/* on: every free is reported so, also one that another thread has begun by now: report from the
 * start, and promise it then. Hits then do not ask CUDA. */
void gpumr_hooks(struct gpumr *cache, int on);

void gpumr_get_stats(const struct gpumr *cache, struct gpumr_stats *out);
/* Which way is tried first, and why. */
const char *gpumr_reason(const struct gpumr *cache);
/* The last error of this thread, until its next. */
const char *gpumr_error(void);

#ifdef __cplusplus
}
#endif
#endif
