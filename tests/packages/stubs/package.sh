#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# package.sh STUB NAME VERSION OUT: makes a Debian package NAME-dkms of one of the stand-ins, by
# dh_dkms like the real ones. Runs in the machine.
set -eu
stub=$1 name=$2 version=$3 out=$4
tree=/tmp/stub/$name-$version
rm -rf "$tree"
mkdir -p "$tree/debian/source"
cp -R "$(dirname "$0")/$stub/." "$tree/"
cd "$tree"
echo "$version" >VERSION
sed -i "s/@NAME@/$name/g" dkms.conf
mv dkms.conf "debian/$name-dkms.dkms"
for file in $(find . -maxdepth 1 -type f -printf '%f '); do
	echo "$file usr/src/$name-$version"
done >"debian/$name-dkms.install"
echo 3.0 "(native)" >debian/source/format
cat >debian/control <<EOF
Source: $name
Maintainer: stub <stub@localhost>
Build-Depends: debhelper-compat (= 13), dh-dkms

Package: $name-dkms
Architecture: all
Depends: \${misc:Depends}
Description: stand-in
EOF
cat >debian/changelog <<EOF
$name ($version) unstable; urgency=low

  * Stand-in.

 -- stub <stub@localhost>  Thu, 01 Jan 2026 00:00:00 +0000
EOF
printf '#!/usr/bin/make -f\n%%:\n\tdh $@ --with dkms\noverride_dh_auto_build override_dh_auto_clean override_dh_auto_test:\noverride_dh_dkms:\n\tdh_dkms -V %s\n' \
	"$version" >debian/rules
chmod +x debian/rules
dpkg-buildpackage --no-sign --build=all >/tmp/stub/log 2>&1 || {
	cat /tmp/stub/log >&2
	exit 1
}
mv "../${name}-dkms_${version}_all.deb" "$out/"
