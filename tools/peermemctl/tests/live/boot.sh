#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Boots the lab's machine into the broken situations of situations.sh and leaves what it told in OUT/SITUATIONS.txt.
#   boot.sh IMAGE KERNEL FILES PROGRAMS OUT SITUATIONS
# IMAGE: the lab's initramfs; KERNEL: bzImage; FILES: folder with ours.ko rival.ko stub.ko older.ko other-kernel.ko (and closed/*.ko);
# PROGRAMS: folder with peermemctl, record and hold; SITUATIONS: plain, user, refusals, files, translating, identity, acs, switch, node, numa, closed.
set -eu
image=$1 kernel=$2 files=$3 programs=$4 out=$5 situations=$6
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
mkdir -p "$tmp/usr/bin" "$tmp/situations" "$out"
cp "$here/situations.sh" "$tmp/init"
cp "$programs/peermemctl" "$programs/record" "$tmp/usr/bin/"
cp "$programs/hold" "$tmp/usr/bin/hold-memory"
cp "$files"/*.ko "$tmp/situations/"
release=$(modinfo -F vermagic "$files/ours.ko" | cut -d' ' -f1)
mkdir -p "$tmp/usr/lib/modules/$release/updates"
mv "$tmp/situations/ours.ko" "$tmp/usr/lib/modules/$release/updates/nvidia-peermem.ko"
if [ "$situations" = closed ]; then
	cp "$files"/closed/*.ko "$tmp/usr/lib/modules/$release/updates/"
fi
# A second archive behind the first is unpacked over it.
(cat "$image" && cd "$tmp" && find . | cpio -o -H newc --quiet) >"$tmp.cpio"

machine=q35 append= iommu= platform= nic=bus=pcie.0,addr=0x4 gpu=bus=pcie.0,addr=0x8 more=
switch="-device pcie-root-port,id=rp,chassis=1,addr=0x5 -device x3130-upstream,id=up,bus=rp
-device xio3130-downstream,id=d0,bus=up,chassis=2,slot=0 -device xio3130-downstream,id=d1,bus=up,chassis=3,slot=1"
case $situations in
translating) append="intel_iommu=on iommu.passthrough=0 iommu.strict=1" iommu=y ;;
identity) append="intel_iommu=on iommu=pt" iommu=y ;;
# With an IOMMU the kernel switches the redirects on wherever a bridge has ACS.
acs) more=$switch nic=bus=d0 gpu=bus=d1 append="intel_iommu=on iommu=pt" iommu=y ;;
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
