#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Builds or installs the user-space libraries, with header, pkg-config file and man page. mk/user.sh
# build CARGO OUT: builds them into a folder. mk/user.sh install OUT PREFIX LIBDIR ROOT: puts what
# was built where programs and compilers look, below ROOT.
set -eu
user=$(cd "$(dirname "$0")/../user" && pwd)

case $1 in
build)
	cargo=$2 out=$3
	(cd "$user" && sh ../mk/cargo-build.sh user "the libraries" "$cargo" -p gpumr-c -p gpumr-preload)
	# A full disk or Ctrl-C leaves no half of them to `make user-install`.
	rm -rf "$out.new"
	mkdir -p "$out.new"
	cp "$CARGO_TARGET_DIR/release/libgpumr_c.so" "$out.new/libgpumr.so.1"
	cp "$CARGO_TARGET_DIR/release/libgpumr_preload.so" "$out.new/libgpumr-preload.so"
	rm -rf "$out"
	mv "$out.new" "$out"
	echo "user: $out; as root, make user-install puts them in place"
	;;
install)
	out=$2 prefix=$3 libdir=$4 root=$5
	[ -e "$out/libgpumr.so.1" ] || {
		echo "make user-install: $out has no libgpumr.so.1: make user, as a user who has cargo" >&2
		exit 1
	}
	to=$root$prefix lib=$root$libdir
	. "$user/../mk/writable.sh"
	for folder in "$lib/pkgconfig" "$lib/cmake/gpumr" "$to/include" "$to/share/man/man7"; do
		writable "$folder" "user-install" "run make user-install as root, or name another folder: PREFIX=<dir>, or another root: DESTDIR=<dir>"
	done
	# Programs that run keep the file that they have, and so do all where the disk is full.
	for file in libgpumr.so.1 libgpumr-preload.so; do
		error=$({ install -m 644 "$out/$file" "$lib/$file.new" && mv "$lib/$file.new" "$lib/$file"; } 2>&1) && continue
		rm -f "$lib/$file.new"
		echo "user-install: $lib/$file stays as it was (${error##*: }): once it can be written, make user-install again" >&2
		exit 1
	done
	ln -sf libgpumr.so.1 "$lib/libgpumr.so"
	install -m 644 "$user/gpumr-c/include/gpumr.h" "$to/include/"
	install -m 644 "$user/gpumr-preload/libgpumr-preload.so.7" "$to/share/man/man7/"
	# The interface has a version of its own.
	version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$user/Cargo.toml")
	case $libdir/ in
	"$prefix"/*) ;;
	*)
		echo "make user-install: the libraries' folder $libdir is not below the prefix $prefix" >&2
		exit 1
		;;
	esac
	# From the libraries back to the prefix.
	up=$(echo "${libdir#"$prefix"}" | sed 's|//*[^/][^/]*|/..|g; s|^/||')
	for file in gpumr.pc gpumr-config.cmake gpumr-config-version.cmake; do
		case $file in
		*.pc) made=$lib/pkgconfig/$file ;;
		*) made=$lib/cmake/gpumr/$file ;;
		esac
		sed "s|@prefix@|$prefix|; s|@libdir@|$libdir|; s|@up@|$up|; s|@version@|$version|" "$user/gpumr-c/$file.in" >"$made"
		chmod 644 "$made"
	done
	# Below another root there is no cache of libraries to renew.
	[ -n "$root" ] || PATH=$PATH:/usr/sbin:/sbin ldconfig
	echo "user-install: $lib/libgpumr.so and libgpumr-preload.so"
	;;
esac
