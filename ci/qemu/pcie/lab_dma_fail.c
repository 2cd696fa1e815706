// SPDX-License-Identifier: GPL-2.0
/*
 * lab_dma_fail: lets one call of dma_map_resource() fail.
 *
 * What it models: a DMA API that cannot map one of several runs, as an IOMMU
 * does that has no address space or no memory left for its tables. The call
 * returns DMA_MAPPING_ERROR and has done nothing (kernel/dma/mapping.c and
 * drivers/iommu/dma-iommu.c of 7.2; no other result is documented).
 *
 * What it leaves out: dma_map_page() and the sg calls, which no client of the
 * peer-memory core makes; a device filter: in the lab only nvidia-peermem and the
 * GPU stand-in map MMIO.
 *
 * A kprobe on the function's entry sends the call to a function of the same
 * signature. /sys/kernel/debug/lab_dma_fail/nth: the nth call from now fails; 0:
 * none. It counts down, so that 0 read back says that it has happened.
 */
#define pr_fmt(fmt) "lab_dma_fail: " fmt

#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/dma-mapping.h>
#include <linux/kprobes.h>
#include <linux/module.h>

static atomic_t nth;
static struct dentry *debugfs_dir;

static noinline dma_addr_t map_nothing(struct device *dev, phys_addr_t addr,
				       size_t size,
				       enum dma_data_direction dir,
				       unsigned long attrs)
{
	return DMA_MAPPING_ERROR;
}

static int map_begins(struct kprobe *p, struct pt_regs *regs)
{
	/* The call that takes it from 1 to 0. */
	if (atomic_dec_if_positive(&nth) != 0)
		return 0;
	instruction_pointer_set(regs, (unsigned long)map_nothing);
	return 1;
}

static struct kprobe probe = {
	.symbol_name = "dma_map_resource",
	.pre_handler = map_begins,
};

static int __init lab_dma_fail_init(void)
{
	int err = register_kprobe(&probe);

	if (err)
		return err;
	debugfs_dir = debugfs_create_dir("lab_dma_fail", NULL);
	debugfs_create_atomic_t("nth", 0600, debugfs_dir, &nth);
	return 0;
}
module_init(lab_dma_fail_init);

static void __exit lab_dma_fail_exit(void)
{
	debugfs_remove(debugfs_dir);
	unregister_kprobe(&probe);
}
module_exit(lab_dma_fail_exit);

MODULE_DESCRIPTION("Failing DMA mappings for the nvidia-peermem lab");
MODULE_LICENSE("GPL");
