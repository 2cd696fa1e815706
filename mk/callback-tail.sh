#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails unless the free callback of the module $1 ends in a jump to module_put(). After a call, an
# instruction of the module would still run once the reference is gone (src/ffi/callback.c).
# A kernel that cannot unload modules needs no such jump: there module_put() does nothing.
set -eu
config=${KDIR:-}/include/config/auto.conf
if [ -e "$config" ] && ! grep -q '^CONFIG_MODULE_UNLOAD=y' "$config"; then
	exit 0
fi
. "${0%/*}/tool.sh"
objdump=$(tool objdump "${OBJDUMP:-}")
code=$("$objdump" -dr "$1")
found=$(echo "$code" | awk '
	/^[0-9a-f]+ <.*>:$/ { inside = ($2 == "<nvpm_free_callback>:"); next }
	!inside { next }
	/R_[A-Z0-9]+_[A-Z0-9]+/ { if ($0 ~ /[ \t]module_put/) print how; next }
	{ how = ($0 ~ /[ \t](jmpq?|b)[ \t]/) ? "jump" : "call" }' | sort -u)
[ "$found" = jump ] || {
	rm -f "$1"
	echo "callback-tail: the compiler made no jump of the free callback's last call, so the module was removed: use the kernel's own compiler, and report its version" >&2
	exit 1
}
