#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# `install`: lets modprobe prefer our nvidia-peermem.ko over NVIDIA's file of the same name,
# wherever that lies. `uninstall`: takes both away, which leaves NVIDIA's file as it was. With the
# module come and go peermemctl, its man pages, completions and units, if `make tools` built them;
# `tools` installs only these; `writable` says whether the folders can be written. Kbuild copies the
# module into a folder of its own beside the one that is there, which stays whole if the disk is full;
# `copied` and `failed-copied` take what Kbuild has said. In: KDIR, OUT, INSTALL_MOD_PATH, PREFIX, TOOLS.
set -eu
# kmod's programs are here, which is not in PATH for users of Debian, nor for root by a plain su.
PATH=$PATH:/usr/sbin:/sbin
root=${INSTALL_MOD_PATH:-}
dir=updates/nvidia-peermem-rust
prefix=$root${PREFIX:-/usr/local}
tools=${TOOLS:-}
override=$root/etc/depmod.d/nvidia-peermem-rust.conf

# These are the notes of the last build.
PREFLIGHT_UNCHECKED=
[ ! -r "${OUT:-}/preflight.env" ] || . "$OUT/preflight.env"

# Each file that `make tools` makes, and the folder in which a system looks for its kind.
place() { # NAME
	case $1 in
	peermemctl) echo bin ;;
	*.1) echo share/man/man1 ;;
	*.bash) echo share/bash-completion/completions ;;
	_*) echo share/zsh/site-functions ;;
	*.fish) echo share/fish/vendor_completions.d ;;
	*.service | *.timer) echo lib/systemd/system ;;
	*) echo share/peermemctl ;;
	esac
}
# bash looks for a file of the command's own name.
called() { # NAME
	echo "${1%.bash}"
}
put_tools() {
	[ -x "$tools/peermemctl" ] || {
		echo "install: without peermemctl, which make tools builds"
		return
	}
	for file in "$tools"/*; do
		name=${file##*/}
		to=$prefix/$(place "$name")/$(called "$name")
		# Copies a file beside the one that is there, and then renames it: the old file
		# stays whole if the disk is full, and a program that runs keeps its file.
		error=$({ mkdir -p "${to%/*}" && rm -rf "$to.new" && cp -R "$file" "$to.new" && for_here "$to.new"; } 2>&1) &&
			error=$({ aside "$to" && mv -T "$to.new" "$to"; } 2>&1) && rm -rf "$to.old" && continue
		rm -rf "$to.new" 2>/dev/null || true
		back "$to" || true
		echo "install: $to stays as it was (${error##*: }): once it can be written, make install again" >&2
		exit 1
	done
	echo "install: peermemctl is $prefix/bin/peermemctl"
}
# Says in one line why the module that is there stays, and ends.
stays() { # CAUSE
	[ -n "$(having)" ] || rm -f "$override"
	there="nothing is installed"
	[ ! -e "$folder" ] || there="the module that is in $folder stays"
	echo "install: $there ($1): once that is mended, make install again" >&2
	exit 1
}
# A folder is not replaced by a move: the one that is there goes aside first.
aside() { # FOLDER
	[ ! -d "$1" ] || { rm -rf "$1.old" && mv -T "$1" "$1.old"; }
}
# Puts a folder back that went aside when an installation was interrupted or failed.
back() { # FOLDER
	[ -e "$1" ] || [ ! -e "$1.old" ] || mv -T "$1.old" "$1"
}
# Units name the program where packages put it. Here they get the name of the one that is installed.
for_here() { # FILE
	case $1 in
	*/node-problem-detector.json.new) sed -i "s|/usr/bin/peermemctl|${prefix#"$root"}/bin/peermemctl|" "$1" ;;
	esac
}

# Prints the kernels that have the module.
having() {
	for module in "$root"/lib/modules/*/"$dir"; do
		# 99.98.<kernel> is a second name of a kernel, which its scripts/depmod.sh leaves if it is interrupted.
		case $module in
		*/lib/modules/99.98.*) continue ;;
		esac
		[ ! -e "$module" ] || basename "${module%"/$dir"}"
	done
}
# Prints the kernel that `uninstall` is for: KDIR may have gone since, or hold another one.
release() {
	if [ -r "${OUT:-}/preflight.env" ]; then
		. "$OUT/preflight.env"
		if [ "${PREFLIGHT_KDIR:-}" = "$KDIR" ] && [ -n "${PREFLIGHT_RELEASE:-}" ]; then
			echo "$PREFLIGHT_RELEASE"
			return
		fi
	fi
	case $KDIR in
	*/lib/modules/*/build) basename "${KDIR%/build}" ;;
	*) sh "$(dirname "$0")/kernel-release.sh" "$KDIR" 2>/dev/null ;;
	esac
}

case $1 in
tools)
	put_tools
	exit
	;;
writable)
	# Otherwise kbuild would report it, in words of mkdir.
	. "$(dirname "$0")/writable.sh"
	for folder in "$root/lib/modules" "$root/etc"; do
		writable "$folder" install "run make install as root, or name another root: INSTALL_MOD_PATH=<dir>"
	done
	# An installation that was interrupted may have left some.
	if kver=$(sh "$(dirname "$0")/kernel-release.sh" "$KDIR" 2>/dev/null); then
		rm -rf "$root/lib/modules/$kver/$dir.new"
		back "$root/lib/modules/$kver/$dir"
	fi
	exit
	;;
copied)
	# The folder gets its name afterwards.
	sed "/^$/d; s|/$dir\.new/|/$dir/|g"
	folder=$root/lib/modules/$(sh "$(dirname "$0")/kernel-release.sh" "$KDIR")/$dir
	for file in "$folder.new"/nvidia-peermem.ko*; do
		[ ! -e "$file" ] || exit 0
	done
	rm -rf "$folder.new"
	stays "kbuild says that it copied the module, and $folder has none"
	;;
failed-copied)
	folder=$root/lib/modules/$(sh "$(dirname "$0")/kernel-release.sh" "$KDIR")/$dir
	rm -rf "$folder.new"
	cause=$(grep -vE '^(make|  [A-Z]+ )|^$' | tail -n 1 | sed "s|/$dir\.new/|/$dir/|g")
	stays "${cause:-kbuild cannot copy the module, and does not say why}"
	;;
install)
	kver=$(sh "$(dirname "$0")/kernel-release.sh" "$KDIR")
	folder=$root/lib/modules/$kver/$dir
	# (The shell's own echo calls a full disk an I/O error.)
	error=$({ mkdir -p "$root/etc/depmod.d" && echo "override nvidia-peermem * $dir" | cat >"$override.new" && mv "$override.new" "$override"; } 2>&1) || {
		rm -rf "$override.new" "$folder.new"
		stays "$override: ${error##*: }"
	}
	back "$folder"
	rm -rf "$folder.old"
	placed=
	if [ -e "$folder.new" ]; then
		# Kbuild goes on where it could not sign, as on a full disk.
		unsigned=$(find "$folder.new" -name '*.~signed~')
		for file in "$folder"/nvidia-peermem.ko*; do
			new=$folder.new/${file##*/}
			[ ! -e "$new" ] || [ -z "$(modinfo -F signer "$file")" ] || [ -n "$(modinfo -F signer "$new")" ] || unsigned=$new
		done
		[ -z "$unsigned" ] || {
			rm -rf "$folder.new"
			stays "the new one could not be signed"
		}
		error=$({ aside "$folder" && mv -T "$folder.new" "$folder"; } 2>&1) || {
			back "$folder"
			rm -rf "$folder.new"
			stays "$folder: ${error##*: }"
		}
		placed=y
	fi
	;;
uninstall)
	kver=$(release) || {
		others=$(having | paste -sd ' ')
		echo "uninstall: $KDIR says no kernel: make uninstall KDIR=/lib/modules/<release>/build, installed for ${others:-none}" >&2
		exit 1
	}
	[ -e "$root/lib/modules/$kver/$dir" ] || echo "uninstall: it was not installed for kernel $kver"
	rm -rf "$root/lib/modules/$kver/$dir" "$root/lib/modules/$kver/$dir.new" "$root/lib/modules/$kver/$dir.old"
	# The override serves every kernel that the module is installed for.
	others=$(having)
	for other in $others; do
		echo "uninstall: still installed for kernel $other: make uninstall KDIR=/lib/modules/$other/build"
	done
	if [ -z "$others" ]; then
		rm -f "$override" "$prefix/bin/peermemctl" "$prefix"/share/man/man1/peermemctl.1 "$prefix"/share/man/man1/peermemctl-*.1
		rm -f "$prefix/share/bash-completion/completions/peermemctl" "$prefix/share/zsh/site-functions/_peermemctl"
		rm -f "$prefix/share/fish/vendor_completions.d/peermemctl.fish"
		rm -f "$prefix"/lib/systemd/system/peermemctl-metrics.service "$prefix"/lib/systemd/system/peermemctl-metrics.timer
		rm -rf "$prefix/share/peermemctl"
	fi
	# That kernel itself may have gone, too.
	[ -d "$root/lib/modules/$kver" ] || exit 0
	;;
esac
# On a full disk depmod leaves empty lists, and modprobe would find no module of this kernel any more. It
# makes new files, so that links keep the former ones.
lists=$root/lib/modules/$kver/.nvidia-peermem-rust.lists
keep_lists() {
	rm -rf "$lists" && mkdir "$lists" || return
	for file in "$root/lib/modules/$kver"/modules.*; do
		[ ! -f "$file" ] || ln "$file" "$lists/" 2>/dev/null || cp -p "$file" "$lists/" || return
	done
}
lists_back() {
	for file in "$lists"/modules.*; do
		# depmod has not made this list anew yet.
		[ "$file" -ef "$root/lib/modules/$kver/${file##*/}" ] || [ ! -e "$file" ] ||
			mv -f "$file" "$root/lib/modules/$kver/" || return
	done
	rm -rf "$lists"
}
# Below another root depmod would read this machine's configuration.
error=$({ keep_lists && depmod ${root:+-b "$root" -C "$root/etc/depmod.d"} "$kver"; } 2>&1) || {
	goes_by="modprobe still goes by its former list"
	lists_back 2>/dev/null || {
		error="depmod: no list of this kernel's modules is whole, the former ones are in $lists"
		goes_by="modprobe may find no module of this kernel"
	}
	cause=$(echo "$error" | tail -n 1)
	[ "$1" = install ] || {
		echo "$1: depmod fails (${cause#depmod: }): $goes_by: once that is mended, depmod $kver" >&2
		exit 1
	}
	# The list that is there is of the former folder.
	[ -z "$placed" ] || rm -rf "$folder"
	back "$folder"
	stays "depmod fails: ${cause#depmod: }"
}
rm -rf "$lists"
[ -z "$error" ] || echo "$error" >&2
[ "$1" = uninstall ] || rm -rf "$folder.old"
# This comes last: whatever fails here, modprobe takes our module.
[ "$1" = uninstall ] || put_tools
won=$(modinfo ${root:+-b "$root"} -k "$kver" -n nvidia-peermem 2>/dev/null || echo "no file")
echo "$1: modprobe nvidia-peermem on kernel $kver now loads $won"
case $1-$won in
install-*/$dir/*)
	# The module was built for another kernel.
	running=$(uname -r)
	[ -n "$root" ] || [ "$kver" = "$running" ] ||
		echo "install: that is not the running kernel $running: for it make KDIR=/lib/modules/$running/build, and make install"
	[ -z "${PREFLIGHT_UNCHECKED:-}" ] ||
		echo "install: it has no symbol versions of $PREFLIGHT_UNCHECKED: make names what it looked for"
	[ -n "$(modinfo -F signer "$won")" ] ||
		echo "install: it is not signed: where Secure Boot or module.sig_enforce demands that, modprobe says \"Key was rejected\" or \"Operation not permitted\" until it is signed with an enrolled key (peermemctl doctor prints the command)"
	;;
install-*)
	echo "install: that is not the file just installed: look for another override in depmod.d(5)" >&2
	exit 1
	;;
esac
