#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
# What a hit costs (gpumr/examples/bench.rs), and through libgpumr.so, beside a raw loop of what it asks
# CUDA, and a report of a free (gpumr-c/examples/hits.c):
# `bench.sh build OUT` puts the programs and the library into a folder, for a machine with a GPU;
# `bench.sh` builds and runs them here.
set -eu
cd "$(dirname "$0")"
out=${2:-../build/bench}
cargo build --quiet --release --locked -p gpumr --example bench
cargo build --quiet --release --locked -p gpumr-c
mkdir -p "$out"
release=${CARGO_TARGET_DIR:-../build/target}/release
cp "$release/examples/bench" "$out/cache-bench"
cp "$release/libgpumr_c.so" "$out/libgpumr.so.1"
# The program finds the library beside itself.
${CC:-cc} -O2 -Wall -Wextra -Igpumr-c/include -o "$out/cache-hits" gpumr-c/examples/hits.c "$out/libgpumr.so.1" \
	-Wl,-rpath,'$ORIGIN' -pthread -ldl
if [ "${1:-}" != build ]; then
	"$out/cache-bench"
	"$out/cache-hits"
fi
