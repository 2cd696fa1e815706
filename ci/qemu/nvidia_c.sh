#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# nvidia_c.sh SOURCE KERNEL_DIR [LLVM=...]: builds NVIDIA's C module, unchanged, in $OUT. NVIDIA's
# own build makes conftest.h from probes of the kernel. It may be empty here: the two names that the
# module needs are on the command line.
set -eu
source=$1 k=$(realpath "$2")
shift 2
rm -rf "$OUT"
mkdir -p "$OUT"
cp "$source/nvidia-peermem.c" "$source/nv-p2p.h" "$source/peer_mem.h" "$OUT/"
: >"$OUT/conftest.h"
cat >"$OUT/Kbuild" <<-END
	obj-m := nvidia-peermem.o
	ccflags-y := -I\$(src) -DNV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT -DNV_VERSION_STRING='"$(cat "$source/version")"'
END
make -C "$k/kernel/build" M="$OUT" "$@" KBUILD_EXTRA_SYMBOLS="$k/ofed/Module.symvers $k/gpu/Module.symvers" modules
