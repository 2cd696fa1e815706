#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# cargo.sh DIR WORDS...: cargo in a folder of this checkout, with one target folder for all
# checkouts, so that a fresh clone compiles its own crates only. cargo tells old from new by the
# time of a file and would take another checkout's build of a crate for this one's: the checkout's
# own crates are forgotten where another one was the last here. `forget PROFILE` does only that.
# (Two that build at the same time are not kept apart.)
set -eu
dir=$1
shift
checkout=$(cd "$(dirname "$0")/.." && pwd -P)
cache=${NVPM_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set: set NVPM_CACHE}/.cache}/nvidia-peermem}
case $cache in
/*) ;;
*)
	echo "lab: the cache folder $cache is not an absolute path: set NVPM_CACHE to one" >&2
	exit 1
	;;
esac
export CARGO_TARGET_DIR="${NVPM_TARGET:-$cache/target}"
mkdir -p "$CARGO_TARGET_DIR"
# cargo reads its configuration by the current folder.
cd "$checkout/$dir"

# The crates of this checkout are those that lie in a folder.
forget() { # PROFILE
	crates=$(cargo tree --workspace --locked --edges all --prefix none --format '{p}')
	# shellcheck disable=SC2046
	cargo clean --quiet --locked --profile "$1" \
		$(echo "$crates" | sed -n 's/^\([^ ]*\) v[^ ]* (.*\/.*/-p \1/p' | sort -u)
}

if [ "$1" = forget ]; then
	forget "$2"
	exit
fi
# One for a whole workspace: any of its folders builds its crates.
workspace=$(dirname "$(cargo locate-project --workspace --message-format plain)")
owner=$CARGO_TARGET_DIR/.checkout-$(echo "${workspace#"$checkout"/}" | tr / -)
exec 8>"$CARGO_TARGET_DIR/.checkout-lock"
flock 8
if [ "$(cat "$owner" 2>/dev/null)" != "$checkout" ]; then
	forget dev
	printf %s "$checkout" >"$owner"
fi
exec 8>&-
exec cargo "$@"
