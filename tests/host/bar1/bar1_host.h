/* SPDX-License-Identifier: GPL-2.0 */
/* The parts of the kernel that bar1.c needs, for the host. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef uint32_t u32;
typedef uint64_t u64;

#define U32_MAX			UINT32_MAX
#define GFP_KERNEL		0
#define WRITE_ONCE(to, value)	((to) = (value))
#define min(a, b)		((a) < (b) ? (a) : (b))
#define kvmalloc_array(n, size, flags)	calloc(n, size)
#define kvzalloc(size, flags)	calloc(1, size)
#define kvfree			free
