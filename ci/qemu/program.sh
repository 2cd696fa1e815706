#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# program.sh DIR PRODUCT: builds a Rust program for release in $OUT/bin, and leaves the list of its
# sources in $OUT/<name>.d. Another checkout may build its own in the same folder, so one at a time.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/qemu/cross.sh"
target=${NVPM_TARGET:-$NVPM_CACHE/target}
mkdir -p "$target" "$OUT/bin"
exec 9>"$target/.lab-lock"
flock 9
sh "$here/cargo.sh" "$1" build --release --locked
release=$target/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
cp "$release/$2" "$OUT/bin/"
cp "$release/${2%.so}.d" "$OUT/$(basename "$OUT").d"
