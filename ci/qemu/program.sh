#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# program.sh DIR PRODUCT: the release build of a Rust program, in $OUT/bin, and what it is made of,
# in $OUT/<name>.d. Its own crates are compiled from nothing: cargo tells old from new by the time
# of a file, and another checkout's may lie in the folder that all share.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/qemu/cross.sh"
target=${NVPM_TARGET:-$NVPM_CACHE/target}
mkdir -p "$target" "$OUT/bin"
exec 9>"$target/.lab-lock"
flock 9
sh "$here/cargo.sh" "$1" forget release
sh "$here/cargo.sh" "$1" build --release --locked
release=$target/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
cp "$release/$2" "$OUT/bin/"
cp "$release/${2%.so}.d" "$OUT/$(basename "$OUT").d"
