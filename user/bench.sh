#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
# What a hit costs (gpumr/examples/bench.rs): `bench.sh build OUT` puts the program into a folder,
# for a machine with a GPU; `bench.sh` builds and runs it here.
set -eu
cd "$(dirname "$0")"
out=${2:-../build/bench}
cargo build --quiet --release --locked -p gpumr --example bench
mkdir -p "$out"
cp "${CARGO_TARGET_DIR:-target}/release/examples/bench" "$out/cache-bench"
[ "${1:-}" = build ] || exec "$out/cache-bench"
