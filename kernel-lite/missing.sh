#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints what the folder $1 lacks of the crates that kernel-lite needs of others, by the file that
# begins each; nothing if it is whole. An older pin-init, which was made without syn, has no
# internal/src/lib.rs.
for file in pin-init/src/lib.rs pin-init/internal/src/lib.rs syn/lib.rs quote/lib.rs proc-macro2/lib.rs; do
	[ -r "$1/$file" ] || echo "$file"
done
