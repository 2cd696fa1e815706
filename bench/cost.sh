#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Measures what counters and tracepoints cost, in instructions. Builds the module for the lab's fast
# kernel as it is and with the patches of this folder, and measures these builds by turns in one
# boot whose clock counts instructions (suite cost). Prints a table (instructions for ibv_reg_mr and
# ibv_dereg_mr, median) and fails where, beside a provider that costs what a V100's does, a
# registration is more than 2 % slower than without either. `make bench-cost` builds that kernel
# first.
set -eu
repo=$(cd "$(dirname "$0")/.." && pwd)
lab=$repo/build/lab/fast-7.2
image=$lab/image-ours.cpio
[ -z "$(git -C "$repo" status --porcelain)" ] || echo "bench-cost: what is in no commit is not measured" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
build() { # NAME PATCH...
	name=$1
	shift
	mkdir -p "$work/$name" "$work/root/usr/lib/variants/$name"
	git -C "$repo" archive HEAD | tar -x -C "$work/$name"
	for patch in "$@"; do
		patch -d "$work/$name" -p1 --silent --fuzz=0 -i "$repo/bench/$patch.patch"
	done
	make -s -C "$work/$name" KDIR="$lab/kernel/build" OUT="$work/out-$name" OFED="$lab/ofed" \
		NVIDIA="$lab/gpu" LLVM=-19 >"$work/log" 2>&1 || {
		cat "$work/log"
		exit 1
	}
	cp "$work/out-$name/nvidia-peermem.ko" "$work/root/usr/lib/variants/$name/"
}
build shipped
build no-counters no-counters
build no-tracepoints no-tracepoints
build neither no-counters no-tracepoints
(cat "$image" && cd "$work/root" && find . | cpio -o -H newc --quiet) >"$work/image.cpio"
timeout "${LIMIT:-600}" qemu-system-x86_64 -machine q35 -accel tcg,thread=single -icount shift=0,sleep=off -smp 1 -cpu max \
	-m 2048 -nodefaults -display none -no-reboot \
	-netdev user,id=net0,restrict=on -device virtio-net-pci,netdev=net0,addr=0x4,romfile= \
	-object memory-backend-ram,id=gpu0,size=256M,share=on -device ivshmem-plain,memdev=gpu0,addr=0x8 \
	-kernel "$lab/kernel/image" -initrd "$work/image.cpio" -append "console=ttyS0 panic=-1 rdinit=/init guest.run=cost" \
	-serial "file:$work/console" -serial "file:$work/results" </dev/null || true
tr -d '\r' <"$work/results" | sed -n 's/^ *# \(|.*|\)$/\1/p'
grep -q '^ok [0-9]* cost/registration$' "$work/results" || {
	tail -n 20 "$work/console" "$work/results"
	exit 1
}
