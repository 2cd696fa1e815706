#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
# What a hit costs (gpumr/examples/bench.rs), and through C (gpumr-c/examples/hits.rs): `bench.sh build
# OUT` puts the programs into a folder, for a machine with a GPU; `bench.sh` builds and runs them here.
set -eu
cd "$(dirname "$0")"
out=${2:-../build/bench}
cargo build --quiet --release --locked -p gpumr -p gpumr-c --example bench --example hits
mkdir -p "$out"
cp "${CARGO_TARGET_DIR:-target}/release/examples/bench" "$out/cache-bench"
cp "${CARGO_TARGET_DIR:-target}/release/examples/hits" "$out/cache-hits"
if [ "${1:-}" != build ]; then
	"$out/cache-bench"
	"$out/cache-hits"
fi
