#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints what `uname -r` says under the kernel of the build tree $1. Its kernel.release is another
# name in Debian's headers of 6.1.
set -eu
release=$(sed -n 's/^#define UTS_RELEASE "\(.*\)"$/\1/p' "$1/include/generated/utsrelease.h" 2>/dev/null || true)
[ -n "$release" ] || release=$(cat "$1/include/config/kernel.release")
echo "$release"
