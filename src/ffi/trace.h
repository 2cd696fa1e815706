/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints nvidia_peermem:*; what each means: docs/tracing.md. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nvidia_peermem

#if !defined(NVPM_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NVPM_TRACE_H

#include <linux/tracepoint.h>

/* Called when the first listener of an event comes, and after its last. */
int nvpm_trace_reg(void);
void nvpm_trace_unreg(void);

DECLARE_EVENT_CLASS(nvpm_registration,
	TP_PROTO(u64 ticket, u64 va, u64 length, bool revocable, int ret, u64 ns),
	TP_ARGS(ticket, va, length, revocable, ret, ns),
	TP_STRUCT__entry(
		__field(u64, ticket)
		__field(u64, va)
		__field(u64, length)
		__field(u64, ns)
		__field(int, ret)
		__field(bool, revocable)
	),
	TP_fast_assign(
		__entry->ticket = ticket;
		__entry->va = va;
		__entry->length = length;
		__entry->ns = ns;
		__entry->ret = ret;
		__entry->revocable = revocable;
	),
	TP_printk("ticket=0x%llx kind=%s va=0x%llx length=%llu ret=%d ns=%llu",
		  __entry->ticket,
		  __entry->revocable ? "revocable" : "persistent",
		  __entry->va, __entry->length, __entry->ret, __entry->ns)
);

#define NVPM_EVENT(name)						\
DEFINE_EVENT_FN(nvpm_registration, name,				\
	TP_PROTO(u64 ticket, u64 va, u64 length, bool revocable,	\
		 int ret, u64 ns),					\
	TP_ARGS(ticket, va, length, revocable, ret, ns),		\
	nvpm_trace_reg, nvpm_trace_unreg)

NVPM_EVENT(acquire);
NVPM_EVENT(pin);
NVPM_EVENT(map);
NVPM_EVENT(unmap);
NVPM_EVENT(put);
NVPM_EVENT(revoke);
NVPM_EVENT(orphan);

TRACE_EVENT(late_callback,
	TP_PROTO(u64 ticket),
	TP_ARGS(ticket),
	TP_STRUCT__entry(__field(u64, ticket)),
	TP_fast_assign(__entry->ticket = ticket;),
	TP_printk("ticket=0x%llx", __entry->ticket)
);

TRACE_EVENT(failure,
	TP_PROTO(u64 va, u64 length, int err, const char *reason, size_t reason_length),
	TP_ARGS(va, length, err, reason, reason_length),
	TP_STRUCT__entry(
		__field(u64, va)
		__field(u64, length)
		__field(int, err)
		__string_len(reason, reason, reason_length)
	),
	TP_fast_assign(
		__entry->va = va;
		__entry->length = length;
		__entry->err = err;
		__assign_str(reason);
	),
	TP_printk("va=0x%llx length=%llu errno=%d reason=%s",
		  __entry->va, __entry->length, __entry->err, __get_str(reason))
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
