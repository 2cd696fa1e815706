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
