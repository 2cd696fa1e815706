#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# To be sourced by the gates of a built module, with CROSS_COMPILE as it is for the kernel. tool prints the
# path of a program of the kernel's toolchain, or of LLVM.
tool() { # NAME [THE USER'S OWN]
	[ -z "${2:-}" ] || { echo "$2"; return; }
	command -v "${CROSS_COMPILE:-}$1" || command -v "llvm-$1" || command -v "llvm-$1-19" || {
		gate=${0##*/}
		echo "${gate%.sh}: neither ${CROSS_COMPILE:-}$1 nor llvm-$1 is installed: install binutils" >&2
		exit 1
	}
}
