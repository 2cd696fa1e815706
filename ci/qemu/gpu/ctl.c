// SPDX-License-Identifier: GPL-2.0
/*
 * Device nodes: /dev/nvidiactl (one RM client per open file) and /dev/nvidia<n>
 * (reserves GPU addresses).
 *
 * Models: a GPU address is a mapping of the process that holds no page:
 * mincore succeeds, get_user_pages fails, a load faults (docs/facts.md#cuda);
 * memory is freed when the last reference to the file goes, in the closing
 * task or, as after an interrupted close, in the kernel thread nv_queue
 * (docs/facts.md#exit). The kernel releases a dying process's files last opened
 * first, so the order of opening decides whether a free callback or a put comes
 * first at exit.
 *
 * Left out: NVIDIA's major number 195 and its ioctls, UVM, memory that the CPU
 * may map.
 */
#include <linux/crc32.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/unaligned.h>
#include <linux/version.h>

#include "nvlab.h"

/* kthread_run_worker() had this name before 6.14; Debian's kernel is older. */
#if KERNEL_VERSION(6, 14, 0) > LINUX_VERSION_CODE
#define kthread_run_worker kthread_create_worker
#endif

static struct kthread_worker *nv_queue;

static int ctl_open(struct inode *inode, struct file *file)
{
	struct nvlab_client *client = nvlab_client_open();

	if (IS_ERR(client))
		return PTR_ERR(client);
	file->private_data = client;
	return 0;
}

struct deferred {
	struct kthread_work work;
	struct nvlab_client *client;
};

static void close_deferred(struct kthread_work *work)
{
	struct deferred *d = container_of(work, struct deferred, work);

	nvlab_hold(NVLAB_H_DEFERRED);
	nvlab_client_close(d->client);
	kfree(d);
}

static int ctl_release(struct inode *inode, struct file *file)
{
	struct nvlab_client *client = file->private_data;
	struct deferred *d;

	if (nvlab_config(NVLAB_C_CLOSE_DEFERRED)) {
		d = kmalloc_obj(*d);
		if (d) {
			kthread_init_work(&d->work, close_deferred);
			d->client = client;
			kthread_queue_work(nv_queue, &d->work);
			return 0;
		}
	}
	nvlab_client_close(client);
	return 0;
}

/* Walks through [offset, offset + len) of memory, one 64 KiB page at a time. */
static int walk(struct nvlab_client *client, u64 handle, u64 offset, u64 len,
		int (*step)(u8 *at, u64 len, void *arg), void *arg)
{
	struct nvlab_mem *mem = nvlab_mem_get(client, handle);
	int err = 0;

	if (!mem)
		return -ENOENT;
	if (offset > mem->backing || len > mem->backing - offset)
		err = -EINVAL;
	while (!err && len) {
		u64 in = offset & (NVLAB_GPU_PAGE - 1);
		u64 n = min(len, NVLAB_GPU_PAGE - in);

		err = step(nvlab_mem_kva(mem, offset >> NVLAB_PAGE_SHIFT) + in,
			   n, arg);
		offset += n;
		len -= n;
		if (!err && fatal_signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	nvlab_mem_put(mem);
	return err;
}

static int step_write(u8 *at, u64 len, void *arg)
{
	const u8 __user **user = arg;

	if (copy_from_user(at, *user, len))
		return -EFAULT;
	*user += len;
	return 0;
}

static int step_read(u8 *at, u64 len, void *arg)
{
	u8 __user **user = arg;

	if (copy_to_user(*user, at, len))
		return -EFAULT;
	*user += len;
	return 0;
}

static int step_load(u8 *at, u64 len, void *arg)
{
	u8 **to = arg;

	memcpy(*to, at, len);
	*to += len;
	return 0;
}

static int step_store(u8 *at, u64 len, void *arg)
{
	const u8 **from = arg;

	memcpy(at, *from, len);
	*from += len;
	return 0;
}

static int step_fill(u8 *at, u64 len, void *arg)
{
	const struct nvlab_fill *fill = arg;
	u64 i;

	switch (fill->width) {
	case 1:
		memset(at, fill->value, len);
		break;
	case 2:
		for (i = 0; i < len; i += 2)
			put_unaligned((u16)fill->value, (u16 *)(at + i));
		break;
	default:
		for (i = 0; i < len; i += 4)
			put_unaligned(fill->value, (u32 *)(at + i));
	}
	return 0;
}

static int step_crc(u8 *at, u64 len, void *arg)
{
	u32 *crc = arg;

	*crc = crc32_le(*crc, at, len);
	return 0;
}

static int do_copy(struct nvlab_client *client, struct nvlab_copy_dtod *c)
{
	u8 *buffer = kvmalloc(NVLAB_GPU_PAGE, GFP_KERNEL);
	int err = 0;

	if (!buffer)
		return -ENOMEM;
	while (!err && c->len) {
		u64 n = min(c->len, NVLAB_GPU_PAGE);
		u8 *p = buffer;

		err = walk(client, c->src_handle, c->src_offset, n, step_load,
			   &p);
		p = buffer;
		if (!err)
			err = walk(client, c->dst_handle, c->dst_offset, n,
				   step_store, &p);
		c->src_offset += n;
		c->dst_offset += n;
		c->len -= n;
	}
	kvfree(buffer);
	return err;
}

static int do_info(struct nvlab_info *info)
{
	struct nvlab_gpu *gpu = nvlab_gpu_get(info->gpu);

	info->gpus = nvlab_gpu_count();
	if (!gpu)
		return -ENODEV;
	info->memory = gpu->size;
	info->memory_free = nvlab_memory_free(gpu);
	info->bar1_size = nvlab_bar1_size(gpu);
	memcpy(info->uuid, gpu->uuid, sizeof(info->uuid));
	info->domain = pci_domain_nr(gpu->pdev->bus);
	info->bus = gpu->pdev->bus->number;
	info->device = PCI_SLOT(gpu->pdev->devfn);
	info->function = PCI_FUNC(gpu->pdev->devfn);
	info->dma_buf = NVLAB_HAS_DMA_BUF;
	nvlab_gpu_put(gpu);
	return 0;
}

union args {
	struct nvlab_info info;
	struct nvlab_alloc alloc;
	struct nvlab_handle handle;
	struct nvlab_register reg;
	struct nvlab_copy copy;
	struct nvlab_copy_dtod dtod;
	struct nvlab_fill fill;
	struct nvlab_crc crc;
	struct nvlab_pid pid;
	struct nvlab_export export;
};

static int dispatch(struct nvlab_client *client, unsigned int cmd,
		    union args *a)
{
	u8 __user *user;
	u32 crc = ~0;
	int err;

	switch (cmd) {
	case NVLAB_IOC_INFO:
		return do_info(&a->info);
	case NVLAB_IOC_ALLOC:
		return nvlab_alloc(client, &a->alloc);
	case NVLAB_IOC_FREE:
		return nvlab_free(client, a->handle.handle, false);
	case NVLAB_IOC_UNREGISTER:
		return nvlab_free(client, a->handle.handle, true);
	case NVLAB_IOC_REGISTER:
		return nvlab_register(client, a->reg.handle, a->reg.va);
	case NVLAB_IOC_WRITE:
	case NVLAB_IOC_READ:
		user = u64_to_user_ptr(a->copy.user);
		return walk(client, a->copy.handle, a->copy.offset,
			    a->copy.len,
			    cmd == NVLAB_IOC_WRITE ? step_write : step_read,
			    &user);
	case NVLAB_IOC_COPY:
		return do_copy(client, &a->dtod);
	case NVLAB_IOC_FILL:
		if ((a->fill.width != 1 && a->fill.width != 2 &&
		     a->fill.width != 4) ||
		    (a->fill.len | a->fill.offset) % a->fill.width)
			return -EINVAL;
		return walk(client, a->fill.handle, a->fill.offset,
			    a->fill.len, step_fill, &a->fill);
	case NVLAB_IOC_CRC:
		err = walk(client, a->crc.handle, a->crc.offset, a->crc.len,
			   step_crc, &crc);
		a->crc.crc = ~crc;
		return err;
	case NVLAB_IOC_PID_ADD:
		return nvlab_client_pid(client, a->pid.pid, true);
	case NVLAB_IOC_PID_DEL:
		return nvlab_client_pid(client, a->pid.pid, false);
	case NVLAB_IOC_EXPORT:
		return nvlab_dma_buf_export(client, &a->export);
	}
	return -ENOTTY;
}

static long ctl_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	union args a = {};
	int err;

	if (_IOC_TYPE(cmd) != 'N' || _IOC_SIZE(cmd) > sizeof(a))
		return -ENOTTY;
	if (copy_from_user(&a, user, _IOC_SIZE(cmd)))
		return -EFAULT;
	err = dispatch(file->private_data, cmd, &a);
	if (!err && (_IOC_DIR(cmd) & _IOC_READ) &&
	    copy_to_user(user, &a, _IOC_SIZE(cmd)))
		err = -EFAULT;
	return err;
}

/* Reports no event, because there is none. But the file can be watched, as the real one can. */
static __poll_t ctl_poll(struct file *file, struct poll_table_struct *wait)
{
	return 0;
}

static const struct file_operations ctl_fops = {
	.owner = THIS_MODULE,
	.poll = ctl_poll,
	.open = ctl_open,
	.release = ctl_release,
	.unlocked_ioctl = ctl_ioctl,
};

static struct miscdevice ctl_node = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidiactl",
	.mode = 0666,
	.fops = &ctl_fops,
};

/* --- address reservation --- */

static vm_fault_t reserve_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct reserve_vm_ops = {
	.fault = reserve_fault,
};

static int reserve_mmap(struct file *file, struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_PFNMAP | VM_IO | VM_DONTCOPY | VM_DONTEXPAND |
		     VM_DONTDUMP);
	vma->vm_ops = &reserve_vm_ops;
	return 0;
}

static const struct file_operations reserve_fops = {
	.owner = THIS_MODULE,
	.mmap = reserve_mmap,
};

int nvlab_ctl_add_gpu(struct nvlab_gpu *gpu)
{
	struct miscdevice *node = kzalloc_obj(*node);
	int err;

	if (!node)
		return -ENOMEM;
	node->minor = MISC_DYNAMIC_MINOR;
	node->name = kasprintf(GFP_KERNEL, "nvidia%u", gpu->index);
	node->mode = 0666;
	node->fops = &reserve_fops;
	err = node->name ? misc_register(node) : -ENOMEM;
	if (err) {
		kfree(node->name);
		kfree(node);
		return err;
	}
	gpu->node = node;
	return 0;
}

void nvlab_ctl_remove_gpu(struct nvlab_gpu *gpu)
{
	misc_deregister(gpu->node);
	kfree(gpu->node->name);
	kfree(gpu->node);
}

int nvlab_ctl_init(void)
{
	int err;

	nv_queue = kthread_run_worker(0, "nv_queue");
	if (IS_ERR(nv_queue))
		return PTR_ERR(nv_queue);
	err = misc_register(&ctl_node);
	if (err)
		kthread_destroy_worker(nv_queue);
	return err;
}

void nvlab_ctl_exit(void)
{
	misc_deregister(&ctl_node);
	kthread_destroy_worker(nv_queue);
}
