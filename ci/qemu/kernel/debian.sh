#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# debian.sh debian-7.3|debian-6.12|debian-6.1|debian-5.10[-arm64[-16k]]: a kernel of Debian's own from
# its packages, unmodified, in $OUT: no Rust, gcc, symbol versions, every mitigation compiled in. `build`
# is its header package, `image` what boots, `modules` those of its modules that the machine needs, not
# compressed, and `source` what of its source the RDMA stack is rebuilt from, as the installation of
# OFED does.
set -euo pipefail
flavour=amd64
case $1 in
*-arm64*) flavour=arm64${1#*-arm64} ;;
esac
apt_arch=${flavour%%-*}
case $1 in
debian-7.3*) apt_suites=trixie-backports ;;
esac
. "$(dirname "$0")/../apt.sh"
. /etc/os-release

case $1 in
# 7.3 is the newest, in Debian 13's backports. It has Rust, but its headers have no metadata.
debian-7.3*) series=7.3 release="\.[0-9]+\+deb13" ;;
# 6.12 is in Debian 13, and in the backports and security updates of Debian 12.
debian-6.12*) series=6.12 release="\.[0-9]+\+deb$VERSION_ID" ;;
# 6.1 is Debian 12's.
debian-6.1 | debian-6.1-*) series=6.1 release="\.0-[0-9]+" ;;
# 5.10 is Debian 11's.
debian-5.10) series=5.10 release="\.0-[0-9]+" ;;
esac
image=$(apt_newest_name "^linux-image-${series/./\\.}$release-$flavour\$")
release=${image#linux-image-}
base=${release%"-$flavour"}
case $base in
*+deb*) kbuild=$base ;;
*) kbuild=$series ;;
esac

rm -rf "$OUT"
mkdir -p "$OUT/root" "$OUT/source"
# From 7.3 on, the image consists of three packages.
[ "$series" != 7.3 ] || image="linux-binary-$release linux-modules-$release linux-base-$release"
for package in $image "linux-headers-$release" "linux-headers-$base-common"; do
	dpkg-deb -x "$(apt_deb "$package")" "$OUT/root"
done
# This package has programs that run on the machine that builds.
dpkg-deb -x "$(apt_arch=$host_arch && . "$(dirname "$0")/../apt.sh" && apt_deb "linux-kbuild-$kbuild")" "$OUT/root"
if [ "$series" = 6.12 ]; then
	version=$(dpkg-deb -f "$(apt_deb "$image")" Version)
	dpkg-deb --fsys-tarfile "$(apt_deb "linux-source-$series" "$version")" |
		tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
		tar -xJ -C "$OUT/source" --strip-components=1 --wildcards --no-wildcards-match-slash \
			'*/Makefile' '*/drivers/infiniband/core' '*/drivers/infiniband/sw/rxe' '*/include/rdma/ib_umem.h'
fi

# Take the drivers of the machine's card and disk, and also the kernel's own RDMA stack with all
# that our stack needs of the kernel. (rdma_rxe asks for its checksum by the alias.)
root=$OUT/root
[ -d "$root/lib/modules" ] || root=$OUT/root/usr
theirs=$root/lib/modules/$release
depmod -b "$root" "$release"
for module in virtio_pci virtio_net virtio_blk squashfs rdma_rxe rdma_ucm ib_umad ib_uverbs crypto-crc32; do
	modprobe -d "$root" -S "$release" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\) *$/\1/p' | sort -u | while read -r file; do
	name=${file#"$theirs/kernel/"}
	mkdir -p "$OUT/modules/$(dirname "$name")"
	case $name in
	*.xz) xz -dc "$file" >"$OUT/modules/${name%.xz}" ;;
	*) cp "$file" "$OUT/modules/$name" ;;
	esac
	echo "$(echo "$name" | sed 's/\.ko.*//').o" >>"$OUT/modules/modules.order"
done
cp "$theirs/modules.builtin" "$theirs/modules.builtin.modinfo" "$OUT/modules/"

# The packages expect to be below /usr/src, where they are not.
headers=root/usr/src/linux-headers
if [ "$series" = 7.3 ]; then
	sed -i 's,/usr/src/,$(dir $(lastword $(MAKEFILE_LIST)))../,; s/KBUILD_OUTPUT=/KBUILD_OUTPUT := /' "$OUT/$headers-$release/Makefile"
else
	echo "include \$(dir \$(lastword \$(MAKEFILE_LIST)))../linux-headers-$base-common/Makefile" >"$OUT/$headers-$release/Makefile"
fi
# No other release has Debian 11's compiler. gcc-12 builds modules for its kernel, too.
sed -i 's/gcc-10$/gcc-12/' "$OUT/$headers-$release/.kernelvariables"
ln -s "$headers-$release" "$OUT/build"
vmlinuz=root/boot/vmlinuz-$release
[ -e "$OUT/$vmlinuz" ] || vmlinuz=root/usr/lib/modules/$release/vmlinuz
ln -s "$vmlinuz" "$OUT/image"
echo "$release" >"$OUT/release"
