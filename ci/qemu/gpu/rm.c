// SPDX-License-Identifier: GPL-2.0
/*
 * The resource manager: video memory, clients, pins, and the RM API lock.
 *
 * Models (docs/facts.md#rm-locks, #free-order, #put, #processes, #pages): the
 * RM API lock is exclusive for every call of the peer-to-peer interface, for
 * allocation and for free; a free takes the GPU lock inside it, and so does a
 * get while it maps BAR1, and each put (p2p.c,
 * _createThirdPartyP2PMappingExtent; third_party_p2p.c,
 * _thirdpartyp2pDelMappingInfoByKey); a thread that has the RM API lock and
 * asks for it again is refused. A process is its thread group number. A range
 * is looked up among the objects whose pid list holds the caller's number and
 * must lie inside one registered allocation of one of them: two are an error
 * (p2p.c, RmP2PGetInfoWithoutToken). A pin is found again by the caller's
 * number and the key's address, nothing else: a pin that already has the key in
 * this memory is used again, a put ends each that has it, and a second callback
 * for it is INVALID_STATE (third_party_p2p.c,
 * CliRegisterThirdPartyP2PMappingCallback), which nobody can provoke: whoever
 * has a callback has the key in use. When memory is freed its pins are called
 * one after the other under one hold of the API lock, in the order in which
 * they become the root of a tree by key (CliDelThirdPartyP2PVidmemInfo); after
 * each call the pin is unlinked and its BAR1 space unmapped; then the memory
 * goes, unless a persistent pin holds a duplicate. Freed memory is handed out
 * again at once, lowest address first. BAR1 is mapped by extents (bar1.h):
 * those of a process's revocable pins of an allocation, and those of the
 * allocation's duplicate, which all persistent pins share. What is mapped is
 * counted for each client, and for the driver itself, and the space check of a
 * new extent knows its own count only. A duplicate that fails is no lack of
 * memory to the caller, but -EIO. A dma-buf has each of its handles mapped in
 * one piece, in what BAR1 has free, whatever anybody else has mapped
 * (kern_bus.c, kbusMapFbApertureByHandle). The exports of dma-buf are in
 * front_dmabuf.c. The files named are 555.58.02's, in
 * src/nvidia/src/kernel/gpu/bus.
 *
 * Left out: that BAR1 stays mapped for good where a pin was used again for
 * another range, which goes with the memory here; where NVIDIA's tree (btree.c)
 * has another shape than the kernel's; memory at two addresses at once; MIG,
 * vGPU and confidential computing beyond their error codes; VA spaces and
 * tokens (both must be zero with today's callers, and are ignored); suspend. Of
 * coherent memory: that it is contiguous (no two of its pages of 64 KiB follow
 * one another here), and that a CPU may map it; where it is a BAR's, that its
 * address is its place in video memory, and that it has pages.
 */
#define pr_fmt(fmt) "NVRM: " fmt

#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/prandom.h>
#include <linux/random.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "lab_pcie.h"
#include "nvlab.h"

#define BLOCK_PAGES	(NVLAB_BACKING_SIZE / NVLAB_GPU_PAGE)

/*
 * Coherent memory comes from the kernel in blocks of two pages, and only the first page of a
 * block is used. So no two pages follow one another, and the number of runs of a table does
 * not depend on which blocks the kernel had free.
 */
#define HOST_ORDER	(get_order(NVLAB_GPU_PAGE) + 1)

static DECLARE_RWSEM(api_lock);
static struct task_struct *api_owner;
static u64 api_since_ns;	/* when it was taken; under the RM API lock */
static DEFINE_MUTEX(gpu_lock);

static LIST_HEAD(clients);	/* under the RM API lock */
static LIST_HEAD(dups);		/* under the RM API lock */
static LIST_HEAD(pieces);	/* of dma-bufs; under the RM API lock */
static atomic64_t last_id;

/* One handle: memory at an address, with its revocable pins. */
struct vidmem {
	struct list_head node;
	struct nvlab_mem *mem;
	u64 va;
	u64 len;		/* what can be pinned, a multiple of unit */
	u64 unit;
	bool registered;
	struct rb_root pins;	/* by key; under the RM API lock */
	struct bar1_object extents;	/* under the RM API lock */
};

/* A revocable pin. */
struct pin {
	struct rb_node node;
	void *key;
	u64 va;
	u32 first;
	u32 count;
	u32 tgid;
	void (*callback)(void *data);
	void *data;
};

/* A persistent pin: a duplicate of the memory object. */
struct nvlab_dup {
	struct list_head node;
	struct nvlab_mem *mem;
	void *key;
	u64 va;
	u32 first;
	u32 count;
	u32 tgid;
};

/* --- the RM API lock --- */

int nvlab_api_lock(const char *who)
{
	if (READ_ONCE(api_owner) == current) {
		pr_err("%s: this thread holds the RM API lock already\n", who);
		nvlab_count(NVLAB_ACCOUNT_REENTRIES);
		return -EIO;
	}
	down_write(&api_lock);
	WRITE_ONCE(api_owner, current);
	api_since_ns = ktime_get_ns();
	return 0;
}

int nvlab_api_lock_for(ktime_t *start, const char *who)
{
	u64 asked = ktime_get_ns();
	int err = nvlab_api_lock(who);

	if (!err)
		*start = ktime_add_ns(*start, api_since_ns - asked);
	return err;
}

/* Returns when the RM API lock was taken: what a call spends under it begins there. */
static ktime_t r_since(void)
{
	return ns_to_ktime(api_since_ns);
}

void nvlab_api_unlock(void)
{
	nvlab_add_since(NVLAB_ACCOUNT_API_LOCK_HELD_NS, api_since_ns);
	WRITE_ONCE(api_owner, NULL);
	up_write(&api_lock);
}

void nvlab_gpu_lock(void)
{
	mutex_lock(&gpu_lock);
}

void nvlab_gpu_unlock(void)
{
	mutex_unlock(&gpu_lock);
}

/* --- memory --- */

u64 nvlab_memory_free(struct nvlab_gpu *gpu)
{
	unsigned long all = gpu->size / NVLAB_BACKING_SIZE;
	u64 left;

	mutex_lock(&gpu->mem_lock);
	left = (all - bitmap_weight(gpu->blocks, all)) * NVLAB_BACKING_SIZE;
	mutex_unlock(&gpu->mem_lock);
	return left;
}

u64 nvlab_bar1_size(struct nvlab_gpu *gpu)
{
	u64 size = nvlab_config(NVLAB_C_BAR1_SIZE);

	return size ? min(size, gpu->size) : gpu->size;
}

/*
 * Makes the random state that layout_seed says, so that a test's seed gives the same order again.
 */
static void layout_state(struct rnd_state *state)
{
	u64 seed = nvlab_config(NVLAB_C_LAYOUT_SEED);

	prandom_seed_state(state, seed ?: get_random_u64());
}

static void shuffle(struct nvlab_mem *mem)
{
	struct rnd_state state;
	u32 i, j;

	layout_state(&state);
	for (i = mem->npages - 1; i > 0; i--) {
		j = prandom_u32_state(&state) % (i + 1);
		swap(mem->page[i], mem->page[j]);
	}
}

/* Takes video memory, lowest address first, and lays the pages out in it. */
static int mem_take(struct nvlab_mem *mem)
{
	struct nvlab_gpu *gpu = mem->gpu;
	unsigned long all = gpu->size / NVLAB_BACKING_SIZE;
	unsigned long want = mem->backing / NVLAB_BACKING_SIZE;
	unsigned long at = 0, i, j;

	mutex_lock(&gpu->mem_lock);
	if (mem->layout == NVLAB_LAYOUT_CONTIGUOUS) {
		at = bitmap_find_next_zero_area(gpu->blocks, all, 0, want, 0);
		if (at >= all) {
			mutex_unlock(&gpu->mem_lock);
			return -ENOMEM;
		}
	} else if (all - bitmap_weight(gpu->blocks, all) < want) {
		mutex_unlock(&gpu->mem_lock);
		return -ENOMEM;
	}
	for (i = 0; i < want; i++) {
		/* Descending blocks are never contiguous upwards. */
		unsigned long to = mem->layout == NVLAB_LAYOUT_CONTIGUOUS ?
				   i : want - 1 - i;

		at = find_next_zero_bit(gpu->blocks, all, at);
		__set_bit(at, gpu->blocks);
		for (j = 0; j < BLOCK_PAGES; j++) {
			unsigned long p = mem->layout == NVLAB_LAYOUT_64K ?
					  BLOCK_PAGES - 1 - j : j;

			mem->page[to * BLOCK_PAGES + p] = at * BLOCK_PAGES + j;
		}
	}
	mutex_unlock(&gpu->mem_lock);
	if (mem->layout == NVLAB_LAYOUT_SHUFFLED)
		shuffle(mem);
	return 0;
}

static void mem_give_back(struct nvlab_mem *mem)
{
	struct nvlab_gpu *gpu = mem->gpu;
	u32 i;

	if (mem->host) {
		for (i = 0; i < mem->npages && mem->host[i]; i++)
			lab_pcie_remove_memory(page_to_phys(mem->host[i]));
		synchronize_rcu();
		for (i = 0; i < mem->npages && mem->host[i]; i++)
			__free_pages(mem->host[i], HOST_ORDER);
		kvfree(mem->host_pins);
		kvfree(mem->host);
		return;
	}
	mutex_lock(&gpu->mem_lock);
	for (i = 0; i < mem->npages; i++)
		__clear_bit(mem->page[i] / BLOCK_PAGES, gpu->blocks);
	mutex_unlock(&gpu->mem_lock);
	kvfree(mem->page);
}

/*
 * Counts an access without a live pin, as gpu_access() does for the BAR. @priv is the page's number
 * of live pins.
 */
static int host_access(void *priv, u64 offset, size_t len, bool write)
{
	if (!atomic_read((atomic_t *)priv) &&
	    atomic64_inc_return(&nvlab_accounting[NVLAB_ACCOUNT_VIOLATIONS]) == 1)
		pr_err("VIOLATION: NIC %s of coherent memory, %zu bytes, without a live pin\n",
		       write ? "write" : "read", len);
	return 0;
}

static const struct lab_pcie_bar_ops host_ops = {
	.access = host_access,
};

static int mem_take_host(struct nvlab_mem *mem)
{
	struct page *page;
	int err;
	u32 i;

	for (i = 0; i < mem->npages; i++) {
		page = alloc_pages(GFP_KERNEL | __GFP_COMP, HOST_ORDER);
		if (!page)
			return -ENOMEM;
		err = lab_pcie_add_memory(page_to_phys(page), NVLAB_GPU_PAGE,
					  page_address(page), &host_ops,
					  &mem->host_pins[i]);
		if (err) {
			__free_pages(page, HOST_ORDER);
			return err;
		}
		mem->host[i] = page;
	}
	return 0;
}

/*
 * Fills memory with a pattern that no other has, so that nobody can take stale bytes for new ones.
 */
static void mem_fill(struct nvlab_mem *mem)
{
	u64 x = get_random_u64() | 1;
	u32 i, j;

	for (i = 0; i < mem->npages; i++) {
		u64 *p = (u64 *)nvlab_mem_kva(mem, i);

		for (j = 0; j < NVLAB_GPU_PAGE / sizeof(*p); j++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			p[j] = x;
		}
		cond_resched();
	}
}

static void mem_release(struct kref *ref)
{
	struct nvlab_mem *mem = container_of(ref, struct nvlab_mem, ref);

	nvlab_log_free(mem);
	nvlab_add(NVLAB_ACCOUNT_LIVE_ALLOCATIONS, -1);
	nvlab_add(NVLAB_ACCOUNT_MEMORY_USED, -(s64)mem->backing);
	nvlab_count(NVLAB_ACCOUNT_FREES);
	mem_give_back(mem);
	nvlab_gpu_put(mem->gpu);
	kfree(mem);
}

/*
 * Drops a reference. Not called under the RM API lock: recording what the memory held takes time.
 */
void nvlab_mem_put(struct nvlab_mem *mem)
{
	kref_put(&mem->ref, mem_release);
}

/* Makes memory. Takes over the caller's reference of the GPU. */
static struct nvlab_mem *mem_new(struct nvlab_gpu *gpu, u64 size, u32 layout,
				 u32 coherent, u64 va)
{
	struct nvlab_mem *mem;
	int err = -ENOMEM;

	mem = kzalloc_obj(*mem);
	if (!mem) {
		nvlab_gpu_put(gpu);
		return ERR_PTR(-ENOMEM);
	}
	kref_init(&mem->ref);
	mem->gpu = gpu;
	mem->id = atomic64_inc_return(&last_id);
	mem->size = size;
	mem->backing = ALIGN(size, NVLAB_BACKING_SIZE);
	mem->npages = mem->backing >> NVLAB_PAGE_SHIFT;
	mem->layout = layout;
	mem->coherent = coherent;
	if (coherent == 1) {
		mem->host = kvcalloc(mem->npages, sizeof(*mem->host),
				     GFP_KERNEL);
		if (!mem->host)
			goto free;
		mem->host_pins = kvcalloc(mem->npages, sizeof(*mem->host_pins),
					  GFP_KERNEL);
		if (!mem->host_pins) {
			kvfree(mem->host);
			goto free;
		}
		err = mem_take_host(mem);
		if (err) {
			mem_give_back(mem);
			goto free;
		}
	} else {
		mem->page = kvcalloc(mem->npages, sizeof(*mem->page),
				     GFP_KERNEL);
		if (!mem->page)
			goto free;
		err = mem_take(mem);
		if (err) {
			kvfree(mem->page);
			goto free;
		}
	}
	if (size <= nvlab_config(NVLAB_C_CRC_MAX))
		mem_fill(mem);
	mem->log = nvlab_log_alloc(mem, va);
	if (IS_ERR(mem->log)) {
		err = PTR_ERR(mem->log);
		mem_give_back(mem);
		goto free;
	}
	nvlab_count(NVLAB_ACCOUNT_ALLOCS);
	nvlab_add(NVLAB_ACCOUNT_LIVE_ALLOCATIONS, 1);
	nvlab_add(NVLAB_ACCOUNT_MEMORY_USED, mem->backing);
	return mem;
free:
	nvlab_gpu_put(gpu);
	kfree(mem);
	return ERR_PTR(err);
}

/* --- pins of pages; under the RM API lock --- */

/* A user of BAR1, with the account and the extents that a mapping belongs to. */
struct mapper {
	struct bar1_user *user;
	struct bar1_object *object;
	bool whole;	/* in one piece, and without a reserve */
};

static struct mapper revocable(struct nvlab_client *client, struct vidmem *v)
{
	return (struct mapper){ &client->subdevices[v->mem->gpu->index],
				&v->extents };
}

static struct mapper persistent(struct nvlab_mem *mem)
{
	return (struct mapper){ &mem->gpu->driver, &mem->duplicate };
}

static struct mapper exported(struct nvlab_piece *piece)
{
	return (struct mapper){ &piece->mem->gpu->buffers, &piece->extents, true };
}

static u32 random_number(void *state)
{
	return prandom_u32_state(state);
}

static int bar1_map(struct nvlab_mem *mem, struct mapper by, u32 first,
		    u32 count, u64 *phys)
{
	struct nvlab_gpu *gpu = mem->gpu;
	struct bar1_limit limit = {
		.size = nvlab_bar1_size(gpu) >> NVLAB_PAGE_SHIFT,
		.reserve = by.whole ? 0 :
			   DIV_ROUND_UP(nvlab_config(NVLAB_C_BAR1_RESERVE),
					NVLAB_GPU_PAGE),
	};
	enum bar1_layout layout = mem->layout - NVLAB_LAYOUT_CONTIGUOUS;
	u32 used = gpu->bar1.used, *at, i;
	struct rnd_state state;
	int err;

	if (mem->host) {	/* needs no BAR1 */
		for (i = 0; i < count; i++) {
			atomic_inc(&mem->host_pins[first + i]);
			phys[i] = page_to_phys(mem->host[first + i]);
		}
		return 0;
	}
	if (nvlab_config(NVLAB_C_BAR1_STATIC)) {	/* has all memory already */
		for (i = 0; i < count; i++)
			phys[i] = gpu->start +
				  ((u64)mem->page[first + i] << NVLAB_PAGE_SHIFT);
		return 0;
	}
	if (by.whole || nvlab_config(NVLAB_C_BAR1_CONTIGUOUS))
		layout = BAR1_CONTIGUOUS;
	layout_state(&state);
	at = kvmalloc_array(count, sizeof(*at), GFP_KERNEL);
	if (!at)
		return -ENOMEM;
	err = bar1_pin(&gpu->bar1, by.user, by.object, first, count, mem->page,
		       layout, limit, random_number, &state, at);
	for (i = 0; !err && i < count; i++)
		phys[i] = gpu->start + ((u64)at[i] << NVLAB_PAGE_SHIFT);
	kvfree(at);
	nvlab_add(NVLAB_ACCOUNT_BAR1_USED,
		  (s64)(gpu->bar1.used - used) << NVLAB_PAGE_SHIFT);
	return err;
}

/*
 * Maps memory for a pin. The GPU lock is held until the mapping has taken its time, from @since on.
 */
static int pin_map(struct nvlab_mem *mem, struct mapper by, u32 first, u32 count,
		   u64 *phys, ktime_t since)
{
	int err;

	if (!mem->host)
		nvlab_gpu_lock();
	err = bar1_map(mem, by, first, count, phys);
	if (!err)
		nvlab_spend(since, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB,
			    (u64)count << NVLAB_PAGE_SHIFT, NVLAB_RM_PART);
	if (!mem->host)
		nvlab_gpu_unlock();
	return err;
}

static void bar1_unmap(struct nvlab_mem *mem, struct mapper by, u32 first,
		       u32 count)
{
	struct bar1 *bar1 = &mem->gpu->bar1;
	u32 used = bar1->used, i;

	if (mem->host) {
		for (i = first; i < first + count; i++)
			atomic_dec(&mem->host_pins[i]);
		return;
	}
	bar1_unpin(bar1, by.user, by.object, first, count);
	nvlab_add(NVLAB_ACCOUNT_BAR1_USED,
		  -((s64)(used - bar1->used) << NVLAB_PAGE_SHIFT));
}

/* Unmaps what pins have left: a GPU that was lost takes its mappings along. */
static void vidmem_forget(struct nvlab_client *client, struct vidmem *v)
{
	struct bar1 *bar1 = &v->mem->gpu->bar1;
	struct mapper by = revocable(client, v);
	u32 used = bar1->used;

	bar1_forget(bar1, by.user, by.object);
	nvlab_add(NVLAB_ACCOUNT_BAR1_USED,
		  -((s64)(used - bar1->used) << NVLAB_PAGE_SHIFT));
}

/* --- clients --- */

static bool client_has(struct nvlab_client *client, u32 tgid)
{
	unsigned int i;

	for (i = 0; i < client->npids; i++)
		if (client->pids[i] == tgid)
			return true;
	return false;
}

static void client_forget(struct nvlab_client *client, u32 tgid)
{
	unsigned int i;

	for (i = 0; i < client->npids; i++)
		if (client->pids[i] == tgid)
			client->pids[i--] = client->pids[--client->npids];
}

struct nvlab_client *nvlab_client_open(void)
{
	struct nvlab_client *client;
	int err;

	client = kzalloc_obj(*client);
	if (!client)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&client->vidmems);
	mutex_init(&client->lock);
	client->tgid = nvlab_tgid();
	client->pids[0] = client->tgid;
	client->npids = 1;
	err = nvlab_api_lock("open");
	if (err) {
		kfree(client);
		return ERR_PTR(err);
	}
	list_add_tail(&client->node, &clients);
	nvlab_add(NVLAB_ACCOUNT_LIVE_CLIENTS, 1);
	nvlab_api_unlock();
	return client;
}

int nvlab_client_pid(struct nvlab_client *client, u32 pid, bool add)
{
	int err = nvlab_api_lock("pid list");

	if (err)
		return err;
	if (!add) {
		if (client_has(client, pid))
			client_forget(client, pid);
		else
			err = -ENOENT;
	} else if (client->npids == NVLAB_MAX_PIDS) {
		err = -ENOSPC;
	} else if (client_has(client, pid)) {
		err = -EEXIST;
	} else {
		client->pids[client->npids++] = pid;
	}
	nvlab_api_unlock();
	return err;
}

/* Finds memory by its handle. Called under the RM API lock or the client's lock. */
static struct vidmem *vidmem_find(struct nvlab_client *client, u64 handle)
{
	struct vidmem *v;

	list_for_each_entry(v, &client->vidmems, node)
		if (v->mem->id == handle)
			return v;
	return NULL;
}

struct nvlab_mem *nvlab_mem_get(struct nvlab_client *client, u64 handle)
{
	struct nvlab_mem *mem = NULL;
	struct vidmem *v;

	mutex_lock(&client->lock);
	v = vidmem_find(client, handle);
	if (v) {
		mem = v->mem;
		kref_get(&mem->ref);
	}
	mutex_unlock(&client->lock);
	return mem;
}

/* Returns a registered range of this client that touches [va, va + len), or NULL. */
static struct vidmem *vidmem_at(struct nvlab_client *client, u64 va, u64 len)
{
	struct vidmem *v;

	list_for_each_entry(v, &client->vidmems, node)
		if (v->registered && va < v->va + v->len &&
		    va + len > v->va)
			return v;
	return NULL;
}

/* Frees the entry of memory that no client has any more. */
static void vidmem_free(struct vidmem *v)
{
	nvlab_gpu_close(v->mem->gpu);
	nvlab_mem_put(v->mem);
	kfree(v);
}

int nvlab_alloc(struct nvlab_client *client, struct nvlab_alloc *req)
{
	u32 coherent = req->flags & NVLAB_ALLOC_COHERENT ?
		       1 : nvlab_config(NVLAB_C_COHERENT);
	u32 layout = req->layout ? req->layout : nvlab_config(NVLAB_C_LAYOUT);
	u64 unit = req->flags & NVLAB_ALLOC_SMALL ?
		   NVLAB_GPU_PAGE : NVLAB_BACKING_SIZE;
	struct nvlab_gpu *gpu = nvlab_gpu_get(req->gpu);
	struct vidmem *v;
	int err = -EINVAL;

	if (!gpu)
		return -ENODEV;
	if (!req->size || req->size > gpu->size || req->pad ||
	    req->flags & ~(NVLAB_ALLOC_COHERENT | NVLAB_ALLOC_UNMAPPED |
			   NVLAB_ALLOC_SMALL) ||
	    layout > NVLAB_LAYOUT_SHUFFLED ||
	    !IS_ALIGNED(req->va, unit) ||
	    req->va + ALIGN(req->size, NVLAB_BACKING_SIZE) < req->va)
		goto put;
	err = -ENOMEM;
	v = kzalloc_obj(*v);
	if (!v)
		goto put;
	v->pins = RB_ROOT;
	v->va = req->va;
	v->len = ALIGN(req->size, unit);
	v->unit = unit;
	v->registered = !(req->flags & NVLAB_ALLOC_UNMAPPED);
	v->mem = mem_new(gpu, req->size, layout, coherent, req->va);
	if (IS_ERR(v->mem)) {
		err = PTR_ERR(v->mem);
		kfree(v);
		return err;
	}
	/* Memory keeps the GPU open. */
	nvlab_gpu_open(gpu);
	err = nvlab_api_lock("allocate");
	if (err)
		goto drop;
	if (v->registered && vidmem_at(client, v->va, v->len)) {
		err = -EEXIST;
		nvlab_api_unlock();
		goto drop;
	}
	mutex_lock(&client->lock);
	list_add_tail(&v->node, &client->vidmems);
	mutex_unlock(&client->lock);
	req->handle = v->mem->id;
	req->backing = v->len;
	nvlab_api_unlock();
	return 0;
drop:
	vidmem_free(v);
	return err;
put:
	nvlab_gpu_put(gpu);
	return err;
}

/* Calls every pin's callback and unlinks the pin. Called under the RM API lock and the GPU lock. */
static void vidmem_revoke(struct nvlab_client *client, struct vidmem *v)
{
	struct pin *pin;
	ktime_t start;

	while (v->pins.rb_node) {
		pin = rb_entry(v->pins.rb_node, struct pin, node);
		if (pin->callback && nvlab_fault(NVLAB_F_CALLBACK_NONE)) {
			/* The GPU is lost: no callback is called, and nothing is undone. */
			nvlab_table_lost(pin->key);
			rb_erase(&pin->node, &v->pins);
			nvlab_add(NVLAB_ACCOUNT_LIVE_PINS, -1);
			kfree(pin);
			continue;
		}
		if (pin->callback) {
			nvlab_hold(NVLAB_H_CALLBACK_BEFORE);
			nvlab_add(NVLAB_ACCOUNT_CALLBACKS_RUNNING, 1);
			pin->callback(pin->data);
			nvlab_add(NVLAB_ACCOUNT_CALLBACKS_RUNNING, -1);
		}
		start = ktime_get();
		rb_erase(&pin->node, &v->pins);
		bar1_unmap(v->mem, revocable(client, v), pin->first,
			   pin->count);
		nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB,
			    (u64)pin->count << NVLAB_PAGE_SHIFT, NVLAB_ALL);
		nvlab_add(NVLAB_ACCOUNT_LIVE_PINS, -1);
		kfree(pin);
	}
	vidmem_forget(client, v);
}

/*
 * Returns whether a persistent pin or a dma-buf holds this memory beyond its handle. Called under
 * the RM API lock.
 */
static bool mem_is_kept(struct nvlab_mem *mem)
{
	struct nvlab_piece *piece;
	struct nvlab_dup *dup;

	list_for_each_entry(dup, &dups, node)
		if (dup->mem == mem)
			return true;
	list_for_each_entry(piece, &pieces, node)
		if (piece->mem == mem)
			return true;
	return false;
}

int nvlab_free(struct nvlab_client *client, u64 handle, bool keep)
{
	struct vidmem *v;
	int err;

	err = nvlab_api_lock("free");
	if (err)
		return err;
	mutex_lock(&gpu_lock);
	v = vidmem_find(client, handle);
	if (v) {
		vidmem_revoke(client, v);
		v->registered = false;
		if (!keep) {
			mutex_lock(&client->lock);
			list_del(&v->node);
			mutex_unlock(&client->lock);
			if (mem_is_kept(v->mem))
				nvlab_log_state(v->mem->log, NVLAB_KEPT);
		}
	}
	mutex_unlock(&gpu_lock);
	nvlab_api_unlock();
	if (!v)
		return -ENOENT;
	if (!keep)
		vidmem_free(v);
	return 0;
}

int nvlab_register(struct nvlab_client *client, u64 handle, u64 va)
{
	struct vidmem *v;
	int err;

	err = nvlab_api_lock("register");
	if (err)
		return err;
	v = vidmem_find(client, handle);
	if (!v) {
		err = -ENOENT;
	} else if (!IS_ALIGNED(va, v->unit)) {
		err = -EINVAL;
	} else if (v->registered || va + v->len < va ||
		   vidmem_at(client, va, v->len)) {
		err = -EEXIST;
	} else {
		v->va = va;
		v->registered = true;
	}
	nvlab_api_unlock();
	return err;
}

void nvlab_client_close(struct nvlab_client *client)
{
	struct nvlab_client *other;
	struct vidmem *v, *next;

	/*
	 * Nobody re-enters here: closing the last reference from inside a
	 * callback would be a bug of the lab.
	 */
	if (WARN_ON(nvlab_api_lock("close")))
		return;
	mutex_lock(&gpu_lock);
	list_for_each_entry(v, &client->vidmems, node) {
		vidmem_revoke(client, v);
		v->registered = false;
		if (mem_is_kept(v->mem))
			nvlab_log_state(v->mem->log, NVLAB_KEPT);
	}
	mutex_unlock(&gpu_lock);
	list_del(&client->node);
	/* A dying client leaves the pid lists of its server. */
	list_for_each_entry(other, &clients, node)
		if (other->tgid != client->tgid)
			client_forget(other, client->tgid);
	nvlab_add(NVLAB_ACCOUNT_LIVE_CLIENTS, -1);
	nvlab_api_unlock();
	list_for_each_entry_safe(v, next, &client->vidmems, node)
		vidmem_free(v);
	mutex_destroy(&client->lock);
	kfree(client);
}

/* --- what the exported functions ask --- */

/* A client and a GPU. RM has an object for each such pair: that client's memory on that GPU. */
struct owner {
	struct nvlab_client *client;
	struct nvlab_gpu *gpu;
};

/* Returns the allocation of @client that holds all of [va, va + len), or NULL. */
static struct vidmem *vidmem_with(struct nvlab_client *client, u64 va, u64 len)
{
	struct vidmem *v = vidmem_at(client, va, 1);

	return v && va + len <= v->va + v->len ? v : NULL;
}

/*
 * Finds the allocation that holds all of [va, va + len), for this process. Returns -ENOENT if there
 * is none, and -EIO if two clients have one. Called under the RM API lock.
 */
static int range_find(u64 va, u64 len, struct nvlab_client **of,
		      struct vidmem **found)
{
	u32 tgid = nvlab_tgid();
	struct nvlab_client *client;
	int err = -ENOENT;
	struct vidmem *v;

	list_for_each_entry(client, &clients, node) {
		v = client_has(client, tgid) ? vidmem_with(client, va, len) : NULL;
		if (v && !err)
			return -EIO;
		if (!v)
			continue;
		*of = client;
		*found = v;
		err = 0;
	}
	return err;
}

/* Returns the pin of this memory that has this key, or NULL. */
static struct pin *pin_find(struct vidmem *v, void *key)
{
	struct rb_node *at = v->pins.rb_node;
	struct pin *pin;

	while (at) {
		pin = rb_entry(at, struct pin, node);
		if (pin->key == key)
			return pin;
		at = key < pin->key ? at->rb_left : at->rb_right;
	}
	return NULL;
}

static void pin_insert(struct vidmem *v, struct pin *pin)
{
	struct rb_node **link = &v->pins.rb_node, *parent = NULL;

	while (*link) {
		parent = *link;
		link = pin->key < rb_entry(parent, struct pin, node)->key ?
		       &parent->rb_left : &parent->rb_right;
	}
	rb_link_node(&pin->node, parent, link);
	rb_insert_color(&pin->node, &v->pins);
}

/*
 * Finds the client and the GPU whose pins have this key, among those that the caller's number may
 * touch. Returns -ENOENT if there is no such pin, and -EIO if two clients or GPUs have one.
 */
static int key_find(void *key, struct owner *owner)
{
	u32 tgid = nvlab_tgid();
	struct nvlab_client *client;
	int err = -ENOENT;
	struct vidmem *v;

	list_for_each_entry(client, &clients, node) {
		if (!client_has(client, tgid))
			continue;
		list_for_each_entry(v, &client->vidmems, node) {
			if (!pin_find(v, key))
				continue;
			if (!err && (owner->client != client || owner->gpu != v->mem->gpu))
				return -EIO;
			*owner = (struct owner){ client, v->mem->gpu };
			err = 0;
		}
	}
	return err;
}

/* Ends each pin that has this key, and returns the bytes of all. Called under the GPU lock. */
static u64 pins_end(struct owner owner, void *key)
{
	struct vidmem *v;
	struct pin *pin;
	u64 len = 0;

	list_for_each_entry(v, &owner.client->vidmems, node) {
		pin = v->mem->gpu == owner.gpu ? pin_find(v, key) : NULL;
		if (!pin)
			continue;
		len += (u64)pin->count << NVLAB_PAGE_SHIFT;
		rb_erase(&pin->node, &v->pins);
		/* A get that failed has mapped nothing. */
		if (pin->count)
			bar1_unmap(v->mem, revocable(owner.client, v),
				   pin->first, pin->count);
		nvlab_add(NVLAB_ACCOUNT_LIVE_PINS, -1);
		kfree(pin);
	}
	return len;
}

/* Returns the pin for a get. One that has the key already is used again, for other pages. */
static struct pin *pin_for(struct vidmem *v, void *key)
{
	struct pin *pin = pin_find(v, key);

	if (pin)
		return pin;
	pin = kzalloc_obj(*pin);
	if (pin) {
		pin->key = key;
		pin_insert(v, pin);
		nvlab_add(NVLAB_ACCOUNT_LIVE_PINS, 1);
	}
	return pin;
}

static void pinned_tell(struct nvlab_mem *mem, struct nvlab_pinned *pinned)
{
	pinned->gpu = mem->gpu;
	pinned->coherent = mem->coherent;
}

int nvlab_rm_get(ktime_t *start, u64 va, u64 len, void *key, u64 *phys,
		 u32 count, struct nvlab_pinned *pinned)
{
	struct nvlab_client *client;
	struct vidmem *v;
	struct pin *pin;
	u64 wrong;
	int err;

	err = nvlab_api_lock_for(start, "get_pages");
	if (err)
		return err;
	err = range_find(va, len, &client, &v);
	if (err)
		goto unlock;
	wrong = nvlab_fault(NVLAB_F_GET_ERRNO);
	if (wrong) {
		err = -(int)wrong;
		goto unlock;
	}
	pin = pin_for(v, key);
	if (!pin) {
		err = -ENOMEM;
		goto unlock;
	}
	pin->va = va;
	pin->first = (va - v->va) >> NVLAB_PAGE_SHIFT;
	pin->count = 0;
	pin->tgid = nvlab_tgid();
	err = pin_map(v->mem, revocable(client, v), pin->first, count, phys,
		      r_since());
	if (err) {
		nvlab_gpu_lock();
		pins_end((struct owner){ client, v->mem->gpu }, key);
		nvlab_gpu_unlock();
		goto unlock;
	}
	pin->count = count;
	pinned_tell(v->mem, pinned);
unlock:
	nvlab_api_unlock();
	return err;
}

int nvlab_rm_register(u64 va, u64 len, void *key, void (*callback)(void *data),
		      void *data)
{
	struct owner owner;
	struct vidmem *v;
	struct pin *pin;
	int err;

	err = nvlab_api_lock("register_callback");
	if (err)
		return err;
	err = key_find(key, &owner);
	if (err)
		goto unlock;
	v = vidmem_with(owner.client, va, len);
	pin = v && v->mem->gpu == owner.gpu ? pin_find(v, key) : NULL;
	if (!pin) {
		err = -ENOENT;
	} else if (pin->callback) {
		err = -EIO;
	} else {
		pin->callback = callback;
		pin->data = data;
	}
unlock:
	nvlab_api_unlock();
	return err;
}

int nvlab_rm_put(ktime_t *start, void *key, u64 *len)
{
	struct owner owner;
	int err;

	err = nvlab_api_lock_for(start, "put_pages");
	if (err)
		return err;
	nvlab_hold(NVLAB_H_PUT_LOCKED);
	err = key_find(key, &owner);
	if (!err) {
		nvlab_gpu_lock();
		*len = pins_end(owner, key);
		nvlab_spend(r_since(), NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB,
			    *len, NVLAB_RM_PART);
		nvlab_gpu_unlock();
	}
	nvlab_api_unlock();
	return err;
}

int nvlab_rm_gpu_info(ktime_t *start, u64 va, u64 len, struct nvlab_gpu **gpu)
{
	struct nvlab_client *client;
	struct vidmem *v;
	int err;

	err = nvlab_api_lock_for(start, "get_gpu_info");
	if (err)
		return err;
	err = range_find(va, len, &client, &v);
	if (!err) {
		*gpu = v->mem->gpu;
		atomic_inc(&(*gpu)->handles);
	}
	nvlab_api_unlock();
	return err;
}

int nvlab_rm_get_persistent(ktime_t *start, u64 va, u64 len, void *key,
			    u64 *phys, u32 count, struct nvlab_pinned *pinned,
			    struct nvlab_dup **out)
{
	struct nvlab_client *client;
	struct nvlab_dup *dup;
	struct vidmem *v;
	u64 wrong;
	int err;

	err = nvlab_api_lock_for(start, "get_pages_persistent");
	if (err)
		return err;
	err = range_find(va, len, &client, &v);
	if (err)
		goto unlock;
	wrong = nvlab_fault(NVLAB_F_PERSISTENT_ERRNO);
	if (wrong) {
		err = -(int)wrong;
		goto unlock;
	}
	dup = kzalloc_obj(*dup);
	if (!dup) {
		err = -EIO;
		goto unlock;
	}
	dup->mem = v->mem;
	dup->key = key;
	dup->va = va;
	dup->first = (va - v->va) >> NVLAB_PAGE_SHIFT;
	dup->count = count;
	dup->tgid = nvlab_tgid();
	err = pin_map(v->mem, persistent(v->mem), dup->first, count, phys, r_since());
	if (err) {
		kfree(dup);
		goto unlock;
	}
	kref_get(&v->mem->ref);
	pinned_tell(v->mem, pinned);
	list_add_tail(&dup->node, &dups);
	nvlab_add(NVLAB_ACCOUNT_LIVE_PERSISTENT, 1);
	*out = dup;
unlock:
	nvlab_api_unlock();
	return err;
}

int nvlab_rm_put_persistent(ktime_t *start, struct nvlab_dup *dup, u64 *len)
{
	struct nvlab_mem *mem = dup->mem;
	int err;

	err = nvlab_api_lock_for(start, "put_pages_persistent");
	if (err)
		return err;
	*len = (u64)dup->count << NVLAB_PAGE_SHIFT;
	list_del(&dup->node);
	nvlab_gpu_lock();
	bar1_unmap(mem, persistent(mem), dup->first, dup->count);
	nvlab_spend(r_since(), NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, *len,
		    NVLAB_RM_PART);
	nvlab_gpu_unlock();
	nvlab_add(NVLAB_ACCOUNT_LIVE_PERSISTENT, -1);
	kfree(dup);
	nvlab_api_unlock();
	nvlab_mem_put(mem);
	return 0;
}

/*
 * Shuts down each GPU that no pin holds open, as the driver does when the last program has closed
 * it, and when it is unloaded. With it go the duplicates whose put has failed.
 */
int nvlab_rm_shut_down_idle(void)
{
	struct nvlab_dup *dup, *next;
	LIST_HEAD(lost);
	int err;

	err = nvlab_api_lock("shut_down");
	if (err)
		return err;
	list_for_each_entry_safe(dup, next, &dups, node) {
		if (atomic_read(&dup->mem->gpu->users))
			continue;
		bar1_unmap(dup->mem, persistent(dup->mem), dup->first, dup->count);
		nvlab_add(NVLAB_ACCOUNT_LIVE_PERSISTENT, -1);
		list_move(&dup->node, &lost);
	}
	nvlab_api_unlock();
	list_for_each_entry_safe(dup, next, &lost, node) {
		nvlab_mem_put(dup->mem);
		kfree(dup);
	}
	return 0;
}

/* --- what dma-bufs ask --- */

int nvlab_rm_duplicate(struct nvlab_client *client, struct nvlab_gpu *gpu,
		       const struct nvlab_part *part, struct nvlab_piece *piece)
{
	struct vidmem *v = vidmem_find(client, part->handle);

	if (!v)
		return -ENOENT;
	if (v->mem->gpu != gpu || !part->len || part->len > v->len ||
	    part->offset > v->len - part->len ||
	    !IS_ALIGNED(part->offset | part->len, PAGE_SIZE))
		return -EINVAL;
	piece->mem = v->mem;
	piece->offset = part->offset;
	piece->len = part->len;
	kref_get(&v->mem->ref);
	list_add_tail(&piece->node, &pieces);
	return 0;
}

void nvlab_rm_undo_duplicate(struct nvlab_piece *piece)
{
	list_del(&piece->node);
}

int nvlab_rm_map_piece(struct nvlab_piece *piece)
{
	ktime_t start = ktime_get();
	int err = bar1_map(piece->mem, exported(piece), nvlab_piece_first(piece),
			   nvlab_piece_pages(piece), piece->phys);

	/* For coherent memory only the addresses are looked up, which takes no time. */
	if (!err && !piece->mem->host)
		nvlab_spend(start, NVLAB_T_PIN_BASE, NVLAB_T_PIN_GIB, piece->len,
			    NVLAB_ALL);
	return err;
}

void nvlab_rm_unmap_piece(struct nvlab_piece *piece)
{
	ktime_t start = ktime_get();

	bar1_unmap(piece->mem, exported(piece), nvlab_piece_first(piece),
		   nvlab_piece_pages(piece));
	if (!piece->mem->host)
		nvlab_spend(start, NVLAB_T_UNPIN_BASE, NVLAB_T_UNPIN_GIB, piece->len,
			    NVLAB_ALL);
}

/*
 * --- the files pins and bar1 ---
 *
 * pins, live pins and mappings:
 *   kind=revocable pid=123 gpu=0 va=0x... len=65536 entries=1 mappings=1 table=0xffff... armed=1
 * pid is who pinned, table the key's kernel address; armed is 0 until the callback
 * is registered.
 *
 * bar1, a line for each 64 KiB that BAR1 has mapped:
 *   kind=revocable gpu=0 bar=0xfe0000000 id=7 page=3 video=35
 * bar is the physical address, page is that in the allocation, video that in video
 * memory. kind says whose extents these are: of a process's revocable pins, of the
 * duplicate that persistent pins share, or of a dma-buf.
 */

static int pins_show(struct seq_file *s, void *unused)
{
	struct nvlab_client *client;
	struct nvlab_dup *dup;
	struct vidmem *v;
	struct pin *pin;
	struct rb_node *at;

	if (nvlab_api_lock("debugfs"))
		return 0;
	list_for_each_entry(client, &clients, node)
		list_for_each_entry(v, &client->vidmems, node)
			for (at = rb_first(&v->pins); at; at = rb_next(at)) {
				pin = rb_entry(at, struct pin, node);
				seq_printf(s, "kind=revocable pid=%u gpu=%u va=%#llx len=%llu entries=%u mappings=%u table=%#lx armed=%u\n",
					   pin->tgid, v->mem->gpu->index, pin->va,
					   (u64)pin->count << NVLAB_PAGE_SHIFT,
					   pin->count,
					   nvlab_table_mappings(pin->key),
					   (unsigned long)pin->key,
					   !!pin->callback);
			}
	list_for_each_entry(dup, &dups, node)
		seq_printf(s, "kind=persistent pid=%u gpu=%u va=%#llx len=%llu entries=%u mappings=%u table=%#lx armed=0\n",
			   dup->tgid, dup->mem->gpu->index, dup->va,
			   (u64)dup->count << NVLAB_PAGE_SHIFT, dup->count,
			   nvlab_table_mappings(dup->key),
			   (unsigned long)dup->key);
	nvlab_api_unlock();
	return 0;
}

static void object_show(struct seq_file *s, struct nvlab_mem *mem,
			const struct bar1_object *object, const char *kind)
{
	const struct bar1_extent *extent;
	u32 i;

	for (extent = object->extents; extent; extent = extent->next)
		for (i = 0; i < extent->count; i++)
			seq_printf(s, "kind=%s gpu=%u bar=%#llx id=%llu page=%u video=%u\n",
				   kind, mem->gpu->index, mem->gpu->start +
				   ((u64)extent->at[i] << NVLAB_PAGE_SHIFT),
				   mem->id, extent->first + i,
				   mem->page[extent->first + i]);
}

static int bar1_show(struct seq_file *s, void *unused)
{
	struct nvlab_client *client;
	struct nvlab_dup *dup, *other;
	struct nvlab_piece *piece;
	struct vidmem *v;

	if (nvlab_api_lock("debugfs"))
		return 0;
	list_for_each_entry(piece, &pieces, node)
		object_show(s, piece->mem, &piece->extents, "dma_buf");
	list_for_each_entry(client, &clients, node)
		list_for_each_entry(v, &client->vidmems, node)
			object_show(s, v->mem, &v->extents, "revocable");
	list_for_each_entry(dup, &dups, node) {
		/*
		 * However many pins there are, they share one duplicate of the memory. This is the
		 * first of them.
		 */
		list_for_each_entry(other, &dups, node)
			if (other->mem == dup->mem)
				break;
		if (other == dup)
			object_show(s, dup->mem, &dup->mem->duplicate,
				    "persistent");
	}
	nvlab_api_unlock();
	return 0;
}

const struct nvlab_file nvlab_pins_file = { "pins", pins_show, NULL };
const struct nvlab_file nvlab_bar1_file = { "bar1", bar1_show, NULL };

int nvlab_gpu_init(struct nvlab_gpu *gpu)
{
	unsigned long blocks = gpu->size / NVLAB_BACKING_SIZE;

	mutex_init(&gpu->mem_lock);
	gpu->blocks = bitmap_zalloc(blocks, GFP_KERNEL);
	if (!gpu->blocks ||
	    bar1_init(&gpu->bar1, gpu->size >> NVLAB_PAGE_SHIFT)) {
		nvlab_gpu_exit(gpu);
		return -ENOMEM;
	}
	return 0;
}

void nvlab_gpu_exit(struct nvlab_gpu *gpu)
{
	bar1_exit(&gpu->bar1);
	bitmap_free(gpu->blocks);
	mutex_destroy(&gpu->mem_lock);
}
