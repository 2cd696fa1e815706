#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints what the folder $1 lacks of the crates that kernel-lite needs of others, by the file that
# begins each; nothing if it is whole.
for crate in pinned-init pinned-init-macro paste proc-macro2 quote unicode-ident; do
	[ -r "$1/$crate/src/lib.rs" ] || echo "$crate/src/lib.rs"
done
