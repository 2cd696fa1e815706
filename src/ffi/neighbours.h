/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How functions of other modules are referenced: weakly, so that the module
 * loads without them and can say what is missing, instead of "Unknown symbol".
 *
 * A file that uses this has their addresses in its nvpm_neighbours, in data. The
 * address of a weak symbol in code goes through a table of addresses (GOT) on
 * arm64, and its module loader knows no such relocation; for a direct call of a
 * missing one, that of 6.1 stops the kernel.
 */
#ifndef NVPM_NEIGHBOURS_H
#define NVPM_NEIGHBOURS_H

/* READ_ONCE() keeps the compiler from looking behind the pointer. */
#define NVPM_AT(f) READ_ONCE(nvpm_neighbours.f)

/* x86 calls directly: an indirect call would need an ENDBR in the other module. */
#ifdef CONFIG_ARM64
#define NVPM_CALL(f) NVPM_AT(f)
#else
#define NVPM_CALL(f) f
#endif

#endif
