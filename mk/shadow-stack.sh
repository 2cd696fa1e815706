#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if a function of the module $1 keeps its return address on the stack alone, where the kernel
# of $KDIR keeps another one at x18: the shadow call stack of arm64. A kernel that adds it to code as
# it loads it (UNWIND_PATCH_PAC_INTO_SCS) finds none in the file, and nothing is checked.
set -eu
config=$KDIR/include/config/auto.conf
grep -qs '^CONFIG_SHADOW_CALL_STACK=y' "$config" || exit 0
! grep -q '^CONFIG_UNWIND_PATCH_PAC_INTO_SCS=y' "$config" || exit 0
. "${0%/*}/tool.sh"
objdump=$(tool objdump "${OBJDUMP:-}")
code=$("$objdump" -d --no-show-raw-insn "$1")
# Compilers give none to what they add themselves: constructors of sanitizers, and gcov's functions.
# A cold part runs after its function has saved the address.
found=$(echo "$code" | awk '
	/^[0-9a-f]+ <.*>:$/ {
		name = substr($2, 2, length($2) - 3)
		saved = (name ~ /\.module_[cd]tor$|^__llvm_gcov|\.cold$/)
		next
	}
	$2 == "str" && /x30, \[x18\], #(8|0x8)$/ { saved = 1 }
	$2 ~ /^st[rp]$/ && /x30, .*\[sp/ && !saved && !said { print name; said = 1 }')
[ -z "$found" ] || {
	rm -f "$1"
	echo "shadow-stack: kernel $KDIR has a shadow call stack, and the module's $found (perhaps others, too) does not use it, so the module was removed: report the versions of rustc and of the C compiler" >&2
	exit 1
}
