#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds the lab's program and becomes it: ci/lab.sh WORDS, anywhere in a checkout.
# What it is made of is compiled once for all checkouts, in a folder of its own in the cache.
set -eu
cache=${NVPM_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set: set NVPM_CACHE}/.cache}/nvidia-peermem}
case $cache in
/*) ;;
*)
	echo "lab: the cache folder $cache is not an absolute path: set NVPM_CACHE to one" >&2
	exit 1
	;;
esac
checkout=$(cd "$(dirname "$0")/.." && pwd -P)
own=$checkout/build/bin/lab
export CARGO_TARGET_DIR="$cache/lab"

mkdir -p "$CARGO_TARGET_DIR" "$checkout/build/bin"
exec 9>"$CARGO_TARGET_DIR/.lock"
flock -n 9 || {
	echo "  build lab: another checkout is at it, waiting ($CARGO_TARGET_DIR/.lock)" >&2
	flock 9
}
cargo() { command cargo "$@" --quiet --locked --manifest-path "$checkout/ci/qemu/lab/Cargo.toml" 9>&-; }
# cargo tells old from new by the time of a file, so it would take another checkout's for this one's.
if [ ! -e "$own" ] || [ "$(cat "$CARGO_TARGET_DIR/.checkout" 2>/dev/null)" != "$checkout" ]; then
	cargo clean -p lab
	printf %s "$checkout" >"$CARGO_TARGET_DIR/.checkout"
fi
cargo build
cp --remove-destination "$CARGO_TARGET_DIR/debug/lab" "$own"
exec 9>&-
exec "$own" "$@"
