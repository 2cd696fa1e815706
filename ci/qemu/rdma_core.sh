#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# rdma_core.sh SOURCE PATCH...: builds libibverbs, its driver for rxe, which a patch lets register
# dma-bufs, and its two programs, in $OUT/bin.
set -eu
. "$(dirname "$0")/cross.sh"
source=$1
shift
lib=/usr/lib/${cross:-$(cc -print-multiarch)}
rm -rf "$OUT/tree" "$OUT/bin"
mkdir -p "$OUT/bin"
cp -a "$source/." "$OUT/tree"
for patch in "$@"; do
	patch -s -p1 --fuzz=0 -d "$OUT/tree" <"$patch"
done
cd "$OUT/tree"
set --
[ -z "$cross" ] || set -- -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="${cross%%-*}" \
	-DCMAKE_C_COMPILER="$cross-gcc" -DCMAKE_SYSROOT="$sysroot"
# The folders of drivers and of their names are those of Debian's packages.
cmake -B build "$@" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR="${lib#/usr/}" \
	-DCMAKE_INSTALL_SYSCONFDIR=/etc -DENABLE_VALGRIND=0 -DNO_PYVERBS=1 -DNO_MAN_PAGES=1
make -C build -j"$(nproc)" ibverbs rxe-rdmav34 ibv_devinfo ibv_devices
cp -L build/lib/libibverbs.so.1 build/lib/librxe-rdmav*.so build/bin/ibv_devinfo build/bin/ibv_devices "$OUT/bin/"
