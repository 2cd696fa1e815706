#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# inside.sh ROOT COMMAND...: runs a command in the Debian in ROOT, as root and in the current
# folder, with checkout and cache where they are here: for kernels whose compiler this Debian does
# not have. What it writes elsewhere is gone afterwards.
set -eu
if [ "$1" != --mounted ]; then
	exec unshare --mount "$0" --mounted "$@"
fi
shift
root=$(realpath "$1")
shift
mount --make-rprivate /
dir=$(mktemp -d)
mount -t tmpfs inside "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=$root,upperdir=$dir/upper,workdir=$dir/work" overlay "$dir/root"
for shared in /proc /dev "$PWD" "$NVPM_CACHE"; do
	mkdir -p "$dir/root$shared"
	mount --rbind "$shared" "$dir/root$shared"
done
here=$PWD
exec chroot "$dir/root" sh -c 'cd "$1" && shift && exec "$@"' sh "$here" "$@"
