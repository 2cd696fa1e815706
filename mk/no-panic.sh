#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if the module $1 can reach a panic: one in the free callback would stop the whole GPU driver
# (docs/rules.md, rule 11).
set -eu
. "${0%/*}/tool.sh"
nm=$(tool nm "${NM:-}")
symbols=$("$nm" "$1")
found=$(echo "$symbols" | grep -E \
	'core9panicking|13unwrap_failed|13expect_failed|panic_(const|bounds|already)|len_mismatch_fail|slice_[a-z_]*fail' || true)
[ -z "$found" ] || {
	rm -f "$1"
	echo "no-panic: the module can reach a panic, so it was removed: $found" >&2
	exit 1
}
