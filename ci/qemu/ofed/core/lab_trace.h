/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Callback trace and hold points of the lab's peer-memory core, both in
 * debugfs ib_peer_mem/ (lab_trace.c has the formats).
 */
#ifndef LAB_TRACE_H
#define LAB_TRACE_H

#include <linux/types.h>

struct dentry;

#define LAB_NO_TICKET	U64_MAX

struct lab_call {
	u64 seq;
	u64 start_ns;
};

struct lab_call lab_trace_begin(void);
void lab_trace_end(struct lab_call call, const char *client, const char *what,
		   unsigned long addr, size_t size, u64 ticket,
		   unsigned int nents, long ret);

enum lab_point {
	LAB_BEFORE_ACQUIRE,
	LAB_BEFORE_GET_PAGES,
	LAB_BEFORE_DMA_MAP,
	LAB_BEFORE_ACTIVATE,
	LAB_BEFORE_STOP,
	LAB_IN_STOP,
	LAB_BEFORE_DMA_UNMAP,
	LAB_BEFORE_PUT_PAGES,
	LAB_BEFORE_RELEASE,
	LAB_BEFORE_DRAIN,
	LAB_INVALIDATE_ENTRY,
	LAB_INVALIDATE_FOUND,
	LAB_INVALIDATE_FENCE,
	LAB_IN_DMA_MAP,
	LAB_IN_DMA_UNMAP,
	LAB_NIC_MKEY,
	LAB_NIC_WRITE,
	LAB_POINTS,
};

/* Returns at once unless the point is armed. Sleeps. */
void lab_hold(enum lab_point point, const char *client);

/* Returns whether a thread that comes there now would be stopped. For any context. */
bool lab_armed(enum lab_point point);

/* Begin and end the points in functions of the kernel (lab_probe.c). */
int lab_probe_init(void);
void lab_probe_exit(void);
/*
 * Switches the probe of a point on, before the point is armed. Does nothing for a point that is not
 * in a function of the kernel.
 */
int lab_probe_enable(enum lab_point point);

void lab_trace_init(struct dentry *dir);

#endif
