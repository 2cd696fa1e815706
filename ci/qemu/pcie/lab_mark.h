/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Marks for the plugin of QEMU that counts instructions (ci/qemu/profile):
 * no-ops with a number in their operand, each alone between two jumps, because
 * the plugin counts whole blocks. Without the plugin they are three instructions
 * that do nothing. No real driver has them. The plugin knows x86's alone:
 * elsewhere a mark is nothing.
 *
 * Counted is what a client's free callback does beside the core's invalidate:
 * from the provider's call to the core's hook, and from there back.
 */
#ifndef LAB_MARK_H
#define LAB_MARK_H

#ifdef CONFIG_X86
#define LAB_MARK \
	"jmp 1f\n" \
	"1:	.byte 0x0f, 0x1f, 0x80, 0x6e, 0x76, 0x70, %c0\n" \
	"	jmp 2f\n" \
	"2:"
#else
#define LAB_MARK ""
#endif

static __always_inline void lab_mark_begin(void)
{
	asm volatile(LAB_MARK : : "i" (1) : "memory");
}

static __always_inline void lab_mark_end(void)
{
	asm volatile(LAB_MARK : : "i" (2) : "memory");
}

#endif
