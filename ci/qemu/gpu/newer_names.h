/* SPDX-License-Identifier: GPL-2.0 */
/* What NVIDIA's 550 calls by names that newer kernels have changed; included before its files. */
#include <linux/version.h>

/* As it was in the kernels that had it, of struct dma_map_ops. */
#define dma_is_direct(ops)	(!(ops))

#if KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
#define in_irq		in_hardirq
/* Of struct dma_map_ops. */
#define map_resource	map_phys
/* The word of struct vm_area_struct that may be written. */
#define __vm_flags	flags.__vma_flags[0]
#endif
