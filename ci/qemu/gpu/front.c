// SPDX-License-Identifier: GPL-2.0
/*
 * Gives NVIDIA's own nv-p2p.c and nv-dma.c the functions of NVIDIA's resource
 * manager and OS layer that they call, over rm.c.
 *
 * Both files come unmodified from NVIDIA's open driver (fetch.sh nvidia_front), so
 * page tables, page records, free callbacks, put paths, DMA mappings and their
 * locks are the real ones. Sources of the functions here:
 * - rm_p2p_*: what docs/facts.md says of the resource manager, as for rm.c.
 * - os_alloc_mem: kernel-open/nvidia/os-interface.c: kmalloc, and vmalloc for
 *   what kmalloc does not have. kvmalloc stands for both.
 * - nvidia_dev_get_uuid: kernel-open/nvidia/nv.c: opens the GPU, and its put does
 *   nothing for a GPU that is not on the list any more.
 * - rm_p2p_dma_map_pages: one nv_dma_map_peer() per page under the RM API lock, as
 *   550 does: a page that fails undoes those before it, but does not stop the
 *   loop, and the last page's status is returned.
 *
 * The exported functions keep their names, and nv-p2p.c's own are renamed on the
 * compiler's command line: around each stand counters, times and hold points.
 *
 * Left out: the real open of a GPU, which takes seconds and may fail; the GPU
 * lock in get and put; addresses or lengths that are no multiple of 64 KiB, which
 * 550 rounds and this refuses as later drivers do; coherent memory; rsync and
 * IBM's NPU. A call takes the time that lab.c's costs say, and the building of the
 * table on top. table_bytes counts what kmalloc gave, without page records. The
 * hold point callback_after comes when nv-p2p.c has freed the table. dmabuf.c is
 * the lab's own here, too: NVIDIA's takes the second BAR for the GPU's memory, and
 * QEMU's device has none there.
 *
 * Refused with -EOPNOTSUPP: faults and settings that nv-p2p.c does not let happen
 * (odd tables, a put that lies, a key used again), and a put that fails, for which
 * it warns: nv-p2p.c has a WARN_ON there.
 */
#include <linux/error-injection.h>
#include <linux/xarray.h>

#include "os-interface.h"
#include "nv-linux.h"
#include "nv-ibmnpu.h"
#include "nv-rsync.h"
#include "nv-p2p.h"

#include "lab_mark.h"
#include "nvlab.h"
#include "front.h"

/* The index that NVIDIA's code counts by; with two 32-bit BARs before it, PCI's. */
#define GPU_BAR		2

void *nvidia_p2p_page_t_cache;
void *nvidia_stack_t_cache;	/* of the alternative stack, which is not in use */
nv_linux_state_t *nv_linux_devices;
struct semaphore nv_linux_devices_lock = __SEMAPHORE_INITIALIZER(nv_linux_devices_lock, 1);

/* Live DMA mappings of each table, by its address. */
static DEFINE_XARRAY(mappings);
/* Tables that nobody will free any more, by their address. */
static DEFINE_XARRAY(leaked);
/* The callback of each table, while it may be called. */
static DEFINE_XARRAY(callbacks);
/* Who has a pin and allocates its table next: for the fault get_nomem 2. */
static struct task_struct *builder;

static NV_STATUS status_of(int err)
{
	switch (err) {
	case 0:
		return NV_OK;
	case -ENOMEM:
		return NV_ERR_NO_MEMORY;
	case -EINVAL:
		return NV_ERR_INVALID_ARGUMENT;
	case -ENOENT:
		return NV_ERR_OBJECT_NOT_FOUND;
	case -ENOTSUPP:
		return NV_ERR_NOT_SUPPORTED;
	case -EBUSY:
		return NV_ERR_STATE_IN_USE;
	case -ENODEV:
		return NV_ERR_GPU_UUID_NOT_FOUND;
	default:
		return NV_ERR_INVALID_STATE;
	}
}

/* --- OS layer --- */

NV_STATUS NV_API_CALL os_alloc_mem(void **address, NvU64 size)
{
	*address = NULL;
	if (READ_ONCE(builder) == current) {
		WRITE_ONCE(builder, NULL);
		if (nvlab_fault_is(NVLAB_F_GET_NOMEM, 2))
			return NV_ERR_NO_MEMORY;
	}
	*address = kvmalloc(size, GFP_KERNEL | __GFP_NOWARN);
	if (!*address)
		return NV_ERR_NO_MEMORY;
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, is_vmalloc_addr(*address) ? 0 : ksize(*address));
	return NV_OK;
}

void NV_API_CALL os_free_mem(void *address)
{
	if (address && !is_vmalloc_addr(address))
		nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, -(s64)ksize(address));
	kvfree(address);
}

void *NV_API_CALL os_mem_copy(void *to, const void *from, NvU32 length)
{
	return memcpy(to, from, length);
}

void *NV_API_CALL os_mem_set(void *to, NvU8 c, NvU32 length)
{
	return memset(to, c, length);
}

int NV_API_CALL nv_printf(NvU32 level, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = level < NV_DBG_ERRORS ? 0 : vprintk(format, args);
	va_end(args);
	return n;
}

NvBool NV_API_CALL rm_is_altstack_in_use(void)
{
	return NV_FALSE;
}

/* What no machine of the lab has. */

int nv_register_rsync_driver(int (*get)(int *mode, void *data), void (*put)(int mode,
			     void *data),
			     void (*wait)(struct pci_dev *gpu, void *data), void *data)
{
	return -EINVAL;
}

void nv_unregister_rsync_driver(int (*get)(int *mode, void *data), void (*put)(int mode,
				void *data),
				void (*wait)(struct pci_dev *gpu, void *data), void *data)
{
}

void nvlab_no_drm(struct kref *ref)
{
	WARN_ON(1);
}

NV_STATUS nv_get_ibmnpu_genreg_info(nv_state_t *nv, NvU64 *addr, NvU64 *size, void **device)
{
	return NV_ERR_NOT_SUPPORTED;
}

int nv_get_ibmnpu_chip_id(nv_state_t *nv)
{
	return -1;
}

/* --- GPUs --- */

/* With a reference, for nvlab_gpu_put(). */
static struct nvlab_gpu *gpu_by_uuid(const NvU8 *uuid)
{
	struct nvlab_gpu *gpu;
	unsigned int i;

	for (i = 0; i < NVLAB_MAX_GPUS; i++) {
		gpu = nvlab_gpu_get(i);
		if (gpu && !memcmp(gpu->uuid, uuid, NVLAB_UUID_LEN))
			return gpu;
		if (gpu)
			nvlab_gpu_put(gpu);
	}
	return NULL;
}

int nvidia_dev_get_uuid(const NvU8 *uuid, nvidia_stack_t *sp)
{
	struct nvlab_gpu *gpu = gpu_by_uuid(uuid);
	int err = gpu ? nvlab_gpu_pin(gpu) : -ENODEV;

	if (gpu)
		nvlab_gpu_put(gpu);
	if (!err)
		/* A pinned GPU keeps its driver. */
		__module_get(THIS_MODULE);
	return err;
}

void nvidia_dev_put_uuid(const NvU8 *uuid, nvidia_stack_t *sp)
{
	struct nvlab_gpu *gpu = gpu_by_uuid(uuid);

	if (gpu) {
		nvlab_gpu_unpin(gpu);
		nvlab_gpu_put(gpu);
	}
	module_put(THIS_MODULE);
}

static NvU8 *uuid_new(const struct nvlab_gpu *gpu)
{
	void *uuid;

	if (os_alloc_mem(&uuid, NVLAB_UUID_LEN) != NV_OK)
		return NULL;
	return memcpy(uuid, gpu->uuid, NVLAB_UUID_LEN);
}

/* --- what hangs on a table, by its address --- */

/* Moves the number of live mappings of @table by one, or with 0 forgets the table. */
static void mapped(void *table, int by)
{
	unsigned long key = (unsigned long)table, before, after;
	void *entry;

	xa_lock(&mappings);
	entry = xa_load(&mappings, key);
	before = entry ? xa_to_value(entry) : 0;
	after = by ? before + by : 0;
	if (!after)
		__xa_erase(&mappings, key);
	else if (xa_is_err(__xa_store(&mappings, key, xa_mk_value(after), GFP_ATOMIC)))
		after = before;
	xa_unlock(&mappings);
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, (s64)after - (s64)before);
}

unsigned int nvlab_p2p_mappings(void *table)
{
	void *entry = xa_load(&mappings, (unsigned long)table);

	return entry ? xa_to_value(entry) : 0;
}

void nvlab_p2p_leak(void *table)
{
	nvlab_count(NVLAB_ACCOUNT_LEAKED_TABLES);
	xa_store(&leaked, (unsigned long)table, table, GFP_KERNEL);
}

/* nv-p2p.c's own callback, which calls the client and then frees the table. */
struct callback {
	void (*call)(void *data);
	void *data;
	void *table;
};

static void called(void *data)
{
	struct callback *callback = data;
	u64 start = ktime_get_ns();

	nvlab_count(NVLAB_ACCOUNT_CALLBACKS);
	xa_erase(&callbacks, (unsigned long)callback->table);
	mapped(callback->table, 0);
	lab_mark_begin();
	callback->call(callback->data);
	lab_mark_end();
	nvlab_add_since(NVLAB_ACCOUNT_CALLBACK_NS, start);
	nvlab_hold(NVLAB_H_CALLBACK_AFTER);
	kfree(callback);
}

/* The table is put: its callback will not be called. */
static void table_put(void *table)
{
	kfree(xa_erase(&callbacks, (unsigned long)table));
	mapped(table, 0);
}

/* --- resource manager: pins --- */

/* What comes before anybody knows whose range this is. */
static NV_STATUS get_begin(u64 va, u64 len, enum nvlab_hold_name hold)
{
	if (!len || va + len < va || !IS_ALIGNED(va | len, NVLAB_GPU_PAGE))
		return NV_ERR_INVALID_ARGUMENT;
	if (nvlab_fault_is(NVLAB_F_GET_NOMEM, 1))
		return NV_ERR_NO_MEMORY;
	nvlab_hold(hold);
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_p2p_get_pages(nvidia_stack_t *sp, NvU64 token, NvU32 va_space,
				       NvU64 va, NvU64 len,
				       NvU64 *phys, NvU32 *wreqmb, NvU32 *rreqmb,
				       NvU32 *entries,
				       NvU8 **uuid, void *table)
{
	struct nvlab_pinned pinned;
	ktime_t start = ktime_get();
	NV_STATUS status = get_begin(va, len, NVLAB_H_GET_ALLOC);
	int err;

	if (status != NV_OK)
		return status;
	*entries = len >> NVLAB_PAGE_SHIFT;
	err = nvlab_rm_get(&start, va, len, table, phys, *entries, &pinned);
	if (err)
		return status_of(err);
	nvlab_spend(start, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB, len, NVLAB_ALL);
	nvlab_hold(NVLAB_H_GET_FOUND);
	memset(wreqmb, 0, *entries * sizeof(*wreqmb));
	memset(rreqmb, 0, *entries * sizeof(*rreqmb));
	*uuid = uuid_new(pinned.gpu);
	if (!*uuid)
		/* The pin stays under a key that is freed, without a callback. */
		return NV_ERR_NO_MEMORY;
	WRITE_ONCE(builder, current);
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_p2p_register_callback(nvidia_stack_t *sp, NvU64 token, NvU64 va,
					       NvU64 len, void *table,
					       void (*callback)(void *), void *data)
{
	struct callback *ours;
	int err;

	nvlab_hold(NVLAB_H_GET_FILLED);
	ours = kmalloc_obj(*ours);
	if (!ours)
		return NV_ERR_NO_MEMORY;
	*ours = (struct callback){ callback, data, table };
	err = xa_err(xa_store(&callbacks, (unsigned long)table, ours, GFP_KERNEL));
	if (!err) {
		err = nvlab_rm_register(va, len, table, called, ours);
		if (err)
			xa_erase(&callbacks, (unsigned long)table);
	}
	if (err)
		kfree(ours);
	/* The memory is gone: nv-p2p.c's put finds no pin, and frees nothing. */
	if (err == -ENOENT)
		nvlab_p2p_leak(table);
	return status_of(err);
}

NV_STATUS NV_API_CALL rm_p2p_put_pages(nvidia_stack_t *sp, NvU64 token, NvU32 va_space,
				       NvU64 va, void *table)
{
	ktime_t start = ktime_get();
	u64 len;
	int err;

	/* The table may be gone: until RM knows it, it is a number. */
	err = nvlab_rm_put(&start, table, &len);
	nvlab_hold(NVLAB_H_PUT_AFTER);
	if (err == -ENOENT)
		nvlab_count(NVLAB_ACCOUNT_PUTS_NOT_FOUND);
	if (err)
		return status_of(err);
	table_put(table);
	nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, len, NVLAB_ALL);
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_p2p_get_gpu_info(nvidia_stack_t *sp, NvU64 va, NvU64 len, NvU8 **uuid,
					  void **info)
{
	ktime_t start = ktime_get();
	NV_STATUS status = get_begin(va, len, NVLAB_H_PGET_ALLOC);
	struct nvlab_gpu *gpu;
	int err;

	if (status != NV_OK)
		return status;
	err = nvlab_rm_gpu_info(&start, va, len, &gpu);
	if (err)
		return status_of(err);
	*uuid = uuid_new(gpu);
	nvlab_gpu_put(gpu);
	return *uuid ? NV_OK : NV_ERR_NO_MEMORY;
}

NV_STATUS NV_API_CALL rm_p2p_get_pages_persistent(nvidia_stack_t *sp, NvU64 va, NvU64 len,
						  void **pin, NvU64 *phys,
						  NvU32 *entries, void *table, void *info)
{
	struct nvlab_pinned pinned;
	ktime_t start = ktime_get();
	struct nvlab_dup *dup;
	int err;

	*entries = len >> NVLAB_PAGE_SHIFT;
	err = nvlab_rm_get_persistent(&start, va, len, table, phys, *entries, &pinned, &dup);
	if (err)
		return status_of(err);
	*pin = dup;
	nvlab_spend(start, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB, len, NVLAB_ALL);
	nvlab_hold(NVLAB_H_PGET_FOUND);
	WRITE_ONCE(builder, current);
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_p2p_put_pages_persistent(nvidia_stack_t *sp, void *pin, void *table)
{
	ktime_t start = ktime_get();
	u64 len;
	int err = nvlab_rm_put_persistent(&start, pin, &len);

	if (err)
		return status_of(err);
	table_put(table);
	nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, len, NVLAB_ALL);
	return NV_OK;
}

/* --- resource manager: DMA --- */

static nv_dma_device_t dma_device(struct device *dev)
{
	return (nv_dma_device_t){
		.dev = dev,
		.addressable_range.limit = *dev->dma_mask,
	};
}

int nvlab_map_peer(struct nvlab_gpu *gpu, struct device *peer, bool remap, u64 len, u64 *addr)
{
	nv_dma_device_t to = dma_device(peer), of = dma_device(&gpu->pdev->dev);

	return nv_dma_map_peer(&to, &of, GPU_BAR, len >> PAGE_SHIFT, addr) == NV_OK ? 0 : -EIO;
}

NV_STATUS NV_API_CALL rm_p2p_dma_map_pages(nvidia_stack_t *sp, nv_dma_device_t *peer,
					   NvU8 *uuid, NvU64 page_size,
					   NvU32 count, NvU64 *addr, void **priv)
{
	struct nvlab_gpu *gpu = gpu_by_uuid(uuid);
	NV_STATUS status = NV_ERR_GPU_UUID_NOT_FOUND;
	u64 partial, wrong;
	u32 i, j;

	if (!gpu)
		return status;
	nvlab_hold(NVLAB_H_MAP_BEFORE);
	status = status_of(nvlab_api_lock("dma_map_pages"));
	if (status != NV_OK)
		goto put;
	wrong = nvlab_fault(NVLAB_F_MAP_TOPOLOGY) ? ENOTSUPP : nvlab_fault(NVLAB_F_MAP_ERRNO);
	status = status_of(-(int)wrong);
	if (status != NV_OK)
		goto unlock;
	partial = nvlab_fault(NVLAB_F_MAP_PARTIAL);
	*priv = NULL;
	for (i = 0; i < count; i++) {
		status = i + 1 == partial ? NV_ERR_INVALID_STATE :
			 status_of(nvlab_map_peer(gpu, peer->dev, true, page_size, &addr[i]));
		if (status == NV_OK)
			continue;
		addr[i] = DMA_MAPPING_ERROR;
		for (j = 0; j < i; j++)
			nv_dma_unmap_peer(peer, page_size / PAGE_SIZE, addr[j]);
	}
unlock:
	nvlab_api_unlock();
put:
	nvlab_gpu_put(gpu);
	return status;
}

/* --- the exported functions, counted --- */

static void count(int err, enum nvlab_counter calls, enum nvlab_counter failures,
		  enum nvlab_counter ns, u64 start)
{
	nvlab_count(calls);
	if (err)
		nvlab_count(failures);
	nvlab_add_since(ns, start);
}

noinline int nvidia_p2p_get_pages(uint64_t token, uint32_t va_space, uint64_t va, uint64_t len,
				  struct nvidia_p2p_page_table **table,
				  void (*free_callback)(void *data), void *data)
{
	u64 start = ktime_get_ns();
	int err = nvidia_front_get_pages(token, va_space, va, len, table, free_callback, data);

	if (!err)
		nvlab_hold(NVLAB_H_GET_DONE);
	count(err, NVLAB_ACCOUNT_GETS, NVLAB_ACCOUNT_GET_FAILURES, NVLAB_ACCOUNT_GET_NS, start);
	return err;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_get_pages, ERRNO);

noinline int nvidia_p2p_get_pages_persistent(uint64_t va, uint64_t len,
					     struct nvidia_p2p_page_table **table,
					     uint32_t flags)
{
	u64 start = ktime_get_ns();
	int err = nvidia_front_get_pages_persistent(va, len, table, flags);

	if (!err)
		nvlab_hold(NVLAB_H_PGET_DONE);
	count(err, NVLAB_ACCOUNT_PERSISTENT_GETS, NVLAB_ACCOUNT_PERSISTENT_GET_FAILURES,
	      NVLAB_ACCOUNT_GET_NS, start);
	return err;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages_persistent);
ALLOW_ERROR_INJECTION(nvidia_p2p_get_pages_persistent, ERRNO);

noinline int nvidia_p2p_put_pages(uint64_t token, uint32_t va_space, uint64_t va,
				  struct nvidia_p2p_page_table *table)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_hold(NVLAB_H_PUT_BEFORE);
	err = nvidia_front_put_pages(token, va_space, va, table);
	count(err, NVLAB_ACCOUNT_PUTS, NVLAB_ACCOUNT_PUT_FAILURES, NVLAB_ACCOUNT_PUT_NS, start);
	return err;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_put_pages, ERRNO);

noinline int nvidia_p2p_put_pages_persistent(uint64_t va, struct nvidia_p2p_page_table *table,
					     uint32_t flags)
{
	u64 start = ktime_get_ns();
	int err;

	nvlab_hold(NVLAB_H_PPUT_BEFORE);
	err = nvidia_front_put_pages_persistent(va, table, flags);
	nvlab_hold(NVLAB_H_PPUT_AFTER);
	count(err, NVLAB_ACCOUNT_PERSISTENT_PUTS, NVLAB_ACCOUNT_PERSISTENT_PUT_FAILURES,
	      NVLAB_ACCOUNT_PUT_NS, start);
	return err;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages_persistent);
ALLOW_ERROR_INJECTION(nvidia_p2p_put_pages_persistent, ERRNO);

noinline int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
				      struct nvidia_p2p_dma_mapping **mapping)
{
	u64 start = ktime_get_ns();
	int err = nvidia_front_dma_map_pages(peer, table, mapping);

	if (!err) {
		mapped(table, 1);
		nvlab_add(NVLAB_ACCOUNT_MAPPED_PAGES, (*mapping)->entries);
		nvlab_hold(NVLAB_H_MAP_AFTER);
	}
	count(err, NVLAB_ACCOUNT_DMA_MAPS, NVLAB_ACCOUNT_DMA_MAP_FAILURES, NVLAB_ACCOUNT_MAP_NS,
	      start);
	return err;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_dma_map_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_dma_map_pages, ERRNO);

noinline int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer,
					struct nvidia_p2p_page_table *table,
					struct nvidia_p2p_dma_mapping *mapping)
{
	u64 start = ktime_get_ns();
	/* 0 also for a mapping that is not there: only what nv-dma.c undoes counts. */
	unsigned int before = nvlab_p2p_mappings(table);
	int err = nvidia_front_dma_unmap_pages(peer, table, mapping);

	if (!err && before)
		mapped(table, -1);
	else if (!err)
		nvlab_count(NVLAB_ACCOUNT_DMA_UNMAPS_NOT_FOUND);
	nvlab_count(NVLAB_ACCOUNT_DMA_UNMAPS);
	nvlab_add_since(NVLAB_ACCOUNT_UNMAP_NS, start);
	return err;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_dma_unmap_pages);
ALLOW_ERROR_INJECTION(nvidia_p2p_dma_unmap_pages, ERRNO);

int nvlab_p2p_init(void)
{
	nvidia_p2p_page_t_cache = KMEM_CACHE(nvidia_p2p_page, 0);
	return nvidia_p2p_page_t_cache ? 0 : -ENOMEM;
}

void nvlab_p2p_exit(void)
{
	struct callback *callback;
	unsigned long key;
	void *table;

	/* Nobody is left to race with. */
	xa_for_each(&callbacks, key, callback)
		kfree(callback);
	xa_destroy(&callbacks);
	xa_destroy(&mappings);
	xa_for_each(&leaked, key, table)
		nv_p2p_free_platform_data(table);
	xa_destroy(&leaked);
	kmem_cache_destroy(nvidia_p2p_page_t_cache);
}
