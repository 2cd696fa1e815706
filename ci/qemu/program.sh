#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# program.sh DIR PRODUCT [dev]: builds a Rust program for release in $OUT/bin, and leaves the list of
# its sources in $OUT/<name>.d. With dev it is built as for its own tests, which need the same crates
# (across architectures that saves only what the compiler does not optimise), and stripped, because a
# machine's image holds it in memory. Another checkout may build its own in the same folder, so one at
# a time, and what was built is copied before cargo.sh lets another one in.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/qemu/cross.sh"
target=${NVPM_TARGET:-$NVPM_CACHE/target}
mkdir -p "$target" "$OUT/bin"
exec 9>"$target/.lab-lock"
flock 9
folder=release profile=--release
[ "${3:-}" != dev ] || folder=debug profile=
# shellcheck disable=SC2086
NVPM_THEN="cd '$target/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}$folder'
	cp '$2' '$OUT/bin/'; cp '${2%.so}.d' '$OUT/$(basename "$OUT").d'" \
	sh "$here/cargo.sh" "$1" build $profile --locked
[ -n "$profile" ] || "${cross:+$cross-}strip" "$OUT/bin/$2"
