#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# build.sh LINUX LLVM CONFIG...: a kernel of tinyconfig and these fragments, in $OUT. Goes on where an
# interrupted build stopped. Leaves `build` (its tree), `source`, `image`, `modules` and `release`.
set -eu
linux=$(realpath "$1") llvm=$2
shift 2
tree=$OUT/tree
mkdir -p "$tree"
kmake() { make -C "$linux" O="$tree" LLVM="$llvm" "$@"; }
if [ ! -e "$OUT/configured" ]; then
	configs=$(realpath "$@")
	# shellcheck disable=SC2086
	(cd "$linux" && LLVM=$llvm sh scripts/kconfig/merge_config.sh -n -O "$tree" \
		kernel/configs/tiny.config arch/x86/configs/tiny.config $configs) | tee "$OUT/config.log"
	touch "$OUT/configured"
fi
# An option that was not taken lacks a dependency. RUST: see `make rustavailable`.
for config in "$@"; do
	grep '^CONFIG_' "$config" | grep -v '=n$' | while read -r line; do
		grep -qxF "$line" "$tree/.config" || {
			echo "the configuration did not take $line of $config" >&2
			exit 1
		}
	done
	sed -n 's/^# \(CONFIG_[A-Z0-9_]*\) is not set$/\1/p;s/^\(CONFIG_[A-Z0-9_]*\)=n$/\1/p' "$config" | while read -r name; do
		! grep "^$name=" "$tree/.config" >&2 || {
			echo "the configuration did not leave out $name of $config" >&2
			exit 1
		}
	done
done
kmake -j"$(nproc)" bzImage modules
ln -sfn tree "$OUT/build"
ln -sfn tree "$OUT/modules"
ln -sfn "$linux" "$OUT/source"
ln -sfn tree/arch/x86/boot/bzImage "$OUT/image"
cp "$tree/include/config/kernel.release" "$OUT/release"
