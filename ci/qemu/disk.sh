#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# disk.sh NIXL UCX MOONCAKE: programs of others that are too large for an initramfs, out of their
# wheels, unmodified, in $OUT/bin/disk.squashfs; with what they need of this machine's libraries.
# For a wheel that cannot be had stands =PIN, and the disk says so in its file `missing`.
set -euo pipefail
root=$OUT/root
rm -rf "$root" "$OUT/bin"
mkdir -p "$root"/{lib,nixl,ucx/lib,verbs,mooncake} "$OUT/bin"

shopt -s dotglob globstar failglob
had() { # WHEEL NAME: writes down that there is none
	[ -d "$1" ] || { echo "$2 ${1#=}" >>"$root/missing" && false; }
}
take() { # WHEEL NAME PATTERN...: files of a wheel, and its version
	local wheel=$1 to=$root/$2
	(cd "$wheel" && echo *.dist-info | sed "s/.*-\(.*\)\.dist-info/$2 \1/") >>"$root/versions"
	shift 2
	# shellcheck disable=SC2068
	(cd "$wheel" && cp -r --parents -t "$to" $@)
}
touch "$root"/{versions,missing}
# Without NIXL's kernels for GPUs, which nothing here runs.
if had "$1" nixl; then
	take "$1" nixl '.nixl_cu12.mesonpy.libs/**/*.so*' 'nixl_cu12.libs/**/*.so*'
	# UCX looks for its transports beside its libraries, by names that end as theirs do.
	mkdir "$root/ucx/lib/ucx"
	for file in "$root"/nixl/nixl_cu12.libs/ucx/*.so.0.0.0; do
		ln -s "../../../nixl/nixl_cu12.libs/ucx/${file##*/}" "$root/ucx/lib/ucx/$(basename "$file" .0.0)"
	done
	for library in ucp uct ucs ucm; do
		file=$(cd "$root" && echo nixl/nixl_cu12.libs/lib$library-*)
		ln -s "../../$file" "$root/ucx/lib/lib$library.so.0"
	done
	# The wheel brings a libibverbs of its own, under a name of its own; the driver of the NIC, which
	# comes with this machine's rdma-core, is linked with libibverbs.so.1. So an admin whose NIC is
	# neither mlx5 nor EFA has to do this, too (docs/consumers.md).
	file=$(cd "$root" && echo nixl/nixl_cu12.libs/libibverbs-*)
	ln -s "../$file" "$root/verbs/libibverbs.so.1"
fi
# The libraries of this wheel have no NIC's transport; its program runs on those of NIXL's.
if had "$2" ucx; then
	take "$2" ucx libucx/bin/ucx_perftest 'libucx_cu12.libs/libgomp*'
	chmod +x "$root"/ucx/libucx/bin/*
fi
if had "$3" mooncake; then
	take "$3" mooncake mooncake/transfer_engine_bench mooncake_transfer_engine.libs
	chmod +x "$root/mooncake/mooncake/transfer_engine_bench"
fi

# Libraries that no wheel brings, of this machine as the image's are, and what those need.
here=/usr/lib/$(cc -print-multiarch)
missing() {
	# readelf fails where one of them is a script.
	{ find "$root" -type f \( -name '*.so*' -o -perm -100 \) -exec readelf -d {} + 2>/dev/null || true; } |
		sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | while read -r name; do
		case $name in
		ld-linux* | libc.so* | libcuda.so* | libcudart.so* | libnvidia-ml* | libibverbs.so* | libuc[mpst].so*) continue ;;
		esac
		[ -n "$(find "$root" -name "$name" -print -quit)" ] || [ ! -e "$here/$name" ] || echo "$name"
	done
}
while names=$(missing) && [ -n "$names" ]; do
	for name in $names; do cp -L "$here/$name" "$root/lib/"; done
done
# Not compressed: unpacking costs more than reading on an emulated processor.
mksquashfs "$root" "$OUT/bin/disk.squashfs" -noI -noD -noF -noX -no-xattrs -all-root -mkfs-time 0 -all-time 0 -quiet -no-progress
rm -r "$root"
