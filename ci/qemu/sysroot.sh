#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# sysroot.sh ARCH PACKAGE...: unpacks packages of another architecture, with all that they depend
# on, in $OUT, and adds the Rust library of this machine's rustc.
set -euo pipefail
apt_arch=$1
shift
. "$(dirname "$0")/apt.sh"
apt_update

# rustc reads only the library of exactly its own build.
std=$(dpkg-query -S "$(rustc --print sysroot)/lib/rustlib/$(uname -m)-unknown-linux-gnu/lib/libstd-*.rlib" | cut -d: -f1)
std=$(apt_deb "$std" "$(dpkg-query -W -f='${Version}' "$std:$host_arch")")

rm -rf "$OUT"
mkdir -p "$OUT"/usr/{bin,sbin,lib} "$OUT/debs/partial"
for dir in bin sbin lib; do ln -s "usr/$dir" "$OUT/$dir"; done
apt_private apt-get -q -y --no-install-recommends --download-only -o Dir::Cache::archives="$OUT/debs" \
	install "$@"
for deb in "$OUT"/debs/*.deb "$std"; do
	dpkg-deb --fsys-tarfile "$deb" |
		tar -x --keep-directory-symlink --no-same-owner -C "$OUT" --exclude='./usr/share/*' --exclude='./var/*'
done
rm -r "$OUT/debs"
# Linkers look below the folder that they are given, but follow links to the root.
find "$OUT" -type l -lname '/*' | while read -r link; do
	ln -sfnr "$OUT$(readlink "$link")" "$link"
done
