#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# `install`: lets modprobe prefer our nvidia-peermem.ko over NVIDIA's file of the same name, wherever that lies.
# `uninstall`: takes both away, which leaves NVIDIA's file as it was. In: KDIR, INSTALL_MOD_PATH.
set -eu
root=${INSTALL_MOD_PATH:-}
kver=$(cat "$KDIR/include/config/kernel.release")
dir=updates/nvidia-peermem-rust
override=$root/etc/depmod.d/nvidia-peermem-rust.conf

case $1 in
install)
	mkdir -p "$root/etc/depmod.d"
	echo "override nvidia-peermem * $dir" >"$override"
	;;
uninstall)
	rm -rf "$root/lib/modules/$kver/$dir"
	# The override serves every kernel that the module is installed for.
	set -- "$1" "$root"/lib/modules/*/"$dir"
	[ -e "$2" ] || rm -f "$override"
	;;
esac
# Below another root depmod would read this machine's configuration.
depmod ${root:+-b "$root" -C "$root/etc/depmod.d"} "$kver"
won=$(modinfo ${root:+-b "$root"} -k "$kver" -n nvidia-peermem 2>/dev/null || echo "no file")
echo "$1: modprobe nvidia-peermem on kernel $kver now loads $won"
case $1-$won in
install-*/$dir/*) ;;
install-*)
	echo "install: that is not the file just installed: look for another override in depmod.d(5)" >&2
	exit 1
	;;
esac
