// SPDX-License-Identifier: GPL-2.0
/*
 * The C half of nvidia-peermem; see shim.h.
 *
 * Both neighbours are referenced weakly, so that the module loads without
 * them and can say what is missing, instead of "Unknown symbol".
 */
#include <linux/capability.h>
#include <linux/dma-mapping.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/rwsem.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include "shim.h"

static_assert(sizeof(NVPM_VERSION) <= IB_PEER_MEMORY_VER_MAX - 1,
	      "the core reads at most 14 characters of version text");

MODULE_VERSION(NVPM_VERSION);
MODULE_SOFTDEP("pre: nvidia ib_uverbs");

static int peerdirect_support;
module_param(peerdirect_support, int, 0444);
MODULE_PARM_DESC(peerdirect_support,
		 "client: 0 = extended [default], 1 = plain, kept for old configuration files");

static int persistent_api_support = 1;
module_param(persistent_api_support, int, 0444);
MODULE_PARM_DESC(persistent_api_support,
		 "pins: 1 = persistent [default], 0 = revocable, persistent for what cannot be revoked");

/*
 * A parameter of its own and no third value of persistent_api_support: NVIDIA's
 * module refuses that, and ignores a parameter that it does not know. So one
 * modprobe.d file serves both modules.
 */
static int revocable_fallback;
module_param(revocable_fallback, int, 0444);
MODULE_PARM_DESC(revocable_fallback,
		 "memory that the GPU driver cannot pin persistently: 0 = refuse [default], 1 = pin revocably; only with persistent_api_support=1");

int nvpm_param_peerdirect_support(void)
{
	return peerdirect_support;
}

int nvpm_param_persistent_api_support(void)
{
	return persistent_api_support;
}

int nvpm_param_revocable_fallback(void)
{
	return revocable_fallback;
}

int nvpm_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void nvpm_module_put(void)
{
	module_put(THIS_MODULE);
}

/* Functions of the neighbours, which may be missing. */

typeof(ib_register_peer_memory_client) ib_register_peer_memory_client __weak;
typeof(ib_unregister_peer_memory_client) ib_unregister_peer_memory_client __weak;
typeof(nvidia_p2p_get_pages) nvidia_p2p_get_pages __weak;
typeof(nvidia_p2p_put_pages) nvidia_p2p_put_pages __weak;
typeof(nvidia_p2p_get_pages_persistent) nvidia_p2p_get_pages_persistent __weak;
typeof(nvidia_p2p_put_pages_persistent) nvidia_p2p_put_pages_persistent __weak;
typeof(nvidia_p2p_dma_map_pages) nvidia_p2p_dma_map_pages __weak;
typeof(nvidia_p2p_dma_unmap_pages) nvidia_p2p_dma_unmap_pages __weak;

/*
 * Their addresses, in data. The address of a weak symbol in code goes through a
 * table of addresses (GOT) on arm64, and its module loader knows no such
 * relocation; for a direct call of a missing one, that of 6.1 stops the kernel.
 */
static struct {
	typeof(ib_register_peer_memory_client) *ib_register_peer_memory_client;
	typeof(ib_unregister_peer_memory_client) *ib_unregister_peer_memory_client;
	typeof(nvidia_p2p_get_pages) *nvidia_p2p_get_pages;
	typeof(nvidia_p2p_put_pages) *nvidia_p2p_put_pages;
	typeof(nvidia_p2p_get_pages_persistent) *nvidia_p2p_get_pages_persistent;
	typeof(nvidia_p2p_put_pages_persistent) *nvidia_p2p_put_pages_persistent;
	typeof(nvidia_p2p_dma_map_pages) *nvidia_p2p_dma_map_pages;
	typeof(nvidia_p2p_dma_unmap_pages) *nvidia_p2p_dma_unmap_pages;
} nvpm_neighbours __ro_after_init = {
	.ib_register_peer_memory_client = ib_register_peer_memory_client,
	.ib_unregister_peer_memory_client = ib_unregister_peer_memory_client,
	.nvidia_p2p_get_pages = nvidia_p2p_get_pages,
	.nvidia_p2p_put_pages = nvidia_p2p_put_pages,
	.nvidia_p2p_get_pages_persistent = nvidia_p2p_get_pages_persistent,
	.nvidia_p2p_put_pages_persistent = nvidia_p2p_put_pages_persistent,
	.nvidia_p2p_dma_map_pages = nvidia_p2p_dma_map_pages,
	.nvidia_p2p_dma_unmap_pages = nvidia_p2p_dma_unmap_pages,
};

/* READ_ONCE() keeps the compiler from looking behind the pointer. */
#define NVPM_AT(f) READ_ONCE(nvpm_neighbours.f)

/* x86 calls directly: an indirect call would need an ENDBR in the other module. */
#ifdef CONFIG_ARM64
#define NVPM_CALL(f) NVPM_AT(f)
#else
#define NVPM_CALL(f) f
#endif

/* The peer-memory core. */

int nvpm_core_present(void)
{
	return NVPM_AT(ib_register_peer_memory_client) &&
	       NVPM_AT(ib_unregister_peer_memory_client);
}

/*
 * Whether ib_uverbs, which exports the API in DOCA-OFED, is loaded. find_module()
 * is not exported; our own entry in /sys/module leads to all others.
 */
int nvpm_uverbs_loaded(void)
{
	struct kset *modules = THIS_MODULE->mkobj.kobj.kset;
	struct kobject *entry;
	int found = IS_BUILTIN(CONFIG_INFINIBAND_USER_ACCESS);

	spin_lock(&modules->list_lock);
	list_for_each_entry(entry, &modules->list, entry)
		found |= !strcmp(kobject_name(entry), "ib_uverbs");
	spin_unlock(&modules->list_lock);
	return found;
}

void *nvpm_core_register(const struct peer_memory_client *client,
			 invalidate_peer_memory *invalidate)
{
	return NVPM_CALL(ib_register_peer_memory_client)(client, invalidate);
}

void nvpm_core_unregister(void *handle)
{
	NVPM_CALL(ib_unregister_peer_memory_client)(handle);
}

/* The provider. */

int nvpm_provider_present(void)
{
	return NVPM_AT(nvidia_p2p_get_pages) && NVPM_AT(nvidia_p2p_put_pages) &&
	       NVPM_AT(nvidia_p2p_dma_map_pages) && NVPM_AT(nvidia_p2p_dma_unmap_pages);
}

int nvpm_p2p_get(uint64_t va, uint64_t length,
		 struct nvidia_p2p_page_table **table, uint64_t ticket)
{
	return NVPM_CALL(nvidia_p2p_get_pages)(0, 0, va, length, table, nvpm_free_callback,
				    (void *)(uintptr_t)ticket);
}

int nvpm_p2p_put(uint64_t va, struct nvidia_p2p_page_table *table)
{
	return NVPM_CALL(nvidia_p2p_put_pages)(0, 0, va, table);
}

/* A driver without the persistent API answers like a platform without it. */
int nvpm_p2p_get_persistent(uint64_t va, uint64_t length,
			    struct nvidia_p2p_page_table **table)
{
	if (!NVPM_AT(nvidia_p2p_get_pages_persistent) ||
	    !NVPM_AT(nvidia_p2p_put_pages_persistent))
		return -ENOTSUPP;
	return NVPM_CALL(nvidia_p2p_get_pages_persistent)(va, length, table, 0);
}

int nvpm_p2p_put_persistent(uint64_t va, struct nvidia_p2p_page_table *table)
{
	return NVPM_CALL(nvidia_p2p_put_pages_persistent)(va, table, 0);
}

/* @dev must be a PCI device: nvpm_device_is_pci() is asked first. */
int nvpm_p2p_dma_map(struct device *dev, struct nvidia_p2p_page_table *table,
		     struct nvidia_p2p_dma_mapping **mapping)
{
	return NVPM_CALL(nvidia_p2p_dma_map_pages)(to_pci_dev(dev), table, mapping);
}

int nvpm_p2p_dma_unmap(struct device *dev, struct nvidia_p2p_page_table *table,
		       struct nvidia_p2p_dma_mapping *mapping)
{
	return NVPM_CALL(nvidia_p2p_dma_unmap_pages)(to_pci_dev(dev), table, mapping);
}

/*
 * The put gate. A semaphore and not a mutex: gets of different processes run
 * in parallel.
 */

static DECLARE_RWSEM(nvpm_g);

void nvpm_g_lock_shared(void)
{
	down_read(&nvpm_g);
}

void nvpm_g_unlock_shared(void)
{
	up_read(&nvpm_g);
}

void nvpm_g_lock_exclusive(void)
{
	down_write(&nvpm_g);
}

void nvpm_g_unlock_exclusive(void)
{
	up_write(&nvpm_g);
}

/* Tasks and time. */

/*
 * A thread group is its number plus the start of its leader: exec by another
 * thread hands both on, and a reused number comes with another start. (struct
 * pid would say it in one word, but put_pid() is a GPL-only export.)
 */
void nvpm_current_process(struct nvpm_process *process)
{
	process->tgid = current->tgid;
	process->start_ns = READ_ONCE(current->group_leader)->start_boottime;
}

void nvpm_current_comm(uint8_t comm[16])
{
	static_assert(TASK_COMM_LEN == 16);

	/* The kernel pads it with zeros. A rename in between mixes two names. */
	memcpy(comm, current->comm, TASK_COMM_LEN);
	comm[TASK_COMM_LEN - 1] = 0;
}

/* To be compared only, and only while that task runs. */
uint64_t nvpm_current_task(void)
{
	return (uintptr_t)current;
}

/* ktime_get() is a GPL-only export, this is not. */
uint64_t nvpm_now_ns(void)
{
	struct timespec64 now;

	ktime_get_raw_ts64(&now);
	return timespec64_to_ns(&now);
}

uint64_t nvpm_real_ns(void)
{
	struct timespec64 now;

	ktime_get_real_ts64(&now);
	return timespec64_to_ns(&now);
}

void nvpm_cond_resched(void)
{
	cond_resched();
}

int nvpm_is_killed(void)
{
	return fatal_signal_pending(current);
}

/* DMA. */

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

/* Never under a state lock: an IOMMU driver may allocate page tables. */
int nvpm_dma_map(struct device *dev, uint64_t address, uint64_t length,
		 uint64_t *dma)
{
	dma_addr_t mapped = dma_map_resource(dev, address, length,
					     DMA_BIDIRECTIONAL, 0);

	if (dma_mapping_error(dev, mapped))
		return -EIO;
	*dma = mapped;
	return 0;
}

/* Does not sleep. */
void nvpm_dma_unmap(struct device *dev, uint64_t dma, uint64_t length)
{
	dma_unmap_resource(dev, dma, length, DMA_BIDIRECTIONAL, 0);
}

/* sg_table. */

/* Most tables have one entry. It lies beside the head: no second allocation. */
struct nvpm_sg_table {
	struct sg_table head;
	struct scatterlist first;
};

/* A table of exactly @entries, orig_nents == nents; NULL without memory. */
struct sg_table *nvpm_sg_alloc(uint32_t entries)
{
	struct nvpm_sg_table *table = kmalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return NULL;
	if (entries == 1) {
		sg_init_table(&table->first, 1);
		table->head.sgl = &table->first;
		table->head.nents = 1;
		table->head.orig_nents = 1;
	} else if (sg_alloc_table(&table->head, entries, GFP_KERNEL)) {
		kfree(table);
		return NULL;
	}
	return &table->head;
}

void nvpm_sg_free(struct sg_table *head)
{
	struct nvpm_sg_table *table =
		container_of(head, struct nvpm_sg_table, head);

	if (head->sgl != &table->first)
		sg_free_table(head);
	kfree(table);
}

struct scatterlist *nvpm_sg_first(struct sg_table *table)
{
	return table->sgl;
}

/*
 * Fills one entry and returns the next, NULL behind the last. There is no
 * struct page behind it, so the CPU's length is 0 and only the DMA length is
 * set: ib_umem_copy_from() of a queue's umem then copies nothing, where it
 * would follow the missing page for as long as the CPU's length says.
 */
#ifndef CONFIG_NEED_SG_DMA_LENGTH
#error "sg_dma_len() is the CPU's length on this architecture"
#endif

struct scatterlist *nvpm_sg_set(struct scatterlist *entry, uint64_t dma,
				uint32_t length)
{
	entry->offset = 0;
	entry->length = 0;
	sg_dma_address(entry) = dma;
	sg_dma_len(entry) = length;
	return sg_next(entry);
}

void nvpm_sg_publish(struct sg_table *to, const struct sg_table *from)
{
	*to = *from;
}

/* /proc/driver/nvidia-peermem. */

static struct proc_dir_entry *nvpm_proc;

void nvpm_proc_write(struct seq_file *seq, const uint8_t *text, size_t length)
{
	seq_write(seq, text, length);
}

static int nvpm_stats_show(struct seq_file *seq, void *unused)
{
	nvpm_proc_stats(seq);
	return 0;
}

static u32 nvpm_list(struct seq_file *seq)
{
	return (unsigned long)seq->private;
}

static void *nvpm_rows_seek(struct seq_file *seq, loff_t *pos)
{
	u64 at = *pos;

	if (!nvpm_proc_seek(nvpm_list(seq), &at))
		return NULL;
	*pos = at;
	return pos;
}

static void *nvpm_rows_start(struct seq_file *seq, loff_t *pos)
{
	return nvpm_rows_seek(seq, pos);
}

static void *nvpm_rows_next(struct seq_file *seq, void *v, loff_t *pos)
{
	++*pos;
	return nvpm_rows_seek(seq, pos);
}

static int nvpm_rows_show(struct seq_file *seq, void *v)
{
	nvpm_proc_row(nvpm_list(seq), *(loff_t *)v, seq);
	return 0;
}

static void nvpm_rows_stop(struct seq_file *seq, void *v)
{
}

static const struct seq_operations nvpm_rows = {
	.start = nvpm_rows_start,
	.next = nvpm_rows_next,
	.stop = nvpm_rows_stop,
	.show = nvpm_rows_show,
};

/* The mode is not enough: uid 0 of a container would see everybody's processes and addresses. */
static int nvpm_rows_open(struct file *file, unsigned long list)
{
	int ret;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = seq_open(file, &nvpm_rows);
	if (!ret)
		((struct seq_file *)file->private_data)->private = (void *)list;
	return ret;
}

/*
 * pde_data() is PDE_DATA() before 5.17, and some kernels of distributions have the new name
 * earlier. So no file needs it: each has its own open().
 */
#define NVPM_ROWS_FILE(name, list)						\
static int nvpm_##name##_open(struct inode *inode, struct file *file)	\
{										\
	return nvpm_rows_open(file, list);					\
}										\
static const struct proc_ops nvpm_##name##_ops = {				\
	.proc_open = nvpm_##name##_open,					\
	.proc_read_iter = seq_read_iter,					\
	.proc_lseek = seq_lseek,						\
	.proc_release = seq_release,						\
}

NVPM_ROWS_FILE(registrations, NVPM_PROC_REGISTRATIONS);
NVPM_ROWS_FILE(failures, NVPM_PROC_FAILURES);
NVPM_ROWS_FILE(callbacks, NVPM_PROC_CALLBACKS);

/* Returns 0 or -ENOMEM, and leaves nothing behind then. */
int nvpm_proc_create(void)
{
	nvpm_proc = proc_mkdir("driver/nvidia-peermem", NULL);
	if (!nvpm_proc)
		return -ENOMEM;
	if (proc_create_single("stats", 0444, nvpm_proc, nvpm_stats_show) &&
	    proc_create("registrations", 0400, nvpm_proc, &nvpm_registrations_ops) &&
	    proc_create("failures", 0400, nvpm_proc, &nvpm_failures_ops) &&
	    proc_create("callbacks", 0400, nvpm_proc, &nvpm_callbacks_ops))
		return 0;
	nvpm_proc_remove();
	return -ENOMEM;
}

/* Waits until nobody reads any more. */
void nvpm_proc_remove(void)
{
	proc_remove(nvpm_proc);
}
