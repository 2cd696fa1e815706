// SPDX-License-Identifier: GPL-2.0
/*
 * The pin layer's C files, as they are. Tracepoints are a module's own: two
 * modules cannot have them under one name, and this one does without.
 */
#include <linux/module.h>

#define NVPM_PLAIN_EXPORTS_ONLY
#include "ffi/provider.c"
#include "ffi/task.c"
#include "ffi/dma.c"
#include "ffi/sg.c"
#include "ffi/bar.c"
#include "ffi/trace.c"

/* Its symbols are weak, so modprobe would not load it for them. */
MODULE_SOFTDEP("pre: nvidia");
