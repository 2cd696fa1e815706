// SPDX-License-Identifier: GPL-2.0
/*
 * The lab's nvidia.ko: the PCI driver.
 *
 * Models: a PCI driver called "nvidia" bound to a device whose BAR holds video
 * memory, through BAR1 (bar1.h): the 64 KiB behind an address of the BAR are
 * those that an extent maps there. Endpoint of the lab's PCIe fabric, where every
 * access of a NIC to 64 KiB that no extent maps is a violation: it is counted,
 * the first one is logged, a write is lost and a read finds ones. A live
 * persistent pin holds the module, as it holds the real driver. gpus.c has the list of GPUs.
 *
 * Extents are looked at, not MRs: an MR whose own pin is gone is no violation
 * while another live pin holds the extent, or a later one has its addresses. Who
 * may still use an MR is the NIC's to tell (ofed/rxe/rxe_peer.c).
 *
 * Left out: everything else a GPU does. The BAR is QEMU's ivshmem-plain (1af4:1110, BAR 2).
 */
#define pr_fmt(fmt) "nvidia_lab: " fmt

#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/utsname.h>

#include "lab_pcie.h"
#include "nvlab.h"

#define GPU_BAR		2

/* Returns the page of video memory behind a byte of the BAR. */
static u32 video_behind(struct nvlab_gpu *gpu, u64 offset)
{
	u32 page = offset >> NVLAB_PAGE_SHIFT;

	return nvlab_config(NVLAB_C_BAR1_STATIC) ? page :
						   READ_ONCE(gpu->bar1.video[page]);
}

/*
 * Counts an access to what no pin maps. An access never crosses 64 KiB: the fabric's pieces are
 * pages of an IOMMU.
 */
static int gpu_access(void *priv, u64 offset, size_t len, bool write)
{
	struct nvlab_gpu *gpu = priv;

	if (video_behind(gpu, offset) != BAR1_NONE)
		return 0;
	if (atomic64_inc_return(&nvlab_accounting[NVLAB_ACCOUNT_VIOLATIONS]) == 1)
		pr_err("VIOLATION: NIC %s of GPU %u at BAR offset %#llx, %zu bytes, without a live pin\n",
		       write ? "write" : "read", gpu->index, offset, len);
	return 0;
}

static void *gpu_memory(void *priv, u64 offset)
{
	struct nvlab_gpu *gpu = priv;
	u64 video = video_behind(gpu, offset);

	if (video == BAR1_NONE)
		return NULL;
	return gpu->kva + (video << NVLAB_PAGE_SHIFT) +
	       (offset & (NVLAB_GPU_PAGE - 1));
}

static const struct lab_pcie_bar_ops gpu_bar_ops = {
	.access = gpu_access,
	.memory = gpu_memory,
};

static int gpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct nvlab_gpu *gpu;
	int err;

	gpu = kzalloc_obj(*gpu);
	if (!gpu)
		return -ENOMEM;
	err = nvlab_gpus_number();
	if (err < 0)
		goto free;
	gpu->index = err;
	mutex_init(&gpu->ldata_lock);
	gpu->pdev = pdev;
	gpu->start = pci_resource_start(pdev, GPU_BAR);
	gpu->size = pci_resource_len(pdev, GPU_BAR);
	memcpy(gpu->uuid, "lab-gpu-uuid-000", NVLAB_UUID_LEN);
	gpu->uuid[NVLAB_UUID_LEN - 1] += gpu->index;

	err = pci_enable_device(pdev);
	if (err)
		goto free;
	err = pci_request_region(pdev, GPU_BAR, "nvidia");
	if (err)
		goto disable;
	pci_set_master(pdev);
	err = -ENODEV;
	if (gpu->size < NVLAB_BACKING_SIZE)
		goto release;
	gpu->kva = memremap(gpu->start, gpu->size, MEMREMAP_WB);
	if (!gpu->kva)
		goto release;
	err = nvlab_gpu_init(gpu);
	if (err)
		goto unmap;
	err = lab_pcie_add_bar(pdev, GPU_BAR, gpu->kva, &gpu_bar_ops, gpu);
	if (err)
		goto exit;
	err = nvlab_ctl_add_gpu(gpu);
	if (err)
		goto remove;
	pci_set_drvdata(pdev, gpu);
	nvlab_gpus_add(gpu);
	pr_info("GPU %u: %s, %llu MiB of video memory at %pa\n", gpu->index,
		pci_name(pdev), gpu->size >> 20, &gpu->start);
	return 0;

remove:
	lab_pcie_remove_bar(pdev, GPU_BAR);
exit:
	nvlab_gpu_exit(gpu);
unmap:
	memunmap(gpu->kva);
release:
	pci_release_region(pdev, GPU_BAR);
disable:
	pci_disable_device(pdev);
free:
	kfree(gpu);
	return err;
}

static void gpu_remove(struct pci_dev *pdev)
{
	struct nvlab_gpu *gpu = pci_get_drvdata(pdev);

	nvlab_gpus_remove(gpu);
	nvlab_ctl_remove_gpu(gpu);
	lab_pcie_remove_bar(pdev, GPU_BAR);
	nvlab_gpu_exit(gpu);
	memunmap(gpu->kva);
	pci_release_region(pdev, GPU_BAR);
	pci_disable_device(pdev);
	kfree(gpu);
}

static const struct pci_device_id gpu_ids[] = {
	{ PCI_DEVICE(0x1af4, 0x1110) },
	{}
};
MODULE_DEVICE_TABLE(pci, gpu_ids);

static struct pci_driver gpu_driver = {
	.name = "nvidia",
	.id_table = gpu_ids,
	.probe = gpu_probe,
	.remove = gpu_remove,
};

static int version_show(struct seq_file *s, void *unused)
{
#ifdef NVLAB_CLOSED
	seq_printf(s, "NVRM version: NVIDIA UNIX %s Kernel Module  %s  (lab stand-in)\n",
		   utsname()->machine, NVLAB_VERSION);
#else
	seq_printf(s, "NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (lab stand-in%s)\n",
		   utsname()->machine, NVLAB_VERSION, NVLAB_IS_ODD ? ", odd flavour" : "");
#endif
	return 0;
}

static int __init nvlab_init(void)
{
	struct proc_dir_entry *dir;
	int err;

	pr_info("%s\n", NVLAB_DRIVER);
	err = nvlab_p2p_init();
	if (err)
		return err;
	err = nvlab_debugfs_init();
	if (err)
		goto p2p;
	err = nvlab_ctl_init();
	if (err)
		goto debugfs;
	dir = proc_mkdir("driver/nvidia", NULL);
	if (!dir || !proc_create_single("version", 0444, dir, version_show)) {
		err = -ENOMEM;
		goto proc;
	}
	err = pci_register_driver(&gpu_driver);
	if (err)
		goto proc;
	if (!nvlab_gpu_count())
		pr_info("no GPU found: give the machine an ivshmem-plain device\n");
	return 0;

proc:
	proc_remove(dir);
	nvlab_ctl_exit();
debugfs:
	nvlab_debugfs_exit();
p2p:
	nvlab_p2p_exit();
	return err;
}
module_init(nvlab_init);

static void __exit nvlab_exit(void)
{
	remove_proc_subtree("driver/nvidia", NULL);
	nvlab_ctl_exit();
	/* Nobody is left in a callback, which alone would refuse it. */
	WARN_ON(nvlab_rm_shut_down_idle());
	/* Tables that were leaked on purpose still name their GPU. */
	nvlab_p2p_exit();
	pci_unregister_driver(&gpu_driver);
	nvlab_debugfs_exit();
}
module_exit(nvlab_exit);

MODULE_DESCRIPTION("Lab stand-in for NVIDIA's kernel driver");
MODULE_AUTHOR("nvidia-peermem lab");
#ifdef NVLAB_CLOSED
MODULE_LICENSE("GPL");
#else
MODULE_LICENSE("Dual MIT/GPL");
#endif
MODULE_VERSION(NVLAB_VERSION);
/* The lab's program reads it from the file (lab/src/parts.rs). */
MODULE_INFO(lab_driver, NVLAB_DRIVER);
