#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Looks before building whether the module can be built and would load, and says in one line what is wrong.
# In: KDIR OFED NVIDIA OUT RUSTC LLVM. Out: $OUT/preflight.env.
set -eu

die() {
	echo "preflight: $*" >&2
	exit 1
}
note() {
	echo "preflight: $*" >&2
}

[ -d "$KDIR" ] || die "no kernel build tree at $KDIR: install the kernel's headers, or name one: make KDIR=<dir>"
config=$KDIR/include/config/auto.conf
[ -r "$config" ] || die "$KDIR holds no configured kernel (no include/config/auto.conf): name a built tree: make KDIR=<dir>"
option() {
	sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$config"
}
kver=$(cat "$KDIR/include/config/kernel.release")

[ "$(option CONFIG_RUST)" = y ] ||
	die "kernel $kver was built without Rust (CONFIG_RUST is not set): use a 7.2 kernel built with CONFIG_RUST=y"
[ -r "$KDIR/rust/libkernel.rmeta" ] ||
	die "$KDIR has no Rust metadata (rust/libkernel.rmeta): header packages leave it out; build against the kernel's full build tree, or install Ubuntu's linux-lib-rust-$kver"
command -v "$RUSTC" >/dev/null || die "no $RUSTC: install $(option CONFIG_RUSTC_VERSION_TEXT), which built this kernel"
ours=$("$RUSTC" --version)
theirs=$(option CONFIG_RUSTC_VERSION_TEXT)
[ "$ours" = "$theirs" ] ||
	die "$RUSTC is \"$ours\", the kernel was built by \"$theirs\": put that one first in PATH, or make RUSTC=<its path>"

# A kernel built by clang wants its modules built by the same.
llvm=$LLVM
if [ -z "$llvm" ] && [ "$(option CONFIG_CC_IS_CLANG)" = y ]; then
	major=$(option CONFIG_CLANG_VERSION | sed 's/....$//')
	llvm=1
	! command -v "clang-$major" >/dev/null || llvm=-$major
fi

# The closed flavour of nvidia.ko refuses every module that imports a GPL-only symbol, and the kernel crate is GPL-only.
nvidia_ko=
for dir in $NVIDIA; do
	[ ! -r "$dir/nvidia.ko" ] || nvidia_ko=$dir/nvidia.ko
done
if [ -n "$nvidia_ko" ]; then
	licence=$(modinfo -F license "$nvidia_ko" 2>/dev/null || true)
else
	licence=$(modinfo -k "$kver" -F license nvidia 2>/dev/null || true)
fi
case $licence in
NVIDIA*)
	die "nvidia.ko for kernel $kver is of the closed flavour (licence $licence), which cannot be used by modules with GPL-only imports: install the open flavour (nvidia-open)"
	;;
esac

# Which files say what the neighbours export. All are optional: the references are weak.
symvers=
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
arch=$(uname -m)
found=
for dir in $OFED; do
	found=${found:-$(first_with ib_register_peer_memory_client "$dir/Module.symvers")}
done
[ -n "$found" ] || [ -z "$OFED" ] || die "OFED=$OFED: no Module.symvers with ib_register_peer_memory_client there"
ofa=/usr/src/ofa_kernel
[ -n "$found" ] || found=$(first_with ib_register_peer_memory_client "$KDIR/Module.symvers" \
	$ofa/"$arch/$kver"/Module.symvers $ofa/"$kver"/Module.symvers $ofa/default/Module.symvers)
if [ -n "$found" ]; then
	note "ib_register_peer_memory_client: $found"
	[ "$found" = "$KDIR/Module.symvers" ] || symvers=$found
else
	note "warning: no Module.symvers exports ib_register_peer_memory_client: the module will load only where DOCA-OFED, MLNX_OFED or a linux-nvidia kernel provides it"
fi
found=
for dir in $NVIDIA; do
	found=${found:-$(first_with nvidia_p2p_get_pages "$dir/Module.symvers")}
done
[ -n "$found" ] || found=$(first_with nvidia_p2p_get_pages /usr/src/nvidia-*/Module.symvers \
	/var/lib/dkms/nvidia*/*/"$kver/$arch"/module/Module.symvers)
if [ -n "$found" ]; then
	note "nvidia_p2p_get_pages: $found"
	symvers="$symvers $found"
else
	note "nvidia_p2p_get_pages: no Module.symvers found (NVIDIA=<dir> names one); modprobe resolves it by depmod"
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
nv_p2p=$(header nv-p2p.h $NVIDIA /usr/src/nvidia-*)
peer_mem=$(header peer_mem.h $OFED $ofa/"$arch/$kver" $ofa/"$kver" $ofa/default $NVIDIA /usr/src/nvidia-*)
if [ -n "$nv_p2p" ]; then
	version=$(sed -n 's/^#define NVIDIA_P2P_PAGE_TABLE_VERSION[ 	][ 	]*//p' "$nv_p2p")
	case $version in
	0x0001*) unchecked="; table version 2 is unchecked there" ;;
	*) unchecked= ;;
	esac
	note "ABI compared with $nv_p2p (page table version $version$unchecked)"
fi
[ -z "$peer_mem" ] || note "ABI compared with $peer_mem"

mkdir -p "$OUT"
cat >"$OUT/preflight.env.new" <<EOF
PREFLIGHT_LLVM='$llvm'
PREFLIGHT_SYMVERS='$symvers'
PREFLIGHT_NV_P2P='$nv_p2p'
PREFLIGHT_PEER_MEM='$peer_mem'
EOF
mv "$OUT/preflight.env.new" "$OUT/preflight.env"
