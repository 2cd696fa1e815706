// SPDX-License-Identifier: GPL-2.0
/*
 * Exports of video memory as dma-buf, in the odd flavour.
 *
 * Models kernel-open/nvidia/nv-dmabuf.c of a newer open driver than the lab builds
 * (570 and its newest state, with an attach function) and rm_dma_buf_* in osapi.c,
 * as far as an importer and the owner of the memory notice:
 * - One buffer of pieces of any number of handles of one client and one GPU,
 *   each in whole pages of the CPU and inside its memory object. A handle need
 *   not be mapped anywhere, nor fit for peer-to-peer pins.
 * - Each piece is a duplicate of the memory object: freeing the memory, and the
 *   end of the process, leave it until file and attachments are gone.
 * - No pin, unpin, move_notify or revocation: the importer is never told
 *   anything. mmap is -ENOTSUPP.
 * - Attaching is refused by the topology check, with a line in the kernel log, and
 *   to a dynamic importer that does not announce peer2peer, both with -ENOTSUPP.
 *   Older drivers have neither, and refuse the second in map.
 * - BAR1 is mapped by the first attachment's map_dma_buf, not by the export,
 *   under the RM API lock and the GPU lock. The next attachment shares it, and the
 *   last unmap undoes it. Any failure is a NULL, which the importer sees as
 *   -ENOMEM.
 * - The list has an entry for each run of a piece in BAR1, cut at the importer's
 *   segment limit, without pages. Its addresses come as those of
 *   dma_map_pages: untranslated from Linux 6.12 on, also behind an IOMMU that
 *   translates, and never the last page of the BAR.
 * - The closed driver has none of this.
 *
 * Chosen, because it was not read: each piece is mapped in one range of BAR1, without
 * the reserve of pins, as 555 does it (front_dmabuf.c). Mapping takes the time of a pin.
 *
 * Left out: adding handles to a buffer call by call (the real ioctl takes 128
 * at once), the mapping type FORCE_PCIE, mmap of a buffer that allows it, MIG,
 * coherent memory (map fails), an importer that is no PCI device
 * (attach is refused; the real one takes any device for one).
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/fcntl.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "nvlab.h"

#if KERNEL_VERSION(6, 13, 0) > LINUX_VERSION_CODE
MODULE_IMPORT_NS(DMA_BUF);
#else
MODULE_IMPORT_NS("DMA_BUF");
#endif

struct export {
	struct nvlab_gpu *gpu;
	struct mutex lock;	/* taken inside the buffer's reservation lock */
	u32 maps;		/* attachments that have it mapped; under lock */
	u64 *phys;		/* of all pieces; written under lock */
	u64 size;
	u32 count;
	struct nvlab_piece piece[] __counted_by(count);
};

/* Where the list of entries is. */
struct walk {
	u32 piece;
	u64 done;	/* bytes of that piece */
};

/* The CPU's address and the length of the next entry; 0: there is none. */
static u64 next_entry(const struct export *e, struct walk *w, u64 max, u64 *addr)
{
	const struct nvlab_piece *p;
	u64 at, into, left, len;
	const u64 *page;

	if (w->piece == e->count)
		return 0;
	p = &e->piece[w->piece];
	at = (p->offset & (NVLAB_GPU_PAGE - 1)) + w->done;
	into = at & (NVLAB_GPU_PAGE - 1);
	left = p->len - w->done;
	page = &p->phys[at >> NVLAB_PAGE_SHIFT];
	*addr = *page + into;
	len = NVLAB_GPU_PAGE - into;
	for (; len < min(left, max) && page[1] == page[0] + NVLAB_GPU_PAGE; page++)
		len += NVLAB_GPU_PAGE;
	len = min3(len, left, max);
	w->done += len;
	if (w->done == p->len)
		*w = (struct walk){ .piece = w->piece + 1 };
	return len;
}

static int fill_entries(struct export *e, struct device *dev,
			struct sg_table *sgt, u64 max)
{
	struct scatterlist *sg;
	struct walk w = {};
	u64 addr, len;
	int err, i;

	for_each_sg(sgt->sgl, sg, sgt->orig_nents, i) {
		len = next_entry(e, &w, max, &addr);
		err = nvlab_map_peer(e->gpu, dev, false, len, &addr);
		if (err)
			return err;
		sg_set_page(sg, NULL, len, 0);
		sg_dma_address(sg) = addr;
		sg_dma_len(sg) = len;
	}
	return 0;
}

static struct sg_table *make_table(struct export *e,
				   struct dma_buf_attachment *attach)
{
	u64 max = ALIGN_DOWN(dma_get_max_seg_size(attach->dev), PAGE_SIZE);
	struct sg_table *sgt;
	struct walk w = {};
	u32 count = 0;
	u64 addr;

	if (!max)
		return NULL;
	while (next_entry(e, &w, max, &addr))
		count++;
	sgt = kzalloc_obj(*sgt);
	if (!sgt)
		return NULL;
	if (sg_alloc_table(sgt, count, GFP_KERNEL))
		goto free;
	if (fill_entries(e, attach->dev, sgt, max)) {
		sg_free_table(sgt);
		goto free;
	}
	return sgt;
free:
	kfree(sgt);
	return NULL;
}

/* Under the RM API lock and the GPU lock. */
static void unmap_pieces(struct export *e, u32 count)
{
	while (count)
		nvlab_rm_unmap_piece(&e->piece[--count]);
}

static int map_pieces(struct export *e)
{
	int err;
	u32 i;

	err = nvlab_api_lock("map dma-buf");
	if (err)
		return err;
	nvlab_gpu_lock();
	for (i = 0; i < e->count && !err; i++)
		err = nvlab_rm_map_piece(&e->piece[i]);
	if (err)
		unmap_pieces(e, i - 1);
	nvlab_gpu_unlock();
	nvlab_api_unlock();
	return err;
}

static void put_pieces(struct export *e)
{
	if (--e->maps || WARN_ON(nvlab_api_lock("unmap dma-buf")))
		return;
	nvlab_gpu_lock();
	unmap_pieces(e, e->count);
	nvlab_gpu_unlock();
	nvlab_api_unlock();
}

static int buf_attach(struct dma_buf *buf, struct dma_buf_attachment *attach)
{
	struct export *e = buf->priv;

	if (!dev_is_pci(attach->dev) || nvlab_fault(NVLAB_F_ATTACH_TOPOLOGY) ||
	    (attach->importer_ops && !attach->peer2peer))
		return -ENOTSUPP;
	if (!nvlab_topology_supported(e->gpu, to_pci_dev(attach->dev))) {
		pr_err("NVRM: dma-buf attach failed: PCI topology not supported for dma-buf\n");
		return -ENOTSUPP;
	}
	return 0;
}

static struct sg_table *buf_map(struct dma_buf_attachment *attach,
				enum dma_data_direction direction)
{
	struct export *e = attach->dmabuf->priv;
	struct sg_table *sgt = NULL;

	mutex_lock(&e->lock);
	if (!e->maps && map_pieces(e))
		goto unlock;
	e->maps++;
	sgt = make_table(e, attach);
	if (!sgt) {
		put_pieces(e);
		goto unlock;
	}
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, 1);
	nvlab_count(NVLAB_ACCOUNT_DMA_BUF_MAPS);
unlock:
	mutex_unlock(&e->lock);
	return sgt;
}

static void buf_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
		      enum dma_data_direction direction)
{
	struct export *e = attach->dmabuf->priv;

	mutex_lock(&e->lock);
	put_pieces(e);
	sg_free_table(sgt);
	kfree(sgt);
	nvlab_add(NVLAB_ACCOUNT_LIVE_MAPPINGS, -1);
	mutex_unlock(&e->lock);
}

static void export_free(struct export *e)
{
	u32 i;

	if (WARN_ON(nvlab_api_lock("free duplicates")))
		return;
	for (i = 0; i < e->count; i++)
		nvlab_rm_undo_duplicate(&e->piece[i]);
	nvlab_api_unlock();
	for (i = 0; i < e->count; i++)
		nvlab_mem_put(e->piece[i].mem);
	mutex_destroy(&e->lock);
	kvfree(e->phys);
	kvfree(e);
}

static void buf_release(struct dma_buf *buf)
{
	struct export *e = buf->priv;

	WARN_ON(e->maps);
	export_free(e);
	nvlab_add(NVLAB_ACCOUNT_LIVE_DMA_BUFS, -1);
}

static int buf_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	return -ENOTSUPP;
}

static const struct dma_buf_ops buf_ops = {
	.attach = buf_attach,
	.map_dma_buf = buf_map,
	.unmap_dma_buf = buf_unmap,
	.release = buf_release,
	.mmap = buf_mmap,
};

static struct export *export_new(struct nvlab_client *client,
				 struct nvlab_gpu *gpu,
				 const struct nvlab_part *part, u32 count)
{
	struct export *e;
	u64 pages = 0;
	int err;
	u32 i;

	e = kvzalloc_flex(*e, piece, count);
	if (!e)
		return ERR_PTR(-ENOMEM);
	e->gpu = gpu;
	mutex_init(&e->lock);
	err = nvlab_api_lock("duplicate");
	if (err)
		goto free;
	for (; e->count < count; e->count++) {
		err = nvlab_rm_duplicate(client, gpu, &part[e->count],
					 &e->piece[e->count]);
		if (err)
			break;
		e->size += part[e->count].len;
		pages += nvlab_piece_pages(&e->piece[e->count]);
	}
	nvlab_api_unlock();
	if (err)
		goto free;
	err = -ENOMEM;
	e->phys = kvmalloc_array(pages, sizeof(*e->phys), GFP_KERNEL);
	if (!e->phys)
		goto free;
	for (i = 0, pages = 0; i < count; i++) {
		e->piece[i].phys = e->phys + pages;
		pages += nvlab_piece_pages(&e->piece[i]);
	}
	return e;
free:
	export_free(e);
	return ERR_PTR(err);
}

int nvlab_dma_buf_export(struct nvlab_client *client, struct nvlab_export *req)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct nvlab_part *part;
	struct nvlab_gpu *gpu;
	struct dma_buf *buf;
	struct export *e;

	if (!NVLAB_HAS_DMA_BUF)
		return -EOPNOTSUPP;
	if (!req->count || req->count > NVLAB_EXPORT_MAX || req->forced)
		return -EINVAL;
	part = vmemdup_array_user(u64_to_user_ptr(req->parts), req->count,
				  sizeof(*part));
	if (IS_ERR(part))
		return PTR_ERR(part);
	gpu = nvlab_gpu_get(req->gpu);
	e = gpu ? export_new(client, gpu, part, req->count) : ERR_PTR(-ENODEV);
	if (gpu)
		nvlab_gpu_put(gpu);
	kvfree(part);
	if (IS_ERR(e))
		return PTR_ERR(e);
	info.ops = &buf_ops;
	info.size = e->size;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = e;
	info.exp_name = "nv_dmabuf";
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		export_free(e);
		return PTR_ERR(buf);
	}
	nvlab_add(NVLAB_ACCOUNT_LIVE_DMA_BUFS, 1);
	nvlab_count(NVLAB_ACCOUNT_DMA_BUFS);
	req->fd = dma_buf_fd(buf, O_RDWR | O_CLOEXEC);
	if (req->fd < 0) {
		dma_buf_put(buf);
		return req->fd;
	}
	return 0;
}
