#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# unused_probes.sh SOURCES: names those of NVIDIA's probes of the kernel (conftest.sh) whose answers
# appear nowhere in what the lab compiles, nor in a header that it might include. Each probe runs the
# compiler once. A probe that this script does not understand is not named, and so is made.
set -eu
cd "$1"
cat common/inc/*.h common/inc/os/*.h nvidia/*.h nvidia/nv-p2p.c nvidia/nv-dma.c nvidia/nv-dmabuf.c | grep -o 'NV_[A-Za-z0-9_]*' | sort -u |
	awk '
		FILENAME == "-" { used[$0]; next }
		/^        [a-z0-9_]+\)$/ { probe = substr($1, 1, length($1) - 1); unused[probe] }
		/^        ;;/ { probe = "" }
		probe != "" {
			for (rest = $0; match(rest, /NV_[A-Za-z0-9_]+/); rest = substr(rest, RSTART + RLENGTH))
				if (substr(rest, RSTART, RLENGTH) in used)
					delete unused[probe]
		}
		END { for (probe in unused) print probe }
	' - conftest.sh
