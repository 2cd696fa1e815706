#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Makes what boot.sh needs beside the lab's images, out of what the lab built for its fast kernel
# and for Debian's own (ci/lab.sh build --kernel fast-7.2 nvidia_c, and --kernel debian-6.12):
#   files.sh OUT [COMMIT]    OUT/files: ours.ko nvidia_c.ko stub.ko older.ko other-kernel.ko closed/*.ko; OUT/programs: peermemctl hold;
#                            OUT/debian: ours.ko unknown-key.ko other-core.ko nv_peer_mem.ko dkms/ newer/
# older.ko is built from COMMIT (HEAD~20 without one). Prints the other arguments of boot.sh, a line
# for each kernel.
set -eu
out=$1 commit=${2:-HEAD~20}
repo=$(cd "$(dirname "$0")/../../../.." && pwd)
cache=${NVPM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvidia-peermem}
fast=$repo/build/lab/fast-7.2
image=$fast/image-ours.cpio
kernel=$fast/kernel/build
ofed=$fast/ofed gpu=$fast/gpu pcie=$fast/pcie
mkdir -p "$out/files/closed" "$out/programs"
work=$(mktemp -d)
trap 'rm -rf "$work"; git -C "$repo" worktree prune' EXIT

cpio --quiet -i --to-stdout '*/updates/nvidia-peermem.ko' <"$image" >"$out/files/ours.ko"
cp "$fast/nvidia_c/nvidia-peermem.ko" "$out/files/nvidia_c.ko"
# The same file, for the kernel before this one: only the number in its vermagic differs.
release=$(modinfo -F vermagic "$out/files/ours.ko" | cut -d' ' -f1)
before=${release%?}$(($(printf %s "$release" | tail -c1) - 1))
sed "s/vermagic=$release/vermagic=$before/" "$out/files/ours.ko" >"$out/files/other-kernel.ko"
# NVIDIA's source without what its build defines where it sees the API.
source=$repo/build/lab/sources/nvidia_c-source
mkdir "$work/stub"
cp "$source/nvidia-peermem.c" "$source/nv-p2p.h" "$source/peer_mem.h" "$work/stub/"
: >"$work/stub/conftest.h"
version=$(cat "$source/version")
printf 'obj-m := nvidia-peermem.o\nccflags-y := -I$(src) -DNV_VERSION_STRING=\\"%s\\"\n' "$version" >"$work/stub/Kbuild"
make -s -C "$kernel" M="$work/stub" LLVM=-19 KBUILD_EXTRA_SYMBOLS="$ofed/Module.symvers $gpu/Module.symvers" modules
cp "$work/stub/nvidia-peermem.ko" "$out/files/stub.ko"
# An older build of ours.
git -C "$repo" worktree add -q --detach "$work/older" "$commit"
make -s -C "$work/older" KDIR="$kernel" OUT="$work/older-out" OFED="$ofed" NVIDIA="$gpu $source" LLVM=-19
cp "$work/older-out/nvidia-peermem.ko" "$out/files/older.ko"
git -C "$repo" worktree remove --force "$work/older"
# The closed flavour of the GPU driver.
make -s -C "$repo/ci/qemu/gpu" KDIR="$kernel" OUT="$work/closed" SYMVERS="$pcie/Module.symvers" LLVM=-19 NVLAB_CLOSED=1 NVIDIA="$fast/nvidia_front"
find "$work/closed" -name '*.ko' -exec cp {} "$out/files/closed/" \;

# Debian's kernel, which has symbol versions and signatures.
debian=$repo/build/lab/debian-6.12
debian_kernel=$debian/kernel
debian_image=$debian/image-ours.cpio
mkdir -p "$out/debian"
cpio --quiet -i --to-stdout '*/updates/nvidia-peermem.ko' <"$debian_image" >"$out/debian/ours.ko"
debian_release=$(modinfo -F vermagic "$out/debian/ours.ko" | cut -d' ' -f1)
headers=$debian_kernel/root/usr/src/linux-headers-$debian_release
# Signed by somebody whom the kernel does not know.
openssl req -x509 -newkey rsa:2048 -nodes -subj "/CN=Local signing key" -keyout "$work/key.pem" -outform DER -out "$work/key.der" 2>/dev/null
"$debian_kernel"/root/usr/lib/linux-kbuild-*/scripts/sign-file sha256 "$work/key.pem" "$work/key.der" "$out/debian/ours.ko" "$out/debian/unknown-key.ko"
# Built against a core whose ib_register_peer_memory_client() is another one.
ofed=$debian/ofed gpu=$debian/gpu
mkdir "$work/other-ofed"
sed 's/^0x[0-9a-f]*\(\tib_register_peer_memory_client\t\)/0x12345678\1/' "$ofed/Module.symvers" >"$work/other-ofed/Module.symvers"
git -C "$repo" archive HEAD | (mkdir "$work/tree" && tar -x -C "$work/tree")
make -s -C "$work/tree" KDIR="$headers" OUT="$work/other-core" OFED="$work/other-ofed" NVIDIA="$gpu $source" KERNEL_CRATE=lite \
	DEPS="$cache/kernel-lite-deps"
cp "$work/other-core/nvidia-peermem.ko" "$out/debian/other-core.ko"
# The deprecated module under whose name people still find it: a client that says "not mine" to
# everything stands for it.
mkdir -p "$work/old/rdma"
cp "$repo/ci/qemu/ofed/second_client/lab_second_client.c" "$work/old/nv_peer_mem.c"
find "$repo/ci/qemu/ofed/include/rdma" "$repo/bindings" -name '*.h' -exec cp {} "$work/old/rdma/" \;
printf 'obj-m := nv_peer_mem.o\nccflags-y := -I$(src)\n' >"$work/old/Kbuild"
make -s -C "$headers" M="$work/old" KBUILD_EXTRA_SYMBOLS="$ofed/Module.symvers" modules
cp "$work/old/nv_peer_mem.ko" "$out/debian/"
# What DKMS itself leaves of a GPU driver that it was told of and has not built.
(cd "$work" && apt-get -qq download dkms && dpkg -x dkms_*.deb dkms)
mkdir -p "$work/dkms-source/nvidia-current-open-$version" "$out/debian/dkms"
printf '%s\n' 'PACKAGE_NAME="nvidia-current-open"' "PACKAGE_VERSION=\"$version\"" 'BUILT_MODULE_NAME[0]="nvidia"' \
	'DEST_MODULE_LOCATION[0]="/updates/dkms"' 'AUTOINSTALL="yes"' >"$work/dkms-source/nvidia-current-open-$version/dkms.conf"
bash "$work/dkms/usr/sbin/dkms" --dkmstree "$out/debian/dkms" --sourcetree "$work/dkms-source" add "nvidia-current-open/$version" >/dev/null
# A newer kernel: the lab's, without nvidia-peermem.
mkdir -p "$out/debian/newer/$release"
cpio --quiet -i --to-stdout "*/lib/modules/$release/modules.dep" <"$image" | grep -v nvidia-peermem >"$out/debian/newer/$release/modules.dep"

target=$repo/build/target
cargo build -q --release --locked --bins --examples --manifest-path "$repo/tools/peermemctl/Cargo.toml" --target-dir "$target"
cp "$target/release/peermemctl" "$target/release/examples/hold" "$out/programs/"
echo "$image $fast/kernel/image $out/files $out/programs"
echo "$debian_image $debian_kernel/image $out/debian $out/programs"
