// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/nvlab_gdr: a second in-kernel user of nvidia_p2p_*, so that tests can
 * have pins that are not ours in the same process (docs/facts.md#put: a stale
 * put releases whatever has the same key address).
 *
 * Models gdrdrv as far as pins go: revocable and persistent ones, put by the
 * process that asks, at the latest when the file is closed. After the callback
 * the table is not touched any more, and put is not called. A put that
 * succeeded proves nothing (docs/facts.md#processes: the callback may still be
 * armed), so what the callback would touch is kept for a while.
 *
 * Also a DMA engine: a single access of any PCI device over the lab's fabric, to
 * show what the fabric and the GPU answer without a NIC's whole stack; and an
 * importer of dma-bufs that only attaches.
 *
 * Left out: mapping the BAR into the process. One lock per file guards what the
 * callback changes; it is never held over a call of the provider.
 */
#include <linux/dma-buf.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "lab_pcie.h"
#include "nvlab_uapi.h"
#include "nv_p2p.h"

#if KERNEL_VERSION(6, 13, 0) > LINUX_VERSION_CODE
MODULE_IMPORT_NS(DMA_BUF);
#else
MODULE_IMPORT_NS("DMA_BUF");
#endif

struct gdr_file {
	struct mutex lock;	/* over every ioctl of this file */
	struct list_head pins;
	u64 last;
};

struct gdr_pin {
	struct list_head node;
	u64 handle;
	u64 va;
	bool persistent;
	bool reenter;
	int reentry;
	struct nvidia_p2p_page_table *table;
	struct nvidia_p2p_dma_mapping *mapping;
	struct pci_dev *peer;
	atomic_t callbacks;
};

#define BURIED_MAX	1024

static LIST_HEAD(buried);	/* put, oldest last; under buried_lock */
static unsigned int buried_count;
static DEFINE_MUTEX(buried_lock);

static void gdr_revoked(void *data)
{
	struct gdr_pin *pin = data;
	struct nvidia_p2p_page_table *table;

	if (pin->reenter)
		pin->reentry = nvidia_p2p_get_pages(0, 0, pin->va,
						    NVLAB_GPU_PAGE, &table,
						    gdr_revoked, pin);
	atomic_inc(&pin->callbacks);
}

static struct gdr_pin *pin_find(struct gdr_file *f, u64 handle)
{
	struct gdr_pin *pin;

	list_for_each_entry(pin, &f->pins, node)
		if (pin->handle == handle)
			return pin;
	return NULL;
}

static int pin_new(struct gdr_file *f, struct nvlab_gdr_pin *req)
{
	struct gdr_pin *pin;
	int err;

	if (req->flags & ~(NVLAB_GDR_PERSISTENT | NVLAB_GDR_REENTER | NVLAB_GDR_FORCE_PCIE))
		return -EINVAL;
	pin = kzalloc_obj(*pin);
	if (!pin)
		return -ENOMEM;
	pin->va = req->va;
	pin->persistent = req->flags & NVLAB_GDR_PERSISTENT;
	pin->reenter = req->flags & NVLAB_GDR_REENTER;
	err = pin->persistent ?
	      nvidia_p2p_get_pages_persistent(req->va, req->len, &pin->table,
					      !!(req->flags & NVLAB_GDR_FORCE_PCIE)) :
	      nvidia_p2p_get_pages(0, 0, req->va, req->len, &pin->table,
				   gdr_revoked, pin);
	if (err) {
		kfree(pin);
		return err;
	}
	req->table = (unsigned long)pin->table;
	/* A callback that ran meanwhile took the table with it. */
	if (!atomic_read(&pin->callbacks) && pin->table->entries) {
		req->entries = pin->table->entries;
		req->first = pin->table->pages[0]->physical_address;
	}
	pin->handle = ++f->last;
	req->handle = pin->handle;
	list_add(&pin->node, &f->pins);
	return 0;
}

static void pin_unmap(struct gdr_pin *pin)
{
	if (pin->mapping && !atomic_read(&pin->callbacks))
		nvidia_p2p_dma_unmap_pages(pin->peer, pin->table,
					   pin->mapping);
	pin->mapping = NULL;
	pci_dev_put(pin->peer);
	pin->peer = NULL;
}

static int pin_end(struct gdr_pin *pin)
{
	int err = 0;

	pin_unmap(pin);
	if (pin->persistent)
		err = nvidia_p2p_put_pages_persistent(pin->va, pin->table, 0);
	else if (!atomic_read(&pin->callbacks))
		err = nvidia_p2p_put_pages(0, 0, pin->va, pin->table);
	list_del(&pin->node);
	if (pin->persistent || atomic_read(&pin->callbacks)) {
		kfree(pin);
		return err;
	}
	mutex_lock(&buried_lock);
	list_add(&pin->node, &buried);
	if (++buried_count > BURIED_MAX) {
		pin = list_last_entry(&buried, struct gdr_pin, node);
		list_del(&pin->node);
		kfree(pin);
		buried_count--;
	}
	mutex_unlock(&buried_lock);
	return err;
}

static struct pci_dev *peer_get(u32 domain, u32 bus, u32 device, u32 function)
{
	return pci_get_domain_bus_and_slot(domain, bus,
					   PCI_DEVFN(device, function));
}

static int dma_once(struct nvlab_gdr_dma *req)
{
	struct pci_dev *peer;
	int err;

	if (req->len > NVLAB_GDR_DMA_MAX)
		return -EINVAL;
	peer = peer_get(req->domain, req->bus, req->device, req->function);
	if (!peer)
		return -ENODEV;
	if (req->write)
		err = lab_pcie_write(&peer->dev, req->addr, req->data,
				     req->len);
	else
		err = lab_pcie_read(&peer->dev, req->addr, req->data, req->len);
	pci_dev_put(peer);
	return err;
}

static int attach_once(const struct nvlab_gdr_attach *req)
{
	struct pci_dev *peer = peer_get(req->domain, req->bus, req->device, req->function);
	struct dma_buf_attachment *attachment;
	struct dma_buf *buf;
	int err = 0;

	if (!peer)
		return -ENODEV;
	buf = dma_buf_get(req->fd);
	if (IS_ERR(buf)) {
		pci_dev_put(peer);
		return PTR_ERR(buf);
	}
	attachment = dma_buf_attach(buf, &peer->dev);
	if (IS_ERR(attachment))
		err = PTR_ERR(attachment);
	else
		dma_buf_detach(buf, attachment);
	dma_buf_put(buf);
	pci_dev_put(peer);
	return err;
}

static int pin_map(struct gdr_file *f, struct nvlab_gdr_map *req)
{
	struct gdr_pin *pin = pin_find(f, req->handle);
	int err;

	if (!pin)
		return -ENOENT;
	if (pin->peer || atomic_read(&pin->callbacks))
		return -EBUSY;
	pin->peer = peer_get(req->domain, req->bus, req->device, req->function);
	if (!pin->peer)
		return -ENODEV;
	err = nvidia_p2p_dma_map_pages(pin->peer, pin->table, &pin->mapping);
	if (err) {
		pin->mapping = NULL;
		pin_unmap(pin);
		return err;
	}
	req->entries = pin->mapping->entries;
	req->first = req->entries ? pin->mapping->dma_addresses[0] : 0;
	return 0;
}

union args {
	struct nvlab_gdr_pin pin;
	struct nvlab_handle handle;
	struct nvlab_gdr_state state;
	struct nvlab_gdr_map map;
	struct nvlab_gdr_dma dma;
	struct nvlab_gdr_attach attach;
};

static int dispatch(struct gdr_file *f, unsigned int cmd, union args *a)
{
	struct gdr_pin *pin;

	switch (cmd) {
	case NVLAB_GDR_IOC_PIN:
		return pin_new(f, &a->pin);
	case NVLAB_GDR_IOC_MAP:
		return pin_map(f, &a->map);
	case NVLAB_GDR_IOC_DMA:
		return dma_once(&a->dma);
	case NVLAB_GDR_IOC_ATTACH:
		return attach_once(&a->attach);
	case NVLAB_GDR_IOC_UNPIN:
	case NVLAB_GDR_IOC_UNMAP:
	case NVLAB_GDR_IOC_STATE:
		break;
	default:
		return -ENOTTY;
	}
	/* All three begin with the handle. */
	pin = pin_find(f, a->handle.handle);
	if (!pin)
		return -ENOENT;
	if (cmd == NVLAB_GDR_IOC_UNPIN)
		return pin_end(pin);
	if (cmd == NVLAB_GDR_IOC_UNMAP)
		pin_unmap(pin);
	if (cmd == NVLAB_GDR_IOC_STATE) {
		a->state.callbacks = atomic_read(&pin->callbacks);
		a->state.reentry = pin->reentry;
	}
	return 0;
}

static long gdr_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct gdr_file *f = file->private_data;
	void __user *user = (void __user *)arg;
	union args a = {};
	int err;

	if (_IOC_TYPE(cmd) != 'G' || _IOC_SIZE(cmd) > sizeof(a))
		return -ENOTTY;
	if (copy_from_user(&a, user, _IOC_SIZE(cmd)))
		return -EFAULT;
	mutex_lock(&f->lock);
	err = dispatch(f, cmd, &a);
	mutex_unlock(&f->lock);
	if (!err && (_IOC_DIR(cmd) & _IOC_READ) &&
	    copy_to_user(user, &a, _IOC_SIZE(cmd)))
		err = -EFAULT;
	return err == -ENOTSUPP ? -EOPNOTSUPP : err;
}

static int gdr_open(struct inode *inode, struct file *file)
{
	struct gdr_file *f = kzalloc_obj(*f);

	if (!f)
		return -ENOMEM;
	mutex_init(&f->lock);
	INIT_LIST_HEAD(&f->pins);
	file->private_data = f;
	return 0;
}

static int gdr_release(struct inode *inode, struct file *file)
{
	struct gdr_file *f = file->private_data;
	struct gdr_pin *pin, *next;

	list_for_each_entry_safe(pin, next, &f->pins, node)
		pin_end(pin);
	mutex_destroy(&f->lock);
	kfree(f);
	return 0;
}

static const struct file_operations gdr_fops = {
	.owner = THIS_MODULE,
	.open = gdr_open,
	.release = gdr_release,
	.unlocked_ioctl = gdr_ioctl,
};

static struct miscdevice gdr_node = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvlab_gdr",
	.mode = 0666,
	.fops = &gdr_fops,
};

static int __init gdr_init(void)
{
	return misc_register(&gdr_node);
}
module_init(gdr_init);

static void __exit gdr_exit(void)
{
	struct gdr_pin *pin, *next;

	misc_deregister(&gdr_node);
	list_for_each_entry_safe(pin, next, &buried, node)
		kfree(pin);
}
module_exit(gdr_exit);

MODULE_DESCRIPTION("Lab: a second in-kernel user of nvidia_p2p_*");
MODULE_AUTHOR("nvidia-peermem lab");
MODULE_LICENSE("GPL");
