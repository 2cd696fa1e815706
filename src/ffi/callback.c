// SPDX-License-Identifier: GPL-2.0
/*
 * The free callback, as the provider knows it.
 *
 * It holds a module reference while it runs. The last of its instructions is a
 * jump to module_put(), which returns to the provider: nothing of this module
 * is left to run once that reference is gone, so rmmod may follow at once. Kbuild
 * asks the compiler for the jump, and mk/callback-tail.sh looks whether it is there.
 * module_put() and what rmmod looks at are one atomic with a full barrier: all that
 * the callback wrote is there before rmmod goes on, on arm64 too.
 */
#include <linux/module.h>

#include "shim.h"

void nvpm_free_callback(void *data)
{
	if (nvpm_on_free(data))
		module_put(THIS_MODULE);
}
