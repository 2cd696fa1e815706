#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# build.sh LINUX LLVM x86|arm64 CONFIG...: builds a kernel from tinyconfig and these fragments, in
# $OUT. It goes on where an interrupted build stopped, and leaves `build` (its tree), `source`,
# `image`, `modules` and `release`.
set -eu
linux=$(realpath "$1") llvm=$2 arch=$3
shift 3
tree=$OUT/tree
mkdir -p "$tree"
tiny=kernel/configs/tiny.config image=Image
if [ "$arch" = x86 ]; then
	tiny="$tiny arch/x86/configs/tiny.config" image=bzImage
else
	export ARCH="$arch"
fi
kmake() { make -C "$linux" O="$tree" LLVM="$llvm" "$@"; }
if [ ! -e "$OUT/configured" ]; then
	configs=$(realpath "$@")
	# shellcheck disable=SC2086
	(cd "$linux" && LLVM=$llvm sh scripts/kconfig/merge_config.sh -n -O "$tree" \
		$tiny $configs) >"$OUT/config.log"
	cat "$OUT/config.log"
	# merge_config.sh also prints about options of tinyconfig, which do not matter.
	ours=$(sed -n 's/^\(# \)\?\(CONFIG_[A-Z0-9_]*\)\(=.*\| is not set\)$/\2/p' "$@")
	refused=$(sed -n 's/^WARNING: \(Value requested for \)\?\(CONFIG_[A-Z0-9_]*\) \(not in final\|differs\).*/\2/p' \
		"$OUT/config.log" | grep -xF "$ours" | paste -sd " ")
	[ -z "$refused" ] || {
		echo "the configuration did not take $refused: a dependency is missing in $* (RUST: see \`make rustavailable\`)" >&2
		exit 1
	}
	touch "$OUT/configured"
fi
kmake -j"$(nproc)" "$image" modules
ln -sfn tree "$OUT/build"
ln -sfn tree "$OUT/modules"
ln -sfn "$linux" "$OUT/source"
ln -sfn "tree/arch/$arch/boot/$image" "$OUT/image"
cp "$tree/include/config/kernel.release" "$OUT/release"
