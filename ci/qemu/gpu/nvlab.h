/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The declarations that the files of the lab's nvidia.ko share. It has three layers, as the real
 * driver has. The exported functions (exports.c) stand on a resource manager (rm.c), which knows
 * them only by an opaque key and a callback. User space comes in by device nodes (ctl.c) and by
 * debugfs (debugfs.c). A file calls only what stands before it here; main.c calls all of them, and
 * NVIDIA's own files lie between exports.c and front.c.
 */
#ifndef NVLAB_H
#define NVLAB_H

#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include <linux/types.h>

#include "bar1.h"
#include "nvlab_uapi.h"

/*
 * Names of this driver: a word for tests, and a line for screens and logs. NVLAB_FRONT is the
 * version of NVIDIA's own front. The odd flavour gives the version of a driver that has the same
 * features, because tools judge by the version.
 */
#ifdef NVLAB_ODD
#define NVLAB_VERSION	"595.45.04"
#define NVLAB_FLAVOUR	"odd"
#define NVLAB_DRIVER	"NVIDIA's driver front " NVLAB_FRONT \
			" with the lab's odd answers (calls itself " NVLAB_VERSION ")"
#define NVLAB_IS_ODD	1
#else
#define NVLAB_VERSION	NVLAB_FRONT
#ifdef NVLAB_CLOSED
#define NVLAB_FLAVOUR	"closed"
#define NVLAB_DRIVER	"NVIDIA's driver front " NVLAB_FRONT " in the lab's closed flavour"
#else
#define NVLAB_FLAVOUR	"nvidia"
#define NVLAB_DRIVER	"NVIDIA's driver front " NVLAB_FRONT
#endif
#define NVLAB_IS_ODD	0
#endif
#define NVLAB_PAGE_SHIFT	16
#define NVLAB_UUID_LEN	16
#define NVLAB_MAX_GPUS	8
#define NVLAB_MAX_PIDS	256

/* One GPU: the memory BAR of one ivshmem device. */
struct nvlab_gpu {
	unsigned int index;
	struct list_head node_attached;
	struct pci_dev *pdev;
	struct miscdevice *node;
	u8 *kva;
	phys_addr_t start;
	u64 size;
	u8 uuid[NVLAB_UUID_LEN];
	unsigned long *blocks;	/* 2 MiB blocks in use; under mem_lock */
	struct mutex mem_lock;
	struct bar1 bar1;	/* written under the RM API lock */
	struct bar1_user driver;	/* RM's own subdevice object, for persistent pins */
	struct bar1_user buffers;	/* dma-bufs, of which RM counts nothing */
	struct mutex ldata_lock;	/* over open and close */
	unsigned int opens;	/* under ldata_lock */
	atomic_t users;		/* persistent pins */
	atomic_t handles;	/* pieces of memory, and who looks at it now */
};

/* One piece of memory; outlives its handle while a persistent pin holds it. */
struct nvlab_mem {
	struct kref ref;
	struct nvlab_gpu *gpu;
	u64 id;
	u64 size;
	u64 backing;
	u32 npages;
	u32 layout;
	u32 *page;		/* page numbers in the BAR, or */
	struct page **host;	/* coherent memory */
	atomic_t *host_pins;	/* live pins of each of its pages */
	bool coherent;		/* host memory, or a BAR's that is RAM all the same */
	struct bar1_object duplicate;	/* of persistent pins; under the RM API lock */
	struct nvlab_log *log;
};

/* An RM client with its one ThirdPartyP2P object, which says who may pin what the client holds. */
struct nvlab_client {
	struct list_head node;
	struct list_head vidmems;	/* written under the RM API lock and lock */
	struct mutex lock;
	u32 pids[NVLAB_MAX_PIDS];	/* under the RM API lock */
	unsigned int npids;
	u32 tgid;
	struct bar1_user subdevices[NVLAB_MAX_GPUS];	/* under the RM API lock */
};

/* The state of an allocation in the log. */
enum nvlab_log_state { NVLAB_LIVE, NVLAB_KEPT, NVLAB_FREED };

struct seq_file;

/* A file of debugfs. It has no @write where it is read only. */
struct nvlab_file {
	const char *name;
	int (*show)(struct seq_file *s, void *unused);
	int (*write)(int words, char **word);
};

/* Returns 64 KiB of the memory. */
static inline u8 *nvlab_mem_kva(struct nvlab_mem *mem, u32 page)
{
	if (mem->host)
		return page_address(mem->host[page]);
	return mem->gpu->kva + ((u64)mem->page[page] << NVLAB_PAGE_SHIFT);
}

/* Returns the thread group id of the caller: RM knows processes by number. */
static inline u32 nvlab_tgid(void)
{
	return task_tgid_nr(current);
}

/* --- accounting, config, cost, faults, holds (lab.c) --- */

enum nvlab_counter {
	NVLAB_ACCOUNT_LIVE_PINS,
	NVLAB_ACCOUNT_LIVE_PERSISTENT,
	NVLAB_ACCOUNT_LIVE_MAPPINGS,
	NVLAB_ACCOUNT_LIVE_ALLOCATIONS,
	NVLAB_ACCOUNT_LIVE_CLIENTS,
	NVLAB_ACCOUNT_LIVE_DMA_BUFS,
	NVLAB_ACCOUNT_BAR1_USED,
	NVLAB_ACCOUNT_MEMORY_USED,
	NVLAB_ACCOUNT_TABLE_BYTES,
	NVLAB_ACCOUNT_LEAKED_TABLES,
	NVLAB_ACCOUNT_CALLBACKS_RUNNING,
	NVLAB_ACCOUNT_FIRST_COUNTER,
	NVLAB_ACCOUNT_GETS = NVLAB_ACCOUNT_FIRST_COUNTER,
	NVLAB_ACCOUNT_GET_FAILURES,
	NVLAB_ACCOUNT_PUTS,
	NVLAB_ACCOUNT_PUTS_NOT_FOUND,
	NVLAB_ACCOUNT_PUT_FAILURES,
	NVLAB_ACCOUNT_PERSISTENT_GETS,
	NVLAB_ACCOUNT_PERSISTENT_GET_FAILURES,
	NVLAB_ACCOUNT_PERSISTENT_PUTS,
	NVLAB_ACCOUNT_PERSISTENT_PUT_FAILURES,
	NVLAB_ACCOUNT_DMA_MAPS,
	NVLAB_ACCOUNT_MAPPED_PAGES,
	NVLAB_ACCOUNT_DMA_UNMAPS,
	NVLAB_ACCOUNT_DMA_BUFS,
	NVLAB_ACCOUNT_DMA_BUF_MAPS,
	NVLAB_ACCOUNT_CALLBACKS,
	NVLAB_ACCOUNT_REENTRIES,
	NVLAB_ACCOUNT_VIOLATIONS,
	NVLAB_ACCOUNT_ALLOCS,
	NVLAB_ACCOUNT_FREES,
	NVLAB_ACCOUNT_GET_NS,
	NVLAB_ACCOUNT_PUT_NS,
	NVLAB_ACCOUNT_MAP_NS,
	NVLAB_ACCOUNT_UNMAP_NS,
	NVLAB_ACCOUNT_CALLBACK_NS,
	NVLAB_ACCOUNT_API_LOCK_HELD_NS,
	NVLAB_ACCOUNT_COUNT
};

extern atomic64_t nvlab_accounting[NVLAB_ACCOUNT_COUNT];

static inline void nvlab_count(enum nvlab_counter counter)
{
	atomic64_inc(&nvlab_accounting[counter]);
}

static inline void nvlab_add(enum nvlab_counter counter, s64 by)
{
	atomic64_add(by, &nvlab_accounting[counter]);
}

enum nvlab_config_name {
	NVLAB_C_TABLE_VERSION,
	NVLAB_C_DMA_MODE,
	NVLAB_C_LAYOUT,
	NVLAB_C_COHERENT,
	NVLAB_C_BAR1_SIZE,
	NVLAB_C_BAR1_RESERVE,
	NVLAB_C_BAR1_CONTIGUOUS,
	NVLAB_C_BAR1_STATIC,
	NVLAB_C_CLOSE_DEFERRED,
	NVLAB_C_KEY_REUSE,
	NVLAB_C_POISON,
	NVLAB_C_CRC_MAX,
	NVLAB_C_PAGE_SIZE,
	NVLAB_C_LAYOUT_SEED,
	NVLAB_C_UNAPPROVED_CHIPSET,
	NVLAB_C_LOCALIZED,
	NVLAB_C_COUNT
};

u64 nvlab_config(enum nvlab_config_name name);

/* Adds the time since @start_ns, of ktime_get_ns(), to a counter. */
static inline void nvlab_add_since(enum nvlab_counter counter, u64 start_ns)
{
	nvlab_add(counter, ktime_get_ns() - start_ns);
}

enum nvlab_cost_name {
	NVLAB_T_PIN_BASE,
	NVLAB_T_PIN_GIB,
	NVLAB_T_UNPIN_BASE,
	NVLAB_T_UNPIN_GIB,
	NVLAB_T_GPU_START,
	NVLAB_T_GPU_STOP,
	NVLAB_T_SLEEP,
	NVLAB_T_COUNT
};

/*
 * Waits until a call that began at @start and is about @len bytes has taken as long as @base and
 * @gib say. That includes the call's own work, but not its wait for the RM API lock: see
 * nvlab_api_lock_for(). RM_PART of the time passes under the RM API lock, where the real driver
 * maps. It counts from when that lock was taken, so nothing that the call did before makes the hold
 * shorter. The rest passes before the call returns.
 */
#define NVLAB_RM_PART	75
#define NVLAB_ALL	100
void nvlab_spend(ktime_t start, enum nvlab_cost_name base,
		 enum nvlab_cost_name gib, u64 len, unsigned int percent);

enum nvlab_fault_name {
	NVLAB_F_GET_NOMEM,
	NVLAB_F_GET_ERRNO,
	NVLAB_F_PERSISTENT_ERRNO,
	NVLAB_F_PUT_ERRNO,
	NVLAB_F_PERSISTENT_PUT_ERRNO,
	NVLAB_F_PUT_FORGET,
	NVLAB_F_CALLBACK_DOUBLE,
	NVLAB_F_CALLBACK_NONE,
	NVLAB_F_MAP_ERRNO,
	NVLAB_F_MAP_PARTIAL,
	NVLAB_F_MAP_TOPOLOGY,
	NVLAB_F_OPEN_ERRNO,
	NVLAB_F_UNMAP_NOMEM,
	NVLAB_F_TABLE_VERSION,
	NVLAB_F_TABLE_PAGE_SIZE,
	NVLAB_F_TABLE_SHORT,
	NVLAB_F_TABLE_LONG,
	NVLAB_F_TABLE_MISALIGN,
	NVLAB_F_TABLE_NULL_PAGES,
	NVLAB_F_TABLE_NULL_ENTRY,
	NVLAB_F_TABLE_WRAP,
	NVLAB_F_TABLE_OUTSIDE,
	NVLAB_F_ATTACH_TOPOLOGY,
	NVLAB_F_COUNT
};

/* Returns the value of a fault that strikes now (and counts as struck), or 0. */
u64 nvlab_fault(enum nvlab_fault_name name);

/* Lets the fault strike only if it is set to exactly @value. */
bool nvlab_fault_is(enum nvlab_fault_name name, u64 value);

enum nvlab_hold_name {
	NVLAB_H_GET_ALLOC,
	NVLAB_H_GET_FOUND,
	NVLAB_H_GET_FILLED,
	NVLAB_H_GET_DONE,
	NVLAB_H_PGET_ALLOC,
	NVLAB_H_PGET_FOUND,
	NVLAB_H_PGET_DONE,
	NVLAB_H_PUT_BEFORE,
	NVLAB_H_PUT_LOCKED,
	NVLAB_H_PUT_AFTER,
	NVLAB_H_PPUT_BEFORE,
	NVLAB_H_PPUT_AFTER,
	NVLAB_H_MAP_BEFORE,
	NVLAB_H_MAP_AFTER,
	NVLAB_H_CALLBACK_BEFORE,
	NVLAB_H_CALLBACK_AFTER,
	NVLAB_H_DEFERRED,
	NVLAB_H_GPU_BUSY,
	NVLAB_H_COUNT
};

/* Stops here while the point is armed. Sleeps. */
void nvlab_hold(enum nvlab_hold_name name);

extern const struct nvlab_file nvlab_config_file, nvlab_cost_file, nvlab_faults_file,
			       nvlab_holds_file;

/* --- what was allocated (log.c) --- */

struct nvlab_log *nvlab_log_alloc(struct nvlab_mem *mem, u64 va);
void nvlab_log_state(struct nvlab_log *log, enum nvlab_log_state state);
/* Records the CRCs of memory that is being given back. */
void nvlab_log_free(struct nvlab_mem *mem);
void nvlab_log_exit(void);
extern const struct nvlab_file nvlab_allocations_file, nvlab_chunks_file;

/* --- tables by their addresses (tables.c) --- */

/* Moves the number of live mappings of @table by one, or with 0 forgets the table. */
void nvlab_table_mapped(void *table, int by);
/* Returns how many DMA mappings a table has. */
unsigned int nvlab_table_mappings(void *table);
/* Notes a table that the real driver would lose. It stays in sight until the module goes. */
void nvlab_table_lost(void *table);
/* Forgets that a table was lost: it was put after all. */
void nvlab_table_found(void *table);
/* Ends each lost table by @end. */
void nvlab_tables_exit(void (*end)(void *table));

/* --- GPUs (gpus.c) --- */

/* Returns a number that no GPU has, or -ENOSPC. GPUs are probed one after the other. */
int nvlab_gpus_number(void);
void nvlab_gpus_add(struct nvlab_gpu *gpu);
/* Takes the GPU off the list, and waits until nobody uses it. */
void nvlab_gpus_remove(struct nvlab_gpu *gpu);

unsigned int nvlab_gpu_count(void);
/* Returns NULL, or the GPU, which stays until nvlab_gpu_put(). */
struct nvlab_gpu *nvlab_gpu_get(unsigned int index);
void nvlab_gpu_put(struct nvlab_gpu *gpu);
/* Returns the same by its number, also while an unbind waits for those who use the GPU. */
struct nvlab_gpu *nvlab_rm_gpu_get(const u8 *uuid);
/* Takes a persistent pin's reference; -ENODEV when the GPU's unbind has begun. */
int nvlab_gpu_pin(struct nvlab_gpu *gpu);
void nvlab_gpu_unpin(struct nvlab_gpu *gpu);
/*
 * Open and close a GPU. The first open starts the GPU, and the last close shuts it down. The first
 * two functions take ldata_lock, the others are called under it.
 */
void nvlab_gpu_open(struct nvlab_gpu *gpu);
void nvlab_gpu_close(struct nvlab_gpu *gpu);
void nvlab_gpu_opened(struct nvlab_gpu *gpu);
void nvlab_gpu_closed(struct nvlab_gpu *gpu);
/* Ends an unbind that waits for a persistent pin. */
void nvlab_gpus_forgive(void);

/* --- resource manager (rm.c) --- */

/*
 * Take and drop the RM API lock. Functions of RM return its status as a negative errno; "object not
 * found" is -ENOENT inside. The exported functions turn that into -EINVAL (get) or success (put).
 */
int nvlab_api_lock(const char *who);
/* Takes the lock for a call that began at *@start, and moves that time by the wait for the lock. */
int nvlab_api_lock_for(ktime_t *start, const char *who);
void nvlab_api_unlock(void);
/* One lock for all GPUs, taken inside the RM API lock. */
void nvlab_gpu_lock(void);
void nvlab_gpu_unlock(void);
extern const struct nvlab_file nvlab_pins_file, nvlab_bar1_file;

void nvlab_mem_put(struct nvlab_mem *mem);

struct nvlab_client *nvlab_client_open(void);
void nvlab_client_close(struct nvlab_client *client);
int nvlab_client_pid(struct nvlab_client *client, u32 pid, bool add);
int nvlab_alloc(struct nvlab_client *client, struct nvlab_alloc *req);
int nvlab_free(struct nvlab_client *client, u64 handle, bool keep);
int nvlab_register(struct nvlab_client *client, u64 handle, u64 va);
/* Returns memory with a reference, for nvlab_mem_put(), or NULL: no such handle. */
struct nvlab_mem *nvlab_mem_get(struct nvlab_client *client, u64 handle);
u64 nvlab_memory_free(struct nvlab_gpu *gpu);
u64 nvlab_bar1_size(struct nvlab_gpu *gpu);

int nvlab_gpu_init(struct nvlab_gpu *gpu);
void nvlab_gpu_exit(struct nvlab_gpu *gpu);

/* A pin, as nvlab_rm_get() describes it to the exported functions. */
struct nvlab_pinned {
	struct nvlab_gpu *gpu;
	bool coherent;
};

struct nvlab_dup;

int nvlab_rm_get(ktime_t *start, u64 va, u64 len, void *key, u64 *phys,
		 u32 count, struct nvlab_pinned *pinned);
int nvlab_rm_register(u64 va, u64 len, void *key, void (*callback)(void *data),
		      void *data);
int nvlab_rm_put(ktime_t *start, void *key, u64 *len);
/* Finds the GPU of a range, which stays until nvlab_gpu_put(). */
int nvlab_rm_gpu_info(ktime_t *start, u64 va, u64 len, struct nvlab_gpu **gpu);
int nvlab_rm_get_persistent(ktime_t *start, u64 va, u64 len, void *key,
			    u64 *phys, u32 count, struct nvlab_pinned *pinned,
			    struct nvlab_dup **dup);
int nvlab_rm_shut_down_idle(void);
int nvlab_rm_put_persistent(ktime_t *start, struct nvlab_dup *dup, u64 *len);

/* The part of one allocation that a dma-buf holds, by a duplicate of the memory object. */
struct nvlab_piece {
	struct list_head node;	/* under the RM API lock */
	struct nvlab_mem *mem;
	u64 offset;		/* in the memory, bytes */
	u64 len;
	struct bar1_object extents;	/* under the RM API lock */
	u64 *phys;		/* while mapped: of each 64 KiB that it touches */
};

/*
 * Returns the first page of 64 KiB that a piece touches. The next function returns how many it
 * touches.
 */
static inline u32 nvlab_piece_first(const struct nvlab_piece *piece)
{
	return piece->offset >> NVLAB_PAGE_SHIFT;
}

static inline u32 nvlab_piece_pages(const struct nvlab_piece *piece)
{
	return DIV_ROUND_UP(piece->offset + piece->len, NVLAB_GPU_PAGE) -
	       nvlab_piece_first(piece);
}

/*
 * Fills @piece with memory of @gpu, or returns -ENOENT, or -EINVAL for what is not whole pages
 * inside the memory. Both functions are called under the RM API lock. The caller of the second one
 * puts the memory once that lock is given back.
 */
int nvlab_rm_duplicate(struct nvlab_client *client, struct nvlab_gpu *gpu,
		       const struct nvlab_part *part, struct nvlab_piece *piece);
void nvlab_rm_undo_duplicate(struct nvlab_piece *piece);
/*
 * Map and unmap a piece, both under the RM API lock and the GPU lock, or for coherent memory under
 * none.
 */
int nvlab_rm_map_piece(struct nvlab_piece *piece);
void nvlab_rm_unmap_piece(struct nvlab_piece *piece);

/* --- exported functions (exports.c over front.c) --- */

/*
 * Maps @len bytes of the GPU's BAR for @peer: *@addr, the CPU's address of them, becomes one of the
 * bus or, with @remap, one of the peer's IOMMU. Returns 0 or -EIO.
 */
int nvlab_map_peer(struct nvlab_gpu *gpu, struct device *peer, bool remap,
		   u64 len, u64 *addr);

int nvlab_p2p_init(void);
void nvlab_p2p_exit(void);

/* --- dma-buf (front_dmabuf.c) --- */

#ifdef NVLAB_CLOSED
#define NVLAB_HAS_DMA_BUF	0
#else
#define NVLAB_HAS_DMA_BUF	1
#endif

int nvlab_dma_buf_export(struct nvlab_client *client, struct nvlab_export *req);

/* --- files of debugfs (debugfs.c) --- */

int nvlab_debugfs_init(void);
void nvlab_debugfs_exit(void);

/* --- device nodes (ctl.c) --- */

int nvlab_ctl_init(void);
void nvlab_ctl_exit(void);
int nvlab_ctl_add_gpu(struct nvlab_gpu *gpu);
void nvlab_ctl_remove_gpu(struct nvlab_gpu *gpu);

#endif
