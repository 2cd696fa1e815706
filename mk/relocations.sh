#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if the module $1 has a relocation by a table of addresses (GOT), which the module loaders of
# x86 and arm64 do not know: a compiler makes one of a weak reference (src/ffi/neighbours.h).
set -eu
. "${0%/*}/tool.sh"
readelf=$(tool readelf "${READELF:-}")
relocations=$("$readelf" -rW "$1")
found=$(echo "$relocations" | awk '$3 ~ /^R_(X86_64|AARCH64)_.*GOT/ { print $3, $5 }' | sort -u | tr '\n' ' ')
[ -z "$found" ] || {
	rm -f "$1"
	echo "relocations: the kernel would refuse the module for $found, so it was removed: use the kernel's own compiler, and report its version" >&2
	exit 1
}
