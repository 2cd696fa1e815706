#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds the user-space libraries, with header, pkg-config file and man page: mk/user.sh CARGO OUT PREFIX
set -eu
cargo=$1 out=$2 prefix=$3
user=$(cd "$(dirname "$0")/../user" && pwd)
command -v "$cargo" >/dev/null || {
	echo "make user: there is no $cargo: install Rust 1.85 or later, or say CARGO=<path>" >&2
	exit 1
}
(cd "$user" && "$cargo" build --quiet --release --locked -p gpumr-c -p gpumr-preload)
mkdir -p "$out"
cp "$CARGO_TARGET_DIR/release/libgpumr_c.so" "$out/libgpumr.so.0"
ln -sf libgpumr.so.0 "$out/libgpumr.so"
cp "$CARGO_TARGET_DIR/release/libgpumr_preload.so" "$out/libgpumr-preload.so"
cp "$user/gpumr-c/include/gpumr.h" "$user/gpumr-preload/libgpumr-preload.so.7" "$out/"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$user/Cargo.toml")
sed "s|@prefix@|$prefix|; s|@version@|$version|" "$user/gpumr-c/gpumr.pc.in" >"$out/gpumr.pc"
echo "user: $out"
