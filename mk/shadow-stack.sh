#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if a function of the module $1 keeps its return address on the stack alone, where the kernel
# of $KDIR keeps another one at x18: the shadow call stack of arm64. Where it is patched in at boot,
# no compiler writes it.
set -eu
config=$KDIR/include/config/auto.conf
grep -qs '^CONFIG_SHADOW_CALL_STACK=y' "$config" || exit 0
! grep -q '^CONFIG_UNWIND_PATCH_PAC_INTO_SCS=y' "$config" || exit 0
objdump=${OBJDUMP:-$(command -v "${CROSS_COMPILE:-}objdump" || command -v llvm-objdump || command -v llvm-objdump-19 || true)}
[ -n "$objdump" ] || {
	echo "shadow-stack: neither ${CROSS_COMPILE:-}objdump nor llvm-objdump is installed: apt-get install binutils" >&2
	exit 1
}
found=$("$objdump" -d --no-show-raw-insn "$1" | awk '
	/^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); pushed = 0; next }
	$2 == "str" && /x30, \[x18\], #(8|0x8)/ { pushed = 1 }
	$2 ~ /^st[rp]$/ && /x30, .*\[sp/ && !pushed && !said { print name; said = 1 }')
[ -z "$found" ] || {
	rm -f "$1"
	echo "shadow-stack: kernel $KDIR has a shadow call stack, and the module's $found (perhaps others, too) does not use it, so the module was removed: use the kernel's own compiler, and report its version" >&2
	exit 1
}
