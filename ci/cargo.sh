#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# cargo.sh DIR WORDS...: cargo in a folder of this checkout, with one target folder for all
# checkouts, so that a fresh clone compiles its own crates only. cargo tells old from new by the
# time of a file and would take another checkout's build of a crate for this one's: the checkout's
# own crates are forgotten where another one was the last here. `forget PROFILE` does only that.
#
# Whoever runs here holds a lock until the last of its processes has ended, because cargo's own lock
# does not cover the tests that it runs: many may run at once, but who forgets waits until nobody
# does, and the tests of one workspace run once at a time.
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
runs=$CARGO_TARGET_DIR/.runs
mkdir -p "$runs"
# cargo reads its configuration by the current folder.
cd "$checkout/$dir"

# The crates of this checkout are those that lie in a folder.
forget() { # PROFILE
	crates=$(cargo tree --workspace --locked --edges all --prefix none --format '{p}')
	# shellcheck disable=SC2046
	cargo clean --quiet --locked --profile "$1" \
		$(echo "$crates" | sed -n 's/^\([^ ]*\) v[^ ]* (.*\/.*/-p \1/p' | sort -u)
}

# Who runs here, for those who wait. What a killed run left is removed.
others() {
	for file in "$runs"/*; do
		pid=${file##*/}
		if [ ! -e "$file" ] || [ "$pid" = "$$" ]; then
			continue
		elif [ -e "/proc/$pid" ]; then
			echo "$(cat "$file") (process $pid)"
		else
			rm -f "$file"
		fi
	done | paste -sd ';'
}

# Takes a lock, and says for whom it waits if somebody has it.
take() { # -s or -x, DESCRIPTOR
	flock -n "$@" && return
	others=$(others)
	echo "cargo: waiting in $CARGO_TARGET_DIR for ${others:-what an earlier run left running}" >&2
	flock "$@"
}
run="cargo $* in $checkout/$dir"

# The crates of others, before anything needs them: where they cannot be had one line says so.
crates() {
	locked=
	case " $* " in *" --locked "*) locked=--locked ;; esac
	set -- cargo fetch --quiet $locked --target "$(rustc -vV | sed -n 's/^host: //p')"
	"$@" --offline 2>/dev/null || sh "$checkout/mk/registry.sh" cargo "$@"
}
[ "$1" = fmt ] || crates "$@"

exec 8>"$CARGO_TARGET_DIR/.checkout-lock"
if [ "$1" = forget ]; then
	take -x 8
	echo "$run" >"$runs/$$"
	forget "$2"
	exit
fi
case " $* " in
*" --release "*) profile=release ;;
*) profile=dev ;;
esac
# One for a whole workspace: any of its folders builds its crates.
workspace=$(dirname "$(cargo locate-project --workspace --message-format plain)")
name=$(echo "${workspace#"$checkout"/}" | tr / -)
if [ "$1" = test ]; then
	exec 7>"$CARGO_TARGET_DIR/.test-$name"
	take -x 7
fi
owner=$CARGO_TARGET_DIR/.checkout-$([ $profile = dev ] || echo $profile-)$name
take -s 8
# Another checkout may come between the two locks.
while [ "$(cat "$owner" 2>/dev/null)" != "$checkout" ]; do
	flock -u 8
	take -x 8
	echo "$run" >"$runs/$$"
	if [ "$(cat "$owner" 2>/dev/null)" != "$checkout" ]; then
		forget $profile
		printf %s "$checkout" >"$owner"
	fi
	flock -s 8
done
echo "$run" >"$runs/$$"
exec cargo "$@"
