#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints where the rustc $1 is. Root, who installs, has another PATH, and rustup's rustc takes the
# toolchain of the user who runs it: the one in the toolchain is the same for everybody.
set -eu
unset MAKEFLAGS MFLAGS
rustc=$("$1" --print sysroot)/bin/rustc
[ "$("$rustc" --version 2>/dev/null || true)" = "$("$1" --version)" ] || rustc=$(realpath -s "$(command -v "$1")")
echo "$rustc"
