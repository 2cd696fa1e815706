#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# enter.sh LAYERS DIR MIB SCRIPT: runs a script as root of a machine made of read-only layers and of
# what DIR/upper says differently. With MIB, that lies on a disk of this size in MiB, which can
# become full. Called by unshare, in mount and process namespaces of its own.
set -eu
layers=$1 dir=$2 mib=$3 script=$4
mount --make-rprivate /
root=$dir/root
# Nobody needs this after a crash of the machine outside, so nothing waits for its disks: volatile. A
# work folder that was mounted so is not taken again.
rm -rf "$dir/work"
mkdir -p "$root" "$dir/upper" "$dir/work"
if [ -n "$mib" ]; then
	mkdir -p "$dir/disk"
	mount -t tmpfs -o "size=${mib}m" disk "$dir/disk"
	mkdir "$dir/disk/upper" "$dir/disk/work"
	mount -t overlay -o "lowerdir=$dir/upper:$layers,upperdir=$dir/disk/upper,workdir=$dir/disk/work" overlay "$root"
else
	mount -t overlay -o "lowerdir=$layers,upperdir=$dir/upper,workdir=$dir/work,volatile" overlay "$root"
fi
mount -t proc proc "$root/proc"
mount -t tmpfs dev "$root/dev"
for node in null zero full random urandom; do
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
# Tests fill these folders. That must not take half of the memory.
mount -t tmpfs -o size=64m run "$root/run"
mount -t tmpfs -o size=1g tmp "$root/tmp"
# The packages that are made in it are read once: they are packed quickly, not small.
exec env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive TERM=dumb \
	XZ_DEFAULTS=-0 DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1 \
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sh -euc "$script"
