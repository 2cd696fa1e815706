#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# enter.sh LAYERS DIR MIB SCRIPT: runs a script as root of a machine made of read-only layers and of
# what DIR/upper says differently. With MIB, that lies on a disk of this size in MiB, which can
# become full. Called by unshare, in mount and process namespaces of its own.
set -eu
layers=$1 dir=$2 mib=$3 script=$4
mount --make-rprivate /
root=$dir/root
mkdir -p "$root" "$dir/upper" "$dir/work"
if [ -n "$mib" ]; then
	mkdir -p "$dir/disk"
	mount -t tmpfs -o "size=${mib}m" disk "$dir/disk"
	mkdir "$dir/disk/upper" "$dir/disk/work"
	mount -t overlay -o "lowerdir=$dir/upper:$layers,upperdir=$dir/disk/upper,workdir=$dir/disk/work" overlay "$root"
else
	mount -t overlay -o "lowerdir=$layers,upperdir=$dir/upper,workdir=$dir/work" overlay "$root"
fi
mount -t proc proc "$root/proc"
mount -t tmpfs dev "$root/dev"
for node in null zero full random urandom; do
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs run "$root/run"
mount -t tmpfs tmp "$root/tmp"
exec env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive TERM=dumb \
	PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sh -euc "$script"
