#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds peermemctl, and makes its man pages, shell completions and schema; with its units and what
# is for monitoring: mk/tools.sh CARGO OUT
set -eu
cargo=$1 out=$2
manifest=$(dirname "$0")/../tools/peermemctl/Cargo.toml
command -v "$cargo" >/dev/null || {
	echo "make tools: there is no $cargo: install Rust 1.85 or later, or say CARGO=<path>" >&2
	exit 1
}
echo "tools: building peermemctl, some minutes the first time; cargo fetches what it needs from its registry"
"$cargo" build --quiet --release --locked --manifest-path "$manifest" --bin peermemctl --example generate
rm -rf "$out"
"$CARGO_TARGET_DIR/release/examples/generate" "$out"
cp "$CARGO_TARGET_DIR/release/peermemctl" "$(dirname "$0")"/../packaging/monitoring/* "$out/"
echo "tools: $out; as root, make install puts them in place"
