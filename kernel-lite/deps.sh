#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# `make deps`: the crates that kernel-lite needs of others, into the folder $1, by cargo, which
# compares them with the checksums in the top Cargo.lock.
set -eu
out=$1
here=$(dirname "$0")
cargo=${CARGO:-cargo}

die() {
	echo "deps: $*" >&2
	exit 1
}
[ -n "$(sh "$here/missing.sh" "$out")" ] || exit 0
. "$here/../mk/find.sh"
. "$here/../mk/rust.sh"
choose_cargo deps ", or build from a source archive, which has these crates"
new=$out.new.$$
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$new/.lock" 2>/dev/null || die "cannot make the folder $new: name another place: make deps DEPS=<folder>"
# The whole workspace would fetch what others need. Alone, kernel-lite keeps its own part of the lock file.
cp "$here/Cargo.toml" "$here/../Cargo.lock" "$new/.lock/"
echo '[workspace]' >>"$new/.lock/Cargo.toml"
# It says where it has them from on its standard output, for a configuration that nobody needs here.
sh "$here/../mk/registry.sh" "make deps" \
	"$cargo" vendor --quiet --manifest-path "$new/.lock/Cargo.toml" "$new" >"$new/log" ||
	die "the crates that kernel-lite needs are not in $out: see above; a source archive has them, too"
missing=$(sh "$here/missing.sh" "$new")
[ -z "$missing" ] || die "what was fetched has no $missing"
others=$(grep '^checksum' "$new/.lock/Cargo.lock" | grep -vxFf "$here/../Cargo.lock") || true
[ -z "$others" ] || die "cargo took crates that Cargo.lock does not name, with $others"
# Needed by build scripts alone, which kernel-lite.mk does not run.
rm -rf "$out" "$new/log" "$new/.lock" "$new/rustc_version" "$new/semver"
mv "$new" "$out"
echo "deps: the crates that kernel-lite needs are in $out" >&2
