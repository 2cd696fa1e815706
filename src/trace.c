// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoints, for Rust. Their machinery is made of GPL-only exports, so a
 * build without those has functions that do nothing.
 */
#include <linux/types.h>

#ifndef NVPM_PLAIN_EXPORTS_ONLY
#define CREATE_TRACE_POINTS
#include "trace.h"

#define NVPM_TRACE_CASE(number, name)						\
	case number:								\
		trace_##name(traced->ticket, traced->va, traced->length,	\
			     traced->revocable, ret, ns);			\
		break
#endif

#include "shim.h"

#define NVPM_ENABLED_CASE(number, name)		\
	case number:				\
		return trace_##name##_enabled()

/* Whether anybody listens: the clock need not be read for nobody. */
int nvpm_trace_enabled(uint32_t event)
{
#ifndef NVPM_PLAIN_EXPORTS_ONLY
	switch (event) {
	NVPM_ENABLED_CASE(NVPM_TRACE_ACQUIRE, acquire);
	NVPM_ENABLED_CASE(NVPM_TRACE_PIN, pin);
	NVPM_ENABLED_CASE(NVPM_TRACE_MAP, map);
	NVPM_ENABLED_CASE(NVPM_TRACE_UNMAP, unmap);
	NVPM_ENABLED_CASE(NVPM_TRACE_PUT, put);
	NVPM_ENABLED_CASE(NVPM_TRACE_REVOKE, revoke);
	}
#endif
	return 0;
}

void nvpm_trace_registration(uint32_t event, const struct nvpm_traced *traced,
			     int ret, uint64_t ns)
{
#ifndef NVPM_PLAIN_EXPORTS_ONLY
	switch (event) {
	NVPM_TRACE_CASE(NVPM_TRACE_ACQUIRE, acquire);
	NVPM_TRACE_CASE(NVPM_TRACE_PIN, pin);
	NVPM_TRACE_CASE(NVPM_TRACE_MAP, map);
	NVPM_TRACE_CASE(NVPM_TRACE_UNMAP, unmap);
	NVPM_TRACE_CASE(NVPM_TRACE_PUT, put);
	NVPM_TRACE_CASE(NVPM_TRACE_REVOKE, revoke);
	NVPM_TRACE_CASE(NVPM_TRACE_ORPHAN, orphan);
	}
#endif
}

void nvpm_trace_late_callback(uint64_t ticket)
{
#ifndef NVPM_PLAIN_EXPORTS_ONLY
	trace_late_callback(ticket);
#endif
}

void nvpm_trace_failure(uint64_t va, uint64_t length, int err,
			const uint8_t *reason, size_t reason_length)
{
#ifndef NVPM_PLAIN_EXPORTS_ONLY
	trace_failure(va, length, err, (const char *)reason, reason_length);
#endif
}
