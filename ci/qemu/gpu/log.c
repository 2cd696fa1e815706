// SPDX-License-Identifier: GPL-2.0
/*
 * What was allocated, in the files allocations and chunks: the last 256, oldest first.
 *
 * id=7 pid=123 comm=ib_write_bw gpu=0 va=0x7f0000200000 size=131072
 *   backing=2097152 layout=1 state=live crc_alloc=1a2b3c4d crc_free=-
 * id is the handle. state is live, kept (freed by its owner, held by a persistent
 * pin or a dma-buf) or freed. The CRC-32 (zlib's) is of exactly size bytes, after
 * the random pattern was written and when the memory is given back; "-" where
 * there is none. chunks has the same for each 64 KiB: id=7 chunk=0 crc_alloc=...
 */
#include <linux/crc32.h>
#include <linux/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "nvlab.h"

#define LOG_MAX		256

struct nvlab_log {
	struct list_head node;
	u64 id;
	u64 va;
	u64 size;
	u64 backing;
	u32 gpu;
	u32 layout;
	u32 tgid;
	char comm[TASK_COMM_LEN];
	enum nvlab_log_state state;
	u32 crc[2];		/* at allocation, at free */
	bool has[2];
	u32 chunks;
	u32 *chunk[2];
};

static const char * const state_names[] = { "live", "kept", "freed" };

static LIST_HEAD(log_list);
static unsigned int log_count;
static DEFINE_MUTEX(log_lock);

static void log_drop(struct nvlab_log *log)
{
	list_del(&log->node);
	log_count--;
	kvfree(log->chunk[0]);
	kvfree(log->chunk[1]);
	kfree(log);
}

static void log_crc(struct nvlab_log *log, struct nvlab_mem *mem, int when)
{
	u64 left = log->size;
	u32 all = ~0, i;

	if (!log->chunks)
		return;
	for (i = 0; left; i++) {
		u64 len = min(left, NVLAB_GPU_PAGE);
		const u8 *p = nvlab_mem_kva(mem, i);

		all = crc32_le(all, p, len);
		log->chunk[when][i] = ~crc32_le(~0, p, len);
		left -= len;
		cond_resched();
	}
	log->crc[when] = ~all;
	log->has[when] = true;
}

struct nvlab_log *nvlab_log_alloc(struct nvlab_mem *mem, u64 va)
{
	struct nvlab_log *log, *old, *next;

	log = kzalloc_obj(*log);
	if (!log)
		return ERR_PTR(-ENOMEM);
	log->id = mem->id;
	log->va = va;
	log->size = mem->size;
	log->backing = mem->backing;
	log->gpu = mem->gpu->index;
	log->layout = mem->layout;
	log->tgid = nvlab_tgid();
	get_task_comm(log->comm, current);
	if (mem->size <= nvlab_config(NVLAB_C_CRC_MAX)) {
		log->chunks = DIV_ROUND_UP(mem->size, NVLAB_GPU_PAGE);
		log->chunk[0] = kvcalloc(log->chunks, sizeof(u32), GFP_KERNEL);
		log->chunk[1] = kvcalloc(log->chunks, sizeof(u32), GFP_KERNEL);
		if (!log->chunk[0] || !log->chunk[1]) {
			kvfree(log->chunk[0]);
			kvfree(log->chunk[1]);
			kfree(log);
			return ERR_PTR(-ENOMEM);
		}
		log_crc(log, mem, 0);
	}
	mutex_lock(&log_lock);
	list_add_tail(&log->node, &log_list);
	log_count++;
	list_for_each_entry_safe(old, next, &log_list, node) {
		if (log_count <= LOG_MAX)
			break;
		if (old->state == NVLAB_FREED)
			log_drop(old);
	}
	mutex_unlock(&log_lock);
	return log;
}

void nvlab_log_state(struct nvlab_log *log, enum nvlab_log_state state)
{
	mutex_lock(&log_lock);
	log->state = state;
	mutex_unlock(&log_lock);
}

void nvlab_log_free(struct nvlab_mem *mem)
{
	mutex_lock(&log_lock);
	log_crc(mem->log, mem, 1);
	mem->log->state = NVLAB_FREED;
	mutex_unlock(&log_lock);
	mem->log = NULL;
}

static void crc_show(struct seq_file *s, const char *name, bool has, u32 crc)
{
	if (has)
		seq_printf(s, " %s=%08x", name, crc);
	else
		seq_printf(s, " %s=-", name);
}

static int allocations_show(struct seq_file *s, void *unused)
{
	struct nvlab_log *log;

	mutex_lock(&log_lock);
	list_for_each_entry(log, &log_list, node) {
		char comm[TASK_COMM_LEN];

		strscpy(comm, log->comm);
		strreplace(comm, ' ', '_');
		seq_printf(s, "id=%llu pid=%u comm=%s gpu=%u va=%#llx size=%llu backing=%llu layout=%u state=%s",
			   log->id, log->tgid, comm, log->gpu, log->va,
			   log->size, log->backing, log->layout,
			   state_names[log->state]);
		crc_show(s, "crc_alloc", log->has[0], log->crc[0]);
		crc_show(s, "crc_free", log->has[1], log->crc[1]);
		seq_putc(s, '\n');
	}
	mutex_unlock(&log_lock);
	return 0;
}

static int chunks_show(struct seq_file *s, void *unused)
{
	struct nvlab_log *log;
	u32 i;

	mutex_lock(&log_lock);
	list_for_each_entry(log, &log_list, node) {
		for (i = 0; i < log->chunks; i++) {
			seq_printf(s, "id=%llu chunk=%u", log->id, i);
			crc_show(s, "crc_alloc", log->has[0], log->chunk[0][i]);
			crc_show(s, "crc_free", log->has[1], log->chunk[1][i]);
			seq_putc(s, '\n');
		}
	}
	mutex_unlock(&log_lock);
	return 0;
}

const struct nvlab_file nvlab_allocations_file = { "allocations", allocations_show, NULL };
const struct nvlab_file nvlab_chunks_file = { "chunks", chunks_show, NULL };

void nvlab_log_exit(void)
{
	struct nvlab_log *log, *next;

	list_for_each_entry_safe(log, next, &log_list, node)
		log_drop(log);
}
