#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# bench-cold.sh [bookworm|trixie]: measures how long make demo and make test take on a new machine.
# Makes a Debian with make and git alone, clones this checkout's last commit into it, and runs there
# the demo, the tests, and the tests once more, with nothing cached before the first. Writes a page
# below docs/results/cold; the seconds of each step are in the logs. Wants root, and some 10 GB below
# /var/tmp, which are gone afterwards. It judges nothing.
set -euo pipefail
if [ "${1:-}" != --mounted ]; then
	[ "$(id -u)" = 0 ] || { echo "bench-cold: as root, because it makes a Debian of its own" >&2; exit 1; }
	exec unshare --mount "$0" --mounted "$@"
fi
shift
cd "$(dirname "$0")/.."
suite=${1:-bookworm}
commit=$(git rev-parse --short=12 HEAD)
[ -z "$(git status --porcelain)" ] || echo "bench-cold: what is in no commit is not measured" >&2

export NVPM_CACHE="${NVPM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvidia-peermem}"
. ci/qemu/apt.sh
apt_update >&2
dir=$(mktemp -d /var/tmp/bench-cold.XXXXXX)
page=docs/results/cold/${suite}.md
# The folder has this machine's own /dev mounted.
trap 'umount -R -l "$dir/root/proc" "$dir/root/dev" 2>/dev/null || true; rm -rf --one-file-system "$dir" "$page.new"' EXIT
mount --make-rprivate /
grep -E "^deb .* $suite(-security|-backports)? " "$apt/sources.list" |
	mmdebstrap --quiet --variant=minbase --include=make,git,ca-certificates "$suite" "$dir/root" -
# The new machine uses this machine's network, with its names and certificates.
cp -L /etc/resolv.conf "$dir/root/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$dir/root/etc/ssl/certs/"
git clone --quiet --no-local . "$dir/root/root/nvidia-peermem"
mount --rbind /proc "$dir/root/proc"
mount --rbind /dev "$dir/root/dev"

in_it() {
	env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
		${SSL_CERT_FILE:+SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt} \
		chroot "$dir/root" sh -c "cd /root/nvidia-peermem && $1"
}
mkdir -p "$(dirname "$page")" build
{
	echo "# On a new machine: Debian ${suite^}"
	echo
	echo "Written by \`make bench-cold\` at commit $commit, $(date -u +%F): a chroot with make and git alone on"
	echo "$(nproc) processors ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), $(awk '/MemTotal/ { printf "%.0f", $2 / 2^20 }' /proc/meminfo) GiB of memory, Linux $(uname -r)."
	echo "Load of the machine before: $(cut -d ' ' -f 1-3 /proc/loadavg)."
	echo
	echo "| command | minutes | user time (s) | system time (s) | its last line |"
	echo "|---|---|---|---|---|"
} >"$page.new"
n=0
for target in demo test test; do
	n=$((n + 1))
	log=build/bench-cold-$suite-$n-$target.log
	echo "bench-cold: make $target; whole output: $log" >&2
	TIMEFORMAT='%R %U %S'
	{ time in_it "make $target" >"$log" 2>&1 || true; } 2>"$log.time"
	read -r real user sys <"$log.time"
	printf '| `make %s`%s | %s | %.0f | %.0f | %s |\n' "$target" "$([ $n = 1 ] && echo ", nothing cached")" \
		"$(awk -v s="$real" 'BEGIN { printf "%d:%02d", s / 60, s % 60 }')" "$user" "$sys" \
		"$(tail -n 1 "$log" | tr '|' ' ' | cut -c 1-60)" >>"$page.new"
done
mv "$page.new" "$page"
cat "$page"
