// SPDX-License-Identifier: GPL-2.0
/*
 * PCI devices by number, and whose BAR an address lies in; see shim.h.
 */
#include <linux/kernel.h>
#include <linux/pci.h>
#include <linux/spinlock.h>
#include <linux/string.h>

#include "shim.h"

static u64 nvpm_pci_number(struct pci_dev *pdev)
{
	return (u64)pci_domain_nr(pdev->bus) << 16 | pci_dev_id(pdev);
}

/* 0 where @dev is not PCI: the host bridge's number, which no other device has. */
uint64_t nvpm_device_number(struct device *dev)
{
	return dev_is_pci(dev) ? nvpm_pci_number(to_pci_dev(dev)) : 0;
}

static struct resource *nvpm_bar_around(struct pci_dev *pdev, u64 address)
{
	struct resource *res;
	int i;

	for (i = 0; i < PCI_STD_NUM_BARS; i++) {
		res = &pdev->resource[i];
		if ((res->flags & IORESOURCE_MEM) && res->start &&
		    address >= res->start && address <= res->end)
			return res;
	}
	return NULL;
}

static bool nvpm_is_gpu(struct pci_dev *pdev)
{
	struct pci_driver *drv = pci_dev_driver(pdev);

	return drv && !strcmp(drv->name, "nvidia");
}

static int nvpm_gpu_bar(struct pci_dev *pdev, u64 address, struct nvpm_bar *bar)
{
	struct resource *res = nvpm_bar_around(pdev, address);
	struct pci_bus_region bus;

	if (!res)
		return -ENOENT;
	if (!nvpm_is_gpu(pdev))
		return -ENODEV;
	pcibios_resource_to_bus(pdev->bus, &bus, res);
	bar->start = res->start;
	bar->last = res->end;
	bar->bus_offset = bus.start - res->start;
	bar->device = nvpm_pci_number(pdev);
	return 0;
}

/*
 * BARs found so far, each with a reference to its device: a server has hundreds
 * of PCI functions, and each registration would walk them. Whether an entry
 * still is a BAR of the provider's device, and where it was, is looked at each
 * time; those whose device is not the provider's go when a new one is entered.
 * The lock orders the entries. A driver and its BARs come and go under the PCI
 * core's locks, not ours; but a pin keeps its GPU's, and an old value of any
 * other leads to the walk, or tells of a BAR in which no pin lies.
 */
static struct {
	spinlock_t lock;
	/* The provider's, for comparing only: another device's may be unloaded. */
	struct pci_driver *driver;
	unsigned int count;
	struct nvpm_known {
		struct pci_dev *pdev;
		struct resource *res;
		struct nvpm_bar bar;
	} found[32];
} nvpm_gpus = {
	.lock = __SPIN_LOCK_UNLOCKED(nvpm_gpus.lock),
};

static int nvpm_known_bar(u64 address, struct nvpm_bar *bar)
{
	const struct nvpm_known *known;
	int ret = -ENOENT;
	unsigned int i;

	spin_lock(&nvpm_gpus.lock);
	for (i = 0; i < nvpm_gpus.count; i++) {
		known = &nvpm_gpus.found[i];
		if (address < known->bar.start || address > known->bar.last)
			continue;
		if (known->res->start != known->bar.start ||
		    known->res->end != known->bar.last ||
		    pci_dev_driver(known->pdev) != nvpm_gpus.driver)
			continue;
		*bar = known->bar;
		ret = 0;
		break;
	}
	spin_unlock(&nvpm_gpus.lock);
	return ret;
}

/* The first one that is no GPU (any more), or any if @all; NULL if there is none. */
static struct pci_dev *nvpm_take_gpu(bool all)
{
	struct pci_dev *taken = NULL;
	unsigned int i;

	spin_lock(&nvpm_gpus.lock);
	for (i = 0; i < nvpm_gpus.count; i++) {
		taken = nvpm_gpus.found[i].pdev;
		if (!all && pci_dev_driver(taken) == nvpm_gpus.driver) {
			taken = NULL;
			continue;
		}
		nvpm_gpus.found[i] = nvpm_gpus.found[--nvpm_gpus.count];
		break;
	}
	spin_unlock(&nvpm_gpus.lock);
	return taken;
}

static void nvpm_drop_gpus(bool all)
{
	struct pci_dev *pdev;

	/* Not under the lock: the last reference may sleep. */
	while ((pdev = nvpm_take_gpu(all)))
		pci_dev_put(pdev);
}

static void nvpm_remember_bar(struct pci_dev *pdev, const struct nvpm_bar *bar)
{
	struct resource *res = nvpm_bar_around(pdev, bar->start);
	unsigned int i;

	nvpm_drop_gpus(false);
	spin_lock(&nvpm_gpus.lock);
	for (i = 0; i < nvpm_gpus.count; i++)
		if (nvpm_gpus.found[i].res == res)
			break;
	if (i < ARRAY_SIZE(nvpm_gpus.found)) {
		nvpm_gpus.driver = pci_dev_driver(pdev);
		nvpm_gpus.found[i].bar = *bar;
		if (i == nvpm_gpus.count) {
			nvpm_gpus.found[i].pdev = pci_dev_get(pdev);
			nvpm_gpus.found[i].res = res;
			nvpm_gpus.count++;
		}
	}
	spin_unlock(&nvpm_gpus.lock);
}

/* For unloading: nobody looks any more. */
void nvpm_forget_gpus(void)
{
	nvpm_drop_gpus(true);
}

/*
 * The BAR around @address, if the provider's driver (named "nvidia", as its
 * module) drives the device that has it. Only the driver of that one device is
 * looked at: its module is loaded, as we use its symbols, while any other
 * could be unloaded under us. May sleep. Returns 0 or -ENODEV.
 */
int nvpm_provider_bar(uint64_t address, struct nvpm_bar *bar)
{
	struct pci_dev *pdev = NULL;
	int ret;

	if (!nvpm_known_bar(address, bar))
		return 0;
	while ((pdev = pci_get_device(PCI_ANY_ID, PCI_ANY_ID, pdev))) {
		ret = nvpm_gpu_bar(pdev, address, bar);
		if (ret == -ENOENT)
			continue;
		if (!ret)
			nvpm_remember_bar(pdev, bar);
		pci_dev_put(pdev);
		return ret;
	}
	return -ENODEV;
}
