// SPDX-License-Identifier: GPL-2.0
/* The module, tasks and time; see shim.h. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include "shim.h"

int nvpm_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void nvpm_module_put(void)
{
	module_put(THIS_MODULE);
}

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

void nvpm_pause(void)
{
	msleep(20);
}

void nvpm_preempt_disable(void)
{
	preempt_disable();
}

void nvpm_preempt_enable(void)
{
	preempt_enable();
}

int nvpm_is_killed(void)
{
	return fatal_signal_pending(current);
}
