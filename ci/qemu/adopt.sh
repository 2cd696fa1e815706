#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# adopt.sh USER LIBCUDA LIBGPUMR: builds in $OUT/bin the verbs program of user/examples/adopt as it is, and
# with the patch by which it uses libgpumr. The last two have in bin/ what they are linked with.
set -eu
. "$(dirname "$0")/cross.sh"
user=$1 cuda=$(realpath "$2")/bin/libcuda.so gpumr=$(realpath "$3")/bin/libgpumr_c.so
mkdir -p "$OUT/bin"
patched=$(mktemp -d)
trap 'rm -r "$patched"' EXIT
cp "$user/examples/adopt/transfers.c" "$patched"
patch -s -p1 --fuzz=0 -d "$patched" <"$user/examples/adopt/adopt.patch"

compile() { # PRODUCT WORDS...
	product=$1
	shift
	"${cross:+$cross-}gcc" ${sysroot:+--sysroot="$sysroot"} -D_GNU_SOURCE -O2 -Wall -Wextra -Werror \
		-I"$user/examples/adopt" -o "$OUT/bin/$product" "$@" "$user/examples/adopt/nic.c" -libverbs "$cuda"
}

compile transfers "$user/examples/adopt/transfers.c"
compile transfers-adopted -I"$user/gpumr-c/include" "$patched/transfers.c" "$gpumr"
