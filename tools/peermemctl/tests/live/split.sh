#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# split.sh RESULTS... : takes the trees out of what boot.sh left and puts them into tests/trees.
set -eu
trees=$(cd "$(dirname "$0")/../trees" && pwd)
for results in "$@"; do
	tr -d '\r' <"$results" | awk -v dir="$trees" '
		/^=== / { file = $2 == "tree" ? dir "/" $3 ".tree" : ""; if (file) printf "" > file; next }
		file && /^[#FHLEM|\\]/ { print > file }'
done
