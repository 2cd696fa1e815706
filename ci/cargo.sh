#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# cargo.sh DIR WORDS...: cargo in a folder of this checkout, with one target folder for all
# checkouts, so that a fresh clone compiles its own crates only. cargo tells old from new by the
# time of a file and would take another checkout's build of a crate for this one's: the checkout's
# own crates are forgotten where another one was the last here. Where a fresh clone takes the place
# of another one, only the crates that differ are compiled.
#
# Whoever runs here holds a lock until the last of its processes has ended, because cargo's own lock
# does not cover the tests that it runs: many may run at once, but who forgets what a profile has
# built waits until nobody runs with that profile, and the tests of one workspace run once at a time.
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

# Prints the owners' files of this workspace and profile, of one architecture each, that are another
# checkout's. One that is empty was another's, and what it built is forgotten or will be.
of_others() {
	for file in "$owners"*"$name"; do
		case $profile:$file in
		dev:*/.checkout-release-*) ;;
		*) [ ! -e "$file" ] || [ "$(cat "$file")" = "$whose" ] || echo "$file" ;;
		esac
	done
}

# The crates of this checkout are those that lie in a folder. Build scripts serve all architectures, so what
# another checkout has built for any of them is not taken any more.
forget() {
	of_others | while read -r file; do
		: >"$file"
	done
	crates=$(cargo tree --workspace --locked --edges all --prefix none --format '{p}')
	# shellcheck disable=SC2046
	cargo clean --quiet --locked --profile $profile ${CARGO_BUILD_TARGET:+--target "$CARGO_BUILD_TARGET"} \
		$(echo "$crates" | sed -n 's/^\([^ ]*\) v[^ ]* (.*\/.*/-p \1/p' | sort -u)
}

# Sets the times of files for cargo. A fresh clone's files are all new. Where the clone takes the place
# of another one, each file that has the same content as there gets the time that it had there. The
# list has the checkout's identity, and then `HASH TIME PATH` for each file: all that was built in this
# place since that time was built of this content. (Not noticed: a file that is edited while cargo
# compiles, and has its old content again before the next run here.)
set_times() {
	list=$cache/times/$(echo "$checkout" | cksum | tr ' ' -)
	mkdir -p "$cache/times"
	exec 6>"$list.lock"
	flock 6
	# The archive of a release is no repository, but may lie in a folder of one.
	if [ ! -e .git ] || ! files >"$list.files"; then
		rm -f "$list" "$list.files"
		exec 6>&-
		return
	fi
	id=$(stat -c '%i %W' .)
	fresh=$([ "$(head -n 1 "$list" 2>/dev/null)" = "$id" ] || echo 1)
	# Where there is no list yet, cargo decides alone.
	last=$(stat -c %.Y "$list" 2>/dev/null || echo 0)
	: >>"$list"
	: >"$list.touch"
	# A changed file may have been copied or moved here with its time, and be older than what was built.
	awk -v id="$id" -v fresh="$fresh" -v last="$last" -v now="$(date +%s.%N)" -v touch="$list.touch" '
		{ path = $0; sub(/^[^ ]* [^ ]* /, "", path) }
		FILENAME != ARGV[2] { hash[path] = $1; time[path] = $2; next }
		FNR == 1 { print id }
		{ at = $2 }
		hash[path] == $1 { if (fresh) at = time[path] }
		hash[path] != $1 && last > 0 && (fresh || at < last) { at = now }
		at != $2 { print at, path >touch }
		{ print $1, at, path }
	' "$list" "$list.files" >"$list.new"
	# Where a time cannot be set, cargo does as it would have done without this.
	while read -r at path; do
		touch -c -d "@$at" -- "$path" 2>/dev/null || true
	done <"$list.touch"
	mv "$list.new" "$list"
	rm -f "$list.files" "$list.touch"
	exec 6>&-
}

# Prints `HASH TIME PATH` for each file that git tracks or would add.
files() {
	git ls-files --cached --others --exclude-standard --deduplicate |
		xargs -d '\n' stat -c '%F|%.Y %n' 2>/dev/null | sed -n 's/^regular \(empty \)\?file|//p' >"$list.now"
	cut -d ' ' -f 2- "$list.now" | git hash-object --stdin-paths >"$list.hashes" 2>/dev/null || {
		rm -f "$list.now" "$list.hashes"
		return 1
	}
	paste -d ' ' "$list.hashes" "$list.now"
	rm -f "$list.now" "$list.hashes"
}

# Who runs here with this profile, for those who wait. What a killed run left is removed.
others() {
	for file in "$runs"/*; do
		pid=${file##*/}
		if [ ! -e "$file" ] || [ "$pid" = "$$" ]; then
			continue
		elif [ -e "/proc/$pid" ]; then
			sed -n "s/^$profile \(.*\)/\1 (process $pid)/p" "$file" 2>/dev/null || true
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
case " $* " in
*" --release "*) profile=release ;;
*) profile=dev ;;
esac
run="$profile cargo $* in $PWD"

# The crates of others, before anything needs them: where they cannot be had one line says so.
crates() {
	locked=
	case " $* " in *" --locked "*) locked=--locked ;; esac
	set -- cargo fetch --quiet $locked --target "$(rustc -vV | sed -n 's/^host: //p')"
	"$@" --offline 2>/dev/null || sh "$checkout/mk/registry.sh" cargo "$@"
}
[ "$1" = fmt ] || crates "$@"

exec 8>"$CARGO_TARGET_DIR/.checkout-lock-$profile"
# One for a whole workspace: any of its folders builds its crates.
workspace=$(dirname "$(cargo locate-project --workspace --message-format plain)")
name=$(echo "top${workspace#"$checkout"}" | tr / -)
if [ "$1" = test ]; then
	exec 7>"$CARGO_TARGET_DIR/.test-$name"
	take -x 7
fi
owners=$CARGO_TARGET_DIR/.checkout-$([ $profile = dev ] || echo $profile-)
owner=$owners${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET-}$name
# What is no repository, such as a release's archive, may be another one at the same place.
whose=$checkout
[ -e "$checkout/.git" ] || whose="$checkout $(stat -c '%i %W' "$checkout")"
take -s 8
# Where no other checkout has built this workspace, for whatever architecture, there is nothing to
# forget, and nobody to wait for. Another one may come at the same time, and then both wait.
if [ -z "$(of_others)" ] && (set -C; printf %s "$whose" >"$owner") 2>/dev/null && [ -n "$(of_others)" ]; then
	: >"$owner"
fi
# Another checkout may come between the two locks.
while [ "$(cat "$owner" 2>/dev/null)" != "$whose" ]; do
	flock -u 8
	take -x 8
	echo "$run" >"$runs/$$"
	if [ "$(cat "$owner" 2>/dev/null)" != "$whose" ]; then
		forget
		printf %s "$whose" >"$owner"
	fi
	flock -s 8
done
echo "$run" >"$runs/$$"
(cd "$checkout" && set_times)
[ -n "${NVPM_THEN:-}" ] || exec cargo "$@"
# The caller's command takes what was built, before another checkout may build here.
cargo "$@"
exec sh -ec "$NVPM_THEN"
