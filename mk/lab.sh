#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds the lab's program and becomes it: mk/lab.sh WORDS, in the checkout's top folder.
# Its libraries are compiled once for all checkouts, in the cache's target folder; which checkout's own crates lie there,
# ci/qemu/lab/src/cargo.rs keeps in the same file.
set -eu
target=${NVPM_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set: set NVPM_CACHE}/.cache}/nvidia-peermem}/target
owner=$target/.checkout-ci-qemu-lab
checkout=$(pwd)
export CARGO_TARGET_DIR="$target"

mkdir -p "$target" build/bin
exec 9>"$target/.lab-lock"
flock -n 9 || {
	echo "  build lab: another run is at it, waiting ($target/.lab-lock)" >&2
	flock 9
}
if [ "$(cat "$owner" 2>/dev/null)" != "$checkout" ]; then
	cargo clean --quiet --locked --manifest-path ci/qemu/lab/Cargo.toml -p lab
	printf %s "$checkout" >"$owner"
fi
cargo build --quiet --locked --manifest-path ci/qemu/lab/Cargo.toml
# Another checkout's build would put its own in its place.
cp --remove-destination "$target/debug/lab" build/bin/lab
exec 9>&-
exec build/bin/lab "$@"
