#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# disk.sh NIXL: programs of others that are too large for an initramfs, as they were published, in
# $OUT/bin/disk.squashfs; with what of this machine's libraries they need and the image may lack.
set -euo pipefail
nixl=$1
root=$OUT/root
rm -rf "$root" "$OUT/bin"
mkdir -p "$root/lib" "$OUT/bin"
# Not its kernels for GPUs, which nothing here runs.
mkdir "$root/nixl"
(cd "$nixl" && find . -path ./nixl_ep_cu12 -prune -o -type f -name '*.so*' -print0 | xargs -0 cp --parents -t "$root/nixl")

# Libraries that no wheel brings, of this machine as the image's are.
find "$root" -type f -name '*.so*' | while read -r file; do
	readelf -d "$file" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
done | sort -u | while read -r name; do
	case $name in
	ld-linux* | libcuda* | libnvidia-ml*) continue ;;
	esac
	[ -z "$(find "$root" -name "$name")" ] || continue
	file=/usr/lib/$(cc -print-multiarch)/$name
	[ ! -e "$file" ] || cp -L "$file" "$root/lib/"
done
# Not compressed: unpacking costs more than reading on an emulated processor.
mksquashfs "$root" "$OUT/bin/disk.squashfs" -noI -noD -noF -noX -no-xattrs -all-root -mkfs-time 0 -all-time 0 -quiet -no-progress
rm -r "$root"
