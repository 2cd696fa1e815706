#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Succeeds if $OUT/nvidia-peermem.ko is what `make` would build with these settings. Then `make
# install` runs no compiler, which root may not have. In: KDIR OFED NVIDIA KERNEL_CRATE RUSTC LLVM
# OUT, and ARCH and CROSS_COMPILE if they were given.
set -eu
# kmod's programs are here, which is not in PATH for users of Debian, nor for root by a plain su.
PATH=$PATH:/usr/sbin:/sbin
# The last step of `make` makes the file `built`, and its first one preflight.env.
[ -e "$OUT/built" ] && [ -r "$OUT/nvidia-peermem.ko" ] || exit 1
. "$OUT/preflight.env"
[ "$KDIR $OFED $NVIDIA $KERNEL_CRATE $LLVM" = \
	"$PREFLIGHT_KDIR $PREFLIGHT_OFED $PREFLIGHT_NVIDIA $PREFLIGHT_KERNEL_CRATE $PREFLIGHT_LLVM" ] || exit 1
[ "${ARCH:-$PREFLIGHT_ARCH} ${CROSS_COMPILE:-$PREFLIGHT_CROSS_COMPILE}" = "$PREFLIGHT_ARCH $PREFLIGHT_CROSS_COMPILE" ] || exit 1
[ "$RUSTC" = "$PREFLIGHT_RUSTC" ] || [ "$(sh "$(dirname "$0")/rustc-path.sh" "$RUSTC" 2>/dev/null)" = "$PREFLIGHT_RUSTC" ] || exit 1
# Another kernel may be in the folder of that one by now.
case $(modinfo -F vermagic "$OUT/nvidia-peermem.ko") in
"$(sh "$(dirname "$0")/kernel-release.sh" "$KDIR") "*) ;;
*) exit 1 ;;
esac
config=$KDIR/include/config/auto.conf symvers=$KDIR/Module.symvers
[ -r "$symvers" ] || symvers=
# A file that is gone would count as older than everything.
neighbours="$PREFLIGHT_SYMVERS ${PREFLIGHT_EXPORTERS:-}"
for file in src "$config" $neighbours; do
	[ -r "$file" ] || exit 1
done
# Packages keep the times of their makers. When a file came here, its ctime tells.
# shellcheck disable=SC2086
[ -z "${PREFLIGHT_EXPORTERS:-}" ] || [ -z "$(find -H $PREFLIGHT_EXPORTERS -type f -cnewer "$OUT/preflight.env")" ] || exit 1
# shellcheck disable=SC2086
[ -z "$(find -H Kbuild VERSION src bindings kernel-lite "$config" $symvers $neighbours -type f -newer "$OUT/preflight.env")" ]
