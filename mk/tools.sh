#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds peermemctl, and makes its man pages, shell completions and schema; with its units and what
# is for monitoring and operators: mk/tools.sh CARGO OUT
set -eu
cargo=$1 out=$2
manifest=$(dirname "$0")/../tools/peermemctl/Cargo.toml
sh "$(dirname "$0")/cargo-build.sh" tools peermemctl "$cargo" --manifest-path "$manifest" --bin peermemctl --example generate
# A full disk or Ctrl-C leaves no half of it to `make install`.
new=$out.new
rm -rf "$new"
"$CARGO_TARGET_DIR/release/examples/generate" "$new"
packaging=$(dirname "$0")/../packaging
cp "$CARGO_TARGET_DIR/release/peermemctl" "$packaging"/monitoring/* "$new/"
mkdir "$new/operators"
cp -R "$packaging"/operators/*/ "$new/operators/"
# It needs the whole source.
rm "$new/operators/nvsentinel/Dockerfile"
rm -rf "$out"
mv "$new" "$out"
echo "tools: $out; as root, make install puts them in place"
