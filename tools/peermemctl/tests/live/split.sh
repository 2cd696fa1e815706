#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# split.sh RESULTS... : takes the trees out of what boot.sh left and puts them into tests/trees. One that the end of a boot
# cut off is left out.
set -eu
trees=$(cd "$(dirname "$0")/../trees" && pwd)
for results in "$@"; do
	tr -d '\r' <"$results" | awk -v dir="$trees" '
		/^=== / {
			if (name != "" && $2 == "doctor" && $3 == name) printf "%s", tree > (dir "/" name ".tree")
			name = $2 == "tree" ? $3 : ""
			tree = ""
			next
		}
		name != "" && /^[#FHLEM|\\]/ { tree = tree $0 "\n" }'
done
