// SPDX-License-Identifier: GPL-2.0
/* Devices, and what the DMA API maps for them; see shim.h. */
#include <linux/dma-mapping.h>
#include <linux/pci.h>

#include "shim.h"

uint64_t nvpm_page_size(void)
{
	return PAGE_SIZE;
}

int nvpm_device_is_pci(struct device *dev)
{
	return dev_is_pci(dev);
}

uint64_t nvpm_device_segment_limit(struct device *dev)
{
	return dma_get_max_seg_size(dev);
}

/*
 * The kernel's DMA debugging takes the eighth mapping of an address for a leak.
 * Each registration of a buffer maps it, so it is told that this is meant, where
 * the kernel has a flag for that.
 */
#ifdef DMA_ATTR_DEBUGGING_IGNORE_CACHELINES
#define NVPM_DMA_ATTRS DMA_ATTR_DEBUGGING_IGNORE_CACHELINES
#else
#define NVPM_DMA_ATTRS 0
#endif

/* Never under a state lock: an IOMMU driver may allocate page tables. */
int nvpm_dma_map(struct device *dev, uint64_t address, uint64_t length,
		 uint64_t *dma)
{
	dma_addr_t mapped = dma_map_resource(dev, address, length,
					     DMA_BIDIRECTIONAL, NVPM_DMA_ATTRS);

	if (dma_mapping_error(dev, mapped))
		return -EIO;
	*dma = mapped;
	return 0;
}

/* Does not sleep. */
void nvpm_dma_unmap(struct device *dev, uint64_t dma, uint64_t length)
{
	dma_unmap_resource(dev, dma, length, DMA_BIDIRECTIONAL, NVPM_DMA_ATTRS);
}
