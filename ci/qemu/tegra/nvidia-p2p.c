// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for what Tegra (Jetson) has of peer-to-peer memory: the exported
 * names of L4T's nvidia-p2p.ko, and memory as nvmap gives it to a process.
 *
 * Models: the six names, exported to everybody, with their own signatures: no
 * tokens, any device, a direction, no persistent pins. Mappings of /dev/lab_nvmap:
 * shared, not inherited by children, of pages that the fault handler gives, as
 * memory of cudaHostAlloc() is; and from offset NVMAP_CARVEOUT on without pages
 * (VM_PFNMAP), as a carveout is, which no get_user_pages() takes.
 *
 * Leaves out: what the six functions do (pinning by get_user_pages(), an mmu
 * notifier). Nobody may call them: nvidia-peermem does not load beside them, and
 * a call is a WARN.
 */
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>

#include "nvidia-p2p.h"

#define NVMAP_PAGES	1024UL
#define NVMAP_CARVEOUT	(1UL << 30)

static int nobody_calls(const char *name)
{
	WARN(1, "%s was called\n", name);
	return -EINVAL;
}

int nvidia_p2p_get_pages(u64 vaddr, u64 size,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data)
{
	return nobody_calls(__func__);
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(struct nvidia_p2p_page_table *page_table)
{
	return nobody_calls(__func__);
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return nobody_calls(__func__);
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);

int nvidia_p2p_dma_map_pages(struct device *dev,
			     struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping,
			     enum dma_data_direction direction)
{
	return nobody_calls(__func__);
}
EXPORT_SYMBOL(nvidia_p2p_dma_map_pages);

int nvidia_p2p_dma_unmap_pages(struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return nobody_calls(__func__);
}
EXPORT_SYMBOL(nvidia_p2p_dma_unmap_pages);

int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return nobody_calls(__func__);
}
EXPORT_SYMBOL(nvidia_p2p_free_dma_mapping);

static struct page *pages[NVMAP_PAGES];

static vm_fault_t nvmap_fault(struct vm_fault *vmf)
{
	if (vmf->pgoff >= NVMAP_PAGES)
		return VM_FAULT_SIGBUS;
	get_page(pages[vmf->pgoff]);
	vmf->page = pages[vmf->pgoff];
	return 0;
}

static const struct vm_operations_struct nvmap_vm_ops = {
	.fault = nvmap_fault,
};

static int nvmap_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_pgoff >= NVMAP_CARVEOUT >> PAGE_SHIFT) {
		if (vma->vm_end - vma->vm_start != PAGE_SIZE)
			return -EINVAL;
		/* Any page will do: nobody can get it as a page. */
		return remap_pfn_range(vma, vma->vm_start,
				       page_to_pfn(pages[0]), PAGE_SIZE,
				       vma->vm_page_prot);
	}
	vm_flags_set(vma, VM_DONTCOPY);
	vma->vm_ops = &nvmap_vm_ops;
	return 0;
}

static const struct file_operations nvmap_fops = {
	.owner = THIS_MODULE,
	.mmap = nvmap_mmap,
};

static struct miscdevice nvmap = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "lab_nvmap",
	.mode = 0600,
	.fops = &nvmap_fops,
};

static void free_pages_of_nvmap(void)
{
	int i;

	for (i = 0; i < NVMAP_PAGES && pages[i]; i++)
		__free_page(pages[i]);
}

static int __init nvidia_p2p_init(void)
{
	int err = 0, i;

	for (i = 0; !err && i < NVMAP_PAGES; i++) {
		pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!pages[i])
			err = -ENOMEM;
	}
	if (!err)
		err = misc_register(&nvmap);
	if (err)
		free_pages_of_nvmap();
	return err;
}
module_init(nvidia_p2p_init);

static void __exit nvidia_p2p_exit(void)
{
	misc_deregister(&nvmap);
	free_pages_of_nvmap();
}
module_exit(nvidia_p2p_exit);

MODULE_DESCRIPTION("Lab stand-in for Tegra's nvidia-p2p.ko and nvmap");
MODULE_LICENSE("GPL");
