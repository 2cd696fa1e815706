// SPDX-License-Identifier: GPL-2.0
/*
 * The lab's nvidia.ko: the GPUs.
 *
 * Models: a PCI driver called "nvidia" bound to a device whose BAR holds video
 * memory, through BAR1 (bar1.h): the 64 KiB behind an address of the BAR are
 * those that an extent maps there. Endpoint of the lab's PCIe fabric, where every
 * access of a NIC to 64 KiB that no extent maps is a violation: it is counted,
 * the first one is logged, a write is lost and a read finds ones. A live
 * persistent pin holds the module, as it holds the real driver. An unbind takes
 * the GPU off the list first and then waits until nobody uses it, as in 595. A
 * persistent pin that is put after that, or a dma-buf that ends, leaves its
 * reference behind, and the unbind never ends (docs/facts.md#persistent).
 *
 * Extents are looked at, not MRs: an MR whose own pin is gone is no violation
 * while another live pin holds the extent, or a later one has its addresses. Who
 * may still use an MR is the NIC's to tell (ofed/rxe/rxe_peer.c).
 *
 * A GPU is started by the first who opens it and shut down by the last who closes
 * it, under its ldata_lock (kernel-open/nvidia/nv.c, nv_open_device). Who has
 * memory has it open, and so has a persistent pin or a dma-buf.
 *
 * Left out: everything else a GPU does. A program that has allocated nothing is
 * no user. A test can end the unbind's wait (nvlab_gpus_forgive()), which nothing
 * ends in the real driver. The BAR is QEMU's ivshmem-plain (1af4:1110, BAR 2).
 */
#define pr_fmt(fmt) "nvidia_lab: " fmt

#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/utsname.h>
#include <linux/wait_bit.h>

#include "lab_pcie.h"
#include "nvlab.h"

#define GPU_BAR		2

/* The GPUs by number, without those whose unbind has begun. */
static struct nvlab_gpu *gpus[NVLAB_MAX_GPUS];
/* All GPUs that RM knows: also those whose unbind has begun, until nobody uses them. */
static LIST_HEAD(attached);
static DEFINE_SPINLOCK(gpus_lock);

unsigned int nvlab_gpu_count(void)
{
	unsigned int i, count = 0;

	spin_lock(&gpus_lock);
	for (i = 0; i < NVLAB_MAX_GPUS; i++)
		count += !!gpus[i];
	spin_unlock(&gpus_lock);
	return count;
}

struct nvlab_gpu *nvlab_gpu_get(unsigned int index)
{
	struct nvlab_gpu *gpu = NULL;

	spin_lock(&gpus_lock);
	if (index < NVLAB_MAX_GPUS)
		gpu = gpus[index];
	if (gpu)
		atomic_inc(&gpu->handles);
	spin_unlock(&gpus_lock);
	return gpu;
}

struct nvlab_gpu *nvlab_rm_gpu_get(const u8 *uuid)
{
	struct nvlab_gpu *gpu, *found = NULL;

	spin_lock(&gpus_lock);
	list_for_each_entry(gpu, &attached, node_attached) {
		if (memcmp(gpu->uuid, uuid, NVLAB_UUID_LEN))
			continue;
		atomic_inc(&gpu->handles);
		found = gpu;
		break;
	}
	spin_unlock(&gpus_lock);
	return found;
}

/* Drops a reference, under the lock: whoever waits in gpu_remove() frees the GPU. */
void nvlab_gpu_put(struct nvlab_gpu *gpu)
{
	spin_lock(&gpus_lock);
	atomic_dec(&gpu->handles);
	wake_up_var(gpus);
	spin_unlock(&gpus_lock);
}

int nvlab_gpu_pin(struct nvlab_gpu *gpu)
{
	int err = -ENODEV;

	spin_lock(&gpus_lock);
	if (gpus[gpu->index] == gpu) {
		atomic_inc(&gpu->users);
		err = 0;
	}
	spin_unlock(&gpus_lock);
	return err;
}

/*
 * Drops a persistent pin's reference. The GPU is looked up for that, so one that is not on the list
 * any more keeps the reference.
 */
void nvlab_gpu_unpin(struct nvlab_gpu *gpu)
{
	spin_lock(&gpus_lock);
	if (gpus[gpu->index] == gpu)
		WARN_ONCE(atomic_dec_return(&gpu->users) < 0,
			  "nvlab: more puts of the GPU than gets: a persistent pin was put twice\n");
	spin_unlock(&gpus_lock);
}

void nvlab_gpu_opened(struct nvlab_gpu *gpu)
{
	if (!gpu->opens++)
		nvlab_spend(ktime_get(), NVLAB_T_GPU_START, NVLAB_T_PIN_GIB, 0, NVLAB_ALL);
}

void nvlab_gpu_closed(struct nvlab_gpu *gpu)
{
	if (!--gpu->opens)
		nvlab_spend(ktime_get(), NVLAB_T_GPU_STOP, NVLAB_T_PIN_GIB, 0, NVLAB_ALL);
}

void nvlab_gpu_open(struct nvlab_gpu *gpu)
{
	mutex_lock(&gpu->ldata_lock);
	nvlab_gpu_opened(gpu);
	mutex_unlock(&gpu->ldata_lock);
}

void nvlab_gpu_close(struct nvlab_gpu *gpu)
{
	mutex_lock(&gpu->ldata_lock);
	nvlab_gpu_closed(gpu);
	mutex_unlock(&gpu->ldata_lock);
}

static bool forgiven;	/* under gpus_lock */

void nvlab_gpus_forgive(void)
{
	spin_lock(&gpus_lock);
	forgiven = true;
	wake_up_var(gpus);
	spin_unlock(&gpus_lock);
}

/* Takes the GPU from RM, unless it is in use. */
static bool gpu_detach(struct nvlab_gpu *gpu)
{
	bool used;

	spin_lock(&gpus_lock);
	used = atomic_read(&gpu->handles) ||
	       (atomic_read(&gpu->users) && !forgiven);
	if (!used)
		list_del_init(&gpu->node_attached);
	spin_unlock(&gpus_lock);
	return !used;
}

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
	/* Devices are probed one after the other. */
	while (gpu->index < NVLAB_MAX_GPUS && gpus[gpu->index])
		gpu->index++;
	if (gpu->index == NVLAB_MAX_GPUS) {
		kfree(gpu);
		return -ENOSPC;
	}
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
	spin_lock(&gpus_lock);
	gpus[gpu->index] = gpu;
	list_add_tail(&gpu->node_attached, &attached);
	spin_unlock(&gpus_lock);
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

	spin_lock(&gpus_lock);
	gpus[gpu->index] = NULL;
	forgiven = false;
	spin_unlock(&gpus_lock);
	if (!gpu_detach(gpu)) {
		pr_notice("GPU %u is removed while it is in use: waiting\n",
			  gpu->index);
		wait_var_event(gpus, gpu_detach(gpu));
	}
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
