#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# perftest.sh SOURCE CUDA_H LIB: builds perftest with CUDA in $OUT/bin, linked with the libcuda.so
# in LIB.
set -eu
. "$(dirname "$0")/cross.sh"
source=$1 cuda_h=$(realpath "$2") lib=$(realpath "$3")
shift 3
rm -rf "$OUT/tree" "$OUT/bin"
mkdir -p "$OUT/bin"
cp -a "$source/." "$OUT/tree"
cd "$OUT/tree"
./autogen.sh
# configure cannot run a program of another architecture, and would replace malloc().
[ -z "$cross" ] || set -- --host="$cross" ac_cv_func_malloc_0_nonnull=yes CC="$cross-gcc --sysroot=$sysroot"
./configure "$@" CUDA_H_PATH="$cuda_h" LDFLAGS="-L$lib"
make -j"$(nproc)"
for kind in write read send; do
	cp "ib_${kind}_bw" "ib_${kind}_lat" "$OUT/bin/"
done
