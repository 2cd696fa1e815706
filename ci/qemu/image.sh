#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# image.sh KERNEL_DIR NAME MODULES ALSO BUILT PROGRAMS: the machine's root file system, an
# initramfs, in KERNEL_DIR/image-NAME.cpio: programs of this Debian with their libraries, modules,
# and what was built: the folders PROGRAMS of BUILT. For another architecture Debian's are those of
# LAB_SYSROOT. ALSO is demo (nothing that the demo does not run), few (of what is built only
# rdma-core, the guest and libcuda), consumers (UCX, and rdma-core's own tests with the Python that
# runs them: ten times the rest),
# programs (those of others, on a disk of their own: a link beside the image), built (UCX and
# libfabric, built with CUDA from Debian's sources), or a module that modprobe is not to find.
set -euo pipefail
shopt -s nullglob
. "$(dirname "$0")/cross.sh"
k=$1 name=$2 modules=$3 also=$4 built=$5 programs=$6
release=$(cat "$k/kernel/release")
lib=/usr/lib/${cross:-$(cc -print-multiarch)}
# A folder of this process alone, and one rename at the end: two runs may make the same image at
# once.
root=$PWD/$k/root-$name.$$
trap 'rm -rf "$root" "$k/image-$name.cpio.$$"' EXIT
umask 022
mkdir -p "$root"/{usr/{bin,sbin,lib64,lib/systemd},"$lib",etc/{modprobe.d,libibverbs.d},proc,sys,dev,run,tmp,root,var}
for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$root/$dir"; done

# Prints where this Debian has a program.
program() { # NAME
	if [ -z "$cross" ]; then
		command -v "$1"
	elif [ -e "$sysroot/usr/bin/$1" ]; then
		echo "$sysroot/usr/bin/$1"
	else
		echo "$sysroot/usr/sbin/$1"
	fi
}

# Prints the libraries that a program needs, directly or by others, as ldd would print them. ldd
# would run the program.
libraries() { # FILE
	if [ -z "$cross" ]; then
		ldd "$1" 2>/dev/null
		return
	fi
	local -A seen=()
	local todo=("$1") needed
	while [ -n "${todo[*]}" ]; do
		for needed in $(readelf -d "${todo[0]}" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
			[ -z "${seen[$needed]:-}" ] || continue
			seen[$needed]=1
			if [ -e "$root$lib/$needed" ]; then
				todo+=("$root$lib/$needed")
			elif [ -e "$sysroot$lib/$needed" ]; then
				todo+=("$sysroot$lib/$needed")
				printf '\t%s => %s (0)\n' "$needed" "$sysroot$lib/$needed"
			else
				printf '\t%s => not found\n' "$needed"
			fi
		done
		todo=("${todo[@]:1}")
	done
}

not_in_image() {
	local name any=1
	while read -r name; do
		[ -e "$root$lib/$name" ] || { echo "$name" && any=0; }
	done
	return $any
}
# Copies a program or library and every library that it needs, unless the image has it already: its
# libibverbs and libcuda are the lab's, and must not be replaced by this machine's.
add() { # FILE [PATH IN THE IMAGE]
	[ -e "$1" ] || {
		echo "image: $1 is missing: is its package installed? (ci/bootstrap.sh)" >&2
		return 1
	}
	install -D -m 755 "$1" "$root${2:-$1}"
	local library missing to
	missing=$(libraries "$1" | sed -n 's/^\t\(.*\) => not found$/\1/p' | grep -vx libcuda.so.1 | not_in_image) && {
		echo "image: $1 needs $missing, which ${cross:-this machine} has not" >&2
		return 1
	}
	for library in $(libraries "$1" | sed -n '/libcuda/d;s/^\t\(.* => \)\?\(\/[^ ]*\) .*/\2/p'); do
		to=${library#"$sysroot"}
		# /lib is /usr/lib here and in the machine.
		to=$root/usr/${to#/usr/}
		[ -e "$to" ] || install -D -m 755 "$library" "$to"
	done
}
# Copies a folder of this machine, with the libraries that its programs need.
tree() { # DIR
	mkdir -p "$root$1"
	cp -rL "$1/." "$root$1"
	local file
	while read -r file; do add "$file"; done < <(find -L "$1" -type f -name '*.so*')
}

printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
echo '127.0.0.1 localhost' >"$root/etc/hosts"

for program in kmod ip rdma busybox; do add "$(program "$program")" "/usr/bin/$program"; done
# A program names its loader outside the folder of its architecture's libraries.
[ -z "$cross" ] || cp -P "$sysroot"/lib/ld-linux-*.so.* "$root/usr/lib/"
for link in modprobe insmod rmmod lsmod depmod modinfo; do ln -s ../bin/kmod "$root/usr/sbin/$link"; done
for applet in $(busybox --list); do
	[ -e "$root/usr/bin/$applet" ] || [ -e "$root/usr/sbin/$applet" ] || ln -s busybox "$root/usr/bin/$applet"
done
echo 'driver rxe' >"$root/etc/libibverbs.d/rxe.driver"

# Takes the lab's rdma-core, except for programs that are linked with the insides of this machine's,
# and for images that need no patched part.
case $also in
consumers | demo)
	programs=${programs/rdma-core/}
	# The number in its file's name is the version of its interface.
	rxe=("$sysroot$lib"/libibverbs/librxe-rdmav*.so)
	rxe=${rxe[0]:-$sysroot$lib/libibverbs/librxe-rdmav*.so}
	add "$rxe" "${rxe#"$sysroot"}"
	;;
esac
# Prints where the image has a file that was built.
place() { # FILE
	case $1 in
	*/libcuda.so) echo "$lib/libcuda.so.1" ;;
	*/libcudart.so) echo "$lib/libcudart.so.12" ;;
	*/libnvml.so) echo "$lib/libnvidia-ml.so.1" ;;
	*/libgpumr_preload.so) echo "$lib/libgpumr-preload.so" ;;
	*/libgpumr_c.so) echo "$lib/libgpumr.so.1" ;;
	# UCX finds its transports beside its libraries.
	*/libuc*_*.so.0) echo "$lib/ucx/${1##*/}" ;;
	*/libfabric.so.1 | */libuc*.so.0 | */libibverbs.so.1) echo "$lib/${1##*/}" ;;
	*/librxe-rdmav*.so) echo "$lib/libibverbs/${1##*/}" ;;
	*) echo "/usr/bin/${1##*/}" ;;
	esac
}
# All files are put in place before any library is looked for: the programs need the libraries among
# them, and not those that this machine has by the same name.
for program in $programs; do
	for file in "$built/$program"/bin/*; do install -D -m 755 "$file" "$root$(place "$file")"; done
done
for program in $programs; do
	for file in "$built/$program"/bin/*; do add "$file" "$(place "$file")"; done
done
for file in "$root$lib"/libcuda{,rt}.so.*; do ln -s "${file##*/}" "${file%.so.*}.so"; done
ln -s usr/bin/guest "$root/init"

case $also in
"" | demo | few | built) ;;
programs)
	ln -sfn "$(realpath "$built/disk/bin/disk.squashfs")" "$k/image-$name.disk"
	# A libibverbs that comes with a program looks here for the NIC's driver.
	ln -s "../${lib#/usr/}/libibverbs" "$root/usr/lib64/libibverbs"
	;;
consumers)
	[ -z "$cross" ] || {
		echo "image: the consumers are programs of this machine: none are built for $cross" >&2
		exit 1
	}
	# UCX finds its transports beside its libraries.
	add /usr/bin/ucx_info
	tree "$lib/ucx"
	python=$(python3 -Ic 'import os; print(os.path.dirname(os.__file__))')
	add "$(realpath /usr/bin/python3)" /usr/bin/python3
	tree "$python"
	# No test imports these modules.
	(cd "$root$python" && rm -rf test idlelib tkinter turtledemo lib2to3 ensurepip distutils pydoc_data \
		EXTERNALLY-MANAGED config-*)
	tree /usr/lib/python3/dist-packages/pyverbs
	tests=usr/lib/pyverbs-tests
	docs=/usr/share/doc/rdma-core/tests
	[ -d "$docs" ] || {
		echo "image: $docs is missing: install python3-pyverbs with its documentation (dpkg may be told to leave it out)" >&2
		exit 1
	}
	cp -rL "$docs" "$root/$tests"
	# These tests are for hardware that is not here: they could only be skipped.
	rm -f "$root/$tests"/test_mlx5* "$root/$tests"/test_efa*
	gz=("$root/$tests"/*.gz)
	[ -z "${gz[*]}" ] || gzip -d "${gz[@]}"
	# An emulated processor takes longer to compile them than to run them.
	python3 -m compileall -q -s "$root" -p / "$root/$tests"
	;;
*) install -D "$k/$also/nvidia-peermem.ko" "$root/usr/lib/$also/nvidia-peermem.ko" ;;
esac

at=$root/usr/lib/modules/$release
mkdir -p "$at/kernel" "$at/updates"
(cd "$k/kernel/modules/" && sed 's/\.o$/.ko/' modules.order | xargs cp --parents -t "$at/kernel" &&
	cp modules.order modules.builtin modules.builtin.modinfo "$at/")
for part in $modules; do
	to=$at/updates
	# The kernel's own RDMA stack ("mainline") lies where modprobe does not look: tests load it
	# by name. It needs lab_pcie.ko beside it.
	[ "$part" != mainline ] || { to=$root/usr/lib/mainline && mkdir -p "$to" && cp "$at/updates/lab_pcie.ko" "$to"; }
	find -L "$k/$part" -name '*.ko' -exec cp -t "$to" {} +
done
# Modules are stripped, as distributions ship them. With the debugging information that Debian's
# configuration asks for, ib_core.ko has 16 MB, and an emulated processor reads all of it at each load.
find "$root/usr/lib" -path "$at/kernel" -prune -o -name '*.ko' -exec "${cross:+$cross-}strip" --strip-debug {} +
depmod -b "$root" "$release"

if [ "${name%%-*}" = installed ]; then
	# Installs as README says: `make`, and then `make install` by root, who has another home and
	# finds what was built in the build folder.
	neighbours="OFED=$PWD/$k/ofed NVIDIA=$PWD/$k/gpu"
	[ ! -e "$k/bare" ] || neighbours="OFED=$PWD/$k/bare NVIDIA=$PWD/$k/bare"
	out=OUT=$PWD/$k/work/installed
	{
		flock 9
		# shellcheck disable=SC2086
		make "$out" "KDIR=$PWD/$k/kernel/build" $neighbours
		env -u NVPM_CACHE HOME=/nonexistent make install "$out" "INSTALL_MOD_PATH=$root"
		# The packages have these files besides.
		add "$(command -v udevadm)" /usr/bin/udevadm
		ln -s ../../bin/udevadm "$root/usr/lib/systemd/systemd-udevd"
		install -D -t "$root/usr/lib/udev/rules.d" packaging/dkms/*.rules
	} 9>"$k/installed.lock" >"$k/installed.log" 2>&1 || {
		tail -n 25 "$k/installed.log" >&2
		exit 1
	}
fi

# Not compressed: unpacking costs more than reading on an emulated processor.
(cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --quiet --null -o -H newc -R 0:0) >"$k/image-$name.cpio.$$"
mv "$k/image-$name.cpio.$$" "$k/image-$name.cpio"
