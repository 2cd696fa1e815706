#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Finds a rustc and a cargo that are new enough: 1.85 or later. To be sourced after find.sh.

# Prints N of the version 1.N of a rustc or cargo, and nothing where it does not run.
minor_of() { # TOOL
	"$1" --version 2>/dev/null | sed -n 's/^[a-z]* 1\.\([0-9]*\)\..*/\1/p'
}
# Prints the files in PATH that have this name with a version behind it, the newest first: Ubuntu has such
# ones beside its rustc and cargo.
versioned() { # TOOL
	for dir in $(echo "$PATH" | tr : ' '); do
		ls "$dir/$1"-1.* 2>/dev/null || true
	done | sed "s:.*/$1-\(.*\):\1 &:" | sort -rV | cut -d ' ' -f 2
}
# Sets cargo to the newest one with a version in its name if `cargo` itself is missing or too old, and has
# it call the rustc of that version. Ends with one line where none serves.
choose_cargo() { # TARGET [WHAT ELSE HELPS]
	if command -v "$cargo" >/dev/null; then
		minor=$(minor_of "$cargo")
		# A program that tells no version may be somebody's wrapper.
		[ "${minor:-85}" -lt 85 ] || return 0
		cause="$cargo is 1.$minor"
	else
		cause="there is no $cargo"
	fi
	if [ "$cargo" = cargo ]; then
		for other in $(versioned cargo); do
			minor=$(minor_of "$other")
			[ "${minor:-0}" -ge 85 ] || continue
			rustc=$(dirname "$other")/rustc-${other##*/cargo-}
			[ -n "${RUSTC:-}" ] || [ ! -x "$rustc" ] || export RUSTC="$rustc"
			echo "$1: $other, because $cause" >&2
			cargo=$other
			return
		done
	fi
	how=$(package_of '' cargo)
	echo "make $1: $cause, and 1.85 or later is needed: ${how:-install Rust}, or name one: make $1 CARGO=<path>${2:-}" >&2
	exit 1
}
