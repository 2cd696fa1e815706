#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Boots the lab's machine into the broken situations of situations.sh and leaves what it told in
# OUT/SITUATIONS.txt.
#   boot.sh IMAGE KERNEL FILES PROGRAMS OUT SITUATIONS
# The first four as files.sh printed them. SITUATIONS: plain, user, refusals, files, core,
# translating, identity, switch, acs, node, numa, closed on the fast kernel; distribution, orphan on
# Debian's.
set -eu
image=$1 kernel=$2 files=$3 programs=$4 out=$5 situations=$6
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
mkdir -p "$tmp/usr/bin" "$tmp/situations" "$out"
cp "$here/situations.sh" "$tmp/init"
cp "$programs/peermemctl" "$tmp/usr/bin/"
cp "$programs/hold" "$tmp/usr/bin/hold-memory"
cp "$files"/*.ko "$tmp/situations/"
release=$(modinfo -F vermagic "$files/ours.ko" | cut -d' ' -f1)
mkdir -p "$tmp/usr/lib/modules/$release/updates"
mv "$tmp/situations/ours.ko" "$tmp/usr/lib/modules/$release/updates/nvidia-peermem.ko"
for folder in dkms newer; do
	[ ! -d "$files/$folder" ] || cp -r "$files/$folder" "$tmp/situations/"
done
if [ "$situations" = closed ]; then
	cp "$files"/closed/*.ko "$tmp/usr/lib/modules/$release/updates/"
fi
# A second archive behind the first is unpacked over it.
(cat "$image" && cd "$tmp" && find . | cpio -o -H newc --quiet) >"$tmp.cpio"

machine=q35 append= iommu= platform= nic=bus=pcie.0,addr=0x4 gpu=bus=pcie.0,addr=0x8 more=
switch="-device pcie-root-port,id=rp,chassis=1,addr=0x5 -device x3130-upstream,id=up,bus=rp
-device xio3130-downstream,id=d0,bus=up,chassis=2,slot=0,addr=0x0
-device xio3130-downstream,id=d1,bus=up,chassis=3,slot=1,addr=0x1"
# QEMU's switch ports have no ACS and its root ports do. Two of these below the switch's upper port
# are ports of a switch as far as a walk through its config spaces tells, and the kernel switches
# ACS on in them, as it does wherever there is an IOMMU.
ports=$(echo "$switch" | sed 's/xio3130-downstream/pcie-root-port/')
case $situations in
acs) append="intel_iommu=on iommu=pt" iommu=y more=$ports nic=bus=d0 gpu=bus=d1 ;;
translating) append="intel_iommu=on iommu.passthrough=0 iommu.strict=1" iommu=y ;;
identity) append="intel_iommu=on iommu=pt" iommu=y ;;
switch) more=$switch nic=bus=d0 gpu=bus=d1 ;;
node) more="-device pxb-pcie,id=pxb,bus=pcie.0,addr=0x6,bus_nr=0x80 -device pcie-root-port,id=rp,chassis=1,bus=pxb" gpu=bus=rp ;;
numa) more="-device pxb-pcie,id=pxb,bus=pcie.0,addr=0x6,bus_nr=0x80,numa_node=1 -device pcie-root-port,id=rp,chassis=1,bus=pxb
-object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G -numa node,memdev=m0,cpus=0 -numa node,memdev=m1,cpus=1" gpu=bus=rp ;;
esac
if [ -n "$iommu" ]; then
	machine=q35,kernel-irqchip=split
	more="-device intel-iommu,intremap=off $more"
	platform=,disable-legacy=on,iommu_platform=on
fi
# shellcheck disable=SC2086
timeout "${LIMIT:-900}" qemu-system-x86_64 -machine $machine -accel tcg,thread=multi -cpu max -smp 2 -m 2048 -nodefaults \
	-display none -no-reboot $more -netdev user,id=net0,restrict=on \
	-device virtio-net-pci,netdev=net0,$nic,romfile=$platform \
	-object memory-backend-ram,id=gpu0,size=256M,share=on -device ivshmem-plain,memdev=gpu0,$gpu \
	-kernel "$kernel" -initrd "$tmp.cpio" \
	-append "console=ttyS0 panic=-1 rdinit=/init situations=$situations $append" \
	-serial "file:$out/$situations.console" -serial "file:$out/$situations.txt" </dev/null
rm -f "$tmp.cpio"
