#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# packaging/stage.sh dkms ROOT DEPS | peermemctl ROOT TOOLS | libraries ROOT BUILT LIBDIR: puts the
# files of one package below ROOT, or of the three of the libraries, for debian/rules and the spec
# file alike. In the top folder of the source.
set -eu
package=$1 root=$2
case $package in
dkms)
	deps=$3
	missing=$(sh kernel-lite/missing.sh "$deps" | head -n 1)
	[ -z "$missing" ] || {
		echo "stage: $deps has no $missing, and DKMS must not need the network: make deps" >&2
		exit 1
	}
	name=nvidia-peermem-rust version=$(cat VERSION)
	src=$root/usr/src/$name-$version lib=$root/usr/lib/$name
	mkdir -p "$src" "$lib" "$root/usr/lib/udev/rules.d"
	cp -R Kbuild Makefile VERSION bindings kernel-lite mk src "$src/"
	# What fetches them is of no use beside them.
	rm -rf "$src/kernel-lite/deps" "$src/kernel-lite/deps.sh"
	cp -R "$deps" "$src/kernel-lite/deps"
	# Keep only their code and their licences.
	find "$src/kernel-lite/deps" -mindepth 2 -maxdepth 2 \( -name '.*' -o -name '*.orig' -o -name '*.sh' -o -name rust-toolchain.toml \
		-o -name tests -o -name examples -o -name benches \) -exec rm -rf {} +
	sed "s/#MODULE_VERSION#/$version/" packaging/dkms/dkms.conf >"$src/dkms.conf"
	find "$src" -type f ! -name '*.sh' -exec chmod 644 {} +
	find "$src" -name '*.sh' -exec chmod 755 {} +
	ln -s "../../lib/$name/upkeep" "$src/upkeep"
	install -m 755 packaging/dkms/upkeep packaging/dkms/openibd-pre-stop "$lib/"
	install -m 644 VERSION "$lib/"
	install -m 644 packaging/dkms/90-$name.rules "$root/usr/lib/udev/rules.d/"
	;;
peermemctl)
	INSTALL_MOD_PATH=$root PREFIX=/usr TOOLS=$3 sh mk/install.sh tools
	;;
libraries)
	sh mk/user.sh install "$3" /usr "$4" "$root"
	;;
esac
