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

/*
 * Events of registrations that somebody listens to. Written under the
 * tracepoints' mutex; Rust reads it, so that the clock is not read for nobody.
 */
uint32_t nvpm_trace_listened;

#ifndef NVPM_PLAIN_EXPORTS_ONLY
int nvpm_trace_reg(void)
{
	WRITE_ONCE(nvpm_trace_listened, nvpm_trace_listened + 1);
	return 0;
}

void nvpm_trace_unreg(void)
{
	WRITE_ONCE(nvpm_trace_listened, nvpm_trace_listened - 1);
}
#endif

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
