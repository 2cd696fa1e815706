#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# chroot.sh bookworm|trixie|sid: makes a Debian in $OUT/root with systemd, dkms, a kernel with its
# headers, and what the packages are made and checked with. The packages of the next kernel lie in
# its /srv/kernel. sid is for its compiler, and has one kernel.
set -euo pipefail
. "$(dirname "$0")/../../ci/qemu/apt.sh"
apt_update
# Programs that read the metrics and the rules (Prometheus, its node_exporter), and Slurm, which
# calls the prolog.
readers=,prometheus,prometheus-node-exporter,slurmctld,slurmd,slurm-client,munge
suite=$1 arch=$host_arch aptopt=()
case $suite in
bookworm) flavour='6\.1\.0-[0-9]+' compilers=rustc-web,rust-web-src,cargo-web count=2 ;;
# Modules for the kernel 7.3 are built in it, for arm64, too.
trixie) flavour='6\.12\.[0-9]+\+deb13' compilers=rustc,rust-src,cargo,gcc-aarch64-linux-gnu count=2 ;;
# A mirror may be some days behind. Its lists are signed all the same.
sid) readers='' flavour='[0-9]+\.[0-9]+\.[0-9]+\+deb14' compilers=rustc,rust-src count=1 aptopt=(--aptopt='Acquire::Check-Valid-Until "false"') ;;
esac
# The newest kernels are chosen by their images: the image of a new version comes days after its
# headers, because it is signed apart from them.
mapfile -t kernels < <(apt_private apt-cache search --names-only "^linux-image-$flavour-$arch\$" |
	sed "s/^linux-image-\(.*\)-$arch .*/\1/" | sort -V | tail -n $count)
old=${kernels[0]} new=${kernels[-1]}
# mmdebstrap mounts /proc and /sys inside, and leaves them where it is killed.
findmnt --raw --noheadings --output TARGET | awk -v root="$(realpath "$OUT")/root/" 'index($0, root) == 1' | sort -r |
	xargs --no-run-if-empty umount --lazy
rm -rf "$OUT/root"
mkdir -p "$OUT"
# tiny-initramfs: nobody boots this, and others take half a minute for each kernel.
grep -E "^deb .* $suite(-security)? " "$apt/sources.list" | mmdebstrap --quiet --variant=minbase "${aptopt[@]}" \
	--include="systemd,dkms,kmod,udev,openssl,tiny-initramfs,linux-image-$old-$arch,linux-headers-$old-$arch,$compilers" \
	--include="build-essential,debhelper,dh-dkms,xz-utils,lintian,rpm,rpmlint$readers" \
	--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*/changelog*' \
	--customize-hook="mkdir \"\$1/srv/kernel\"" \
	--customize-hook="chroot \"\$1\" sh -c 'cd /srv/kernel && apt-get -q download linux-image-$new-$arch linux-headers-$new-$arch linux-headers-$new-common \$(apt-cache depends linux-headers-$new-$arch | sed -n \"s/.*Depends: \\(linux-kbuild.*\\)/\\1/p\")'" \
	"$suite" "$OUT/root" -
