// SPDX-License-Identifier: GPL-2.0
/*
 * Gives NVIDIA's own nv-p2p.c and nv-dma.c the functions of NVIDIA's resource
 * manager and OS layer that they call, over rm.c. For nv-dmabuf.c there is
 * front_dmabuf.c besides.
 *
 * The files come unmodified from NVIDIA's open driver (fetch.sh nvidia_front; odd.sed
 * adds to the odd flavour's copies), so page tables, page records, free callbacks, put
 * paths, DMA mappings and their locks are the real ones. Sources of the functions here:
 * - rm_p2p_*: what docs/facts.md says of the resource manager, as for rm.c.
 * - os_alloc_mem: kernel-open/nvidia/os-interface.c: up to 128 KiB kmalloc, which
 *   tries hard and is silent; what that does not have, and all that is larger, vmalloc,
 *   which says what it lacks and may have the OOM killer come. The macros are NVIDIA's.
 *   Without the 8 bytes in front of each, in which NVIDIA keeps the length.
 * - nvidia_dev_get_uuid: kernel-open/nvidia/nv.c, find_uuid_candidate: opens the GPU
 *   under its ldata_lock, and its put does nothing for a GPU that is not on the list any
 *   more. Who looks for a GPU waits for the ldata_lock of each before it, with the list
 *   locked. So while one GPU starts or shuts down, nobody gets another, either.
 * - rm_p2p_dma_map_pages: under the RM API lock, coherent memory by one
 *   nv_dma_map_alloc(), and what is in a BAR by one nv_dma_map_peer() per page. As
 *   550 and 555 do it (src/nvidia/arch/nvalloc/unix/src/osapi.c), a page that fails
 *   undoes those before it, but does not stop the loop, and the last page's status is
 *   returned. The GPU is looked up under the lock among those that RM has, which has
 *   one that is being unbound until nobody uses it; INVALID_ARGUMENT where there is
 *   none. The addresses are untranslated, by nv-dma.c's own switch
 *   (NVreg_DmaRemapPeerMmio=0): from kernel 6.12 on it cannot do otherwise. With
 *   dma_mode 550 it translates them, as on older kernels (see probes.mk).
 *
 * Left out: addresses or lengths that are no multiple of 64 KiB, which
 * 550 rounds and this refuses as later drivers do; coherent memory that is a BAR's
 * (the odd flavour has it); rsync and IBM's NPU; the 16 bytes of the GPU's number that cannot
 * be allocated once a range is pinned, where RM keeps the pin and nv-p2p.c its table
 * not (osapi.c, rm_p2p_get_pages): the fault get_nomem 3 alone does that. A call
 * takes the time that lab.c's costs say, and the building of the table on top.
 * table_bytes counts what kmalloc gave, without page records.
 */
#include <linux/sizes.h>
#include <linux/xarray.h>

#include "os-interface.h"
#include "nv-linux.h"
#ifndef NVLAB_GATES
#include "nv-ibmnpu.h"
#endif
#include "nv-rsync.h"
#include "nv-p2p.h"

#include "nvlab.h"
#include "front.h"

/*
 * The index by which NVIDIA's code names this BAR. With two 32-bit BARs before it, PCI has the
 * same.
 */
#define GPU_BAR		2

void *nvidia_p2p_page_t_cache;
void *nvidia_stack_t_cache;	/* of the alternative stack, which is not in use */
nv_linux_state_t *nv_linux_devices;
struct semaphore nv_linux_devices_lock = __SEMAPHORE_INITIALIZER(nv_linux_devices_lock, 1);

/* The callback of each revocable get that is under way, by its task. */
static DEFINE_XARRAY(gets);
/* The struct nvlab_callback of each table, while it may be called. */
static DEFINE_XARRAY(callbacks);
/* The task that has a pin and allocates its table next, for the fault get_nomem 2. */
static struct task_struct *builder;
/* The task that unmaps and gets no memory for that, for the fault unmap_nomem. */
static struct task_struct *unmapper;

/* --- OS layer --- */

/*
 * With key_reuse, what os_free_mem() gets waits here for the next call that asks for as much, last
 * in first out. Real allocators do so by chance.
 */
static LIST_HEAD(spares);
static DEFINE_SPINLOCK(spares_lock);

#define POISON		0xa7
/* The largest that os_alloc_mem() asks kmalloc for. */
#define KMALLOC_LIMIT	SZ_128K
/* A table is larger, and the list entry of a mapping is smaller. */
#define SPARE_MIN	64

/*
 * Returns whether freed memory is overwritten. KASAN does not need that: it sees reads of freed
 * memory, and writes behind an end, by itself.
 */
static bool poisons(void)
{
	return !IS_ENABLED(CONFIG_KASAN) && nvlab_config(NVLAB_C_POISON);
}

void nvlab_front_poison(struct nvidia_p2p_page_table *table)
{
	u32 i;

	nvlab_odd_mend(table);
	for (i = 0; poisons() && i < table->entries; i++)
		memset(table->pages[i], POISON, sizeof(*table->pages[i]));
}

/*
 * Announces a warning of nv-p2p.c. The runner that looks for alarms accepts one warning of that
 * file for each of these lines, and fails a test whose warning does not come.
 */
static void warning_follows(void)
{
	pr_warn("nvidia_lab: a warning of nv-p2p.c follows\n");
}

void nvlab_front_unmaps(bool without_memory)
{
	WRITE_ONCE(unmapper, without_memory ? current : NULL);
}

static void *spare_of(size_t size)
{
	struct list_head *at, *found = NULL;

	if (!nvlab_config(NVLAB_C_KEY_REUSE))
		return NULL;
	spin_lock(&spares_lock);
	list_for_each(at, &spares) {
		if (ksize(at) != kmalloc_size_roundup(size))
			continue;
		list_del(at);
		found = at;
		break;
	}
	spin_unlock(&spares_lock);
	return found;
}

NV_STATUS NV_API_CALL os_alloc_mem(void **address, NvU64 size)
{
	*address = NULL;
	if (READ_ONCE(builder) == current) {
		WRITE_ONCE(builder, NULL);
		if (nvlab_fault_is(NVLAB_F_GET_NOMEM, 2))
			return NV_ERR_NO_MEMORY;
	}
	if (READ_ONCE(unmapper) == current) {
		WRITE_ONCE(unmapper, NULL);
		warning_follows();
		return NV_ERR_NO_MEMORY;
	}
	/* All of a spare may be used, so KASAN must know it by its whole size. */
	if (nvlab_config(NVLAB_C_KEY_REUSE))
		size = kmalloc_size_roundup(size);
	*address = spare_of(size);
	if (!*address && size <= KMALLOC_LIMIT)
		NV_KMALLOC_NO_OOM(*address, size);
	if (!*address)
		*address = nv_vmalloc(size);
	if (!*address)
		return NV_ERR_NO_MEMORY;
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, is_vmalloc_addr(*address) ? 0 : ksize(*address));
	return NV_OK;
}

void NV_API_CALL os_free_mem(void *address)
{
	size_t size = !address || is_vmalloc_addr(address) ? 0 : ksize(address);

	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, -(s64)size);
	if (poisons())
		memset(address, POISON, size);
	if (nvlab_config(NVLAB_C_KEY_REUSE) && size >= SPARE_MIN) {
		spin_lock(&spares_lock);
		list_add(address, &spares);
		spin_unlock(&spares_lock);
		return;
	}
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

/* These functions stand for hardware that no machine of the lab has. */

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

#ifndef NVLAB_GATES
NV_STATUS nv_get_ibmnpu_genreg_info(nv_state_t *nv, NvU64 *addr, NvU64 *size, void **device)
{
	return NV_ERR_NOT_SUPPORTED;
}

int nv_get_ibmnpu_chip_id(nv_state_t *nv)
{
	return -1;
}
#endif

/* --- GPUs --- */

/* Returns a GPU with a reference, and with its ldata_lock held. */
static struct nvlab_gpu *gpu_locked(unsigned int index)
{
	struct nvlab_gpu *gpu = nvlab_gpu_get(index);

	if (gpu)
		mutex_lock(&gpu->ldata_lock);
	return gpu;
}

static void gpu_unlock(struct nvlab_gpu *gpu)
{
	mutex_unlock(&gpu->ldata_lock);
	nvlab_gpu_put(gpu);
}

static struct nvlab_gpu *gpu_by_id(NvU32 id)
{
	struct nvlab_gpu *gpu;

	down(&nv_linux_devices_lock);
	gpu = gpu_locked(id);
	up(&nv_linux_devices_lock);
	return gpu;
}

static struct nvlab_gpu *gpu_by_uuid(const NvU8 *uuid)
{
	struct nvlab_gpu *gpu = NULL;
	unsigned int i;

	down(&nv_linux_devices_lock);
	for (i = 0; i < NVLAB_MAX_GPUS; i++) {
		gpu = gpu_locked(i);
		if (gpu && !memcmp(gpu->uuid, uuid, NVLAB_UUID_LEN))
			break;
		if (gpu)
			gpu_unlock(gpu);
		gpu = NULL;
	}
	up(&nv_linux_devices_lock);
	return gpu;
}

/* Opens a GPU that was found, and gives back its lock and its reference. */
static int gpu_open(struct nvlab_gpu *gpu)
{
	int err;

	if (!gpu)
		return -ENODEV;
	err = -(int)nvlab_fault(NVLAB_F_OPEN_ERRNO);
	if (!err)
		err = nvlab_gpu_pin(gpu);
	if (!err) {
		nvlab_gpu_opened(gpu);
		/* A pinned GPU keeps its driver. */
		__module_get(THIS_MODULE);
	}
	gpu_unlock(gpu);
	return err;
}

static void gpu_close(struct nvlab_gpu *gpu)
{
	if (gpu) {
		nvlab_gpu_unpin(gpu);
		nvlab_gpu_closed(gpu);
		gpu_unlock(gpu);
	}
	module_put(THIS_MODULE);
}

int nvidia_dev_get_uuid(const NvU8 *uuid, nvidia_stack_t *sp)
{
	return gpu_open(gpu_by_uuid(uuid));
}

void nvidia_dev_put_uuid(const NvU8 *uuid, nvidia_stack_t *sp)
{
	gpu_close(gpu_by_uuid(uuid));
}

#ifdef NVLAB_RESET_AWARE
int nvidia_dev_get(NvU32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware)
{
	return gpu_open(gpu_by_id(gpu_id));
}

void nvidia_dev_put(NvU32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware)
{
	gpu_close(gpu_by_id(gpu_id));
}
#else
int nvidia_dev_get(NvU32 gpu_id, nvidia_stack_t *sp)
{
	return gpu_open(gpu_by_id(gpu_id));
}

void nvidia_dev_put(NvU32 gpu_id, nvidia_stack_t *sp)
{
	gpu_close(gpu_by_id(gpu_id));
}
#endif

static NvU8 *uuid_new(const struct nvlab_gpu *gpu)
{
	void *uuid;

	if (os_alloc_mem(&uuid, NVLAB_UUID_LEN) != NV_OK)
		return NULL;
	return memcpy(uuid, gpu->uuid, NVLAB_UUID_LEN);
}

/* --- callbacks --- */

int nvlab_front_get_begins(struct nvlab_callback *callback)
{
	return xa_err(xa_store(&gets, (unsigned long)current, callback, GFP_KERNEL));
}

void nvlab_front_get_ends(void)
{
	xa_erase(&gets, (unsigned long)current);
}

/* Returns the callback of the get that this task is in. */
static struct nvlab_callback *callback_of_get(void)
{
	return xa_load(&gets, (unsigned long)current);
}

/* Calls nv-p2p.c's callback. RM calls this when memory is freed. */
static void called(void *data)
{
	struct nvlab_callback *callback = data;

	xa_erase(&callbacks, (unsigned long)callback->table);
	callback->front(callback->front_data);
	/*
	 * A new table may have the same address by now. The RM API lock keeps it from being mapped
	 * yet.
	 */
	nvlab_table_mapped(callback->table, 0);
	nvlab_hold(NVLAB_H_CALLBACK_AFTER);
	kfree(callback);
}

/* Forgets a table that was put: its callback will not be called. */
static void table_put(void *table)
{
	nvlab_table_found(table);
	nvlab_front_poison(table);
	kfree(xa_erase(&callbacks, (unsigned long)table));
	nvlab_table_mapped(table, 0);
}

/* --- resource manager: pins --- */

/* Begins a put. With a fault, RM fails here, before it has undone anything. */
static NV_STATUS put_begin(enum nvlab_fault_name name)
{
	u64 wrong = nvlab_fault(name);

	if (wrong)
		warning_follows();
	return status_of(-(int)wrong);
}

/* Begins a get: does what comes before anybody knows whose range this is. */
static NV_STATUS get_begin(u64 va, u64 len, enum nvlab_hold_name hold)
{
	if (!len || va + len < va || !IS_ALIGNED(va | len, NVLAB_GPU_PAGE))
		return NV_ERR_INVALID_ARGUMENT;
	if (nvlab_fault_is(NVLAB_F_GET_NOMEM, 1))
		return NV_ERR_NO_MEMORY;
	nvlab_hold(hold);
	return NV_OK;
}

static NV_STATUS get_revocable(u64 va, u64 len, u64 *phys, u32 *wreqmb, u32 *rreqmb, u32 *entries,
			       u8 **uuid, void *table, bool *coherent)
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
	status = nvlab_gate_pin(pinned.coherent, false);
	if (status != NV_OK) {
		nvlab_rm_put(&start, table, &len);
		return status;
	}
	*coherent = pinned.coherent;
	nvlab_spend(start, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB, len, NVLAB_ALL);
	nvlab_hold(NVLAB_H_GET_FOUND);
	memset(wreqmb, 0, *entries * sizeof(*wreqmb));
	memset(rreqmb, 0, *entries * sizeof(*rreqmb));
	if (nvlab_fault_is(NVLAB_F_GET_NOMEM, 3))
		return NV_ERR_NO_MEMORY;
	*uuid = kmemdup(pinned.gpu->uuid, NVLAB_UUID_LEN, GFP_KERNEL | __GFP_NOFAIL);
	nvlab_add(NVLAB_ACCOUNT_TABLE_BYTES, ksize(*uuid));
	WRITE_ONCE(builder, current);
	return NV_OK;
}

#ifdef NVLAB_GATES
NV_STATUS NV_API_CALL rm_p2p_get_pages(nvidia_stack_t *sp, NvU64 token, NvU32 va_space, NvU64 va,
				       NvU64 len, NvU64 *phys, NvU32 *wreqmb, NvU32 *rreqmb,
				       NvU32 *entries, NvU8 **uuid, void *table,
				       NvBool *cacheable)
{
	bool coherent = false;
	NV_STATUS status = get_revocable(va, len, phys, wreqmb, rreqmb, entries, uuid, table,
					 &coherent);

	*cacheable = coherent;
	return status;
}
#else
NV_STATUS NV_API_CALL rm_p2p_get_pages(nvidia_stack_t *sp, NvU64 token, NvU32 va_space, NvU64 va,
				       NvU64 len, NvU64 *phys, NvU32 *wreqmb, NvU32 *rreqmb,
				       NvU32 *entries, NvU8 **uuid, void *table)
{
	bool coherent = false;
	NV_STATUS status = get_revocable(va, len, phys, wreqmb, rreqmb, entries, uuid, table,
					 &coherent);

	nvlab_odd_pinned(table, coherent);
	return status;
}
#endif

NV_STATUS NV_API_CALL rm_p2p_register_callback(nvidia_stack_t *sp, NvU64 token, NvU64 va,
					       NvU64 len, void *table,
					       void (*callback)(void *), void *data)
{
	struct nvlab_callback *ours = callback_of_get();
	int err;

	nvlab_hold(NVLAB_H_GET_FILLED);
	err = nvlab_odd_spoil(table);
	if (err)
		return status_of(err);
	ours->front = callback;
	ours->front_data = data;
	ours->table = table;
	err = xa_err(xa_store(&callbacks, (unsigned long)table, ours, GFP_KERNEL));
	if (!err) {
		err = nvlab_rm_register(va, len, table, called, ours);
		if (err)
			xa_erase(&callbacks, (unsigned long)table);
	}
	return status_of(err);
}

NV_STATUS NV_API_CALL rm_p2p_put_pages(nvidia_stack_t *sp, NvU64 token, NvU32 va_space,
				       NvU64 va, void *table)
{
	NV_STATUS status = put_begin(NVLAB_F_PUT_ERRNO);
	ktime_t start = ktime_get();
	u64 len;
	int err;

	if (status != NV_OK)
		return status;
	/* RM answers as it does to a caller that is not in the list of the memory's processes. */
	if (nvlab_fault(NVLAB_F_PUT_FORGET)) {
		nvlab_count(NVLAB_ACCOUNT_PUTS_NOT_FOUND);
		return NV_ERR_OBJECT_NOT_FOUND;
	}
	/* The table may be gone. Its address is only a number until RM has found it. */
	err = nvlab_rm_put(&start, table, &len);
	nvlab_hold(NVLAB_H_PUT_AFTER);
	/* Memory that was freed during a get has no pin to put, and nv-p2p.c forgets the table. */
	if (err == -ENOENT && callback_of_get())
		nvlab_table_lost(table);
	else if (err == -ENOENT)
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

static NV_STATUS get_persistent(u64 va, u64 len, void **pin, u64 *phys, u32 *entries, void *table,
				bool forced, bool *coherent)
{
	struct nvlab_pinned pinned;
	ktime_t start = ktime_get();
	struct nvlab_dup *dup;
	NV_STATUS status;
	int err;

	*entries = len >> NVLAB_PAGE_SHIFT;
	err = nvlab_rm_get_persistent(&start, va, len, table, phys, *entries, &pinned, &dup);
	if (err)
		return status_of(err);
	status = nvlab_gate_pin(pinned.coherent, forced);
	if (status != NV_OK) {
		nvlab_rm_put_persistent(&start, dup, &len);
		return status;
	}
	*coherent = pinned.coherent;
	*pin = dup;
	nvlab_spend(start, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB, len, NVLAB_ALL);
	nvlab_hold(NVLAB_H_PGET_FOUND);
	WRITE_ONCE(builder, current);
	return NV_OK;
}

static NV_STATUS put_persistent(void *pin, void *table)
{
	NV_STATUS status = put_begin(NVLAB_F_PERSISTENT_PUT_ERRNO);
	ktime_t start = ktime_get();
	u64 len;
	int err;

	if (status != NV_OK)
		return status;
	err = nvlab_rm_put_persistent(&start, pin, &len);
	if (err)
		return status_of(err);
	table_put(table);
	nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, len, NVLAB_ALL);
	return NV_OK;
}

#ifdef NVLAB_GATES
NV_STATUS NV_API_CALL rm_p2p_get_pages_persistent(nvidia_stack_t *sp, NvU64 va, NvU64 len,
						  void **pin, NvU64 *phys, NvU32 *entries,
						  NvBool forced, void *table, void *info,
						  void **mig, NvBool *cacheable)
{
	bool coherent = false;
	NV_STATUS status = get_persistent(va, len, pin, phys, entries, table, forced, &coherent);

	*cacheable = coherent && !forced;
	return status;
}
#elif defined(NVLAB_MIG_INFO)
NV_STATUS NV_API_CALL rm_p2p_get_pages_persistent(nvidia_stack_t *sp, NvU64 va, NvU64 len,
						  void **pin, NvU64 *phys, NvU32 *entries,
						  void *table, void *info, void **mig)
{
	bool coherent;

	return get_persistent(va, len, pin, phys, entries, table, false, &coherent);
}
#else
NV_STATUS NV_API_CALL rm_p2p_get_pages_persistent(nvidia_stack_t *sp, NvU64 va, NvU64 len,
						  void **pin, NvU64 *phys, NvU32 *entries,
						  void *table, void *info)
{
	bool coherent = false;
	NV_STATUS status = get_persistent(va, len, pin, phys, entries, table, false, &coherent);

	nvlab_odd_pinned(table, coherent);
	return status;
}
#endif

#ifdef NVLAB_MIG_INFO	/* no GPU here is divided, and the front keeps NULL */
NV_STATUS NV_API_CALL rm_p2p_put_pages_persistent(nvidia_stack_t *sp, void *pin, void *table,
						  void *mig)
{
	return put_persistent(pin, table);
}
#else
NV_STATUS NV_API_CALL rm_p2p_put_pages_persistent(nvidia_stack_t *sp, void *pin, void *table)
{
	return put_persistent(pin, table);
}
#endif

/* --- resource manager: DMA --- */

int nvlab_map_peer(struct nvlab_gpu *gpu, struct device *peer, bool remap, u64 len, u64 *addr)
{
	nv_dma_device_t to = dma_device(peer), of = dma_device(&gpu->pdev->dev);

	/* Unmapping reads this, too, so a test changes the mode before it maps anything. */
	nv_dma_remap_peer_mmio = remap;
	return nv_dma_map_peer(&to, &of, GPU_BAR, len >> PAGE_SHIFT, addr) == NV_OK ? 0 : -EIO;
}

NV_STATUS NV_API_CALL nvlab_dma_map_peer(nv_dma_device_t *peer, nv_dma_device_t *gpu, NvU8 bar,
					 NvU64 count, NvU64 *addr)
{
	nv_dma_remap_peer_mmio = nvlab_config(NVLAB_C_DMA_MODE) == 550;
	return nv_dma_map_peer(peer, gpu, GPU_BAR, count, addr);
}

/* Releases with gates stop at a page that fails (osapi.c, as in gates.c). */
#if defined(NVLAB_GATES) || defined(NVLAB_ODD)
#define STOPS		true
#else
#define STOPS		false
#endif

/* Maps memory of a BAR, page by page. */
static NV_STATUS map_bar(struct nvlab_gpu *gpu, nv_dma_device_t *peer, u64 page_size, u32 count,
			 u64 *addr)
{
	u64 partial = nvlab_fault(NVLAB_F_MAP_PARTIAL);
	bool remap = nvlab_config(NVLAB_C_DMA_MODE) == 550;
	NV_STATUS status = NV_OK;
	u32 i, j;

	for (i = 0; i < count; i++) {
		status = i + 1 == partial ? NV_ERR_INVALID_STATE :
			 status_of(nvlab_map_peer(gpu, peer->dev, remap, page_size, &addr[i]));
		if (status == NV_OK)
			continue;
		/* This address could not be translated. Without translation it stays as it was. */
		if (remap && i + 1 == partial)
			addr[i] = DMA_MAPPING_ERROR;
		for (j = i; j-- > 0;)
			nv_dma_unmap_peer(peer, page_size / PAGE_SIZE, addr[j]);
		if (STOPS)
			break;
	}
	return status;
}

/*
 * Maps coherent memory, all at once, in pages of the CPU. Those of one page of the table get
 * addresses in a row.
 */
static NV_STATUS map_coherent(nv_dma_device_t *peer, u64 page_size, u32 count, u64 *addr,
			      void **priv)
{
	u64 partial = nvlab_fault(NVLAB_F_MAP_PARTIAL), *page;
	const u32 each = page_size / PAGE_SIZE, all = count * each;
	NV_STATUS status;
	u32 i;

	if (partial && partial <= count)
		return NV_ERR_INVALID_STATE;
	status = os_alloc_mem((void **)&page, all * sizeof(*page));
	if (status != NV_OK)
		return status;
	for (i = 0; i < all; i++)
		page[i] = addr[i / each] + i % each * PAGE_SIZE;
#ifdef NVLAB_GATES
	status = nv_dma_map_alloc(peer, all, page, NV_FALSE, NV_FALSE, priv);
#else
	status = nv_dma_map_alloc(peer, all, page, NV_FALSE, priv);
#endif
	for (i = 0; status == NV_OK && i < all; i++) {
		if (i % each == 0)
			addr[i / each] = page[i];
		else if (page[i] != page[i - 1] + PAGE_SIZE)
			status = NV_ERR_INVALID_STATE;
	}
	if (status != NV_OK && *priv) {
		nv_dma_unmap_alloc(peer, all, page, priv);
		*priv = NULL;
	}
	os_free_mem(page);
	return status;
}

NV_STATUS NV_API_CALL rm_p2p_dma_map_pages(nvidia_stack_t *sp, nv_dma_device_t *peer,
					   NvU8 *uuid, NvU64 page_size,
					   NvU32 count, NvU64 *addr, void **priv)
{
	struct nvlab_gpu *gpu;
	NV_STATUS status;
	u64 wrong;
	int err;

	*priv = NULL;
	nvlab_hold(NVLAB_H_MAP_BEFORE);
	status = status_of(nvlab_api_lock("dma_map_pages"));
	if (status != NV_OK)
		return status;
	gpu = nvlab_rm_gpu_get(uuid);
	if (!gpu) {
		status = NV_ERR_INVALID_ARGUMENT;
		goto unlock;
	}
	wrong = nvlab_fault(NVLAB_F_MAP_TOPOLOGY) ? ENOTSUPP : nvlab_fault(NVLAB_F_MAP_ERRNO);
	status = status_of(-(int)wrong);
	if (status != NV_OK)
		goto put;
	if (nvlab_odd_map(peer->dev, page_size, count, addr, &err)) {
		status = status_of(err);
	} else if (NVLAB_IS_ODD || (addr[0] >= gpu->start && addr[0] < gpu->start + gpu->size)) {
		status = nvlab_gate_map(gpu, peer);
		if (status == NV_OK)
			status = map_bar(gpu, peer, page_size, count, addr);
	} else {
		status = map_coherent(peer, page_size, count, addr, priv);
	}
	if (status == NV_OK)
		nvlab_add(NVLAB_ACCOUNT_MAPPED_PAGES, count);
put:
	nvlab_gpu_put(gpu);
unlock:
	nvlab_api_unlock();
	if (status == NV_OK)
		nvlab_hold(NVLAB_H_MAP_AFTER);
	return status;
}

int nvlab_p2p_init(void)
{
	nvidia_p2p_page_t_cache = KMEM_CACHE(nvidia_p2p_page, 0);
	return nvidia_p2p_page_t_cache ? 0 : -ENOMEM;
}

static void lost_table_free(void *table)
{
	nvlab_odd_mend(table);
	nv_p2p_free_platform_data(table);
}

void nvlab_p2p_exit(void)
{
	struct list_head *spare, *next;
	struct nvlab_callback *callback;
	unsigned long key;

	/* Nobody is left to race with. */
	xa_for_each(&callbacks, key, callback)
		kfree(callback);
	xa_destroy(&callbacks);
	nvlab_tables_exit(lost_table_free);
	list_for_each_safe(spare, next, &spares)
		kfree(spare);
	kmem_cache_destroy(nvidia_p2p_page_t_cache);
}
