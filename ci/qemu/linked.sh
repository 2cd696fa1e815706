#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# linked.sh SOURCE LIBCUDA: builds programs in $OUT/bin that reach libibverbs in the three ways of linking:
# with the library, by a plug-in that is linked with it (the program is not), and with Debian's
# libibverbs.a inside.
set -eu
. "$(dirname "$0")/cross.sh"
source=$1 cuda=$(realpath "$2")/libcuda.so
mkdir -p "$OUT/bin"

compile() { # PRODUCT WORDS...
	product=$1
	shift
	"${cross:+$cross-}gcc" ${sysroot:+--sysroot="$sysroot"} -O2 -Wall -Wextra -Werror -o "$OUT/bin/$product" "$@"
}

compile linked "$source/main.c" "$source/register.c" -libverbs "$cuda"
compile linked-plugin.so -shared -fPIC "$source/register.c" -libverbs
compile linked-by-plugin -DPLUGIN='"/usr/bin/linked-plugin.so"' "$source/main.c" "$cuda"
# The number in its file's name is the version of its interface.
for rxe in "$sysroot/usr/lib/${cross:-$(cc -print-multiarch)}"/librxe-rdmav*.a; do :; done
compile linked-static -DSTATIC "$source/main.c" "$source/register.c" "$rxe" -Wl,-Bstatic -libverbs -Wl,-Bdynamic \
	-lnl-route-3 -lnl-3 -lpthread "$cuda"
