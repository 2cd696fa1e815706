// SPDX-License-Identifier: GPL-2.0
/*
 * lab_pcie: the PCIe fabric between the lab's software NIC and the BARs of its
 * software GPUs. What it models and what it leaves out: lab_pcie.h.
 *
 * BARs are looked up under RCU, so that an access may come from any context
 * but hard interrupt; lab_pcie_remove_bar() waits for a grace period. The
 * per-initiator counters live in a fixed table: the access path allocates
 * nothing, so fault injection cannot change what it does.
 */
#define pr_fmt(fmt) "lab_pcie: " fmt

#include <linux/debugfs.h>
#include <linux/device.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/rculist.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "lab_pcie.h"

#define MAX_INITIATORS	16
/* No IOMMU page is smaller: one translation is good up to here. */
#define TRANSLATION_SIZE	SZ_4K

struct initiator {
	char name[32];
	atomic64_t read_bytes, write_bytes;
	atomic64_t reads, writes, atomics;
	atomic64_t faults;	/* not translated by the IOMMU */
	atomic64_t unclaimed;	/* translated, but no BAR there */
	atomic64_t refused;	/* the endpoint said no */
};

struct bar {
	struct list_head list;
	struct rcu_head rcu;
	struct pci_dev *pdev;	/* NULL: coherent memory, no BAR */
	int number;
	phys_addr_t start;
	size_t size;
	void *kva;
	const struct lab_pcie_bar_ops *ops;
	void *priv;
	atomic64_t read_bytes, write_bytes;
};

static LIST_HEAD(bars);
static DEFINE_MUTEX(bars_lock);	/* writers of bars */

static struct initiator initiators[MAX_INITIATORS];
static DEFINE_SPINLOCK(initiators_lock);	/* taking a free slot */

/*
 * Returns the counters of a device. The last slot collects all devices that found no slot of their
 * own.
 */
static struct initiator *find_initiator(struct device *dev)
{
	const char *name = dev_name(dev);
	struct initiator *slot;
	unsigned long flags;
	int i;

	for (i = 0; i < MAX_INITIATORS; i++)
		if (!strncmp(initiators[i].name, name, sizeof(slot->name) - 1))
			return &initiators[i];

	spin_lock_irqsave(&initiators_lock, flags);
	for (i = 0; i < MAX_INITIATORS - 1; i++) {
		slot = &initiators[i];
		if (!slot->name[0])
			strscpy(slot->name, name);
		if (!strncmp(slot->name, name, sizeof(slot->name) - 1))
			goto out;
	}
	slot = &initiators[MAX_INITIATORS - 1];
	strscpy(slot->name, "others");
out:
	spin_unlock_irqrestore(&initiators_lock, flags);
	return slot;
}

/*
 * Returns the address behind the initiator's IOMMU. 0 is "not translated" to the IOMMU API, too.
 * Without an IOMMU the bus address is the CPU's physical address, as on every x86 machine;
 * elsewhere a host bridge may add an offset.
 */
static phys_addr_t translate(struct device *dev, dma_addr_t addr)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain ? iommu_iova_to_phys(domain, addr) : addr;
}

static struct bar *find_bar(phys_addr_t addr)
{
	struct bar *bar;

	list_for_each_entry_rcu(bar, &bars, list)
		if (addr >= bar->start && addr - bar->start < bar->size)
			return bar;
	return NULL;
}

/*
 * Finds the endpoint that answers at @addr, and where its memory is. *len is cut to what one answer
 * covers. Called under RCU. The endpoint has agreed when this returns 0.
 */
static int claim(struct device *dev, struct initiator *who, dma_addr_t addr,
		 size_t *len, bool write, struct bar **bar, void **memory)
{
	phys_addr_t phys = translate(dev, addr);
	u64 offset;
	int ret;

	*len = min_t(size_t, *len,
		     TRANSLATION_SIZE - (addr & (TRANSLATION_SIZE - 1)));
	if (!phys) {
		atomic64_inc(&who->faults);
		pr_info_ratelimited("DMAR fault: %s %s %pad, %zu bytes: not mapped for this device\n",
				    dev_name(dev), write ? "writes" : "reads",
				    &addr, *len);
		return -EFAULT;
	}
	*bar = find_bar(phys);
	if (!*bar) {
		atomic64_inc(&who->unclaimed);
		pr_info_ratelimited("unclaimed: %s %s %pad (physical %pa), %zu bytes: no BAR there\n",
				    dev_name(dev), write ? "writes" : "reads",
				    &addr, &phys, *len);
		return -EFAULT;
	}
	offset = phys - (*bar)->start;
	*len = min_t(u64, *len, (*bar)->size - offset);
	if ((*bar)->ops && (*bar)->ops->access) {
		ret = (*bar)->ops->access((*bar)->priv, offset, *len, write);
		if (ret) {
			atomic64_inc(&who->refused);
			return ret;
		}
	}
	if ((*bar)->ops && (*bar)->ops->memory)
		*memory = (*bar)->ops->memory((*bar)->priv, offset);
	else
		*memory = (*bar)->kva + offset;
	return 0;
}

static void move(void *dst, const void *src, size_t len)
{
	/* A naturally aligned quadword is one bus transaction. */
	if (len == 8 && IS_ALIGNED((unsigned long)dst, 8) &&
	    IS_ALIGNED((unsigned long)src, 8))
		/* rxe's atomic write comes this way: visible after its predecessors */
		smp_store_release((u64 *)dst, READ_ONCE(*(const u64 *)src));
	else
		memcpy(dst, src, len);
}

static int transfer(struct device *dev, dma_addr_t addr, void *buf, size_t len,
		    bool write)
{
	struct initiator *who;
	struct bar *bar;
	void *memory;
	size_t piece;
	int ret = 0;

	if (WARN_ON_ONCE(!dev))
		return -EINVAL;

	who = find_initiator(dev);
	atomic64_inc(write ? &who->writes : &who->reads);

	rcu_read_lock();
	while (len) {
		piece = len;
		ret = claim(dev, who, addr, &piece, write, &bar, &memory);
		if (ret)
			break;
		if (write) {
			if (memory)
				move(memory, buf, piece);
			atomic64_add(piece, &bar->write_bytes);
			atomic64_add(piece, &who->write_bytes);
		} else {
			if (memory)
				move(buf, memory, piece);
			else
				memset(buf, 0xff, piece);
			atomic64_add(piece, &bar->read_bytes);
			atomic64_add(piece, &who->read_bytes);
		}
		addr += piece;
		buf += piece;
		len -= piece;
	}
	rcu_read_unlock();
	return ret;
}

int lab_pcie_write(struct device *initiator, dma_addr_t addr, const void *buf,
		   size_t len)
{
	return transfer(initiator, addr, (void *)buf, len, true);
}
EXPORT_SYMBOL_GPL(lab_pcie_write);

int lab_pcie_read(struct device *initiator, dma_addr_t addr, void *buf,
		  size_t len)
{
	return transfer(initiator, addr, buf, len, false);
}
EXPORT_SYMBOL_GPL(lab_pcie_read);

int lab_pcie_atomic(struct device *initiator, dma_addr_t addr,
		    enum lab_pcie_atomic_op op, u64 operand, u64 compare,
		    u64 *old)
{
	struct initiator *who;
	size_t len = sizeof(u64);
	struct bar *bar;
	void *memory;
	int ret;

	if (WARN_ON_ONCE(!initiator))
		return -EINVAL;
	if (!IS_ALIGNED(addr, sizeof(u64)))
		return -EINVAL;

	who = find_initiator(initiator);
	atomic64_inc(&who->atomics);

	rcu_read_lock();
	ret = claim(initiator, who, addr, &len, true, &bar, &memory);
	if (!ret) {
		atomic64_t nowhere = ATOMIC64_INIT(-1);
		atomic64_t *word = memory ?: &nowhere;

		if (op == LAB_PCIE_COMPARE_SWAP)
			*old = atomic64_cmpxchg(word, compare, operand);
		else
			*old = atomic64_fetch_add(operand, word);
		atomic64_add(len, &bar->write_bytes);
		atomic64_add(len, &who->write_bytes);
	}
	rcu_read_unlock();
	return ret;
}
EXPORT_SYMBOL_GPL(lab_pcie_atomic);

static int add(struct pci_dev *pdev, int number, phys_addr_t start, size_t size,
	       void *kva, const struct lab_pcie_bar_ops *ops, void *priv)
{
	struct bar *bar, *other;

	bar = kzalloc_obj(*bar);
	if (!bar)
		return -ENOMEM;
	bar->pdev = pdev;
	bar->number = number;
	bar->start = start;
	bar->size = size;
	bar->kva = kva;
	bar->ops = ops;
	bar->priv = priv;

	mutex_lock(&bars_lock);
	list_for_each_entry(other, &bars, list) {
		if (bar->start < other->start + other->size &&
		    other->start < bar->start + bar->size) {
			mutex_unlock(&bars_lock);
			kfree(bar);
			return -EEXIST;
		}
	}
	list_add_tail_rcu(&bar->list, &bars);
	mutex_unlock(&bars_lock);
	return 0;
}

static void remove(struct pci_dev *pdev, int number, phys_addr_t start)
{
	struct bar *bar, *next;

	mutex_lock(&bars_lock);
	list_for_each_entry_safe(bar, next, &bars, list) {
		if (bar->pdev == pdev && bar->number == number &&
		    (pdev || bar->start == start)) {
			list_del_rcu(&bar->list);
			kfree_rcu(bar, rcu);
		}
	}
	mutex_unlock(&bars_lock);
}

int lab_pcie_add_bar(struct pci_dev *pdev, int number, void *kva,
		     const struct lab_pcie_bar_ops *ops, void *priv)
{
	if (number < 0 || number >= PCI_STD_NUM_BARS || !kva ||
	    !(pci_resource_flags(pdev, number) & IORESOURCE_MEM) ||
	    !pci_resource_len(pdev, number))
		return -EINVAL;
	return add(pdev, number, pci_resource_start(pdev, number),
		   pci_resource_len(pdev, number), kva, ops, priv);
}
EXPORT_SYMBOL_GPL(lab_pcie_add_bar);

void lab_pcie_remove_bar(struct pci_dev *pdev, int number)
{
	remove(pdev, number, 0);
	synchronize_rcu();
}
EXPORT_SYMBOL_GPL(lab_pcie_remove_bar);

int lab_pcie_add_memory(phys_addr_t start, size_t size, void *kva,
			const struct lab_pcie_bar_ops *ops, void *priv)
{
	return add(NULL, 0, start, size, kva, ops, priv);
}
EXPORT_SYMBOL_GPL(lab_pcie_add_memory);

void lab_pcie_remove_memory(phys_addr_t start)
{
	remove(NULL, 0, start);
}
EXPORT_SYMBOL_GPL(lab_pcie_remove_memory);

static int stats_show(struct seq_file *s, void *unused)
{
	struct initiator *who;
	struct bar *bar;

	for (who = initiators; who < initiators + MAX_INITIATORS; who++) {
		if (!who->name[0])
			continue;
		seq_printf(s, "initiator %s read_bytes %lld write_bytes %lld reads %lld writes %lld atomics %lld faults %lld unclaimed %lld refused %lld\n",
			   who->name, atomic64_read(&who->read_bytes),
			   atomic64_read(&who->write_bytes),
			   atomic64_read(&who->reads),
			   atomic64_read(&who->writes),
			   atomic64_read(&who->atomics),
			   atomic64_read(&who->faults),
			   atomic64_read(&who->unclaimed),
			   atomic64_read(&who->refused));
	}
	rcu_read_lock();
	list_for_each_entry_rcu(bar, &bars, list) {
		if (!bar->pdev)
			continue;
		seq_printf(s, "bar %s %d start %pa size %zu read_bytes %lld write_bytes %lld\n",
			   pci_name(bar->pdev), bar->number, &bar->start,
			   bar->size, atomic64_read(&bar->read_bytes),
			   atomic64_read(&bar->write_bytes));
	}
	rcu_read_unlock();
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static ssize_t reset_write(struct file *file, const char __user *buf,
			   size_t count, loff_t *pos)
{
	struct initiator *who;
	struct bar *bar;

	for (who = initiators; who < initiators + MAX_INITIATORS; who++) {
		atomic64_set(&who->read_bytes, 0);
		atomic64_set(&who->write_bytes, 0);
		atomic64_set(&who->reads, 0);
		atomic64_set(&who->writes, 0);
		atomic64_set(&who->atomics, 0);
		atomic64_set(&who->faults, 0);
		atomic64_set(&who->unclaimed, 0);
		atomic64_set(&who->refused, 0);
	}
	rcu_read_lock();
	list_for_each_entry_rcu(bar, &bars, list) {
		atomic64_set(&bar->read_bytes, 0);
		atomic64_set(&bar->write_bytes, 0);
	}
	rcu_read_unlock();
	return count;
}

static const struct file_operations reset_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = reset_write,
};

static struct dentry *debugfs_dir;

static int __init lab_pcie_init(void)
{
	debugfs_dir = debugfs_create_dir("lab_pcie", NULL);
	debugfs_create_file("stats", 0400, debugfs_dir, NULL, &stats_fops);
	debugfs_create_file("reset", 0200, debugfs_dir, NULL, &reset_fops);
	return 0;
}

static void __exit lab_pcie_exit(void)
{
	debugfs_remove(debugfs_dir);
}

module_init(lab_pcie_init);
module_exit(lab_pcie_exit);
MODULE_DESCRIPTION("PCIe fabric of the nvidia-peermem lab");
MODULE_LICENSE("GPL");
