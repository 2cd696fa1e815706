// SPDX-License-Identifier: GPL-2.0
/*
 * What a test steers: settings, costs, faults and hold points, which the files of the driver ask
 * about, and its counters. debugfs.c reads and writes them.
 */
#define pr_fmt(fmt) "nvidia_lab: " fmt

#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <linux/wait.h>

#include "nvlab.h"

#define HOLD_MAX	(50 * HZ)

atomic64_t nvlab_accounting[NVLAB_ACCOUNT_COUNT];

/*
 * --- config and cost: a line "name value" each; "reset" restores the defaults ---
 */

struct setting {
	const char *name;
	u64 normal;
	u64 min;
	u64 max;
	u64 value;
};

#define SETTING(name, normal, min, max) { name, normal, min, max, normal }
/* If this flavour cannot change a setting, it has one value here. Any other is -EOPNOTSUPP. */
#define ONLY_ODD(name, normal, min, max, front) \
	SETTING(name, NVLAB_IS_ODD ? (normal) : (front), \
		NVLAB_IS_ODD ? (min) : (front), NVLAB_IS_ODD ? (max) : (front))
/* No release before 580 has gates (gates.c). */
#ifdef NVLAB_GATES
enum { GATES = 1 };
#else
enum { GATES = 0 };
#endif
#define ONLY_FRONT(name, normal, min, max, odd) \
	SETTING(name, NVLAB_IS_ODD ? (odd) : (normal), \
		NVLAB_IS_ODD ? (odd) : (min), NVLAB_IS_ODD ? (odd) : (max))

static struct setting config[NVLAB_C_COUNT] = {
	/* Version word of a table; 0x10002: drivers up to 575. */
	[NVLAB_C_TABLE_VERSION] = ONLY_ODD("table_version", 0x20000, 0, U32_MAX, 0x10002),
	/*
	 * 595: dma_map_pages answers raw bus addresses, as every release does on kernels
	 * from 6.12 on. 550: as on older kernels, one dma_map_resource per 64 KiB.
	 */
	[NVLAB_C_DMA_MODE] = ONLY_FRONT("dma_mode", 595, 550, 595, 595),
	/* NVLAB_LAYOUT_*: 1 contiguous, 2 broken at 2 MiB, 3 broken at 64 KiB, 4 shuffled. */
	[NVLAB_C_LAYOUT] = SETTING("layout", NVLAB_LAYOUT_CONTIGUOUS,
			     NVLAB_LAYOUT_CONTIGUOUS, NVLAB_LAYOUT_SHUFFLED),
	/*
	 * 1: new allocations are coherent memory outside any BAR; a NIC reaches it while
	 * it is pinned. 2: coherent memory that is a BAR's, as in a virtual machine, where
	 * only tables of version 2 can tell what it is: in the odd flavour.
	 */
	[NVLAB_C_COHERENT] = SETTING("coherent", 0, 0, 2),
	/* Bytes of BAR1 of each GPU, 0: the BAR's. Less is sooner exhausted. */
	[NVLAB_C_BAR1_SIZE] = SETTING("bar1_size", 0, 0, U64_MAX),
	/*
	 * Bytes that stay free. A new extent needs its length and this by its client's
	 * account (persistent pins: by the driver's), else -ENOMEM.
	 */
	[NVLAB_C_BAR1_RESERVE] = SETTING("bar1_reserve", 36 * SZ_1M, 0, S64_MAX),
	/*
	 * 1: each extent is in one piece, however the memory is laid out.
	 * 0: an extent has the memory's layout.
	 */
	[NVLAB_C_BAR1_CONTIGUOUS] = SETTING("bar1_contiguous", 0, 0, 1),
	/*
	 * 1: all memory lies in BAR1 at its own place, as where RM maps it statically; a
	 * pin maps and unmaps nothing there. A device of QEMU's own reaches memory in
	 * this way alone: it does not ask the fabric.
	 */
	[NVLAB_C_BAR1_STATIC] = SETTING("bar1_static", 0, 0, 1),
	/*
	 * 1: closing /dev/nvidiactl frees in the kernel thread nv_queue, beside the
	 * closing task.
	 */
	[NVLAB_C_CLOSE_DEFERRED] = SETTING("close_deferred", 0, 0, 1),
	/*
	 * 1: the next get hands out a freed table's address at once (KASAN's quarantine
	 * would delay it). 0: plain kmalloc and kfree.
	 */
	[NVLAB_C_KEY_REUSE] = SETTING("key_reuse", 0, 0, 1),
	/*
	 * Tables are overwritten before they are freed; not beside KASAN, which sees it, nor
	 * in the odd flavour, whose clients have copies of the records.
	 */
	[NVLAB_C_POISON] = ONLY_FRONT("poison", 1, 0, 1, 0),
	/*
	 * Allocations up to this size get a random pattern and CRCs; larger ones
	 * neither.
	 */
	[NVLAB_C_CRC_MAX] = SETTING("crc_max", SZ_64M, 0, U32_MAX),
	/*
	 * Bytes per page of a table: 4096, 65536, or 131072 (where the pinned memory has
	 * only such pages; elsewhere 65536). dma_map_pages cannot take 4096: a warning
	 * and -EIO here, where the real one stops the machine.
	 */
	[NVLAB_C_PAGE_SIZE] = ONLY_ODD("page_size", NVLAB_GPU_PAGE, SZ_4K, SZ_128K,
					NVLAB_GPU_PAGE),
	/* The order of the pages of shuffled allocations from now on; 0: a new one each time. */
	[NVLAB_C_LAYOUT_SEED] = SETTING("layout_seed", 0, 0, U64_MAX),
	/*
	 * 1: on this chipset the driver lets a NIC have memory of a GPU below a common
	 * switch only, by a pin or by a dma-buf (>= 580).
	 */
	[NVLAB_C_UNAPPROVED_CHIPSET] = SETTING("unapproved_chipset", 0, 0, NVLAB_IS_ODD || GATES),
	/* 1: coherent memory counts as localized, which no NIC may have (gates.c). */
	[NVLAB_C_LOCALIZED] = SETTING("localized", 0, 0, GATES),
};

/*
 * Nanoseconds, all 0 by default: how long a whole call takes, the stand-in's own
 * work included (which may take longer). Waiting for the RM API lock comes on
 * top; three quarters of the time pass under it. "v100" on a line of its own
 * sets what was published for that card. gpu_start and gpu_stop: how long the first
 * open of a GPU takes, and the last close, besides.
 */
static struct setting cost[NVLAB_T_COUNT] = {
	[NVLAB_T_PIN_BASE] = SETTING("pin_base", 0, 0, NSEC_PER_SEC),
	[NVLAB_T_PIN_GIB] = SETTING("pin_gib", 0, 0, NSEC_PER_SEC),
	[NVLAB_T_UNPIN_BASE] = SETTING("unpin_base", 0, 0, NSEC_PER_SEC),
	[NVLAB_T_UNPIN_GIB] = SETTING("unpin_gib", 0, 0, NSEC_PER_SEC),
	[NVLAB_T_GPU_START] = SETTING("gpu_start", 0, 0, NSEC_PER_SEC),
	[NVLAB_T_GPU_STOP] = SETTING("gpu_stop", 0, 0, NSEC_PER_SEC),
	[NVLAB_T_SLEEP] = SETTING("sleep", 0, 0, 1),	/* 0: busy wait */
};

u64 nvlab_config(enum nvlab_config_name name)
{
	return READ_ONCE(config[name].value);
}

static void spend_until(ktime_t until)
{
	s64 left;

	/*
	 * A sleep is counted in ticks. One that begins while the ticks are late, as
	 * they are on a busy host, ends before its time.
	 */
	while ((left = ktime_to_ns(ktime_sub(until, ktime_get()))) > 0) {
		if (READ_ONCE(cost[NVLAB_T_SLEEP].value)) {
			fsleep(DIV_ROUND_UP_ULL(left, NSEC_PER_USEC));
		} else {
			cpu_relax();
			cond_resched();
		}
	}
}

void nvlab_spend(ktime_t start, enum nvlab_cost_name base,
		 enum nvlab_cost_name gib, u64 len, unsigned int percent)
{
	u64 ns = READ_ONCE(cost[base].value) +
		 mul_u64_u64_shr(READ_ONCE(cost[gib].value), len, 30);

	if (ns)
		spend_until(ktime_add_ns(start, div_u64(ns * percent, 100)));
}

static int setting_write(struct setting *table, unsigned int count, int words,
			 char **word)
{
	unsigned int i;
	u64 v;

	if (words == 1 && !strcmp(word[0], "reset")) {
		for (i = 0; i < count; i++)
			WRITE_ONCE(table[i].value, table[i].normal);
		return 0;
	}
	for (i = 0; i < count; i++)
		if (!strcmp(table[i].name, word[0]))
			break;
	if (i == count || words != 2 || kstrtou64(word[1], 0, &v))
		return -EINVAL;
	if (table[i].min == table[i].max && v != table[i].min)
		return -EOPNOTSUPP;
	if (table == config && i == NVLAB_C_COHERENT && v == 2 && !NVLAB_IS_ODD)
		return -EOPNOTSUPP;
	if (v < table[i].min || v > table[i].max)
		return -EINVAL;
	if (table == config && i == NVLAB_C_DMA_MODE && v != 550 && v != 595)
		return -EINVAL;
	/* What is mapped in one way cannot be unmapped in the other. */
	if (table == config && i == NVLAB_C_DMA_MODE && v != table[i].value &&
	    atomic64_read(&nvlab_accounting[NVLAB_ACCOUNT_LIVE_MAPPINGS]))
		return -EBUSY;
	if (table == config && i == NVLAB_C_PAGE_SIZE && v != SZ_4K &&
	    v != NVLAB_GPU_PAGE && v != SZ_128K)
		return -EINVAL;
	WRITE_ONCE(table[i].value, v);
	return 0;
}

static void settings_show(struct seq_file *s, const struct setting *table,
			  unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		seq_printf(s, "%s %llu\n", table[i].name,
			   READ_ONCE(table[i].value));
}

static int config_show(struct seq_file *s, void *unused)
{
	settings_show(s, config, NVLAB_C_COUNT);
	return 0;
}

static int config_write(int words, char **word)
{
	return setting_write(config, NVLAB_C_COUNT, words, word);
}

static int cost_show(struct seq_file *s, void *unused)
{
	settings_show(s, cost, NVLAB_T_COUNT);
	return 0;
}

static int cost_write(int words, char **word)
{
	if (words == 1 && !strcmp(word[0], "v100")) {
		/* As published for a V100 (gdrcopy, PR 129). */
		WRITE_ONCE(cost[NVLAB_T_PIN_BASE].value, 68000);
		WRITE_ONCE(cost[NVLAB_T_PIN_GIB].value, 3100000);
		WRITE_ONCE(cost[NVLAB_T_UNPIN_BASE].value, 38000);
		WRITE_ONCE(cost[NVLAB_T_UNPIN_GIB].value, 1600000);
		return 0;
	}
	return setting_write(cost, NVLAB_T_COUNT, words, word);
}

const struct nvlab_file nvlab_config_file = { "config", config_show, config_write };
const struct nvlab_file nvlab_cost_file = { "cost", cost_show, cost_write };

/*
 * --- faults ---
 *
 * Read: "name value count". Write: "name value [count]", or "reset" to switch all
 * off. Value 0 switches a fault off; count is how often it strikes (default:
 * until it is switched off). An errno is written as a positive number.
 */

struct fault {
	u64 value;
	u64 count;	/* strikes left; U64_MAX: until switched off */
};

static const char * const fault_names[NVLAB_F_COUNT] = {
	/*
	 * A get of either kind fails with -ENOMEM. 1: at the first allocation, before ownership is
	 * known. 2: at the table, after the RM API lock was taken and dropped. 3, in a revocable
	 * get: at the GPU's number. RM then keeps the pin, which has no callback, until the memory
	 * is freed. It knows the pin by the address of a table that is gone.
	 */
	[NVLAB_F_GET_NOMEM] = "get_nomem",
	/* Errno of a revocable get after the range was found. 22 (EINVAL) is "not mine". */
	[NVLAB_F_GET_ERRNO] = "get_errno",
	/* Errno of a persistent get after the range was found. 524 is ENOTSUPP. */
	[NVLAB_F_PERSISTENT_ERRNO] = "persistent_errno",
	/*
	 * Errno of RM in a revocable put: it has done nothing, nv-p2p.c warns, and the
	 * callback stays armed. A get that undoes itself puts, too.
	 */
	[NVLAB_F_PUT_ERRNO] = "put_errno",
	/*
	 * Errno of RM in a persistent put: nv-p2p.c warns, gives the GPU back all the
	 * same, and the pin stays.
	 */
	[NVLAB_F_PERSISTENT_PUT_ERRNO] = "persistent_put_errno",
	/*
	 * 1: RM does not find the pin of a revocable put, as for a process that has left
	 * the memory's list: nv-p2p.c returns 0, and the callback stays armed.
	 */
	[NVLAB_F_PUT_FORGET] = "put_forget",
	/* 1: the client's free callback is called twice. */
	[NVLAB_F_CALLBACK_DOUBLE] = "callback_double",
	/*
	 * 1: memory is freed without callbacks, as when the GPU is lost. Tables and pins
	 * leak until the module goes.
	 */
	[NVLAB_F_CALLBACK_NONE] = "callback_none",
	/* Errno of dma_map_pages, after the RM API lock. */
	[NVLAB_F_MAP_ERRNO] = "map_errno",
	/*
	 * n+1: page n of dma_map_pages cannot be mapped. With memory in a BAR, releases before 580
	 * go on, and return the status of the last page; later ones, and the odd flavour, stop.
	 */
	[NVLAB_F_MAP_PARTIAL] = "map_partial",
	/* 1: dma_map_pages is -ENOTSUPP: the chipset is refused (>= 580). */
	[NVLAB_F_MAP_TOPOLOGY] = "map_topology",
	/* The GPU cannot be opened for a persistent pin or a dma-buf: ENODEV or EIO. */
	[NVLAB_F_OPEN_ERRNO] = "open_errno",
	/*
	 * 1: dma_unmap_pages has no memory for what it needs to unmap coherent memory:
	 * nv-p2p.c warns, says that it is done, and the mapping stays.
	 */
	[NVLAB_F_UNMAP_NOMEM] = "unmap_nomem",
	/* Version word of the next table. */
	[NVLAB_F_TABLE_VERSION] = "table_version",
	/* Its page_size field. 0 cannot be set; 4 KiB is value 0x100. */
	[NVLAB_F_TABLE_PAGE_SIZE] = "table_page_size",
	/*
	 * n entries less than the length asks for, and with table_long n more. The array
	 * is as long as the count says.
	 */
	[NVLAB_F_TABLE_SHORT] = "table_short",
	[NVLAB_F_TABLE_LONG] = "table_long",
	/* n bytes are added to every physical address. */
	[NVLAB_F_TABLE_MISALIGN] = "table_misalign",
	/* 1: pages is NULL. */
	[NVLAB_F_TABLE_NULL_PAGES] = "table_null_pages",
	/* n+1: pages[n] is NULL. */
	[NVLAB_F_TABLE_NULL_ENTRY] = "table_null_entry",
	/* n+1: page n's physical address is 2^64 - 32 KiB, so its end wraps past 0. */
	[NVLAB_F_TABLE_WRAP] = "table_wrap",
	/* n+1: page n's physical address is outside every BAR (system memory). */
	[NVLAB_F_TABLE_OUTSIDE] = "table_outside",
	/* 1: attaching to a dma-buf is -ENOTSUPP: the pair is refused (>= 570). */
	[NVLAB_F_ATTACH_TOPOLOGY] = "attach_topology",
};

static struct fault faults[NVLAB_F_COUNT];
static DEFINE_SPINLOCK(faults_lock);

/* Lets a fault strike if @wanted is 0 or the fault's value. Returns that value, or 0. */
static u64 fault_strike(enum nvlab_fault_name name, u64 wanted)
{
	struct fault *f = &faults[name];
	u64 value;

	if (!READ_ONCE(f->value))
		return 0;
	spin_lock(&faults_lock);
	value = f->value;
	if (!value || (wanted && value != wanted) || !f->count)
		value = 0;
	else if (f->count != U64_MAX && --f->count == 0)
		f->value = 0;
	spin_unlock(&faults_lock);
	return value;
}

u64 nvlab_fault(enum nvlab_fault_name name)
{
	return fault_strike(name, 0);
}

bool nvlab_fault_is(enum nvlab_fault_name name, u64 value)
{
	return fault_strike(name, value);
}

static int name_find(const char * const *names, unsigned int count,
		     const char *name)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return i;
	return -EINVAL;
}

/*
 * Returns whether a fault can strike in this flavour. NVIDIA's own front makes no odd tables, and
 * the odd flavour needs no memory to unmap.
 */
static bool fault_can_strike(int at, u64 value)
{
	if (at == NVLAB_F_GET_NOMEM)
		return value < 4;
	return NVLAB_IS_ODD ? at != NVLAB_F_UNMAP_NOMEM : at < NVLAB_F_TABLE_VERSION;
}

static int faults_write(int words, char **word)
{
	struct fault f = { .count = U64_MAX };
	int at;

	if (words == 1 && !strcmp(word[0], "reset")) {
		spin_lock(&faults_lock);
		memset(faults, 0, sizeof(faults));
		spin_unlock(&faults_lock);
		return 0;
	}
	at = name_find(fault_names, NVLAB_F_COUNT, word[0]);
	if (at < 0 || words < 2 || kstrtou64(word[1], 0, &f.value) ||
	    f.value > U32_MAX ||
	    (words > 2 && (kstrtou64(word[2], 0, &f.count) || !f.count)))
		return -EINVAL;
	if (!fault_can_strike(at, f.value))
		return -EOPNOTSUPP;
	spin_lock(&faults_lock);
	faults[at] = f;
	spin_unlock(&faults_lock);
	return 0;
}

static int faults_show(struct seq_file *s, void *unused)
{
	unsigned int i;

	for (i = 0; i < NVLAB_F_COUNT; i++) {
		struct fault f;

		spin_lock(&faults_lock);
		f = faults[i];
		spin_unlock(&faults_lock);
		seq_printf(s, "%s %llu %llu\n", fault_names[i], f.value,
			   f.value && f.count != U64_MAX ? f.count : 0);
	}
	return 0;
}

const struct nvlab_file nvlab_faults_file = { "faults", faults_show, faults_write };

/*
 * --- holds: hold points ---
 *
 * Read: "name armed waiting arrived". Write: "arm NAME", "release NAME" or
 * "release all". An armed point stops the next arrival until its release, which
 * lets it go and disarms. "arrived" counts all arrivals since the last arm. A
 * hold ends by itself after 50 s, with a line in the log that counts as an alarm.
 */

struct hold {
	bool armed;	/* the next arrival will stop */
	u64 arrived;
	u32 waiting;
	u32 releases;
};

static const char * const hold_names[NVLAB_H_COUNT] = {
	/* In get, after key and arrays were allocated, before the RM API lock. */
	[NVLAB_H_GET_ALLOC] = "get_alloc",
	/* Range found and BAR1 mapped, RM API lock dropped, table not yet built. */
	[NVLAB_H_GET_FOUND] = "get_found",
	/* Table built, before the RM API lock is taken to register the callback. */
	[NVLAB_H_GET_FILLED] = "get_filled",
	/* Callback registered, RM API lock dropped, before the call returns. */
	[NVLAB_H_GET_DONE] = "get_done",
	/*
	 * The same in the persistent get. pget_alloc: before the RM API lock is taken to
	 * find the GPU.
	 */
	[NVLAB_H_PGET_ALLOC] = "pget_alloc",
	[NVLAB_H_PGET_FOUND] = "pget_found",
	[NVLAB_H_PGET_DONE] = "pget_done",
	/* Revocable put: before, under and after the RM API lock, the table not yet freed. */
	[NVLAB_H_PUT_BEFORE] = "put_before",
	[NVLAB_H_PUT_LOCKED] = "put_locked",
	[NVLAB_H_PUT_AFTER] = "put_after",
	/* Persistent put, without the RM API lock. */
	[NVLAB_H_PPUT_BEFORE] = "pput_before",
	[NVLAB_H_PPUT_AFTER] = "pput_after",
	/*
	 * dma_map_pages, without the RM API lock: the table already read once; the
	 * mapping not yet linked to the table.
	 */
	[NVLAB_H_MAP_BEFORE] = "map_before",
	[NVLAB_H_MAP_AFTER] = "map_after",
	/*
	 * Before and after one client's callback, under the RM API lock and the GPU lock.
	 * After: nv-p2p.c has freed the table.
	 */
	[NVLAB_H_CALLBACK_BEFORE] = "callback_before",
	[NVLAB_H_CALLBACK_AFTER] = "callback_after",
	/* In the thread nv_queue, before a deferred close. */
	[NVLAB_H_DEFERRED] = "deferred",
	/* Under the GPU lock, without the RM API lock: see accounting, use_gpu. */
	[NVLAB_H_GPU_BUSY] = "gpu_busy",
};

static struct hold holds[NVLAB_H_COUNT];
static DEFINE_SPINLOCK(holds_lock);
static DECLARE_WAIT_QUEUE_HEAD(holds_wait);

void nvlab_hold(enum nvlab_hold_name name)
{
	struct hold *h = &holds[name];
	u32 releases;
	bool stop;

	spin_lock(&holds_lock);
	h->arrived++;
	stop = h->armed;
	if (stop) {
		h->armed = false;
		h->waiting++;
	}
	releases = h->releases;
	spin_unlock(&holds_lock);
	if (!stop)
		return;
	if (!wait_event_idle_timeout(holds_wait,
				     READ_ONCE(h->releases) != releases,
				     HOLD_MAX))
		pr_err("hold %s timed out\n", hold_names[name]);
	spin_lock(&holds_lock);
	h->waiting--;
	spin_unlock(&holds_lock);
}

static void holds_release(struct hold *h)
{
	spin_lock(&holds_lock);
	h->armed = false;
	WRITE_ONCE(h->releases, h->releases + 1);
	spin_unlock(&holds_lock);
	wake_up_all(&holds_wait);
}

static int holds_write(int words, char **word)
{
	unsigned int i;
	int at;

	if (words == 2 && !strcmp(word[0], "release") &&
	    !strcmp(word[1], "all")) {
		for (i = 0; i < NVLAB_H_COUNT; i++)
			holds_release(&holds[i]);
		return 0;
	}
	if (words != 2)
		return -EINVAL;
	at = name_find(hold_names, NVLAB_H_COUNT, word[1]);
	if (at < 0)
		return -EINVAL;
	if (!strcmp(word[0], "release")) {
		holds_release(&holds[at]);
		return 0;
	}
	if (strcmp(word[0], "arm"))
		return -EINVAL;
	spin_lock(&holds_lock);
	holds[at].armed = true;
	holds[at].arrived = 0;
	spin_unlock(&holds_lock);
	return 0;
}

static int holds_show(struct seq_file *s, void *unused)
{
	unsigned int i;

	for (i = 0; i < NVLAB_H_COUNT; i++) {
		struct hold h;

		spin_lock(&holds_lock);
		h = holds[i];
		spin_unlock(&holds_lock);
		seq_printf(s, "%s %u %u %llu\n", hold_names[i], h.armed,
			   h.waiting, h.arrived);
	}
	return 0;
}

const struct nvlab_file nvlab_holds_file = { "holds", holds_show, holds_write };
