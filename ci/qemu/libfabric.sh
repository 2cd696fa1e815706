#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# libfabric.sh SOURCE CUDA_H NVCC NVML: builds libfabric with its verbs provider and CUDA (by
# dlopen), and its own tests, in $OUT/bin. The last three arguments are folders with the headers of
# CUDA's runtime, compiler and NVML.
set -euo pipefail
source=$1
cuda=$OUT/cuda/include
rm -rf "$OUT/tree" "$OUT/cuda" "$OUT/bin" "$OUT/inst"
mkdir -p "$OUT/tree" "$OUT/bin" "$cuda"
cp -r "$2/." "$3"/nvidia/cuda_nvcc/include/crt "$4"/nvidia/nvml_dev/include/nvml.h "$cuda/"
cp -a "$source/." "$OUT/tree"
cd "$OUT/tree"
./autogen.sh
./configure --prefix=/usr --with-cuda="$OUT/cuda" --enable-cuda-dlopen --enable-verbs=yes --enable-only
make -j"$(nproc)"
make install DESTDIR="$OUT/inst"
cd fabtests
./autogen.sh
./configure --prefix=/usr --with-libfabric="$OUT/inst/usr" --with-cuda="$OUT/cuda" --enable-cuda-dlopen
make -j"$(nproc)" benchmarks/fi_msg_bw benchmarks/fi_msg_pingpong
./libtool --silent --mode=install cp benchmarks/fi_msg_{bw,pingpong} "$OUT/bin/"
cp -L "$OUT/inst/usr/lib/libfabric.so.1" "$OUT/bin/"
