#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
# What a hit costs (gpumr/examples/bench.rs), and through libgpumr.so, beside a raw loop of what it asks
# CUDA, and a report of a free (gpumr-c/examples/hits.c):
# `bench.sh build OUT` puts the programs and the library into a folder, for a machine with a GPU, and
# beside them what tests the cache there: cache-card (gpumr/examples/card.rs), cache-storm
# (gpumr/examples/storm.rs), and the preload library with the libibverbs that its tests have and the
# program card.py (gpumr-preload/tests/card.py says how to run it);
# `bench.sh` builds and runs the measurements here.
set -eu
cd "$(dirname "$0")"
out=${2:-../build/bench}
cargo build --quiet --release --locked -p gpumr --example bench --example card --example storm
cargo build --quiet --release --locked -p gpumr-c -p gpumr-preload
mkdir -p "$out"
release=${CARGO_TARGET_DIR:-../build/target}/release
for name in bench card storm; do
	cp "$release/examples/$name" "$out/cache-$name"
done
cp "$release/libgpumr_preload.so" "$out/libgpumr-preload.so"
cp gpumr-preload/tests/card.py "$out/"
# This is built as gpumr-preload's tests build it (stand-ins/build.rs).
${CC:-cc} -D_GNU_SOURCE -O2 -Wall -Wextra -shared -fPIC -Wl,--undefined-version -Wl,-soname,libibverbs.so.1 \
	-Wl,--version-script=stand-ins/ibverbs.map -o "$out/libibverbs.so.1" stand-ins/ibverbs.c
cp "$release/libgpumr_c.so" "$out/libgpumr.so.1"
# The program finds the library beside itself.
${CC:-cc} -O2 -Wall -Wextra -Igpumr-c/include -o "$out/cache-hits" gpumr-c/examples/hits.c "$out/libgpumr.so.1" \
	-Wl,-rpath,'$ORIGIN' -pthread -ldl
if [ "${1:-}" != build ]; then
	"$out/cache-bench"
	"$out/cache-hits"
fi
