// SPDX-License-Identifier: GPL-2.0
/*
 * The pin layer's C files, as they are. Tracepoints are a module's own: two
 * modules cannot have them under one name, and this one does without.
 */
#include <linux/module.h>

#define NVPM_PLAIN_EXPORTS_ONLY
#include "../../src/ffi/provider.c"
#include "../../src/ffi/task.c"
#include "../../src/ffi/dma.c"
#include "../../src/ffi/sg.c"
#include "../../src/ffi/bar.c"
#include "../../src/ffi/trace.c"

/* Its symbols are weak, so modprobe would not load it for them. */
MODULE_SOFTDEP("pre: nvidia");

/* The layer's files in /proc are never made here, but rustc keeps their code all the same. */

void nvpm_proc_write(struct seq_file *seq, const uint8_t *text, size_t length)
{
}

void nvpm_proc_remove(void)
{
}
