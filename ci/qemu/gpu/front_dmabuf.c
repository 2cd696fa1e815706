// SPDX-License-Identifier: GPL-2.0
/*
 * Gives NVIDIA's own nv-dmabuf.c the functions of NVIDIA's resource manager that it
 * calls, over rm.c, and calls it as the ioctl of NVIDIA's nv.c does.
 *
 * What an importer and the owner of the memory notice is NVIDIA's own: one buffer of
 * handles that come 128 at a time, duplicates of the memory objects, what is mapped by
 * the first attachment and shared by the next, how the list is made, and which locks
 * are held meanwhile. Sources of the functions here:
 * - rm_dma_buf_*: src/nvidia/arch/nvalloc/unix/src/osapi.c of 555.58.02. A handle need
 *   not be mapped anywhere, nor fit for peer-to-peer pins. rm_dma_buf_map_mem_handle: one
 *   range of BAR1 for each handle, mapped anew however the memory lies, and without the
 *   reserve of pins (kern_bus.c, kbusMapFbApertureByHandle). Of coherent memory a range
 *   for each of its pages, of which two in a row never touch here (rm.c).
 *   rm_dma_buf_get_client_and_device: coherent memory has static addresses, so
 *   nv-dmabuf.c fetches them at the export, without any lock, and keeps them until the
 *   buffer goes.
 * - the locks: those of rm.c, which has one for all GPUs.
 *
 * Chosen, because it was not read: mapping takes the time of a pin; with bar1_static
 * there is a range for each run of the memory.
 *
 * Left out: MIG; NVIDIA's handles of clients and devices, for which the client of the
 * lab's device node stands; a lock for each GPU, as rm.c has one for all; that a NIC
 * should not reach coherent memory before it is mapped or after: nobody could stop it,
 * and no access counts as a violation while the buffer is there.
 */
#include <linux/dma-buf.h>
#include <linux/fdtable.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/string.h>
#include <linux/xarray.h>

#include "os-interface.h"
#include "nv-linux.h"
#include "nv-dmabuf.h"
#include "nv-ioctl.h"
#include "nv-p2p.h"

#include "nvlab.h"
#include "front.h"

#if KERNEL_VERSION(6, 13, 0) > LINUX_VERSION_CODE
MODULE_IMPORT_NS(DMA_BUF);
#else
MODULE_IMPORT_NS("DMA_BUF");
#endif

/*
 * The client of each export that is under way, by the number that stands for RM's handle of a
 * client.
 */
static DEFINE_XARRAY_ALLOC1(exporters);
/* The duplicates that buffers hold, by the number that stands for RM's handle of a duplicate. */
static DEFINE_XARRAY_ALLOC1(duplicates);

struct duplicate {
	struct nvlab_piece piece;
	struct duplicate *undone;
};

/*
 * Duplicates that were undone. They stay here, under the RM API lock, until that lock is given
 * back.
 */
static struct duplicate *undone;

/* NVIDIA's record of a GPU. The memory of a real GPU is all coherent, or none of it is. */
static struct gpu_record {
	nv_dma_device_t dma;
	nv_state_t video;
	nv_state_t coherent;
} records[NVLAB_MAX_GPUS];
static DEFINE_MUTEX(records_lock);

static void duplicate_free(struct duplicate *duplicate)
{
	nvlab_mem_put(duplicate->piece.mem);
	kvfree(duplicate->piece.phys);
	kfree(duplicate);
}

/* --- the locks, as nv-dmabuf.c takes them --- */

NV_STATUS NV_API_CALL rm_acquire_api_lock(nvidia_stack_t *sp)
{
	return status_of(nvlab_api_lock("dma-buf"));
}

NV_STATUS NV_API_CALL rm_release_api_lock(nvidia_stack_t *sp)
{
	struct duplicate *at = undone, *next;

	undone = NULL;
	nvlab_api_unlock();
	for (; at; at = next) {
		next = at->undone;
		duplicate_free(at);
	}
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_acquire_gpu_lock(nvidia_stack_t *sp, nv_state_t *nv)
{
	nvlab_gpu_lock();
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_release_gpu_lock(nvidia_stack_t *sp, nv_state_t *nv)
{
	nvlab_gpu_unlock();
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_acquire_all_gpus_lock(nvidia_stack_t *sp)
{
	nvlab_gpu_lock();
	return NV_OK;
}

NV_STATUS NV_API_CALL rm_release_all_gpus_lock(nvidia_stack_t *sp)
{
	nvlab_gpu_unlock();
	return NV_OK;
}

/* --- resource manager --- */

static NV_STATUS get_client(nvidia_stack_t *sp, nv_state_t *nv, bool forced, NvHandle *client,
			    NvHandle *device, NvHandle *subdevice, void **mig,
			    NvBool *static_addrs)
{
	NV_STATUS status = rm_acquire_api_lock(sp);

	if (status != NV_OK)
		return status;
	nvlab_gpu_lock();
	*client = 0;
	*device = 0;
	*subdevice = 0;
	*mig = NULL;
	*static_addrs = nv->coherent && !forced;
	nvlab_add(NVLAB_ACCOUNT_LIVE_DMA_BUFS, 1);
	nvlab_gpu_unlock();
	return rm_release_api_lock(sp);
}

#ifdef NVLAB_GATES
NV_STATUS NV_API_CALL rm_dma_buf_get_client_and_device(nvidia_stack_t *sp, nv_state_t *nv,
						       NvHandle exporter, NvHandle memory,
						       NvU8 forced, NvHandle *client,
						       NvHandle *device, NvHandle *subdevice,
						       void **mig, NvBool *static_addrs,
						       NvBool *all_locks)
{
	*all_locks = NV_FALSE;
	return get_client(sp, nv, forced, client, device, subdevice, mig, static_addrs);
}
#else
NV_STATUS NV_API_CALL rm_dma_buf_get_client_and_device(nvidia_stack_t *sp, nv_state_t *nv,
						       NvHandle exporter, NvHandle memory,
						       NvHandle *client, NvHandle *device,
						       NvHandle *subdevice, void **mig,
						       NvBool *static_addrs)
{
	return get_client(sp, nv, false, client, device, subdevice, mig, static_addrs);
}
#endif

void NV_API_CALL rm_dma_buf_put_client_and_device(nvidia_stack_t *sp, nv_state_t *nv,
						  NvHandle client, NvHandle device,
						  NvHandle subdevice, void *mig)
{
	if (WARN_ON(rm_acquire_api_lock(sp) != NV_OK))
		return;
	nvlab_gpu_lock();
	nvlab_add(NVLAB_ACCOUNT_LIVE_DMA_BUFS, -1);
	nvlab_gpu_unlock();
	rm_release_api_lock(sp);
}

static int duplicate_new(struct nvlab_gpu *gpu, NvHandle exporter, const struct nvlab_part *part,
			 bool coherent, NvHandle *handle)
{
	struct nvlab_client *client = xa_load(&exporters, exporter);
	struct duplicate *new = kzalloc_obj(*new);
	int err;

	if (!new)
		return -ENOMEM;
	err = nvlab_rm_duplicate(client, gpu, part, &new->piece);
	if (err) {
		kfree(new);
		return err;
	}
	new->piece.phys = kvmalloc_array(nvlab_piece_pages(&new->piece), sizeof(u64), GFP_KERNEL);
	/* No real GPU has both kinds of memory, and memory of a BAR has no static address here. */
	if (new->piece.mem->coherent != coherent || (coherent && !new->piece.mem->host))
		err = -EINVAL;
	else
		err = new->piece.phys ? xa_alloc(&duplicates, handle, new, xa_limit_31b, GFP_KERNEL) :
					-ENOMEM;
	if (err) {
		nvlab_rm_undo_duplicate(&new->piece);
		new->undone = undone;
		undone = new;
	}
	return err;
}

static NV_STATUS duplicate(nv_state_t *nv, NvHandle exporter, NvHandle memory, u64 offset, u64 size,
			   NvHandle *handle)
{
	const struct nvlab_part part = { .handle = memory, .offset = offset, .len = size };
	struct nvlab_gpu *gpu = nvlab_gpu_get(nv->gpu_id);
	int err;

	if (!gpu)
		return NV_ERR_GPU_UUID_NOT_FOUND;
	err = duplicate_new(gpu, exporter, &part, nv->coherent, handle);
	nvlab_gpu_put(gpu);
	return status_of(err);
}

#ifdef NVLAB_GATES
NV_STATUS NV_API_CALL rm_dma_buf_dup_mem_handle(nvidia_stack_t *sp, nv_state_t *nv,
						NvHandle exporter, NvHandle client,
						NvHandle device, NvHandle subdevice,
						void *mig, NvHandle memory, NvU64 offset,
						NvU64 size, NvHandle *handle, void **info,
						NvBool *can_mmap, NvU32 *cache_type,
						NvBool *read_only, nv_memory_type_t *type)
{
	*info = NULL;
	*can_mmap = NV_FALSE;
	*cache_type = 0;
	*read_only = NV_FALSE;
	*type = NV_MEMORY_TYPE_FRAMEBUFFER;
	return duplicate(nv, exporter, memory, offset, size, handle);
}
#else
NV_STATUS NV_API_CALL rm_dma_buf_dup_mem_handle(nvidia_stack_t *sp, nv_state_t *nv,
						NvHandle exporter, NvHandle client,
						NvHandle device, NvHandle subdevice,
						void *mig, NvHandle memory, NvU64 offset,
						NvU64 size, NvHandle *handle, void **info)
{
	*info = NULL;
	return duplicate(nv, exporter, memory, offset, size, handle);
}
#endif

void NV_API_CALL rm_dma_buf_undup_mem_handle(nvidia_stack_t *sp, nv_state_t *nv, NvHandle client,
					     NvHandle handle)
{
	struct duplicate *duplicate = xa_erase(&duplicates, handle);

	nvlab_rm_undo_duplicate(&duplicate->piece);
	duplicate->undone = undone;
	undone = duplicate;
}

/* As NVIDIA has it. */
#ifdef NVLAB_GATES
#define run		MemoryRange
#define run_addr	start
#define run_len		size
#else
#define run		nv_phys_addr_range
#define run_addr	addr
#define run_len		len
#endif

/*
 * Returns how many runs a mapped piece has, and writes them to @range if that is not NULL. What
 * BAR1 has in one piece is one run.
 */
static u32 runs_of(const struct nvlab_piece *piece, struct run *range)
{
	u64 into = piece->offset & (NVLAB_GPU_PAGE - 1), left = piece->len, len, end = 0;
	u32 page = 0, n = 0;

	for (; left; left -= len, into = 0, page++) {
		len = min(NVLAB_GPU_PAGE - into, left);
		if (!page || piece->phys[page] != end) {
			n++;
			if (range)
				range[n - 1].run_addr = piece->phys[page] + into;
		}
		end = piece->phys[page] + into + len;
		if (range)
			range[n - 1].run_len = end - range[n - 1].run_addr;
	}
	return n;
}

static NV_STATUS map_handle(nv_state_t *nv, NvHandle handle, bool forced, struct run **ranges,
			    u32 *count)
{
	struct duplicate *duplicate = xa_load(&duplicates, handle);
	NV_STATUS status = nvlab_gate_pin(nv->coherent, forced);
	int err;

	if (status != NV_OK)
		return status;
	err = nvlab_rm_map_piece(&duplicate->piece);
	if (err)
		return status_of(err);
	*count = runs_of(&duplicate->piece, NULL);
	status = os_alloc_mem((void **)ranges, *count * sizeof(**ranges));
	if (status != NV_OK) {
		nvlab_rm_unmap_piece(&duplicate->piece);
		return status;
	}
	runs_of(&duplicate->piece, *ranges);
	/* Addresses of coherent memory are no mapping. */
	if (nv->coherent)
		return NV_OK;
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, 1);
	nvlab_count(NVLAB_ACCOUNT_DMA_BUF_MAPS);
	return NV_OK;
}

static void unmap_handle(nv_state_t *nv, NvHandle handle, struct run *ranges)
{
	struct duplicate *duplicate = xa_load(&duplicates, handle);

	nvlab_rm_unmap_piece(&duplicate->piece);
	os_free_mem(ranges);
	if (!nv->coherent)
		nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, -1);
}

#ifdef NVLAB_GATES
NV_STATUS NV_API_CALL rm_dma_buf_map_mem_handle(nvidia_stack_t *sp, nv_state_t *nv,
						NvHandle client, NvHandle handle,
						MemoryRange range, NvU8 forced, void *info,
						NvBool static_addrs, MemoryArea *area)
{
	NV_STATUS status;
	u32 count;

	status = map_handle(nv, handle, forced, &area->pRanges, &count);
	if (status == NV_OK)
		area->numRanges = count;
	return status;
}

void NV_API_CALL rm_dma_buf_unmap_mem_handle(nvidia_stack_t *sp, nv_state_t *nv, NvHandle client,
					     NvHandle handle, NvU8 forced, void *info,
					     NvBool static_addrs, MemoryArea area)
{
	unmap_handle(nv, handle, area.pRanges);
}
#else
NV_STATUS NV_API_CALL rm_dma_buf_map_mem_handle(nvidia_stack_t *sp, nv_state_t *nv,
						NvHandle client, NvHandle handle,
						NvU64 offset, NvU64 size, void *info,
						nv_phys_addr_range_t **ranges, NvU32 *count)
{
	return map_handle(nv, handle, false, ranges, count);
}

void NV_API_CALL rm_dma_buf_unmap_mem_handle(nvidia_stack_t *sp, nv_state_t *nv, NvHandle client,
					     NvHandle handle, NvU64 size,
					     nv_phys_addr_range_t **ranges, NvU32 count)
{
	unmap_handle(nv, handle, *ranges);
	*ranges = NULL;
}
#endif

/* --- the ioctl --- */

static int errno_of(NV_STATUS status)
{
	switch (status) {
	case NV_OK:
		return 0;
	case NV_ERR_NO_MEMORY:
		return -ENOMEM;
	case NV_ERR_OBJECT_NOT_FOUND:
		return -ENOENT;
	case NV_ERR_INVALID_ARGUMENT:
		return -EINVAL;
	case NV_ERR_NOT_SUPPORTED:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

/* Returns NVIDIA's record of the GPU that has @memory. */
static nv_state_t *record_of(struct nvlab_client *client, struct nvlab_gpu *gpu, u64 memory)
{
	struct gpu_record *record = &records[gpu->index];
	struct nvlab_mem *mem = nvlab_mem_get(client, memory);
	nv_state_t *nv = mem && mem->coherent ? &record->coherent : &record->video;

	if (mem)
		nvlab_mem_put(mem);
	/*
	 * The record of a GPU with a buffer does not change here. The buffer keeps the GPU
	 * bound; where a test ended the unbind's wait (nvlab_gpus_forgive()), the same PCI
	 * device comes back.
	 */
	mutex_lock(&records_lock);
	if (record->dma.dev != &gpu->pdev->dev) {
		record->dma = dma_device(&gpu->pdev->dev);
		record->video.gpu_id = gpu->index;
		record->coherent.gpu_id = gpu->index;
		record->video.dma_dev = &record->dma;
		record->coherent.dma_dev = &record->dma;
		record->video.dma_buf_supported = NV_TRUE;
		record->coherent.dma_buf_supported = NV_TRUE;
		record->coherent.coherent = NV_TRUE;
	}
	mutex_unlock(&records_lock);
	return nv;
}

/* Exports as CUDA does: the first call makes the buffer, each further one adds 128 handles. */
static int export(nv_state_t *nv, const struct nvlab_part *part, u32 count,
		  nv_ioctl_export_to_dma_buf_fd_t *params)
{
	u32 i, n;
	int err;

	params->fd = -1;
	params->totalObjects = count;
	for (i = 0; i < count; i++)
		if (check_add_overflow(params->totalSize, part[i].len, &params->totalSize))
			return -EINVAL;
	for (; count; count -= n, part += n) {
		n = min(count, NV_DMABUF_EXPORT_MAX_HANDLES);
		params->index = params->totalObjects - count;
		params->numObjects = n;
		for (i = 0; i < n; i++) {
			if (part[i].handle > U32_MAX)
				return -ENOENT;
			params->handles[i] = part[i].handle;
			params->offsets[i] = part[i].offset;
			params->sizes[i] = part[i].len;
		}
		err = errno_of(nv_dma_buf_export(nv, params));
		if (err)
			return err;
	}
	return 0;
}

/* The largest mapping type of an export: with gates, an export can be forced to PCIe. */
#ifdef NVLAB_GATES
#define FORCED_MAX	NV_DMABUF_EXPORT_MAPPING_TYPE_FORCE_PCIE
#else
#define FORCED_MAX	0
#endif

int nvlab_dma_buf_export(struct nvlab_client *client, struct nvlab_export *req)
{
	nv_ioctl_export_to_dma_buf_fd_t *params;
	struct nvlab_part *part;
	struct nvlab_gpu *gpu;
	int err;

	if (!NVLAB_HAS_DMA_BUF)
		return -EOPNOTSUPP;
	if (!req->count || req->count > NVLAB_EXPORT_MAX || req->forced > FORCED_MAX)
		return -EINVAL;
	part = vmemdup_array_user(u64_to_user_ptr(req->parts), req->count, sizeof(*part));
	if (IS_ERR(part))
		return PTR_ERR(part);
	params = kzalloc_obj(*params);
#ifdef NVLAB_GATES
	if (params)
		params->mappingType = req->forced;
#endif
	gpu = nvlab_gpu_get(req->gpu);
	err = !params ? -ENOMEM : !gpu ? -ENODEV :
	      xa_alloc(&exporters, &params->hClient, client, xa_limit_31b, GFP_KERNEL);
	if (!err) {
		err = export(record_of(client, gpu, part->handle), part, req->count, params);
		xa_erase(&exporters, params->hClient);
		if (err && params->fd >= 0)
			close_fd(params->fd);
		req->fd = params->fd;
	}
	if (!err)
		nvlab_count(NVLAB_ACCOUNT_DMA_BUFS);
	if (gpu)
		nvlab_gpu_put(gpu);
	kfree(params);
	kvfree(part);
	return err;
}
