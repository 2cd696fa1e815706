#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if the module was built with kernel-lite and imports a GPL-only symbol of anybody but an
# open nvidia.ko: beside a closed one it would not load. With lock debugging mutex_lock() is a
# GPL-only function of another name; that is said only. In: KDIR OUT.
set -eu
. "$OUT/preflight.env"
[ "$PREFLIGHT_KERNEL_CRATE" = lite ] || exit 0
module=$OUT/nvidia-peermem.ko
imports=$OUT/imports
CROSS_COMPILE=${PREFLIGHT_CROSS_COMPILE:-}
. "${0%/*}/tool.sh"
nm=$(tool nm "${NM:-}")
undefined=$("$nm" -u "$module")
echo "$undefined" | awk '{ print $2 }' >"$imports"
[ -r "$KDIR/Module.symvers" ] || {
	echo "plain-exports: $KDIR has no Module.symvers, so nobody can say what is GPL-only" >&2
	exit 1
}
# shellcheck disable=SC2086
found=$(awk -F '\t' 'NR == FNR { imported[$1]; next } $2 in imported && $4 == "EXPORT_SYMBOL_GPL" && $2 !~ /^nvidia_p2p_/ { print $2 }' \
	"$imports" "$KDIR/Module.symvers" $PREFLIGHT_SYMVERS | sort -u | tr '\n' ' ')
[ -n "$found" ] || exit 0
if [ "$found" = "mutex_lock_nested " ] && grep -q '^CONFIG_DEBUG_LOCK_ALLOC=y' "$KDIR/include/config/auto.conf"; then
	echo "plain-exports: this kernel's lock debugging makes the module import a GPL-only symbol, so it would not load beside a closed nvidia.ko: $found" >&2
	exit 0
fi
rm -f "$module"
echo "plain-exports: the module imports GPL-only symbols, so it would not load beside a closed nvidia.ko, and was removed: $found" >&2
exit 1
