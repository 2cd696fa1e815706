#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Finds what a kernel's RDMA core and GPU driver were built with, by what that kernel would load and
# not by the name of a folder. To be sourced; the script that does so has a function `note`, which
# tells its user a line. ROOT is empty, or the folder in which another machine's root is mounted.

# Prints what a path of ROOT is once all links in it are followed, absolute ones below ROOT; fails
# where nothing is there.
inside() ( # ROOT PATH
	at='' rest=${2#/} left=40
	while [ -n "$rest" ]; do
		part=${rest%%/*}
		case $rest in
		*/*) rest=${rest#*/} ;;
		*) rest='' ;;
		esac
		case $part in
		'' | .) continue ;;
		..)
			at=${at%/*}
			continue
			;;
		esac
		target=$(readlink "$1$at/$part") || {
			at=$at/$part
			continue
		}
		left=$((left - 1))
		[ $left -gt 0 ] || return 1
		case $target in
		/*) at='' ;;
		esac
		rest=${target#/}${rest:+/$rest}
	done
	[ -e "$1$at" ] && echo "$1$at"
)

# Prints the file of a module that a kernel would load, links followed: RHEL's weak-updates lead to
# the file of another kernel.
module_file() { # ROOT KERNEL MODULE
	file=$(modinfo ${1:+-b "$1"} -k "$2" -n "$3" 2>/dev/null) && inside "$1" "${file#"$1"}"
}
# Prints the last part of a path that looks like a kernel's release. Azure Linux and WSL have four
# numbers before the rest; without a rest, four numbers are a version of OFED.
release_in() { # PATH
	echo "$1" | tr / '\n' | grep -E '^[1-9]\.[0-9]+\.[0-9]+([-+_~].*|\.[0-9]+[-+_~].*|\.[^0-9].*)?$' | tail -n 1
}
# Prints the kernel that a folder of OFED says it was configured for.
configured_for() { # FOLDER
	sh "$find_here/kernel-release.sh" "$1" 2>/dev/null ||
		sed -n 's/^KVERSION[[:space:]]*:*=[[:space:]]*\([^[:space:]]*\).*/\1/p' "$1/configure.mk.kernel" 2>/dev/null | tail -n 1
}
# Prints the kernel that a module's file was built for: the one in whose folder it lies, or else the
# one that is asked.
built_for() { # FILE KERNEL
	of=$(echo "$1" | sed -n 's:.*/lib/modules/\([^/]*\)/.*:\1:p')
	echo "${of:-$2}"
}
# Succeeds if no symbol has one version in a Module.symvers and another one in a second list, which
# is a file, or - for standard input.
agree() { # MODULE_SYMVERS LIST
	[ -z "$(awk '
		{ sub(/^0x0*/, "", $1) }
		NR == FNR { has[$2] = $1; next }
		$2 in has && has[$2] != $1 { print $2; exit }' "$1" "$2")" ]
}
# Succeeds if no symbol that a module's file wants has another version in a Module.symvers. The file
# must be of the same build as what exports them: then a difference says that the versions are
# another build's.
versions_fit() { # FILE MODULE_SYMVERS
	# An empty list would be taken for the other one.
	[ -n "$1" ] && [ -s "$2" ] || return 0
	modprobe --dump-modversions "$1" 2>/dev/null | agree "$2" -
}

# Prints the folders in which OFED may have left what the RDMA core of a kernel was built with, the
# best first.
core_folders() { # ROOT ARCH KERNEL
	# What OFED has left is then from an attempt, or from another kernel of that name.
	if [ "$(modinfo ${1:+-b "$1"} -k "$3" -n ib_core 2>/dev/null)" = "(builtin)" ]; then
		note "kernel $3 has its RDMA core built in, so no OFED takes its place"
		return
	fi
	of=$(built_for "$(module_file "$1" "$3" ib_uverbs || true)" "$3")
	[ "$of" = "$3" ] || note "kernel $3 loads the RDMA core that was built for kernel $of"
	# The package for DKMS and the one with modules have folders of their own.
	for dir in "$1"/usr/src/ofa_kernel "$1"/usr/src/ofa_kernel-dkms; do
		for part in "$2/$of" "$of" default; do
			folder=$(inside "$1" "${dir#"$1"}/$part") || continue
			# `default` belongs to the last kernel that OFED was built for.
			theirs=$(release_in "${folder#"$1"}")
			[ -n "$theirs" ] || theirs=$(configured_for "$folder" || true)
			if [ "${theirs:-$of}" = "$of" ]; then
				echo "$folder"
			else
				note "$dir/$part is of another kernel, $theirs, and not used"
			fi
		done
	done
	for folder in "$1"/var/lib/dkms/mlnx-ofed-kernel/*/"$of/$2"/module; do
		[ ! -d "$folder" ] || echo "$folder"
	done
}
# Prints the kernels for which OFED has left something.
core_kernels() { # ROOT ARCH
	for file in "$1"/usr/src/ofa_kernel*/*/Module.symvers "$1"/usr/src/ofa_kernel*/"$2"/*/Module.symvers; do
		[ ! -e "$file" ] || release_in "${file%/*}"
	done | sort -u
}

# Prints the folders in which the GPU driver of that version may have left what it was built with,
# the best first: RHEL's packages, Ubuntu's and Debian's each have a name of their own.
driver_folders() { # ROOT ARCH KERNEL MODULE VERSION
	of=$(built_for "$(module_file "$1" "$3" "$4" || true)" "$3")
	[ "$of" = "$3" ] || note "kernel $3 loads the GPU driver that was built for kernel $of"
	for folder in "$1"/var/lib/dkms/nvidia*/"$5/$of/$2"/module "$1"/var/lib/dkms/nvidia*/"$5"-*/"$of/$2"/module \
		"$1"/usr/src/"$4-$5" "$1"/usr/src/nvidia*-"$5" "$1"/usr/src/nvidia*-"$5"-*; do
		for sub in '' /kernel-open /kernel; do
			[ ! -d "$folder$sub" ] || echo "$folder$sub"
		done
	done | awk '!seen[$0]++'
}

# Prints what a module's file exports as modprobe --show-exports does, where this modprobe cannot:
# by the file's symbol table. Up to 5.18 a version is the value of an absolute symbol; since then it
# is data, which the symbol points at.
table_of_exports() ( # SYMBOLS FILE
	case $2 in
	*.gz) unpack="gzip -dc" ;;
	*.xz) unpack="xz -dc" ;;
	*.zst) unpack="zstd -dcq" ;;
	*) unpack="cat" ;;
	esac
	copy=$(mktemp) || return
	trap 'rm -f "$copy"' EXIT
	$unpack <"$2" >"$copy" || return
	objdump -t "$copy" | awk -v symbols="$1" '
		{ name = $NF; kind = sub(/^__crc_/, "", name) ? "crc" : sub(/^__ksymtab_/, "", name) ? "name" : "" }
		kind != "" && name ~ symbols { print kind, $1, $(NF - 2), name }' | sort | while read -r kind value section name; do
		case $kind-$section in
		# The same is printed without a version, for symbols that have none.
		name-*) echo "0x00000000	$name" ;;
		crc-\*ABS\*) echo "0x${value#????????}	$name" ;;
		*)
			objdump -s -j "$section" --start-address="0x$value" --stop-address="$(printf '0x%x' $((0x$value + 4)))" "$copy" |
				awk -v name="$name" 'END { w = $2; print "0x" substr(w, 7, 2) substr(w, 5, 2) substr(w, 3, 2) substr(w, 1, 2) "\t" name }'
			;;
		esac
	done
)
# Prints the symbols that a module's file exports, with their versions if they have some.
exports() { # SYMBOLS FILE
	[ -n "$2" ] || return 0
	listed=$(modprobe --show-exports "$2" 2>/dev/null | awk -v symbols="$1" '$2 ~ symbols' || true)
	if [ -n "$listed" ]; then
		echo "$listed"
	else
		table_of_exports "$1" "$2" 2>/dev/null || true
	fi
}
# Prints, as lines of a Module.symvers, the versions of what a module's file exports: those of what
# would be loaded. Where the file does not tell, those that a user of the same build wants. Where
# symbols have no versions it prints nothing.
exported_versions() { # SYMBOLS FILE [USER]
	{
		exports "$1" "$2"
		[ -z "${3:-}" ] || modprobe --dump-modversions "$3" 2>/dev/null || true
	} | awk -v symbols="$1" -v module="$(basename "${2%.ko*}")" \
		'$2 ~ symbols && $1 !~ /^0x0*$/ && !seen[$2]++ { printf "%s\t%s\t%s\tEXPORT_SYMBOL\t\n", $1, $2, module }'
}

# Prints what /etc/os-release says of a root: its ID, and the family that it names. OS_RELEASE names
# another file.
os_release() { # ROOT FIELD
	sed -n "s/^$2=//p" "${OS_RELEASE:-$1/etc/os-release}" 2>/dev/null | tr -d '"'
}
family() { # ROOT
	case " $(os_release "$1" 'ID\(_LIKE\)*' | tr '\n' ' ') " in
	*" debian "* | *" ubuntu "*) echo debian ;;
	*" rhel "* | *" fedora "* | *" centos "*) echo rhel ;;
	*" suse "* | *" sles "*) echo suse ;;
	esac
}

# Prints the package that has a kernel's headers, by the name that the distribution gives it.
headers_package() { # ROOT KERNEL
	case $(family "$1") in
	debian) echo "linux-headers-$2" ;;
	rhel)
		case $(os_release "$1" ID)-$(os_release "$1" VERSION_ID):$2 in
		# Oracle's own kernel beside Red Hat's.
		*uek | *uek.*) echo "kernel-uek-devel-$2" ;;
		# Amazon Linux 2023 has kernels after its first one under their own names.
		amzn-2023:6.1.*) echo "kernel-devel-$2" ;;
		amzn-2023:*) echo "kernel$(echo "$2" | cut -d . -f 1,2)-devel-$2" ;;
		# 5.14.0-503.11.1.el9_5.aarch64+64k: of the package kernel-64k.
		*+[0-9a-z]*) echo "kernel-${2##*+}-devel-${2%+*}" ;;
		*) echo "kernel-devel-$2" ;;
		esac
		;;
	suse)
		# 6.4.0-150600.23.38-64kb: of the package kernel-64kb.
		case $2 in
		*-azure | *-rt | *-64kb) echo "kernel-${2##*-}-devel of ${2%-*}" ;;
		*) echo "kernel-default-devel of $2" ;;
		esac
		;;
	*) echo "the package with its headers" ;;
	esac
}

# Prints the command that installs something by the names of the distribution; nothing where that is
# unknown. WHAT is a program, or rust-src, the source of the library of a rustc 1.MINOR.
package_of() { # ROOT WHAT [MINOR]
	like=$(family "$1")
	case $like:$(os_release "$1" ID)-$(os_release "$1" VERSION_ID):$2 in
	# The package rustc of Debian 12 is 1.63.
	*:debian-12:rustc) what="rustc-web rust-web-src" ;;
	*:debian-12:rust-src) what="rust-src (with rustc-web: rust-web-src)" ;;
	# Ubuntu has newer ones beside its rustc, with the version in the name.
	*:ubuntu-*:rustc) what="rustc-1.NN rust-1.NN-src for the newest NN there is" ;;
	*:ubuntu-*:rust-src) what="rust-src (with rustc-1.$3: rust-1.$3-src)" ;;
	debian:*:rustc) what="rustc rust-src" ;;
	rhel:*:rustc) what="rust rust-src" ;;
	suse:*:rustc) what="rust1.NN rust1.NN-src for the newest NN there is" ;;
	suse:*:rust-src) what="rust1.$3-src" ;;
	debian:*:rpmbuild) what=rpm ;;
	*:rpmbuild) what=rpm-build ;;
	*:debian-12:cargo) what=cargo-web ;;
	*:ubuntu-*:cargo) what="cargo-1.NN for the newest NN there is" ;;
	suse:*:cargo) what="cargo1.NN for the newest NN there is" ;;
	debian:*:xz) what=xz-utils ;;
	*:dpkg-buildpackage) what=dpkg-dev ;;
	*:dh) what=debhelper ;;
	*) what=$2 ;;
	esac
	case $like in
	debian) echo "apt-get install $what" ;;
	rhel) echo "dnf install $what" ;;
	suse) echo "zypper install $what" ;;
	esac
}
