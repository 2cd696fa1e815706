#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# mk/cargo-build.sh TARGET WHAT CARGO WORDS...: builds WHAT for `make TARGET` by `cargo build` with these
# words, and says so as long as it takes. cargo's own lines go to a log, and are shown where it fails.
set -eu
target=$1 what=$2 cargo=$3
shift 3
here=$(dirname "$0")
. "$here/find.sh"
. "$here/rust.sh"
. "$here/tell.sh"
choose_cargo "$target"
echo "$target: building $what, some minutes the first time; cargo fetches what it needs from its registry"
mkdir -p "$CARGO_TARGET_DIR"
log=$CARGO_TARGET_DIR/$target.log
tell "$target: building $what" "$log"
code=0
sh "$here/registry.sh" "make $target" "$cargo" build --release --locked "$@" 2>"$log" || code=$?
told
# Without the lines that tell how far it is.
[ $code = 0 ] || grep -vE '^ +(Compiling|Updating|Locking|Download(ed|ing)|Fresh|Finished|Blocking|Adding) ' "$log" >&2 || true
rm -f "$log"
exit $code
