#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Looks before building whether the module can be built and would load, and says in one line what is
# wrong. In: KDIR OFED NVIDIA OUT RUSTC LLVM KERNEL_CRATE DEPS, SAMPLE for the sample driver, which
# needs no RDMA core, and OS_RELEASE if another file than /etc/os-release is to say which
# distribution this is. Out: $OUT/preflight.env, which `make install` reads too (mk/built.sh).
set -eu
# kmod's programs are here, which is not in PATH for users of Debian, nor for root by a plain su.
PATH=$PATH:/usr/sbin:/sbin
# rustc would look for the jobserver of make.
unset MAKEFLAGS MFLAGS

die() {
	echo "preflight: $*" >&2
	exit 1
}
note() {
	echo "preflight: $*" >&2
}

here=$(dirname "$0")
find_here=$here
. "$here/find.sh"
. "$here/rust.sh"

case $KDIR in
/lib/modules/*/build) of=${KDIR%/build} && headers=$(headers_package '' "${of##*/}") ;;
*) headers="the kernel's headers" ;;
esac
[ -d "$KDIR" ] || die "no kernel build tree at $KDIR: install $headers, or name one: make KDIR=<dir>"
config=$KDIR/include/config/auto.conf
[ -r "$config" ] || die "$KDIR holds no configured kernel (no include/config/auto.conf): name a built tree: make KDIR=<dir>"
option() {
	sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$config"
}
kver=$(sh "$here/kernel-release.sh" "$KDIR")
# What an earlier call built was not built with the settings of this one.
rm -f "$OUT/built"

# The architecture of the kernel, in words of Kbuild and of uname -m.
arch=$(uname -m) kernel_arch= cross=${CROSS_COMPILE:-}
if [ "$(option CONFIG_X86_64)" = y ]; then
	kernel_arch=x86
elif [ "$(option CONFIG_ARM64)" = y ]; then
	kernel_arch=arm64
fi
case $kernel_arch:${ARCH:-$kernel_arch} in
x86:x86 | x86:x86_64 | arm64:arm64 | :*) ;;
*) die "ARCH=$ARCH, and $KDIR is the build tree of a kernel for $kernel_arch: name another: make KDIR=<dir>, or leave ARCH out" ;;
esac
case $kernel_arch:$arch in
arm64:aarch64 | x86:x86_64 | :*) ;;
arm64:*) arch=aarch64 cross=${cross:-aarch64-linux-gnu-} ;;
x86:*) arch=x86_64 cross=${cross:-x86_64-linux-gnu-} ;;
esac

# A kernel built by clang wants its modules built by the same.
llvm=$LLVM
if [ -z "$llvm" ] && [ "$(option CONFIG_CC_IS_CLANG)" = y ]; then
	major=$(option CONFIG_CLANG_VERSION | sed 's/....$//')
	llvm=1
	! command -v "clang-$major" >/dev/null || llvm=-$major
fi

# Debian's headers name the compiler that their kernel was built by.
cc=$(sed -n 's/^CC = .*$(CROSS_COMPILE)\(gcc-[0-9]*\)$/\1/p' "$KDIR/.kernelvariables" 2>/dev/null || true)
cc=${cc:-${cross:+gcc}}
[ -n "${CC:-}$llvm" ] || [ -z "$cc" ] || command -v "$cross$cc" >/dev/null ||
	die "there is no $cross$cc, by which kernel $kver is built: apt-get install $cc${cross:+-$(basename "${cross%-}")}"
case $llvm in
'') compiler=${CC:-$cross${cc:-gcc}} ;;
*/) compiler=${llvm}clang ;;
-*) compiler=clang$llvm ;;
*) compiler=clang ;;
esac
built_by=$(option CONFIG_CC_VERSION_TEXT)
[ -z "$llvm" ] || command -v "$compiler" >/dev/null ||
	die "there is no $compiler, and kernel $kver is built by clang ($built_by): install clang and lld of that version, or name others: make LLVM=-<version>"
# Fails unless the compiler knows the flags that arm64's kernel asks of everything that runs in it.
asked() { # OPTION FLAGS
	# shellcheck disable=SC2086
	[ "$(option "$1")" != y ] || $compiler ${llvm:+--target=aarch64-linux-gnu} $2 -x c -c -o "$OUT/asked.o" /dev/null 2>/dev/null ||
		die "$compiler does not know $2, with which kernel $kver is built ($1): use that kernel's compiler ($built_by)"
	rm -f "$OUT/asked.o"
}
if [ "$kernel_arch" = arm64 ]; then
	mkdir -p "$OUT"
	asked CONFIG_SHADOW_CALL_STACK "-fsanitize=shadow-call-stack -ffixed-x18"
	asked CONFIG_ARM64_BTI_KERNEL -mbranch-protection=pac-ret+bti
	asked CONFIG_ARM64_PTR_AUTH_KERNEL -mbranch-protection=pac-ret
fi

# Chooses the crate `kernel`: the kernel's own wherever that is possible, else kernel-lite
# (docs/kernel-lite.md).
nvidia_ko=
for dir in $NVIDIA; do
	for file in "$dir"/nvidia.ko "$dir"/nvidia.ko.[gxz]*; do
		[ ! -r "$file" ] || nvidia_ko=$file
	done
done
# A module's magic names its kernel and, for arm64, the architecture. The size of pages is not in it,
# and the loader compares no names where symbols have versions. But distributors end the name of a
# kernel with the size, if it is not 4 KiB.
magic=$([ -z "$nvidia_ko" ] || modinfo -F vermagic "$nvidia_ko" 2>/dev/null || true)
release=${magic%% *}
case "$kernel_arch: $magic " in
*:"  " | arm64:*" aarch64 "*) ;;
arm64:* | x86:*" aarch64 "*)
	die "$nvidia_ko is of another architecture than kernel $kver ($kernel_arch): name that kernel's: make NVIDIA=<dir>"
	;;
esac
pages=$(sed -n 's/^CONFIG_ARM64_\([0-9]*\)K_PAGES=y/\1/p' "$config")
case $release in
*[-+]16k | *[-+]16k-debug) named=16 ;;
*[-+]64k | *[-+]64k-debug | *[-+]64kb) named=64 ;;
*) named= ;;
esac
if [ -n "$magic" ] && [ "$release" != "$kver" ]; then
	[ -z "$pages" ] || [ "${named:-$pages}" = "$pages" ] ||
		die "$nvidia_ko is for kernel $release with pages of $named KiB, but kernel $kver has pages of $pages KiB: name the folder of a nvidia.ko for $kver: make NVIDIA=<dir>"
	may=
	[ -z "$pages" ] || [ -n "$named" ] || may=": its pages may have another size"
	note "warning: $nvidia_ko is for kernel $release, not for $kver$may"
fi
# The driver's module: nvidia, or what modprobe takes for it. Debian's packages call theirs
# nvidia-current and nvidia-current-open, with a line `install nvidia modprobe -i nvidia-current` in
# modprobe.d.
nvidia=nvidia
instead=$(modprobe -S "$kver" --show-depends nvidia 2>/dev/null |
	sed -nE 's/^install .*modprobe .*(-i|--ignore-install) +([^ ;]+).*/\2/p')
for name in nvidia $instead nvidia-current nvidia-current-open; do
	if modinfo -k "$kver" -n "$name" >/dev/null 2>&1; then
		nvidia=$name
		break
	fi
done
if [ -n "$nvidia_ko" ]; then
	licence=$(modinfo -F license "$nvidia_ko" 2>/dev/null || true)
else
	licence=$(modinfo -k "$kver" -F license "$nvidia" 2>/dev/null || true)
fi
get_rustc=$(package_of '' rustc)
get_rustc="${get_rustc:+$get_rustc, or, where that is older, }install one with rust-src, by rustup or a newer package of your distribution"
# Succeeds if this rustc can build kernel-lite.
usable() { # RUSTC
	minor=$(minor_of "$1")
	[ "${minor:-0}" -ge 85 ] && [ -r "$("$1" --print sysroot)/lib/rustlib/src/rust/library/core/src/lib.rs" ]
}
# Ubuntu has newer ones beside its rustc, with the version in the name.
if [ "$RUSTC" = rustc ] && ! usable rustc; then
	for other in $(versioned rustc); do
		if usable "$other"; then
			note "rustc: $other, because rustc itself is too old, has no source of its library, or is missing"
			RUSTC=$other
			break
		fi
	done
fi
command -v "$RUSTC" >/dev/null || die "no $RUSTC, and 1.85 or later is needed: $get_rustc, or name one: make RUSTC=<its path>"
ours=$("$RUSTC" --version 2>/dev/null) ||
	die "$(command -v "$RUSTC") is there and does not run (--version fails): install it again, or name another: make RUSTC=<its path>"
sysroot=$("$RUSTC" --print sysroot)
theirs=$(option CONFIG_RUSTC_VERSION_TEXT)

# Prints "make RUSTC=<path>, or " if PATH has another rustc behind this one that can build
# kernel-lite.
other_rustc() {
	for rustc in $(echo "$PATH" | tr : '\n' | sed 's:$:/rustc:'); do
		if usable "$rustc"; then
			echo "make RUSTC=$rustc, or "
			break
		fi
	done
}

# Sets no_kernel to why the kernel's own crate is out of the question, to nothing if it is not, and
# fix to what to do.
ask_kernel() {
	no_kernel= fix=
	if [ "$(option CONFIG_RUST)" != y ]; then
		no_kernel="kernel $kver was built without Rust (CONFIG_RUST is not set)"
		fix="use a 7.2 kernel built with CONFIG_RUST=y"
	elif [ "$series" -lt 7002 ]; then
		no_kernel="kernel $kver is older than 7.2, and the module is written for the kernel crate of 7.2"
		fix="use a 7.2 kernel built with CONFIG_RUST=y"
	elif [ ! -r "$KDIR/rust/libkernel.rmeta" ]; then
		no_kernel="$KDIR has no Rust metadata (rust/libkernel.rmeta), which header packages leave out"
		fix="build against the kernel's full build tree, or install Ubuntu's linux-lib-rust-$kver"
	elif [ "$ours" != "$theirs" ]; then
		no_kernel="$RUSTC is \"$ours\", the kernel was built by \"$theirs\""
		fix="put that one first in PATH, or make RUSTC=<its path>"
	else
		case $licence in
		NVIDIA*)
			no_kernel="nvidia.ko for kernel $kver is of the closed flavour (licence $licence), beside which no module with GPL-only imports loads"
			fix="install the open flavour (nvidia-open)"
			;;
		esac
	fi
}
# Sets no_lite to why kernel-lite cannot be built, with what to do about it. If nothing but its
# crates is missing, no_deps has that, and it is printed last: what is wrong with the neighbours
# takes longer to mend.
ask_lite() {
	no_lite='' no_deps=''
	minor=$(minor_of "$RUSTC")
	library=$sysroot/lib/rustlib/src/rust/library
	if [ -z "$kernel_arch" ]; then
		no_lite="kernel-lite knows the compiler flags of x86-64 and arm64 only: use a kernel built with CONFIG_RUST=y"
	elif [ "$series" -lt 5010 ]; then
		no_lite="kernel $kver is older than 5.10, the oldest that kernel-lite is made for: use a newer one"
	elif [ -n "$(option CONFIG_CFI)$(option CONFIG_CFI_CLANG)" ]; then
		no_lite="kernel $kver checks indirect calls (CONFIG_CFI), which kernel-lite does not know how to pass: use a kernel without, or one built with CONFIG_RUST=y"
	elif [ "${minor:-0}" -lt 85 ]; then
		no_lite="$RUSTC is \"$ours\", kernel-lite needs 1.85 or later: $(other_rustc)$get_rustc, or make RUSTC=<its path>"
	elif [ ! -r "$library/core/src/lib.rs" ]; then
		get_source=$(package_of '' rust-src "${minor:-NN}")
		no_lite="$RUSTC has no source of its library ($library): $(other_rustc)${get_source:+$get_source, or }rustup component add rust-src"
	else
		missing=$(sh "$here/../kernel-lite/missing.sh" "${DEPS:-}" | head -n 1)
		[ -z "$missing" ] || no_deps="DEPS=${DEPS:-} has no $missing: make deps (once; cargo fetches a few small crates)"
	fi
}
# 6.12 is 6012.
series=$(echo "$kver" | sed 's/^\([0-9]*\)\.\([0-9]*\).*/\1 \2/' | { read -r major minor && echo $((major * 1000 + minor)); })
ask_kernel
# The kernel's crate changes with each series.
newer=
[ "$series" -le 7002 ] || newer="kernel $kver is newer than 7.2, and the module is written for the kernel crate of 7.2"
case ${KERNEL_CRATE:-} in
'')
	if [ -n "$no_kernel" ]; then
		crate=lite why=$no_kernel
	elif [ -n "$newer" ]; then
		crate=lite why="$newer; make KERNEL_CRATE=own tries this kernel's"
	else
		crate=own why="its metadata fits $RUSTC"
	fi
	;;
own)
	[ -z "$no_kernel" ] || die "KERNEL_CRATE=own is impossible: $no_kernel: $fix"
	crate=own why="KERNEL_CRATE${newer:+, though $newer}"
	;;
lite) crate=lite why="KERNEL_CRATE" ;;
*) die "KERNEL_CRATE=$KERNEL_CRATE is neither own nor lite" ;;
esac
no_deps=
if [ $crate = own ]; then
	note "kernel crate: the kernel's own ($why)"
else
	note "kernel crate: kernel-lite ($why)"
	ask_lite
	[ -z "$no_lite" ] || die "$no_lite${no_kernel:+ (the kernel's own crate is out: $no_kernel)}"
fi

# Kernels before 6.13 build a module in its own folder only, so they are given one of links.
tree=
if [ "$series" -lt 6013 ]; then
	tree=$OUT/tree
	mkdir -p "$tree"
	find "$tree" -type l -delete
	for source in Kbuild VERSION src bindings kernel-lite; do
		cp -rs "$PWD/$source" "$tree/"
	done
fi

# Finds the files that say what the neighbours export. All are optional: the references are weak.
symvers= unchecked= missing=
first_with() { # symbol, files...
	symbol=$1
	shift
	for file; do
		if [ -r "$file" ] && grep -q "	$symbol	" "$file"; then
			echo "$file"
			return
		fi
	done
}
# Prints the first of some folders whose Module.symvers has a symbol, and versions that fit the
# neighbour's own modules: those of a module that wants its exports or, if there is none, of a list
# of what it exports itself.
first_fitting() { # symbol, the user's file, the list, folders...
	symbol=$1 own=$2 list=$3
	shift 3
	for folder; do
		file=$(first_with "$symbol" "$folder/Module.symvers")
		[ -n "$file" ] || continue
		if ! versions_fit "$own" "$file"; then
			note "$file has other symbol versions than $own, which kernel $kver loads, and is not used"
		elif [ -z "$own" ] && [ -s "$list" ] && ! agree "$list" "$file"; then
			note "$file has other symbol versions than the module that kernel $kver loads, and is not used"
		else
			echo "$file"
			return
		fi
	done
}
# Modules that come ready-made, and DKMS before 3.1, leave no Module.symvers: then their own files have the
# versions. `exporters` has these files, for mk/built.sh.
exporters=
mkdir -p "$OUT"
found=
for dir in $OFED; do
	found=${found:-$(first_with ib_register_peer_memory_client "$dir/Module.symvers")}
done
[ -n "$found" ] || [ -z "$OFED" ] || die "OFED=$OFED: no Module.symvers with ib_register_peer_memory_client there"
ofa=$(core_folders '' "$arch" "$kver")
core=$(module_file '' "$kver" ib_uverbs || true)
api='^ib_(un)?register_peer_memory_client$' core_exporter=
for file in "$core" "$(module_file '' "$kver" ib_core || true)"; do
	exported_versions "$api" "$file" >"$OUT/core.symvers"
	# Then this core has the API, whether or not its versions can be read.
	[ -z "$(exports "$api" "$file")" ] || { core_exporter=$file && break; }
done
# An OFED installed over a kernel that has the API itself replaces the kernel's.
# shellcheck disable=SC2086
found=${found:-$(first_fitting ib_register_peer_memory_client "$core" "$OUT/core.symvers" $ofa)}
exporter=$found
if [ -z "$found" ]; then
	found=$(first_with ib_register_peer_memory_client "$OUT/core.symvers")
	[ -z "$found" ] || { exporter=$core_exporter exporters=$core_exporter; }
fi
[ -n "$found" ] || found=$(first_with ib_register_peer_memory_client "$KDIR/Module.symvers")
if [ -n "$found" ]; then
	note "ib_register_peer_memory_client: ${exporter:-$found}"
	[ "$found" = "$KDIR/Module.symvers" ] || symvers=$found
elif [ -n "$core_exporter" ]; then
	unchecked="the RDMA core"
	note "ib_register_peer_memory_client: $core_exporter exports it, without symbol versions that can be read here"
elif [ -z "${SAMPLE:-}" ]; then
	unchecked="the RDMA core" missing="an RDMA core with the peer-memory API (DOCA-OFED)"
	others=$(core_kernels '' "$arch" | paste -sd ' ')
	[ -z "$others" ] ||
		note "OFED is there for $others only: dkms install mlnx-ofed-kernel/<its version> -k $kver, or install OFED's package for kernel $kver"
	note "warning: no Module.symvers exports ib_register_peer_memory_client: the module will load only where DOCA-OFED, MLNX_OFED or a linux-nvidia kernel provides it"
fi
found=
for dir in $NVIDIA; do
	found=${found:-$(first_with nvidia_p2p_get_pages "$dir/Module.symvers")}
done
named=$found
# Takes the driver that this kernel would load, if several are there.
nvidia_version=$(modinfo -k "$kver" -F version "$nvidia" 2>/dev/null | head -n 1)
nvidia_src=$([ -z "$nvidia_version" ] || driver_folders '' "$arch" "$kver" "$nvidia" "$nvidia_version")
# The driver's own user of its exports.
uvm=$(module_file '' "$kver" "$nvidia-uvm" || module_file '' "$kver" nvidia-uvm || true)
file=${nvidia_ko:-$(module_file '' "$kver" "$nvidia" || true)}
exported_versions '^nvidia_p2p_' "$file" "$(ls -d -- "${file%.ko*}"-peermem.ko* 2>/dev/null | head -n 1)" >"$OUT/driver.symvers"
# shellcheck disable=SC2086
found=${found:-$(first_fitting nvidia_p2p_get_pages "$uvm" "$OUT/driver.symvers" $nvidia_src)}
exporter=$found
if [ -z "$found" ]; then
	found=$(first_with nvidia_p2p_get_pages "$OUT/driver.symvers")
	[ -z "$found" ] || { exporter=$file exporters="$exporters $file"; }
fi
# Tegra's nvidia-p2p.ko has functions of the same names with other arguments, and no persistent ones.
on_tegra="nothing to build: on an integrated GPU (Tegra, Jetson) take memory of cudaHostAlloc() and plain ibv_reg_mr(), which need no such module"
if [ -z "$found" ] && modinfo -k "$kver" -n nvidia-p2p >/dev/null 2>&1 && ! modinfo -k "$kver" -n "$nvidia" >/dev/null 2>&1; then
	die "kernel $kver has nvidia-p2p.ko and no nvidia.ko: $on_tegra; for another GPU beside it install its driver first, or name it: make NVIDIA=<dir>"
fi
if [ -n "$found" ] && ! grep -q "	nvidia_p2p_get_pages_persistent	" "$found"; then
	die "$exporter exports nvidia_p2p_get_pages and no nvidia_p2p_get_pages_persistent, so it is of an integrated GPU's driver, or of one older than 550: $on_tegra; for another GPU name its driver: make NVIDIA=<dir>"
fi
if [ -n "$found" ]; then
	note "nvidia_p2p_get_pages: $exporter"
	# One file may have both: named twice, modpost would refuse it.
	[ "$symvers" = "$found" ] || symvers="$symvers $found"
else
	note "nvidia_p2p_get_pages: no Module.symvers found (NVIDIA=<dir> names one); modprobe resolves it by depmod"
	unchecked="${unchecked:+$unchecked and }the GPU driver"
	[ -n "$nvidia_version" ] || missing="${missing:+$missing and }NVIDIA's GPU driver"
fi
# Where symbols have versions the kernel compares those that the module has.
if [ -n "$unchecked" ] && [ "$(option CONFIG_MODVERSIONS)" = y ]; then
	note "warning: the module gets no symbol versions of $unchecked: the kernel will not notice if it does not fit"
else
	unchecked=
fi

# Vendor headers, to compare our layouts with.
header() { # name, folders...
	name=$1
	shift
	for dir; do
		for sub in . include/rdma nvidia nvidia-peermem kernel-open/nvidia; do
			if [ -r "$dir/$sub/$name" ]; then
				echo "$dir/$sub/$name"
				return
			fi
		done
	done
}
nv_p2p=$(header nv-p2p.h $NVIDIA $nvidia_src)
peer_mem=$(header peer_mem.h $OFED $ofa $NVIDIA $nvidia_src)
if [ -n "$nv_p2p" ]; then
	version=$(sed -n 's/^#define NVIDIA_P2P_PAGE_TABLE_VERSION[ 	][ 	]*//p' "$nv_p2p")
	case $version in
	0x0001*) old="; table version 2 is unchecked there" ;;
	*) old= ;;
	esac
	note "ABI compared with $nv_p2p (page table version $version$old)"
fi
[ -z "$peer_mem" ] || note "ABI compared with $peer_mem"
[ -z "$NVIDIA" ] || [ -n "$nvidia_ko$named$(header nv-p2p.h $NVIDIA)" ] ||
	die "NVIDIA=$NVIDIA: no nvidia.ko, no Module.symvers with nvidia_p2p_get_pages and no nv-p2p.h there"
[ -z "$no_deps" ] || die "$no_deps${no_kernel:+ (the kernel's own crate is out: $no_kernel)}"

rustc=$(sh "$here/rustc-path.sh" "$RUSTC")
mkdir -p "$OUT"
cat >"$OUT/preflight.env.new" <<EOF
PREFLIGHT_KDIR='$KDIR'
PREFLIGHT_RELEASE='$kver'
PREFLIGHT_OFED='$OFED'
PREFLIGHT_NVIDIA='$NVIDIA'
PREFLIGHT_RUSTC='$rustc'
PREFLIGHT_LLVM='$llvm'
PREFLIGHT_ARCH='$kernel_arch'
PREFLIGHT_CROSS_COMPILE='$cross'
PREFLIGHT_SYMVERS='$symvers'
PREFLIGHT_EXPORTERS='$exporters'
PREFLIGHT_NV_P2P='$nv_p2p'
PREFLIGHT_PEER_MEM='$peer_mem'
PREFLIGHT_KERNEL_CRATE='$crate'
PREFLIGHT_TREE='$tree'
PREFLIGHT_DEPS='${DEPS:-}'
PREFLIGHT_UNCHECKED='$unchecked'
PREFLIGHT_MISSING="$missing"
EOF
mv "$OUT/preflight.env.new" "$OUT/preflight.env"
