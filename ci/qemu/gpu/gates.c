// SPDX-License-Identifier: GPL-2.0
/*
 * The gates of later releases: what keeps a NIC from a GPU's memory that older ones
 * would give it. Built where NVIDIA's own front has them, 580 and later, and in the odd
 * flavour, which asks the topology alone; of the releases between 555 and 580 none was
 * read. Some of the gates are that front's own
 * and run as they are. These here are what it, or the resource manager, asks:
 * - topology: nv_grdma_pci_topology_supported() in kernel-open/nvidia/nv-pci.c of
 *   580.178.04 and 595.99.02. nv-dmabuf.c asks it when a device attaches, and
 *   rm_p2p_dma_map_pages() in src/nvidia/arch/nvalloc/unix/src/osapi.c for memory that
 *   is not coherent. unapproved_chipset sets the flag that RM sets on a chipset that is
 *   not on its list. Without 580's parameter that overrides it, and without the
 *   exception for a GPU that is passed through to a virtual machine.
 * - IOMMU group: nv_pci_is_valid_topology_for_direct_pci(), in the same nv-pci.c, for a
 *   device that attaches to a dma-buf whose mapping is forced to PCIe.
 * - forced PCIe: RmP2PGetPagesPersistent() in src/nvidia/src/kernel/gpu/bus/p2p.c, and
 *   for a dma-buf kbusGetGpuFbPhysAddressForRdma() in kern_bus.c beside it: only a
 *   coherent GPU has it. The refusal of dma_map_pages then is nv-p2p.c's own. The lab's
 *   coherent memory is in no BAR, so a pin that is forced there has the same addresses
 *   as one that is not.
 * - localized memory: RmThirdPartyP2PNVLinkGetPages() in the same p2p.c, and
 *   rm_dma_buf_map_mem_handle() in osapi.c: coherent memory that was allocated as
 *   localized is refused, unless PCIe is forced. A dma-buf's addresses of coherent memory
 *   are fetched at the export, so that is what fails.
 * osapi.c was read at 154199c682f4 of open-gpu-kernel-modules, which is later than 595.
 *
 * Not known: from which release on RM refuses localized memory (p2p.c and kern_bus.c
 * were read in a copy that does not name its release); which allocations are localized;
 * what RM answers to the export of a dma-buf that is forced to PCIe on a GPU that is not
 * coherent: here it is made, and nobody can attach to it.
 */
#include "os-interface.h"
#include "nv-linux.h"
#include "nv-p2p.h"

#include "nvlab.h"
#include "front.h"

NvBool nv_pci_has_common_pci_switch(nv_state_t *nv, struct pci_dev *peer)
{
	struct pci_dev *above = pci_upstream_bridge(to_pci_dev(nv->dma_dev->dev)), *port;

	for (; above; above = pci_upstream_bridge(above))
		for (port = pci_upstream_bridge(peer); port; port = pci_upstream_bridge(port))
			if (port == above)
				return NV_TRUE;
	return NV_FALSE;
}

NvBool NV_API_CALL nv_grdma_pci_topology_supported(nv_state_t *nv, nv_dma_device_t *peer)
{
	return nv->coherent || !nvlab_config(NVLAB_C_UNAPPROVED_CHIPSET) ||
	       nv_pci_has_common_pci_switch(nv, to_pci_dev(peer->dev));
}

NvBool nv_pci_is_valid_topology_for_direct_pci(nv_state_t *nv, struct pci_dev *peer)
{
	struct device *gpu = nv->dma_dev->dev;

	if (!nv->coherent)
		return NV_FALSE;
	if (gpu->iommu_group == peer->dev.iommu_group)
		return NV_TRUE;
	return !peer->dev.iommu_group && nv_pci_has_common_pci_switch(nv, peer);
}

/* Refuses the CPU's mapping of a dma-buf, which no handle here allows (can_mmap). */
int nv_encode_caching(pgprot_t *prot, NvU32 cache_type, nv_memory_type_t type)
{
	return -EINVAL;
}

NV_STATUS nvlab_gate_map(struct nvlab_gpu *gpu, nv_dma_device_t *peer)
{
	nv_dma_device_t of = dma_device(&gpu->pdev->dev);
	nv_state_t nv = { .dma_dev = &of };

	return nv_grdma_pci_topology_supported(&nv, peer) ? NV_OK : NV_ERR_NOT_SUPPORTED;
}

NV_STATUS nvlab_gate_pin(bool coherent, bool forced)
{
	if (forced)
		return coherent ? NV_OK : NV_ERR_NOT_SUPPORTED;
	return coherent && nvlab_config(NVLAB_C_LOCALIZED) ? NV_ERR_NOT_SUPPORTED : NV_OK;
}
