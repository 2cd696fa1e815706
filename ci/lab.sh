#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds the lab's program and becomes it: ci/lab.sh WORDS, anywhere in a checkout; or, as
# ci/lab.sh bench WORDS, the benchmark's.
# What they are made of is compiled once for all checkouts, in a folder of its own in the cache:
# nobody waits here for cargo's lock on the tests.
set -eu
export NVPM_CACHE="${NVPM_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set: set NVPM_CACHE}/.cache}/nvidia-peermem}"
cache=$NVPM_CACHE
checkout=$(cd "$(dirname "$0")/.." && pwd -P)
program=lab
if [ "${1:-}" = bench ]; then
	program=bench
	shift
fi
mkdir -p "$cache/lab" "$checkout/build/bin"
exec 9>"$cache/lab/.lock"
flock -n 9 || {
	echo "  build lab: another checkout is at it, waiting ($cache/lab/.lock)" >&2
	flock 9
}
# The first build takes a while, so it prints what it is doing.
quiet=--quiet
[ -e "$cache/lab/debug/lab" ] || quiet=
NVPM_TARGET=$cache/lab "$checkout/ci/cargo.sh" ci/qemu build $quiet --locked -p lab -p $program 9>&- || {
	free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
	[ "$free" -gt 100 ] ||
		echo "lab: no space is left on the disk of $cache: free some, or set NVPM_CACHE to a folder on another disk" >&2
	exit 1
}
# A command of this checkout that runs meanwhile starts the file by this name, so it is replaced in one
# step.
for file in lab $program; do
	cp "$cache/lab/debug/$file" "$checkout/build/bin/.$file"
	mv -f "$checkout/build/bin/.$file" "$checkout/build/bin/$file"
done
exec 9>&-
exec "$checkout/build/bin/$program" "$@"
