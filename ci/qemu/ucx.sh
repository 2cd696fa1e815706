#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# ucx.sh SOURCE CUDA_H NVCC NVML LIBCUDA LIBCUDART LIBNVML: builds UCX with verbs and CUDA, and its
# own programs, in $OUT/bin. The second to fourth have the headers of CUDA's runtime, compiler and
# NVML; the last three have in bin/ the libraries that it is linked against.
set -euo pipefail
source=$1
cuda=$OUT/cuda
rm -rf "$OUT/tree" "$cuda" "$OUT/bin" "$OUT/inst"
mkdir -p "$OUT/tree" "$OUT/bin" "$cuda"/{include,lib}
cp -r "$2/." "$3"/nvidia/cuda_nvcc/include/crt "$4"/nvidia/nvml_dev/include/nvml.h "$cuda/include/"
cp "$5/bin/libcuda.so" "$6/bin/libcudart.so" "$cuda/lib/"
cp "$7/bin/libnvml.so" "$cuda/lib/libnvidia-ml.so"
cp -a "$source/." "$OUT/tree"
cd "$OUT/tree"
# Debian's tarball has it under another name, and configure looks for it.
cp -r debian.upstream debian
./autogen.sh
./configure --prefix=/usr --with-cuda="$cuda" --with-verbs --without-mlx5-dv --without-rdmacm --without-java \
	--without-go --without-rocm --without-gdrcopy --disable-static --disable-numa --disable-doxygen-doc
# Its tests and examples are not built.
for part in ucm ucs uct ucp tools/info tools/perf; do
	make -C "src/$part" -j"$(nproc)"
	make -C "src/$part" install DESTDIR="$OUT/inst"
done
for file in "$OUT"/inst/usr/bin/ucx_{info,perftest} "$OUT"/inst/usr/lib/lib*.so.0 "$OUT"/inst/usr/lib/ucx/lib*.so.0; do
	strip -o "$OUT/bin/${file##*/}" "$file"
done
