#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# fetch.sh WHAT VERSION [MORE]: other people's sources, unpacked into $OUT. For nvidia_src and
# nvidia_front_users a folder is in VERSION's place.
set -euo pipefail
. "$(dirname "$0")/apt.sh"
what=$1 version=$2
shift 2
rm -rf "$OUT"
mkdir -p "$OUT"

# Downloads the wheel "$version" into $OUT.
wheel() { # PLATFORMS
	local said
	said=$(python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version=3.11 --dest "$OUT" "$@" "$version" 2>&1) || {
		# Without the network it says that it finds no version.
		case $said in
		*"connection broken"* | *"(from versions: none)"*) echo "the Python package $version could not be downloaded: is this machine online? Once it is, the same command goes on" >&2 ;;
		*) echo "$said" >&2 ;;
		esac
		return 1
	}
}

# Takes packages from Debian's experimental suite alone.
experimental() {
	apt_update
	local others=$apt/sources.list
	apt=$apt-experimental
	mkdir -p "$apt"/{lists/partial,archives/partial}
	sed -n '1s/ [^ ]* main contrib$/ experimental main contrib/p' "$others" >"$apt/sources.list"
	apt_fill "Debian's experimental suite"
	# Also where older lists have to serve: those of other suites have no place here.
	touch "$apt/updated"
}

# Fails unless all files in $OUT together, with their names, have this checksum: another release of a
# package is read before it is built.
as_read() { # PACKAGE SUM
	local sum
	sum=$(cd "$OUT" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
	[ "$sum" = "$2" ] || {
		echo "$(basename "$1") has other files than those that were read: their checksum is $sum, not $2 (ci/qemu/artefacts.mk)" >&2
		return 1
	}
}

case $what in
linux)
	deb=$(apt_deb "linux-source-$version" "$version.")
	dpkg-deb --fsys-tarfile "$deb" |
		tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | tar -xJ -C "$OUT" --strip-components=1
	for patch in "$@"; do
		patch -d "$OUT" -p1 --forward <"$patch"
	done
	;;
nvidia_c)
	deb=$(apt_deb nvidia-open-kernel-source "$version.")
	dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/src/nvidia-open-kernel.tar.xz |
		tar -xJ -C "$OUT" --strip-components=3 --wildcards '*/nvidia-open-kernel/nvidia-peermem/*'
	as_read "$deb" "$1"
	dpkg-deb -f "$deb" Version | cut -d- -f1 >"$OUT/version"
	;;
nvidia_front)
	# Of NVIDIA's open driver: the files that face the kernel, with their headers and probes.
	[ "${2:-}" != experimental ] || [ -n "$(apt_found "nvidia-open-kernel-source_$version.*")" ] || experimental
	deb=$(apt_deb nvidia-open-kernel-source "$version.")
	dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/src/nvidia-open-kernel.tar.xz |
		tar -xJ -C "$OUT" --strip-components=2 --exclude='*.o_binary' --wildcards '*/nvidia-open-kernel/Kbuild' \
			'*/conftest.sh' '*/header-presence-tests.mk' '*/nvidia-open-kernel/common/*' '*/nvidia-open-kernel/nvidia/*'
	as_read "$deb" "$1"
	;;
nvidia_front_users)
	# The same of a driver's source. What it was built into there is left out.
	tar -C "$version" -c --exclude='*.o_binary' --exclude='*.o' --exclude='*.cmd' Kbuild conftest.sh \
		header-presence-tests.mk common nvidia | tar -x -C "$OUT"
	;;
nvidia_src)
	cp "$version"/nvidia-peermem/{nvidia-peermem.c,nv-p2p.h,peer_mem.h} "$OUT/"
	sed -n 's/.*-DNV_VERSION_STRING=\\"\([0-9.]*\)\\".*/\1/p' "$version/Kbuild" >"$OUT/version"
	[ -s "$OUT/version" ] || { echo "$version/Kbuild names no NV_VERSION_STRING: is this a driver's source?" >&2; exit 1; }
	;;
perftest | rdma-core | libfabric | ucx)
	tarball() { find "$dl" -maxdepth 1 -name "${what}_$version[.+]*orig.tar.*" | sort -V | tail -n 1; }
	if [ -z "$(tarball)" ]; then
		apt_update
		# apt writes a source under its own name from the first byte on.
		part=$(mktemp -d -p "$dl" part.XXXXXX)
		trap 'rm -rf "$part"' EXIT
		(cd "$part" && apt_private apt-get -q source --download-only --tar-only "$what/${1:-trixie}" && mv ./*.orig.tar.* "$dl/") || {
			echo "the source of $what could not be downloaded: is this machine online, and its disk not full? Once that is so, the same command goes on" >&2
			exit 1
		}
	fi
	tar -xf "$(tarball)" -C "$OUT" --strip-components=1
	;;
cuda_h)
	wheel --platform=manylinux2014_x86_64 --platform=manylinux_2_17_x86_64
	echo "$1  $(echo "$OUT"/*.whl)" | sha256sum --check
	python3 -m zipfile -e "$OUT"/*.whl "$OUT/wheel"
	mv "$OUT"/wheel/nvidia/cuda_runtime/include/* "$OUT/"
	rm -r "$OUT/wheel" "$OUT"/*.whl
	;;
wheel)
	# "$version" is NAME==VERSION, "$1" its checksum, of the wheel for Python 3.11 on x86-64: which
	# Python it is for matters to nobody here.
	wheel --platform=manylinux_2_28_x86_64 --platform=manylinux2014_x86_64 --platform=manylinux_2_12_x86_64
	echo "$1  $(echo "$OUT"/*.whl)" | sha256sum --quiet --check
	python3 -m zipfile -e "$OUT"/*.whl "$OUT"
	rm "$OUT"/*.whl
	;;
sbom4rust | kubernetes-validate)
	python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$OUT" "$what==$version"
	;;
bindgen)
	# It runs three times for each kernel, and nearly all of that is libclang: an optimised build does not pay.
	CARGO_TARGET_DIR=$NVPM_CACHE/target CARGO_PROFILE_RELEASE_OPT_LEVEL=1 sh mk/registry.sh bindgen \
		cargo install --locked --force --version "$version" --root "$OUT" bindgen-cli
	;;
esac
