#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# bootstrap.sh [demo] [arm64]: installs the Debian packages that the build and the lab need, on
# Debian 12 or 13; with demo those alone that the demo needs, with arm64 those for machines of arm64,
# too. Says nothing when all are there.
set -eu
demo= arm64=
for word; do
	case $word in
	demo) demo=1 ;;
	arm64) arm64=1 ;;
	*) echo "bootstrap: $word is neither demo nor arm64" >&2 && exit 1 ;;
	esac
done

. /etc/os-release
case "${ID:-}-${VERSION_ID:-}" in
debian-12) rust="rustc-web cargo-web rust-web-src" lints="rustfmt-web rust-web-clippy" ;;
# gcc-12 compiles modules for Debian 12's kernel.
debian-13) rust="rustc cargo rust-src gcc-12" lints="rustfmt rust-clippy" ;;
*)
	echo "bootstrap: this is ${PRETTY_NAME:-unknown}; the lab needs Debian 12 or 13" >&2
	exit 1
	;;
esac

# modules; what runs in the machine; builds of perftest; fetching
packages="$rust
	build-essential cpio kmod pahole patch perl xz-utils util-linux
	busybox-static ibverbs-providers iproute2
	autoconf automake libtool pkg-config libibverbs-dev librdmacm-dev libibumad-dev libpci-dev
	ca-certificates debian-archive-keyring python3 python3-pip"
# lints; kernels of the lab's own; consumers; builds of rdma-core; machines of packages; disks
[ -n "$demo" ] || packages="$packages $lints
	clang-19 lld-19 llvm-19 libclang-19-dev flex bison bc libelf-dev libssl-dev rsync
	rdma-core ibverbs-utils ucx-utils python3-pyverbs
	cmake mmdebstrap udev squashfs-tools"

case $(uname -m):$arm64 in
aarch64:*) packages="$packages qemu-system-arm" ;;
*:1) packages="$packages qemu-system-x86 qemu-system-arm gcc-aarch64-linux-gnu" ;;
*) packages="$packages qemu-system-x86" ;;
esac

missing=
for package in $packages; do
	state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || state=
	[ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "bootstrap: packages are missing; as root: apt-get install$missing" >&2
	exit 1
fi

. "$(dirname "$0")/../mk/tell.sh"
log=${TMPDIR:-/tmp}/nvidia-peermem-bootstrap.$$.log
count=$(echo "$missing" | wc -w)
export DEBIAN_FRONTEND=noninteractive

# A background process never sees Ctrl-C. What is downloading ends; dpkg is not stopped midway, or
# root would have to mend its database.
interrupted() {
	trap '' INT HUP TERM
	told
	if [ -n "$pid" ] && grep -qsx dpkg $(for child in $(cat "/proc/$pid/task/$pid/children"); do echo "/proc/$child/comm"; done) /dev/null; then
		echo "bootstrap: interrupted; dpkg ends what it has begun first" >&2
		wait "$pid" || true
	elif [ -n "$pid" ]; then
		kill "$pid" 2>/dev/null || true
		wait "$pid" || true
	fi
	rm -f "$log"
	echo "bootstrap: interrupted; the next run goes on" >&2
	exit 130
}
pid=
trap interrupted INT HUP TERM

# Runs apt-get with its output in the log and a line every 15 seconds. Where another apt has the lock,
# it waits, and says so once.
quietly() {
	what=$1 waits=
	shift
	while :; do
		tell "bootstrap: $what" "$log"
		"$@" </dev/null >>"$log" 2>&1 &
		pid=$! code=0
		wait "$pid" || code=$?
		told
		[ $code != 0 ] || break
		lock=$(tail -n 5 "$log" | grep -m 1 'Could not get lock') || {
			cause=$(sed -n 's/^[EW]: Failed to fetch [^ ]*  *//p' "$log" | tail -n 1)
			if [ -n "$cause" ] && grep -qE '^E: (Failed to fetch|Unable to (fetch|locate)|Package .* has no)' "$log"; then
				echo "bootstrap: packages could not be downloaded ($cause): is this machine online? Once it is, the same command goes on; whole log: $log" >&2
			else
				tail -n 15 "$log" >&2
				echo "bootstrap: $what failed; whole log: $log" >&2
			fi
			exit 1
		}
		[ -n "$waits" ] || echo "bootstrap: waiting for another apt or dpkg: ${lock#E: }" >&2
		waits=y
		sleep 5
	done
	pid=
}

echo "bootstrap: installing $count packages:$missing" >&2
quietly "package lists" apt-get -q update
# shellcheck disable=SC2086
quietly "installing" apt-get -q -y --no-install-recommends install $missing
rm -f "$log"
echo "bootstrap: done" >&2
