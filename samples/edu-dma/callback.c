// SPDX-License-Identifier: GPL-2.0
/* The free callback, which Kbuild compiles with a flag of its own. */
#include "ffi/callback.c"
