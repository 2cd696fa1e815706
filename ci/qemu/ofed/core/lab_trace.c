// SPDX-License-Identifier: GPL-2.0
/*
 * Callback trace and hold points of the lab's peer-memory core, in
 * /sys/kernel/debug/ib_peer_mem. A real core has neither; both only observe and
 * delay, and never change a result. What they leave out: the trace keeps the
 * last 4096 calls and no history behind them, and a hold point stops whole
 * threads, never a CPU.
 *
 *   trace    read: a line for each callback or event of the core that is over,
 *            oldest first. Write anything to empty it.
 *   hold     read: the armed points. Write a point's name: the next thread that
 *            comes there stops. Each write stops one thread.
 *   release  write a point's name: the threads that wait there go on, and it is
 *            disarmed; "all": every thread and every point.
 *   waiting  who waits: point=before_dma_map client=nv_mem pid=93 tgid=93 ms=120 comm=reg
 *   clients  a line for each registered client, with its counters, for kernels
 *            without mm_kobj (peer_mem.c). Takes the peer mutex.
 *
 * A line of trace:
 *   seq=4 start_ns=81234567890 ns=51234 pid=93 tgid=93 client=nv_mem cb=dma_map
 *   addr=0x7f0000000000 size=65536 ticket=0 nents=1 ret=0 comm=reg
 * seq numbers the lines in the order in which the calls began. ns is the time in
 * the call. ticket is the registration's core_context, "-" where there is none.
 * nents is the sg list's length after the call. cb is a callback's name or an
 * event: activate (the NIC armed the notifier), stop, invalidate (the client
 * called the core's hook; ret is what it got, nents=1 a known ticket, 0 an
 * unknown one), fence (the NIC's invalidation function).
 */
#include <linux/debugfs.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "lab_trace.h"

#define RING	4096

struct entry {
	struct lab_call call;
	u64 ns;
	u64 ticket;
	unsigned long addr;
	size_t size;
	long ret;
	unsigned int nents;
	pid_t pid, tgid;
	char comm[TASK_COMM_LEN];
	char client[32];
	char what[16];
};

static struct entry ring[RING];
static u64 ring_next;		/* entries ever written */
static u64 ring_first;		/* the oldest that is still to be shown */
static DEFINE_SPINLOCK(ring_lock);	/* the three above */
static atomic64_t next_seq = ATOMIC64_INIT(1);

struct lab_call lab_trace_begin(void)
{
	return (struct lab_call){
		.seq = atomic64_fetch_inc(&next_seq),
		.start_ns = ktime_get_ns(),
	};
}

void lab_trace_end(struct lab_call call, const char *client, const char *what,
		   unsigned long addr, size_t size, u64 ticket,
		   unsigned int nents, long ret)
{
	u64 now = ktime_get_ns();
	unsigned long flags;
	struct entry *e;

	spin_lock_irqsave(&ring_lock, flags);
	e = &ring[ring_next++ % RING];
	if (ring_next - ring_first > RING)
		ring_first = ring_next - RING;
	e->call = call;
	e->ns = now - call.start_ns;
	e->ticket = ticket;
	e->addr = addr;
	e->size = size;
	e->ret = ret;
	e->nents = nents;
	e->pid = task_pid_nr(current);
	e->tgid = task_tgid_nr(current);
	get_task_comm(e->comm, current);
	strreplace(e->comm, ' ', '_');
	strscpy(e->client, client);
	strscpy(e->what, what);
	spin_unlock_irqrestore(&ring_lock, flags);
}

static int trace_show(struct seq_file *s, void *unused)
{
	unsigned long flags;
	struct entry e;
	u64 i, end;

	spin_lock_irqsave(&ring_lock, flags);
	i = ring_first;
	end = ring_next;
	spin_unlock_irqrestore(&ring_lock, flags);

	for (; i < end; i++) {
		spin_lock_irqsave(&ring_lock, flags);
		e = ring[i % RING];
		spin_unlock_irqrestore(&ring_lock, flags);

		seq_printf(s, "seq=%llu start_ns=%llu ns=%llu pid=%d tgid=%d client=%s cb=%s addr=0x%lx size=%zu",
			   e.call.seq, e.call.start_ns, e.ns, e.pid, e.tgid,
			   e.client, e.what, e.addr, e.size);
		if (e.ticket == LAB_NO_TICKET)
			seq_puts(s, " ticket=-");
		else
			seq_printf(s, " ticket=%llu", e.ticket);
		seq_printf(s, " nents=%u ret=%ld comm=%s\n", e.nents, e.ret,
			   e.comm);
	}
	return 0;
}

static int trace_open(struct inode *inode, struct file *file)
{
	return single_open(file, trace_show, NULL);
}

static ssize_t trace_write(struct file *file, const char __user *buf,
			   size_t count, loff_t *pos)
{
	unsigned long flags;

	spin_lock_irqsave(&ring_lock, flags);
	ring_first = ring_next;
	spin_unlock_irqrestore(&ring_lock, flags);
	return count;
}

static const struct file_operations trace_fops = {
	.owner = THIS_MODULE,
	.open = trace_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
	.write = trace_write,
};

static const char * const point_names[LAB_POINTS] = {
	/* Under the peer mutex. */
	[LAB_BEFORE_ACQUIRE] = "before_acquire",
	/* acquire has said "mine"; under the umem mapping lock. */
	[LAB_BEFORE_GET_PAGES] = "before_get_pages",
	/* After get_pages; under the umem mapping lock. */
	[LAB_BEFORE_DMA_MAP] = "before_dma_map",
	/*
	 * Mapped, mkey live, notifier not armed; under the umem mapping lock if the
	 * client is revocable.
	 */
	[LAB_BEFORE_ACTIVATE] = "before_activate",
	/* Deregistration, fence done; no lock. */
	[LAB_BEFORE_STOP] = "before_stop",
	/*
	 * in_stop to before_put_pages: notifier off. No lock for a client with
	 * PEER_MEM_INVALIDATE_UNMAPS, otherwise the umem mapping lock; so before_put_pages
	 * after a dma_map that failed.
	 */
	[LAB_IN_STOP] = "in_stop",
	[LAB_BEFORE_DMA_UNMAP] = "before_dma_unmap",
	[LAB_BEFORE_PUT_PAGES] = "before_put_pages",
	/* No lock. */
	[LAB_BEFORE_RELEASE] = "before_release",
	/* A client that unregisters is in no list any more. No lock. */
	[LAB_BEFORE_DRAIN] = "before_drain",
	/*
	 * The client has called the core's hook. Nothing of the core is touched yet, not
	 * even the handle. The locks are those that the caller holds.
	 */
	[LAB_INVALIDATE_ENTRY] = "invalidate_entry",
	/* The umem is found and counted, its mapping lock not yet taken. */
	[LAB_INVALIDATE_FOUND] = "invalidate_found",
	/* Before the NIC's fence; under the umem mapping lock. */
	[LAB_INVALIDATE_FENCE] = "invalidate_fence",
	/*
	 * The caller of dma_map_resource stands at its beginning: a client that maps by
	 * itself, in its dma_map, under the umem mapping lock.
	 */
	[LAB_IN_DMA_MAP] = "in_dma_map",
	/*
	 * The same for dma_unmap_resource, with the locks of the callback that the client
	 * is in.
	 */
	[LAB_IN_DMA_UNMAP] = "in_dma_unmap",
	/*
	 * The NIC is about to make a key. The umem mapping lock of a client with
	 * invalidation, and the NIC's lock for new keys.
	 */
	[LAB_NIC_MKEY] = "nic_mkey",
	/*
	 * The NIC has begun to write to peer memory, and no byte of that packet is there
	 * yet: a fence waits for it. No lock; a kernel thread of rxe's.
	 */
	[LAB_NIC_WRITE] = "nic_write",
};

struct waiter {
	struct list_head list;
	enum lab_point point;
	struct task_struct *task;
	const char *client;
	u64 since_ns;
	bool go;
};

static unsigned int armed[LAB_POINTS];	/* threads still to be stopped there */
static LIST_HEAD(waiters);
static DEFINE_SPINLOCK(hold_lock);	/* the two above, and waiter.go */
static DECLARE_WAIT_QUEUE_HEAD(hold_queue);

bool lab_armed(enum lab_point point)
{
	return READ_ONCE(armed[point]);
}

void lab_hold(enum lab_point point, const char *client)
{
	struct waiter w = {
		.point = point,
		.task = current,
		.client = client,
	};

	if (!READ_ONCE(armed[point]))
		return;

	spin_lock(&hold_lock);
	if (!armed[point]) {
		spin_unlock(&hold_lock);
		return;
	}
	WRITE_ONCE(armed[point], armed[point] - 1);
	w.since_ns = ktime_get_ns();
	list_add_tail(&w.list, &waiters);
	spin_unlock(&hold_lock);

	/* Uninterruptible, but no hung task: a test holds it on purpose. */
	wait_event_idle(hold_queue, READ_ONCE(w.go));

	spin_lock(&hold_lock);
	list_del(&w.list);
	spin_unlock(&hold_lock);
}

/* Returns the number of the point that user text names, or LAB_POINTS for "all". */
static int read_point(const char __user *buf, size_t count)
{
	char text[32], *name;

	if (count >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, buf, count))
		return -EFAULT;
	text[count] = '\0';
	name = strim(text);
	if (!strcmp(name, "all"))
		return LAB_POINTS;
	return match_string(point_names, LAB_POINTS, name);
}

static ssize_t hold_write(struct file *file, const char __user *buf,
			  size_t count, loff_t *pos)
{
	int point = read_point(buf, count);
	int err;

	if (point < 0)
		return point;
	if (point == LAB_POINTS)
		return -EINVAL;
	err = lab_probe_enable(point);
	if (err)
		return err;
	spin_lock(&hold_lock);
	WRITE_ONCE(armed[point], armed[point] + 1);
	spin_unlock(&hold_lock);
	return count;
}

static int hold_show(struct seq_file *s, void *unused)
{
	int i;

	for (i = 0; i < LAB_POINTS; i++)
		if (READ_ONCE(armed[i]))
			seq_printf(s, "%s\n", point_names[i]);
	return 0;
}

static int hold_open(struct inode *inode, struct file *file)
{
	return single_open(file, hold_show, NULL);
}

static const struct file_operations hold_fops = {
	.owner = THIS_MODULE,
	.open = hold_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
	.write = hold_write,
};

static ssize_t release_write(struct file *file, const char __user *buf,
			     size_t count, loff_t *pos)
{
	int point = read_point(buf, count);
	struct waiter *w;
	int i;

	if (point < 0)
		return point;
	spin_lock(&hold_lock);
	for (i = 0; i < LAB_POINTS; i++)
		if (point == LAB_POINTS || point == i)
			WRITE_ONCE(armed[i], 0);
	list_for_each_entry(w, &waiters, list)
		if (point == LAB_POINTS || point == w->point)
			WRITE_ONCE(w->go, true);
	/* Under the lock: a waiter leaves its stack only after taking it. */
	wake_up_all(&hold_queue);
	spin_unlock(&hold_lock);
	return count;
}

static const struct file_operations release_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = release_write,
};

static int waiting_show(struct seq_file *s, void *unused)
{
	u64 now = ktime_get_ns();
	struct waiter *w;

	spin_lock(&hold_lock);
	list_for_each_entry(w, &waiters, list)
		seq_printf(s, "point=%s client=%s pid=%d tgid=%d ms=%llu comm=%s\n",
			   point_names[w->point], w->client,
			   task_pid_nr(w->task), task_tgid_nr(w->task),
			   (now - w->since_ns) / NSEC_PER_MSEC, w->task->comm);
	spin_unlock(&hold_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(waiting);

void lab_trace_init(struct dentry *dir)
{
	debugfs_create_file("trace", 0600, dir, NULL, &trace_fops);
	debugfs_create_file("hold", 0600, dir, NULL, &hold_fops);
	debugfs_create_file("release", 0200, dir, NULL, &release_fops);
	debugfs_create_file("waiting", 0400, dir, NULL, &waiting_fops);
}
