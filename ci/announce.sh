#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# announce.sh [arm64]: says what `make demo` is about to do, how long that takes here, and how much
# it downloads.
set -eu
cache=${NVPM_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set: set NVPM_CACHE}/.cache}/nvidia-peermem}
cores=$(nproc)
kernel=debian-6.12${1:+-$1}
echo "demo: real perftest moves bytes between GPU memory and a NIC through this module, in virtual
      machines on this one. GPU and NIC are software; nothing is loaded into this machine's kernel."
if [ -d "$cache/kept/$kernel/ours" ]; then
	echo "      It takes a minute or two: much was built before ($cache)."
else
	for place in "$cache" "$(pwd)"; do
		while [ ! -e "$place" ]; do place=$(dirname "$place"); done
		free=$(df -Pm "$place" | awk 'NR == 2 { print $4 }')
		[ "$free" -ge 2048 ] || {
			echo "demo: the disk of $place has $free MB free, and the demo needs some 2000 the first time: free some, or set NVPM_CACHE to a folder on another disk" >&2
			exit 1
		}
	done
	# An estimate from ten minutes of processor time (make bench-cold), of which more than two processors
	# make only a part faster.
	minutes=$((3 + 8 / cores))
	[ -z "${1:-}" ] || minutes=$((minutes + 3))
	echo "      The first time it takes about $minutes minutes on $cores processor$([ "$cores" = 1 ] || echo s), and downloads some 700 MB: Debian's packages
      of compilers and emulator as far as they are missing, a kernel and sources. What is built
      stays in $cache."
fi
echo "      Steps: packages, the lab's own program, kernel and module, perftest and its libraries, the
      machines, and a table of what was moved."
