#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# `make deps`: what kernel-lite needs of others, into the folder $1: pin-init, syn, quote and
# proc-macro2, as the kernel has them in its rust/ folder. From an unpacked kernel source
# (LINUX_SRC), from what the lab has in the cache (NVPM_CACHE), or else from Debian's package
# linux-source-7.2, fetched without touching the machine's own apt. OS_RELEASE names another file
# than /etc/os-release.
set -eu
out=$1
here=$(dirname "$0")
cache=${NVPM_CACHE:-$HOME/.cache/nvidia-peermem}

say() {
	echo "deps: $*" >&2
}
die() {
	say "$*"
	exit 1
}
# Whether the folder $1 has all four.
whole() {
	[ -z "$(sh "$here/missing.sh" "$1")" ]
}
if whole "$out"; then
	exit 0
fi
tmp=$(mktemp -d)
new=$out.new.$$
trap 'rm -rf "$tmp" "$new"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$new"

# Copies them out of the unpacked kernel source $1, which is of this series, and says where they are
# from.
take() { # SOURCE SERIES FROM
	for crate in pin-init syn quote proc-macro2; do
		cp -a "$1/rust/$crate" "$new/"
	done
	say "taken from $3"
	[ "$2" = 7.2 ] ||
		say "warning: that is Linux ${2:-of no known version}, and kernel-lite is made for the crates of 7.2: if it does not build, remove $out and make deps LINUX_SRC=<a source of 7.2>"
}
# Takes them out of the unpacked kernel source $1.
take_tree() {
	take "$1" "$(sed -n 's/^VERSION = //p; s/^PATCHLEVEL = //p' "$1/Makefile" 2>/dev/null | paste -sd .)" "$1"
}
# Takes them out of the package $1.
take_deb() {
	dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
		tar -xJ -C "$tmp" --strip-components=1 --wildcards '*/rust/pin-init' '*/rust/syn' '*/rust/quote' '*/rust/proc-macro2'
	name=$(basename "$1")
	take "$tmp" "$(echo "$name" | sed -n 's/^linux-source-\([0-9.]*\).*/\1/p')" "$name"
}
# Of some kernel sources on standard input, one per line: the one that kernel-lite is made for, or
# else the newest.
preferred() {
	sort -V | awk '/linux-(source-)?7\.2([^0-9]|$)/ { found = $0 } END { print found == "" ? $0 : found }'
}
# Downloads a linux-source that has them, and prints its path.
download() {
	os=${OS_RELEASE:-/etc/os-release}
	[ ! -r "$os" ] || . "$os"
	command -v apt-get >/dev/null && [ "${ID:-}" = debian ] && [ -n "${VERSION_CODENAME:-}" ] ||
		die "only Debian's apt has the package linux-source-7.2, and this is ${PRETTY_NAME:-a system without $os}: unpack a source of Linux 7.2 (kernel.org), and make deps LINUX_SRC=<its folder>"
	target=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1)
	[ -n "$target" ] || die "apt has no package lists: apt-get update, or name a kernel source: make deps LINUX_SRC=<dir>"
	mkdir -p "$tmp/apt/lists/partial" "$tmp/apt/cache/archives/partial" "$cache/dl"
	for suite in trixie-backports forky sid; do
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $target $suite main"
	done >"$tmp/apt/sources.list"
	set -- -q -o Dir::State="$tmp/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$tmp/apt/cache" \
		-o Dir::Etc::sourcelist="$tmp/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferencesparts=/dev/null -o Acquire::Languages=none -o APT::Sandbox::User=root \
		-o APT::Update::Post-Invoke-Success= -o APT::Update::Error-Mode=any
	say "fetching package lists"
	apt-get "$@" update >"$tmp/log" 2>&1 || {
		why=$(grep '^[EW]:' "$tmp/log" | head -n 1)
		# One suite that is gone ends nothing, if another has it.
		[ -n "$(find "$tmp/apt/lists" -maxdepth 1 -name '*Release')" ] ||
			die "nothing could be fetched from $target ($why): fix the network, or name a kernel source: make deps LINUX_SRC=<dir>"
		say "not every suite answers: $why"
	}
	package=$(apt-cache "$@" search --names-only '^linux-source-([7-9]|[1-9][0-9])\.[0-9]*$' | cut -d' ' -f1 | preferred)
	[ -n "$package" ] || die "no suite that answered has linux-source-7.2 or a later one: name a kernel source: make deps LINUX_SRC=<dir>"
	say "fetching $package, some 150 MB"
	(cd "$cache/dl" && apt-get "$@" download "$package") >"$tmp/log" 2>&1 || die "$(cat "$tmp/log")"
	find "$cache/dl" -name "${package}_*.deb" | preferred
}

if [ -n "${LINUX_SRC:-}" ]; then
	whole "$LINUX_SRC/rust" || die "LINUX_SRC=$LINUX_SRC has no rust/pin-init of Linux 7.2 or later"
	take_tree "$LINUX_SRC"
else
	tree=$(for tree in "$cache"/src/linux-*; do
		! whole "$tree/rust" || echo "$tree"
	done | preferred)
	if [ -n "$tree" ]; then
		take_tree "$tree"
	else
		deb=$(find "$cache/dl" -name 'linux-source-[7-9]*.deb' 2>/dev/null | preferred)
		deb=${deb:-$(download)}
		take_deb "$deb"
	fi
fi
whole "$new" || die "what was found has not all of pin-init, syn, quote and proc-macro2"
rm -rf "$out"
mv "$new" "$out"
say "pin-init, syn, quote and proc-macro2 are in $out"
