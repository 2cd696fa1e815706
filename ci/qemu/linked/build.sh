#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# build.sh LIBCUDA: builds in $OUT/bin programs that come to libibverbs in the ways that a program can be linked:
# against the library, by a plug-in that is (the program is not), and with Debian's libibverbs.a inside.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cross.sh"
cuda=$(realpath "$1")/libcuda.so
mkdir -p "$OUT/bin"

compile() { # PRODUCT WORDS...
	product=$1
	shift
	"${cross:+$cross-}gcc" ${sysroot:+--sysroot="$sysroot"} -O2 -Wall -Wextra -Werror -o "$OUT/bin/$product" "$@"
}

compile linked "$here/main.c" "$here/register.c" -libverbs "$cuda"
compile linked-plugin.so -shared -fPIC "$here/register.c" -libverbs
compile linked-by-plugin -DPLUGIN='"/usr/bin/linked-plugin.so"' "$here/main.c" "$cuda"
# The number in its file's name is the version of its interface.
for rxe in "$sysroot/usr/lib/${cross:-$(cc -print-multiarch)}"/librxe-rdmav*.a; do :; done
compile linked-static -DSTATIC "$here/main.c" "$here/register.c" "$rxe" -Wl,-Bstatic -libverbs -Wl,-Bdynamic \
	-lnl-route-3 -lnl-3 -lpthread "$cuda"
