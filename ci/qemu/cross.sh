# SPDX-License-Identifier: GPL-2.0
# Sets the compilers for the architecture of LAB_SYSROOT, the folder that sysroot.sh makes. Other
# scripts source this file. cross is empty where programs are built for this machine.

cross= sysroot=
if [ -n "${LAB_SYSROOT:-}" ]; then
	# The real path, not the checkout's link to it: cargo compiles everything anew where a flag
	# differs.
	sysroot=$(realpath "$LAB_SYSROOT")
	cross=$(basename "$(dirname "$sysroot")")
	cross=${cross#sysroot-}-linux-gnu
	export CARGO_BUILD_TARGET="${cross%%-*}-unknown-linux-gnu"
	name=$(echo "$CARGO_BUILD_TARGET" | tr - _)
	NAME=$(echo "$name" | tr '[:lower:]' '[:upper:]')
	export "CARGO_TARGET_${NAME}_LINKER=$cross-gcc"
	export "CARGO_TARGET_${NAME}_RUSTFLAGS=--sysroot=$sysroot/usr -Clink-arg=--sysroot=$sysroot"
	export "CC_$name=$cross-gcc" "AR_$name=$cross-ar" "CFLAGS_$name=--sysroot=$sysroot"
	export PKG_CONFIG_SYSROOT_DIR="$sysroot"
	export PKG_CONFIG_LIBDIR="$sysroot/usr/lib/$cross/pkgconfig"
fi
