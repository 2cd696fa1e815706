#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if the module $1 can reach a panic: one in the free callback would stop the whole GPU driver (docs/rules.md, rule 11).
set -eu
found=$(nm "$1" | grep -E 'core9panicking|13unwrap_failed|13expect_failed|slice_.*_fail|panic_bounds|panic_const' || true)
[ -z "$found" ] || {
	rm -f "$1"
	echo "no-panic: the module can reach a panic, so it was removed: $found" >&2
	exit 1
}
