#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Writes the committed bindings into the folder $1: bindgen over the three headers, with flags that depend on no kernel
# configuration. `make bindings` and the check that nothing differs both call this.
set -eu
out=$1
top=$(cd "$(dirname "$0")/.." && pwd)
generate() { # header, output, further options
	header=$1 output=$2
	shift 2
	"${BINDGEN:-bindgen}" "$top/$header" -o "$out/$output" "$@" \
		--rust-target 1.82 --use-core --ctypes-prefix ::kernel::ffi \
		--no-layout-tests --formatter prettyplease --no-debug '.*' --no-doc-comments --merge-extern-blocks \
		--disable-header-comment --raw-line '// SPDX-License-Identifier: GPL-2.0' \
		--raw-line "// Made from $header by \`make bindings\`." \
		--no-recursive-allowlist --allowlist-file "$top/$header" \
		-- --target=x86_64-linux-gnu -ffreestanding
}
# The neighbours' functions are weak and called by provider.c and core.c alone.
generate bindings/peer_mem.h peer_mem.rs --ignore-functions
generate bindings/nv_p2p.h nv_p2p.rs --ignore-functions
generate src/ffi/shim.h shim.rs --with-derive-default
