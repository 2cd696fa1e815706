// SPDX-License-Identifier: GPL-2.0
/*
 * lab_alarms: makes the kernel raise one alarm, so that the lab can show that
 * it would notice a real one. Models nothing; each fault is the plainest of its
 * kind. For throw-away boots only: lockdep is off after any of them, and the
 * machine is not to be trusted any more.
 *
 *   modprobe lab_alarms raise=lockdep|kasan|kcsan|ubsan|debug_objects|debug_vm|kmemleak
 */
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/mmdebug.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timer.h>

static char *raise = "";
module_param(raise, charp, 0);
MODULE_PARM_DESC(raise, "alarm to raise: lockdep, kasan, kcsan, ubsan, debug_objects, debug_vm or kmemleak");

static DEFINE_MUTEX(lock_a);
static DEFINE_MUTEX(lock_b);

/* Takes two locks in either order: a deadlock that one thread alone never meets. */
static int raise_lockdep(void)
{
	mutex_lock(&lock_a);
	mutex_lock(&lock_b);
	mutex_unlock(&lock_b);
	mutex_unlock(&lock_a);

	mutex_lock(&lock_b);
	mutex_lock(&lock_a);
	mutex_unlock(&lock_a);
	mutex_unlock(&lock_b);
	return 0;
}

/* Reads one byte from memory that was freed. */
static int raise_kasan(void)
{
	u8 *byte = kmalloc(64, GFP_KERNEL);

	if (!byte)
		return -ENOMEM;
	kfree(byte);
	OPTIMIZER_HIDE_VAR(byte);
	pr_info("lab_alarms: read %u\n", READ_ONCE(byte[8]));
	return 0;
}

static int raced;

static int race(void *unused)
{
	while (!kthread_should_stop()) {
		raced++;
		cond_resched();
	}
	return 0;
}

/* Has two threads count in one variable, without a lock. */
static int raise_kcsan(void)
{
	unsigned long end = jiffies + 2 * HZ;
	struct task_struct *other = kthread_run(race, NULL, "lab_alarms");

	if (IS_ERR(other))
		return PTR_ERR(other);
	while (time_before(jiffies, end)) {
		raced++;
		cond_resched();
	}
	kthread_stop(other);
	pr_info("lab_alarms: counted to %d\n", raced);
	return 0;
}

/* Shifts by more bits than there are. */
static int raise_ubsan(void)
{
	unsigned int bits = 40;

	OPTIMIZER_HIDE_VAR(bits);
	pr_info("lab_alarms: shifted to %d\n", 1 << bits);
	return 0;
}

static void never(struct timer_list *timer)
{
}

/* Frees a timer while it runs. */
static int raise_debug_objects(void)
{
	struct timer_list *timer = kzalloc(sizeof(*timer), GFP_KERNEL);

	if (!timer)
		return -ENOMEM;
	timer_setup(timer, never, 0);
	mod_timer(timer, jiffies + 3600 * HZ);
	/* The kernel says so, and stops the timer. */
	kfree(timer);
	return 0;
}

/*
 * More than a slab holds: an allocator that keeps arrays of free objects leaves
 * the address of the one it gave away in there, where kmemleak finds it.
 */
#define LOST_BYTES (64 << 10)

static noinline int lose_memory(void)
{
	void *lost = kzalloc(LOST_BYTES, GFP_KERNEL);

	if (!lost)
		return -ENOMEM;
	pr_info("lab_alarms: lost %d bytes\n", LOST_BYTES);
	return 0;
}

/*
 * Overwrites the addresses that earlier calls have left on the stack: kmemleak reads all of it,
 * even when another task has got this stack.
 */
static noinline void wipe_stack(int frames)
{
	u8 frame[1024];

	memset(frame, 0, sizeof(frame));
	if (frames > 1)
		wipe_stack(frames - 1);
	OPTIMIZER_HIDE_VAR(frame[0]);
}

/* Leaves one object that nothing points to. */
static int raise_kmemleak(void)
{
	int ret = lose_memory();

	wipe_stack(6);
	return ret;
}

/* Breaks a condition that the kernel checks with CONFIG_DEBUG_VM only. */
static int raise_debug_vm(void)
{
	VM_WARN_ON(raise[0]);
	return 0;
}

static const struct {
	const char *name;
	int (*raise)(void);
} alarms[] = {
	{ "lockdep", raise_lockdep },
	{ "kasan", raise_kasan },
	{ "kcsan", raise_kcsan },
	{ "ubsan", raise_ubsan },
	{ "debug_objects", raise_debug_objects },
	{ "debug_vm", raise_debug_vm },
	{ "kmemleak", raise_kmemleak },
};

static int __init lab_alarms_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(alarms); i++)
		if (!strcmp(raise, alarms[i].name))
			return alarms[i].raise();
	pr_err("lab_alarms: raise=%s is unknown: see modinfo lab_alarms\n", raise);
	return -EINVAL;
}

static void __exit lab_alarms_exit(void)
{
}

module_init(lab_alarms_init);
module_exit(lab_alarms_exit);
MODULE_DESCRIPTION("Raises one alarm of the kernel on purpose");
MODULE_LICENSE("GPL");
