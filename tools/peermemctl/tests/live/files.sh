#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Makes what boot.sh needs beside the lab's image, out of what `make lab-build` left in the cache:
#   files.sh OUT [COMMIT]    OUT/files: ours.ko rival.ko stub.ko older.ko other-kernel.ko closed/*.ko; OUT/programs: peermemctl record hold
# older.ko is built from COMMIT (HEAD~20 without one). Prints the other arguments of boot.sh.
set -eu
out=$1 commit=${2:-HEAD~20}
repo=$(cd "$(dirname "$0")/../../../.." && pwd)
cache=${NVPM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvidia-peermem}
newest() { ls -dt "$cache/$1"-* | head -n1; }
image=$repo/build/lab/debug/initramfs-ours.cpio
bzimage=$(ls -t "$cache"/kernel/debug-*/arch/x86/boot/bzImage | head -n1)
kernel=${bzimage%/arch/*}
rival=$(newest part/debug-rival) ofed=$(newest part/debug-ofed)
gpu=$(newest part/debug-gpu) pcie=$(newest part/debug-pcie)
mkdir -p "$out/files/closed" "$out/programs"
work=$(mktemp -d)
trap 'rm -rf "$work"; git -C "$repo" worktree prune' EXIT

cpio --quiet -i --to-stdout '*/updates/nvidia-peermem.ko' <"$image" >"$out/files/ours.ko"
cp "$rival/nvidia-peermem.ko" "$out/files/rival.ko"
# The same file, for the kernel before this one: only the number in its vermagic differs.
release=$(modinfo -F vermagic "$out/files/ours.ko" | cut -d' ' -f1)
before=${release%?}$(($(printf %s "$release" | tail -c1) - 1))
sed "s/vermagic=$release/vermagic=$before/" "$out/files/ours.ko" >"$out/files/other-kernel.ko"
# NVIDIA's source without what its build defines where it sees the API.
source=$(ls -d "$cache"/src/nvidia-peermem-* | tail -n1)
mkdir "$work/stub"
cp "$source/nvidia-peermem.c" "$source/nv-p2p.h" "$source/peer_mem.h" "$work/stub/"
: >"$work/stub/conftest.h"
version=$(basename "$source" | cut -d- -f3)
printf 'obj-m := nvidia-peermem.o\nccflags-y := -I$(src) -DNV_VERSION_STRING=\\"%s\\"\n' "$version" >"$work/stub/Kbuild"
make -s -C "$kernel" M="$work/stub" LLVM=-19 KBUILD_EXTRA_SYMBOLS="$ofed/Module.symvers $gpu/Module.symvers" modules
cp "$work/stub/nvidia-peermem.ko" "$out/files/stub.ko"
# An older build of ours.
git -C "$repo" worktree add -q --detach "$work/older" "$commit"
make -s -C "$work/older" KDIR="$kernel" OUT="$work/older-out" OFED="$ofed" NVIDIA="$gpu $source" LLVM=-19
cp "$work/older-out/nvidia-peermem.ko" "$out/files/older.ko"
git -C "$repo" worktree remove --force "$work/older"
# The closed flavour of the GPU driver.
make -s -C "$repo/ci/qemu/gpu" KDIR="$kernel" OUT="$work/closed" SYMVERS="$pcie/Module.symvers" LLVM=-19 NVLAB_CLOSED=1
find "$work/closed" -name '*.ko' -exec cp {} "$out/files/closed/" \;

target=${CARGO_TARGET_DIR:-$cache/target}
cargo build -q --release --locked --bins --examples --manifest-path "$repo/tools/peermemctl/Cargo.toml" --target-dir "$target"
cp "$target/release/peermemctl" "$target/release/examples/record" "$target/release/examples/hold" "$out/programs/"
echo "$image $bzimage $out/files $out/programs"
