// SPDX-License-Identifier: GPL-2.0
/*
 * The peer-memory core of the lab: lets a client, such as nvidia-peermem,
 * provide the memory of a umem that get_user_pages() refused.
 *
 * What it models: the peer-memory part of ib_core/ib_uverbs in MLNX_OFED and
 * DOCA-OFED, as docs/facts.md#the-rdma-core describes it. Written from such
 * notes, not from that code. Two generations, chosen when the module is loaded
 * (parameter generation). Bugs of those cores are modelled, not
 * repaired: statistics that stay 0, the inverted stop test of 24.10,
 * get_page_size() called although nobody checked that it is there, put_pages()
 * under the mapping lock when dma_map() fails, a client pointer that a late
 * invalidation reads after release() has returned, bytes that are counted twice
 * where an invalidation comes right after a stop, a memory_peers that nobody can
 * make anew while the last client's umems are still there.
 *
 * What it says about drivers that misuse it is what real cores say: a WARNING
 * where a notifier was armed and never stopped, and, on a kernel that checks
 * mutexes, one where a umem is freed with its mapping lock held.
 *
 * What it leaves out:
 *  - in 24.10, the unlock of an unlocked mutex at each deregistration of a client
 *    without invalidation: no client can notice it, and it would switch lockdep
 *    off in a debug kernel;
 *  - the kernel's complaint about a duplicate sysfs name: one line instead.
 *
 * Kinder than real cores: the mapping lock of a umem without a ticket (its
 * client wants no invalidation) is of a lock class of its own. No thread takes
 * such a lock while it holds a lock of the client's provider, so the order
 * "mapping lock, then provider" there and "provider, then mapping lock" in an
 * invalidation cannot meet. Real cores have one class, and lockdep reports
 * there what cannot happen; as it goes silent with that, other boots would
 * lose it. one_lock_class=1 is a real core in that, too.
 */
#define pr_fmt(fmt) "ib_peer_mem: " fmt

#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/kobject.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/xarray.h>
#include <rdma/ib_peer_lab.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/peer_mem.h>

#include "ib_peer_mem.h"
#include "lab_mark.h"
#include "lab_trace.h"

/* The ticket of a umem that cannot be invalidated. */
#define NO_TICKET	U32_MAX

/* The generations of cores: docs/facts.md#core-versions says what each stands for. */
enum generation {
	GENERATION_24_10,
	GENERATION_25_10,
};

static const char * const generation_names[] = {
	[GENERATION_24_10] = "24.10",
	[GENERATION_25_10] = "25.10",
};

static int generation = GENERATION_25_10;

static int generation_set(const char *text, const struct kernel_param *kp)
{
	int i = sysfs_match_string(generation_names, text);

	if (i < 0) {
		pr_err("generation=%s: must be 25.10 or 24.10\n", text);
		return i;
	}
	generation = i;
	return 0;
}

static int generation_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%s\n", generation_names[generation]);
}

static const struct kernel_param_ops generation_ops = {
	.set = generation_set,
	.get = generation_get,
};
module_param_cb(generation, &generation_ops, NULL, 0444);
MODULE_PARM_DESC(generation, "peer-memory core to behave as: 25.10 (default) or 24.10");

static bool memory_peers = true;
module_param(memory_peers, bool, 0444);
MODULE_PARM_DESC(memory_peers, "create /sys/kernel/mm/memory_peers; 0: none, and two clients may have one name");

#ifndef HAVE_MM_KOBJ_EXPORTED
#define mm_kobj ((struct kobject *)NULL)
#endif

static bool has_memory_peers(void)
{
	return memory_peers && mm_kobj;
}

static bool one_lock_class;
module_param(one_lock_class, bool, 0444);
MODULE_PARM_DESC(one_lock_class, "one lock class for the mapping locks of all umems, as on real cores; 0: those of clients without invalidation have their own");

/* Returns whether the core asks the ticket the wrong way round. */
static bool stop_test_inverted(void)
{
	return generation == GENERATION_24_10;
}

bool ib_peer_sg_entries_bound_pgsz(void)
{
	return generation == GENERATION_24_10;
}
EXPORT_SYMBOL(ib_peer_sg_entries_bound_pgsz);

struct peer_stats {
	atomic64_t num_alloc_mrs;
	atomic64_t num_dealloc_mrs;
	atomic64_t num_reg_pages;
	atomic64_t num_dereg_pages;
	atomic64_t num_reg_bytes;
	atomic64_t num_dereg_bytes;
	atomic64_t num_free_callbacks;
};

struct ib_peer_memory_client {
	struct list_head list;
	const struct peer_memory_client *ops;
	struct xarray tickets;
	u32 next_ticket;
	bool invalidation_required;
	u32 flags;	/* PEER_MEM_* */
	struct kref usecnt;
	struct completion unused;
	struct kobject kobj;	/* owns the memory; in sysfs or not */
	struct peer_stats stats;
};

enum mapped_state {
	UNMAPPED,
	MAPPED,
	INVALIDATED,	/* the client unmaps by itself; not all of it is counted */
};

struct ib_umem_peer {
	struct ib_umem umem;
	struct kref kref;
	struct ib_peer_memory_client *client;
	void *context;
	struct device *dma_device;
	u32 ticket;

	/*
	 * Taken in ib_peer_umem_get() and, where there is a ticket, dropped
	 * only when the NIC driver activates or stops the notifier.
	 */
	struct mutex mapping_lock;
	enum mapped_state state;
	umem_invalidate_func_t func;
	void *func_priv;

	/* What trim_sgl() changed. */
	struct scatterlist *first_sg, *last_sg;
	dma_addr_t first_dma_address;
	unsigned int first_dma_length, first_length;
	unsigned int last_dma_length, last_length;
};

static struct ib_umem_peer *to_peer(struct ib_umem *umem)
{
	return container_of(umem, struct ib_umem_peer, umem);
}

static DEFINE_MUTEX(peer_memory_mutex);
static LIST_HEAD(peer_memory_list);	/* under peer_memory_mutex */
static DEFINE_XARRAY(lab_dma_devices);	/* address of ib_device: device */

static u64 trace_ticket(struct ib_umem_peer *peer)
{
	return peer->ticket == NO_TICKET ? LAB_NO_TICKET : peer->ticket;
}

static const char *client_name(struct ib_umem_peer *peer)
{
	return peer->client->ops->name;
}

static void trace_end(struct ib_umem_peer *peer, struct lab_call call,
		      const char *what, long ret)
{
	lab_trace_end(call, client_name(peer), what, peer->umem.address,
		      peer->umem.length, trace_ticket(peer),
		      peer->umem.sgt_append.sgt.nents, ret);
}

/* The client's callbacks. Each is called from its wrapper and nowhere else. */

static int call_acquire(struct ib_peer_memory_client *client,
			unsigned long addr, size_t size, void **context)
{
	struct lab_call call;
	int ret;

	lab_hold(LAB_BEFORE_ACQUIRE, client->ops->name);
	call = lab_trace_begin();
	ret = client->ops->acquire(addr, size, NULL, NULL, context);
	lab_trace_end(call, client->ops->name, "acquire", addr, size,
		      LAB_NO_TICKET, 0, ret);
	return ret;
}

static int call_get_pages(struct ib_umem_peer *peer)
{
	struct lab_call call;
	int ret;

	lab_hold(LAB_BEFORE_GET_PAGES, client_name(peer));
	call = lab_trace_begin();
	ret = peer->client->ops->get_pages(peer->umem.address,
					   peer->umem.length, 1,
					   !peer->umem.writable, NULL,
					   peer->context, peer->ticket);
	trace_end(peer, call, "get_pages", ret);
	return ret;
}

static int call_dma_map(struct ib_umem_peer *peer)
{
	struct sg_table *sgt = &peer->umem.sgt_append.sgt;
	struct lab_call call;
	int ret;

	lab_hold(LAB_BEFORE_DMA_MAP, client_name(peer));
	call = lab_trace_begin();
	/* The client writes the whole table and, through nmap, its nents. */
	ret = peer->client->ops->dma_map(sgt, peer->context, peer->dma_device,
					 0, (int *)&sgt->nents);
	trace_end(peer, call, "dma_map", ret);
	return ret;
}

static unsigned long call_get_page_size(struct ib_umem_peer *peer)
{
	struct lab_call call = lab_trace_begin();
	unsigned long ret = peer->client->ops->get_page_size(peer->context);

	trace_end(peer, call, "get_page_size", ret);
	return ret;
}

static void call_dma_unmap(struct ib_umem_peer *peer)
{
	struct lab_call call;
	int ret;

	lab_hold(LAB_BEFORE_DMA_UNMAP, client_name(peer));
	call = lab_trace_begin();
	ret = peer->client->ops->dma_unmap(&peer->umem.sgt_append.sgt,
					   peer->context, peer->dma_device);
	trace_end(peer, call, "dma_unmap", ret);
}

static void call_put_pages(struct ib_umem_peer *peer)
{
	struct lab_call call;

	lab_hold(LAB_BEFORE_PUT_PAGES, client_name(peer));
	call = lab_trace_begin();
	peer->client->ops->put_pages(&peer->umem.sgt_append.sgt, peer->context);
	trace_end(peer, call, "put_pages", 0);
}

static void call_release(struct ib_umem_peer *peer)
{
	struct lab_call call;

	if (!peer->client->ops->release)
		return;
	lab_hold(LAB_BEFORE_RELEASE, client_name(peer));
	call = lab_trace_begin();
	peer->client->ops->release(peer->context);
	trace_end(peer, call, "release", 0);
}

static void client_unused(struct kref *kref)
{
	struct ib_peer_memory_client *client =
		container_of(kref, struct ib_peer_memory_client, usecnt);

	complete(&client->unused);
}

static void put_client(struct ib_peer_memory_client *client)
{
	kref_put(&client->usecnt, client_unused);
}

static void umem_peer_free(struct kref *kref)
{
	struct ib_umem_peer *peer = container_of(kref, struct ib_umem_peer,
						 kref);

	/* Held where a driver neither armed nor stopped the notifier. */
	mutex_destroy(&peer->mapping_lock);
	kfree(peer);
}

static void put_peer(struct ib_umem_peer *peer)
{
	kref_put(&peer->kref, umem_peer_free);
}

/*
 * Asks the clients, in the order of registration, until one says "mine". One mutex for the whole
 * machine is held over all of it.
 */
static struct ib_peer_memory_client *
find_client(unsigned long addr, size_t size, unsigned long peer_mem_flags,
	    void **context)
{
	struct ib_peer_memory_client *client;

	mutex_lock(&peer_memory_mutex);
	list_for_each_entry(client, &peer_memory_list, list) {
		if (client->invalidation_required &&
		    !(peer_mem_flags & IB_PEER_MEM_INVAL_SUPP))
			continue;
		if (call_acquire(client, addr, size, context) > 0) {
			kref_get(&client->usecnt);
			mutex_unlock(&peer_memory_mutex);
			return client;
		}
	}
	mutex_unlock(&peer_memory_mutex);
	return NULL;
}

/*
 * Cuts the list to the CPU pages of the umem: a client whose pages are larger than the CPU's has
 * listed whole pages of its own. This presumes that the list covers exactly the client's pages
 * around the umem.
 */
static void trim_sgl(struct ib_umem_peer *peer, unsigned long page_size)
{
	struct sg_table *sgt = &peer->umem.sgt_append.sgt;
	unsigned long start = peer->umem.address;
	unsigned long end = start + peer->umem.length;
	struct scatterlist *sg;
	unsigned long cut;
	int i;

	for_each_sgtable_sg(sgt, sg, i) {
		if (i == 0) {
			cut = ALIGN_DOWN(start, PAGE_SIZE) -
			      ALIGN_DOWN(start, page_size);
			peer->first_sg = sg;
			peer->first_dma_address = sg_dma_address(sg);
			peer->first_dma_length = sg_dma_len(sg);
			peer->first_length = sg->length;
			sg_dma_address(sg) += cut;
			sg_dma_len(sg) -= cut;
			sg->length -= cut;
		}
		if (i == sgt->nents - 1) {
			cut = ALIGN(end, page_size) - ALIGN(end, PAGE_SIZE);
			peer->last_sg = sg;
			peer->last_dma_length = sg_dma_len(sg);
			peer->last_length = sg->length;
			sg_dma_len(sg) -= cut;
			sg->length -= cut;
			return;
		}
	}
}

/*
 * Restores what trim_sgl() cut, the last entry first: if there is only one entry, what was saved of
 * it as the first one is older.
 */
static void untrim_sgl(struct ib_umem_peer *peer)
{
	if (peer->last_sg) {
		sg_dma_len(peer->last_sg) = peer->last_dma_length;
		peer->last_sg->length = peer->last_length;
	}
	if (peer->first_sg) {
		sg_dma_address(peer->first_sg) = peer->first_dma_address;
		sg_dma_len(peer->first_sg) = peer->first_dma_length;
		peer->first_sg->length = peer->first_length;
	}
	peer->first_sg = NULL;
	peer->last_sg = NULL;
}

/* Forgets the table, with which the core is done. */
static void forget_sgl(struct ib_umem_peer *peer)
{
	struct sg_table *sgt = &peer->umem.sgt_append.sgt;

	memset(sgt, 0, sizeof(*sgt));
	atomic64_inc(&peer->client->stats.num_dealloc_mrs);
}

/*
 * Ends the mapping, where there is one, and counts what ends. @from is the state
 * that the caller found. Real cores forget the table before they count it, and
 * count the bytes of an invalidated umem when it is stopped.
 */
static void end_mapping(struct ib_umem_peer *peer, enum mapped_state from)
{
	struct peer_stats *stats = &peer->client->stats;

	if (from == MAPPED) {
		untrim_sgl(peer);
		call_dma_unmap(peer);
		call_put_pages(peer);
		forget_sgl(peer);
	}
	if (from != UNMAPPED) {
		atomic64_add(peer->umem.sgt_append.sgt.nents,
			     &stats->num_dereg_pages);
		atomic64_add(peer->umem.length, &stats->num_dereg_bytes);
	}
	peer->state = UNMAPPED;
}

static struct lock_class_key mapping_lock_ticket;
static struct lock_class_key mapping_lock_no_ticket;

static int take_ticket(struct ib_umem_peer *peer)
{
	int ret;

	peer->ticket = NO_TICKET;
	if (!peer->client->invalidation_required)
		return 0;
	ret = xa_alloc_cyclic(&peer->client->tickets, &peer->ticket, peer,
			      XA_LIMIT(0, NO_TICKET - 1),
			      &peer->client->next_ticket, GFP_KERNEL);
	return ret < 0 ? ret : 0;
}

static void drop_ticket(struct ib_umem_peer *peer)
{
	if (peer->ticket != NO_TICKET)
		xa_erase(&peer->client->tickets, peer->ticket);
}

static struct device *peer_dma_device(struct ib_device *ibdev)
{
	struct device *dev = xa_load(&lab_dma_devices, (unsigned long)ibdev);

	return dev ?: ibdev->dma_device;
}

struct ib_umem *ib_peer_umem_get(struct ib_umem *old_umem, int old_ret,
				 unsigned long peer_mem_flags)
{
	struct ib_peer_memory_client *client;
	struct ib_umem_peer *peer;
	unsigned long page_size;
	void *context = NULL;
	int ret;

	client = find_client(old_umem->address, old_umem->length,
			     peer_mem_flags, &context);
	if (!client)
		return ERR_PTR(old_ret);

	peer = kzalloc_obj(*peer);
	if (!peer) {
		if (client->ops->release)
			client->ops->release(context);
		put_client(client);
		return ERR_PTR(-ENOMEM);
	}
	kref_init(&peer->kref);
	peer->umem = *old_umem;
	memset(&peer->umem.sgt_append, 0, sizeof(peer->umem.sgt_append));
	peer->umem.is_peer = 1;
	peer->client = client;
	peer->context = context;
	peer->dma_device = peer_dma_device(old_umem->ibdev);
	peer->state = UNMAPPED;
	mutex_init(&peer->mapping_lock);
	if (client->invalidation_required || one_lock_class)
		lockdep_set_class_and_name(&peer->mapping_lock,
					   &mapping_lock_ticket,
					   "ib_peer_mem mapping_lock");
	else
		lockdep_set_class_and_name(&peer->mapping_lock,
					   &mapping_lock_no_ticket,
					   "ib_peer_mem mapping_lock/no_ticket");

	mutex_lock(&peer->mapping_lock);
	ret = take_ticket(peer);
	if (ret)
		goto err_unlock;

	ret = call_get_pages(peer);
	if (ret)
		goto err_ticket;

	ret = call_dma_map(peer);
	if (ret) {
		/* No dma_unmap(), and the lock is held. */
		call_put_pages(peer);
		goto err_ticket;
	}
	page_size = call_get_page_size(peer);
	if (page_size != PAGE_SIZE)
		trim_sgl(peer, page_size);

	peer->state = MAPPED;
	atomic64_add(peer->umem.sgt_append.sgt.nents,
		     &client->stats.num_reg_pages);
	atomic64_add(peer->umem.length, &client->stats.num_reg_bytes);
	atomic64_inc(&client->stats.num_alloc_mrs);

	/* With a ticket, an invalidation waits until the NIC can be fenced. */
	if (peer->ticket == NO_TICKET)
		mutex_unlock(&peer->mapping_lock);
	kfree(old_umem);
	return &peer->umem;

err_ticket:
	drop_ticket(peer);
err_unlock:
	mutex_unlock(&peer->mapping_lock);
	call_release(peer);
	put_client(client);
	put_peer(peer);
	return ERR_PTR(ret);
}
EXPORT_SYMBOL(ib_peer_umem_get);

/**
 * ib_umem_activate_invalidation_notifier - from now on @umem can be fenced
 * @umem: a peer umem
 * @func: stops the NIC's accesses and waits for those under way
 * @priv: @func's second argument
 */
void ib_umem_activate_invalidation_notifier(struct ib_umem *umem,
					    umem_invalidate_func_t func,
					    void *priv)
{
	struct ib_umem_peer *peer = to_peer(umem);
	struct lab_call call;

	lab_hold(LAB_BEFORE_ACTIVATE, client_name(peer));
	if (peer->ticket == NO_TICKET)
		return;
	call = lab_trace_begin();
	peer->func = func;
	peer->func_priv = priv;
	mutex_unlock(&peer->mapping_lock);
	trace_end(peer, call, "activate", 0);
}
EXPORT_SYMBOL(ib_umem_activate_invalidation_notifier);

/*
 * Returns whether the caller has held the mapping lock since ib_peer_umem_get(). It has, with a
 * ticket and without an activation. Where the test is inverted, a registration that fails before
 * the activation waits for itself.
 */
static bool still_locked(struct ib_umem_peer *peer)
{
	if (peer->func)
		return false;
	if (stop_test_inverted() && peer->ticket != NO_TICKET)
		return false;
	return peer->ticket != NO_TICKET;
}

/**
 * ib_umem_stop_invalidation_notifier - no fence of @umem from now on
 * @umem: a peer umem whose NIC accesses are over
 */
void ib_umem_stop_invalidation_notifier(struct ib_umem *umem)
{
	struct ib_umem_peer *peer = to_peer(umem);
	enum mapped_state from;
	struct lab_call call;

	lab_hold(LAB_BEFORE_STOP, client_name(peer));
	call = lab_trace_begin();
	if (!still_locked(peer))
		mutex_lock(&peer->mapping_lock);
	peer->func = NULL;
	from = peer->state;
	peer->state = UNMAPPED;

	if (peer->client->flags & PEER_MEM_INVALIDATE_UNMAPS) {
		/*
		 * An invalidation that comes now returns at once, while the
		 * memory is still being unmapped here.
		 */
		mutex_unlock(&peer->mapping_lock);
		trace_end(peer, call, "stop", 0);
		lab_hold(LAB_IN_STOP, client_name(peer));
		end_mapping(peer, from);
		return;
	}
	trace_end(peer, call, "stop", 0);
	lab_hold(LAB_IN_STOP, client_name(peer));
	end_mapping(peer, from);
	mutex_unlock(&peer->mapping_lock);
}
EXPORT_SYMBOL(ib_umem_stop_invalidation_notifier);

/*
 * Ends a umem. Where the notifier was activated, ib_umem_stop_invalidation_notifier() comes first.
 */
void ib_peer_umem_release(struct ib_umem *umem)
{
	struct ib_umem_peer *peer = to_peer(umem);

	/* The notifier was armed and never stopped: a later free would stop what is gone. */
	WARN_ON(peer->func);
	/*
	 * The umem is still mapped if it is a queue's, or one that a driver forgot to stop. It is
	 * invalidated if the invalidation came after the stop.
	 */
	end_mapping(peer, peer->state);
	drop_ticket(peer);
	call_release(peer);
	put_client(peer->client);
	/* An invalidation that has found the umem reads this at any time. */
	peer->client = NULL;
	atomic64_sub(ib_umem_num_pages(umem), &umem->owning_mm->pinned_vm);
	mmdrop(umem->owning_mm);
	/* An invalidation may still be on its way out. */
	put_peer(peer);
}
EXPORT_SYMBOL(ib_peer_umem_release);

static int invalidate_ticket(void *reg_handle, u64 core_context)
{
	struct ib_peer_memory_client *client = reg_handle;
	struct ib_umem_peer *peer;
	struct lab_call call;
	char name[32];

	lab_hold(LAB_INVALIDATE_ENTRY, "-");
	call = lab_trace_begin();

	xa_lock(&client->tickets);
	/* The client may unregister while this thread waits for the lock. */
	strscpy(name, client->ops->name);
	atomic64_inc(&client->stats.num_free_callbacks);
	peer = xa_load(&client->tickets, core_context);
	if (!peer) {
		xa_unlock(&client->tickets);
		lab_trace_end(call, name, "invalidate", 0, 0, core_context, 0,
			      0);
		return 0;
	}
	kref_get(&peer->kref);
	xa_unlock(&client->tickets);

	lab_hold(LAB_INVALIDATE_FOUND, name);
	mutex_lock(&peer->mapping_lock);
	if (peer->state == MAPPED && peer->func) {
		struct lab_call fence;

		lab_hold(LAB_INVALIDATE_FENCE, client_name(peer));
		fence = lab_trace_begin();
		peer->func(&peer->umem, peer->func_priv);
		trace_end(peer, fence, "fence", 0);
	}
	/* The client is read through the umem and unchecked, as real cores do. */
	if (peer->client->flags & PEER_MEM_INVALIDATE_UNMAPS) {
		if (peer->state == MAPPED) {
			untrim_sgl(peer);
			forget_sgl(peer);
		}
		peer->state = INVALIDATED;
	} else {
		end_mapping(peer, peer->state);
	}
	mutex_unlock(&peer->mapping_lock);
	lab_trace_end(call, name, "invalidate", peer->umem.address,
		      peer->umem.length, core_context, 1, 0);
	put_peer(peer);
	return 0;
}

/*
 * Stops the NIC. A client with invalidation calls this hook when its memory goes away. Returns when
 * the NIC does not touch the memory any more. With the UNMAPS flag, the client then unmaps by
 * itself.
 */
static int ib_invalidate_peer_memory(void *reg_handle, u64 core_context)
{
	int ret;

	lab_mark_end();
	ret = invalidate_ticket(reg_handle, core_context);
	lab_mark_begin();
	return ret;
}

/* /sys/kernel/mm/memory_peers */

struct peer_attribute {
	struct kobj_attribute attr;
	size_t offset;	/* of the counter in struct peer_stats */
};

static struct ib_peer_memory_client *client_of_kobj(struct kobject *kobj)
{
	return container_of(kobj, struct ib_peer_memory_client, kobj);
}

static ssize_t version_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return sysfs_emit(buf, "%s\n", client_of_kobj(kobj)->ops->version);
}

static s64 counter(struct ib_peer_memory_client *client,
		   const struct attribute *attr)
{
	const struct peer_attribute *counter =
		container_of(attr, struct peer_attribute, attr.attr);
	void *stats = &client->stats;

	return atomic64_read((atomic64_t *)(stats + counter->offset));
}

static ssize_t counter_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return sysfs_emit(buf, "%lld\n",
			  counter(client_of_kobj(kobj), &attr->attr));
}

static struct kobj_attribute version_attr = __ATTR_RO(version);

#define COUNTER(_name)							\
	static struct peer_attribute _name##_attr = {			\
		.attr = __ATTR(_name, 0444, counter_show, NULL),	\
		.offset = offsetof(struct peer_stats, _name),		\
	}
COUNTER(num_alloc_mrs);
COUNTER(num_dealloc_mrs);
COUNTER(num_reg_pages);
COUNTER(num_dereg_pages);
COUNTER(num_reg_bytes);
COUNTER(num_dereg_bytes);
COUNTER(num_free_callbacks);

static struct attribute *client_attrs[] = {
	&version_attr.attr,
	&num_alloc_mrs_attr.attr.attr,
	&num_dealloc_mrs_attr.attr.attr,
	&num_reg_pages_attr.attr.attr,
	&num_dereg_pages_attr.attr.attr,
	&num_reg_bytes_attr.attr.attr,
	&num_dereg_bytes_attr.attr.attr,
	&num_free_callbacks_attr.attr.attr,
	NULL
};
ATTRIBUTE_GROUPS(client);

static void client_free(struct kobject *kobj)
{
	kfree(client_of_kobj(kobj));
}

static const struct kobj_type client_type = {
	.sysfs_ops = &kobj_sysfs_ops,
	.default_groups = client_groups,
	.release = client_free,
};

/* memory_peers, for the next client; under peer_memory_mutex */
static struct kobject *peers_kobj;

/*
 * Puts the folder when the list becomes empty. It stays until the last client's umems are gone, and
 * with them that client's own folder. Nobody can make a second one meanwhile.
 */
static void put_peers_kobj(void)
{
	if (!list_empty(&peer_memory_list))
		return;
	kobject_put(peers_kobj);
	peers_kobj = NULL;
}

static bool is_taken(struct kobject *folder, const char *name)
{
	struct kernfs_node *same = kernfs_find_and_get(folder->sd, name);

	kernfs_put(same);
	return same;
}

static int add_sysfs(struct ib_peer_memory_client *client)
{
	const char *name = client->ops->name;
	int ret;

	if (!has_memory_peers())
		return 0;
	if (!peers_kobj && is_taken(mm_kobj, "memory_peers")) {
		pr_err("client %s: memory_peers of the client before is still there\n",
		       name);
		return -EEXIST;
	}
	if (!peers_kobj)
		peers_kobj = kobject_create_and_add("memory_peers", mm_kobj);
	if (!peers_kobj)
		return -ENOMEM;
	if (is_taken(peers_kobj, name)) {
		pr_err("client %s: the name is taken\n", name);
		ret = -EEXIST;
	} else {
		ret = kobject_add(&client->kobj, peers_kobj, "%s", name);
	}
	if (ret)
		put_peers_kobj();
	return ret;
}

/* Shows the same in debugfs, for the lab's tests where there is no memory_peers. */
static int clients_show(struct seq_file *seq, void *unused)
{
	struct ib_peer_memory_client *client;
	const struct attribute *attr;
	int i;

	mutex_lock(&peer_memory_mutex);
	list_for_each_entry(client, &peer_memory_list, list) {
		seq_printf(seq, "client=%s version=%s", client->ops->name,
			   client->ops->version);
		for (i = 1; client_attrs[i]; i++) {
			attr = client_attrs[i];
			seq_printf(seq, " %s=%lld", attr->name,
				   counter(client, attr));
		}
		seq_putc(seq, '\n');
	}
	mutex_unlock(&peer_memory_mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(clients);

/* Interface of the clients */

static bool has_mandatory_callbacks(const struct peer_memory_client *ops)
{
	/* get_page_size is called all the same: only the check is gone. */
	const struct {
		const char *name;
		bool there;
	} mandatory[] = {
		{ "acquire", ops->acquire },
		{ "get_pages", ops->get_pages },
		{ "put_pages", ops->put_pages },
		{ "dma_map", ops->dma_map },
		{ "dma_unmap", ops->dma_unmap },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(mandatory); i++) {
		if (!mandatory[i].there) {
			pr_err("client %s lacks the mandatory callback %s\n",
			       ops->name, mandatory[i].name);
			return false;
		}
	}
	return true;
}

static u32 client_flags(const struct peer_memory_client *ops)
{
	const struct peer_memory_client_ex *ex =
		container_of(ops, struct peer_memory_client_ex, client);

	if (!ops->version[IB_PEER_MEMORY_VER_MAX - 1])
		return 0;
	if (ex->ex_size < offsetofend(struct peer_memory_client_ex, flags))
		return 0;
	return ex->flags;
}

/**
 * ib_register_peer_memory_client - let a client be asked
 * @ops: the client; must stay until it is unregistered
 * @invalidate: NULL, or where to store the hook that the client will call when
 *	memory goes away; umems whose NIC objects cannot be fenced then never
 *	come to this client
 *
 * Return: a handle, NULL on any error.
 */
void *ib_register_peer_memory_client(const struct peer_memory_client *ops,
				     invalidate_peer_memory *invalidate)
{
	struct ib_peer_memory_client *client;

	if (!has_mandatory_callbacks(ops))
		return NULL;
	client = kzalloc_obj(*client);
	if (!client)
		return NULL;
	kobject_init(&client->kobj, &client_type);
	kref_init(&client->usecnt);
	init_completion(&client->unused);
	xa_init_flags(&client->tickets, XA_FLAGS_ALLOC);
	client->ops = ops;
	client->flags = client_flags(ops);

	mutex_lock(&peer_memory_mutex);
	if (add_sysfs(client)) {
		mutex_unlock(&peer_memory_mutex);
		kobject_put(&client->kobj);
		return NULL;
	}
	/*
	 * A client that can lose memory serves only umems that can be fenced.
	 * It may call the hook as soon as acquire() has been called.
	 */
	if (invalidate) {
		*invalidate = ib_invalidate_peer_memory;
		client->invalidation_required = true;
	}
	list_add_tail(&client->list, &peer_memory_list);
	mutex_unlock(&peer_memory_mutex);
	return client;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

/**
 * ib_unregister_peer_memory_client - never ask this client again
 * @reg_handle: from ib_register_peer_memory_client()
 *
 * Waits, uninterruptibly, until the last umem of the client is released.
 */
void ib_unregister_peer_memory_client(void *reg_handle)
{
	struct ib_peer_memory_client *client = reg_handle;

	mutex_lock(&peer_memory_mutex);
	list_del(&client->list);
	put_peers_kobj();
	mutex_unlock(&peer_memory_mutex);

	lab_hold(LAB_BEFORE_DRAIN, client->ops->name);
	put_client(client);
	wait_for_completion(&client->unused);
	WARN_ON(!xa_empty(&client->tickets));
	/* The client goes, and with it its folder and its name. */
	kobject_put(&client->kobj);
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

/* Interface of the lab's NIC */

int ib_peer_lab_set_dma_device(struct ib_device *ibdev,
			       struct device *dma_device)
{
	return xa_err(xa_store(&lab_dma_devices, (unsigned long)ibdev,
			       dma_device, GFP_KERNEL));
}
EXPORT_SYMBOL_GPL(ib_peer_lab_set_dma_device);

const char *ib_peer_lab_client_name(struct ib_umem *umem)
{
	return client_name(to_peer(umem));
}
EXPORT_SYMBOL_GPL(ib_peer_lab_client_name);

void ib_peer_lab_hold_mkey(struct ib_umem *umem)
{
	lab_hold(LAB_NIC_MKEY, client_name(to_peer(umem)));
}
EXPORT_SYMBOL_GPL(ib_peer_lab_hold_mkey);

void ib_peer_lab_hold_write(struct ib_umem *umem)
{
	lab_hold(LAB_NIC_WRITE, client_name(to_peer(umem)));
}
EXPORT_SYMBOL_GPL(ib_peer_lab_hold_write);

static struct dentry *debugfs_dir;

void ib_peer_mem_init(void)
{
	debugfs_dir = debugfs_create_dir("ib_peer_mem", NULL);
	lab_trace_init(debugfs_dir);
	if (lab_probe_init())
		pr_err("no hold points in dma_map_resource and dma_unmap_resource\n");
	debugfs_create_file("clients", 0400, debugfs_dir, NULL, &clients_fops);
	pr_info("core of generation %s, %s memory_peers\n",
		generation_names[generation],
		has_memory_peers() ? "with" : "without");
}

void ib_peer_mem_cleanup(void)
{
	lab_probe_exit();
	debugfs_remove(debugfs_dir);
	xa_destroy(&lab_dma_devices);
}
