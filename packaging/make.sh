#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# packaging/make.sh dist|deb|rpm OUT: makes a release's files out of the source archive, which it
# makes first. In: DEPS, CARGO, BUILD: binary, or all: only the package that is the same for all
# architectures.
set -eu
kind=$1 out=$2
version=$(cat VERSION)
name=nvidia-peermem-rust-$version
archive=$out/$name.tar.xz
. mk/find.sh
. mk/tell.sh

need() { # PROGRAM
	command -v "$1" >/dev/null && return
	how=$(package_of '' "$1")
	echo "make $kind: there is no $1: ${how:-install it}" >&2
	exit 1
}

dist() {
	stage=$out/stage
	rm -rf "$stage"
	mkdir -p "$stage/$name"
	if [ -d .git ] || [ -f .git ]; then
		SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
		# `git stash create` prints a commit of the working tree, or nothing if that is the
		# last commit. It fails if only the time of a file is new, unless the index was
		# refreshed.
		git update-index -q --refresh || true
		tree=$(git stash create)
		[ -z "$tree" ] || echo "make $kind: with changes since the last commit" >&2
		# By way of a file: of two programs in a pipe only the last one's failure counts.
		git archive -o "$stage/source.tar" "${tree:-HEAD}"
	else
		SOURCE_DATE_EPOCH=$(stat -c %Y VERSION)
		tar -cf "$stage/source.tar" --exclude=./build --exclude=target .
	fi
	tar -xf "$stage/source.tar" -C "$stage/$name"
	export SOURCE_DATE_EPOCH
	rm -rf "$stage/$name/kernel-lite/deps"
	cp -R "$DEPS" "$stage/$name/kernel-lite/deps"
	# The same source makes the same archive.
	tar -cf "$stage/archive.tar" -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime="@$SOURCE_DATE_EPOCH" "$name"
	xz -T0 <"$stage/archive.tar" >"$archive.new"
	mv "$archive.new" "$archive"
	(cd "$out" && sha256sum "$name.tar.xz" >"$name.tar.xz.sha256")
}
# A bill of materials beside the archive for each workspace whose crates are in a release: CycloneDX.
# By sbom4rust, which reads Cargo.lock and installs in seconds; cargo's own tools compile for minutes.
sbom() {
	command -v sbom4rust >/dev/null || {
		echo "make dist: the archive comes without SBOMs: there is no sbom4rust: in a Python environment, pip install sbom4rust" >&2
		return
	}
	# The module's part of the top lock file, with the two crates that deps.sh leaves out.
	(cd "$stage/$name" && for crate in $(ls kernel-lite/deps) rustc_version semver; do
		awk -v RS= -v name="\"$crate\"" '$4 == name { print $0 "\n"; found = 1 } END { exit !found }' Cargo.lock || {
			echo "make dist: Cargo.lock has no crate $crate, which kernel-lite needs" >&2
			exit 1
		}
	done >"$out/Cargo.lock" && mv "$out/Cargo.lock" kernel-lite/deps/) || exit 1
	for part in module:kernel-lite/deps peermemctl:tools/peermemctl libgpumr:user; do
		file=$out/$name-${part%%:*}.cdx.json lock=${part#*:}/Cargo.lock
		rm -f "$file" "$file.new"
		# Behind a proxy that nobody serves: it would ask others on the network about each crate, for minutes.
		(cd "$stage/$name" && https_proxy=http://127.0.0.1:9 sbom4rust -a "$name-${part%%:*}" -d "${part#*:}" --sbom cyclonedx --format json -o "$file.new") >"$out/sbom.log" 2>&1 || {
			echo "make dist: sbom4rust fails for $lock: $(tail -n 1 "$out/sbom.log")" >&2
			exit 1
		}
		sed -n 's/^name = "\(.*\)"/\1/p; s/^version = "\(.*\)"/\1/p' "$stage/$name/$lock" | paste -d @ - - | while read -r crate; do
			grep -qF "\"pkg:cargo/$crate\"" "$file.new" || {
				echo "make dist: sbom4rust leaves $crate of $lock out" >&2
				exit 1
			}
		done
		mv "$file.new" "$file"
		echo "$file"
	done
}
# The archive, unpacked: what the archive lacks no package has.
unpack() {
	rm -rf "${out:?}/$kind"
	mkdir -p "$out/$kind"
	tar -xf "$archive" -C "$out/$kind"
	# What cargo has fetched serves, also where a packager's tool sets another HOME. What it has built does
	# not: the archive's files have the time of the commit, and older ones would be taken for built.
	export CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}"
}
# Runs what builds the packages. Who waits for compilers is told so.
compile() { # COMMAND...
	[ "$BUILD" = all ] || echo "make $kind: building peermemctl and the libraries anew, some minutes; log: $out/$kind.log"
	tell "make $kind: building" "$out/$kind.log"
	code=0
	"$@" >"$out/$kind.log" 2>&1 || code=$?
	told
	[ $code = 0 ] || {
		tail -n 20 "$out/$kind.log" >&2
		exit 1
	}
}
# The entry that both formats of changelog need: the version's own head in CHANGELOG.md has the
# words.
maintainer="nvidia-peermem-rust <nvidia-peermem-rust@localhost>"

deb() {
	need dpkg-buildpackage
	need dh
	unpack
	tree=$out/deb/$name
	cp -R "$tree/packaging/debian" "$tree/debian"
	cat >"$tree/debian/changelog" <<EOF
nvidia-peermem-rust ($version-1) unstable; urgency=medium

  * See CHANGELOG.md, section $version.

 -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
EOF
	compile env --chdir="$tree" dpkg-buildpackage --no-sign --build="$BUILD"
	# Packages of other versions are kept.
	find "$out/deb" -maxdepth 1 -name '*.deb' -exec mv -t "$out/" {} +
	ls "$out"/*_"$version"-1_*.deb
}

rpm() {
	need rpmbuild
	unpack
	set --
	[ "$BUILD" = binary ] || set -- --define "without_tools 1"
	# Where dpkg brought the compilers, rpm knows of none.
	command rpm -q rpm >/dev/null 2>&1 || set -- "$@" --nodeps
	compile rpmbuild -bb --quiet "$@" --define "_topdir $out/rpm" --define "_sourcedir $out" --define "project_version $version" \
		"$out/rpm/$name/packaging/rpm/nvidia-peermem-rust.spec"
	find "$out/rpm/RPMS" -name '*.rpm' -exec mv -t "$out/" {} +
	ls "$out"/*-"$version"-1.*.rpm
}

need xz
mkdir -p "$out"
dist
case $kind in
dist)
	cat "$archive.sha256"
	sbom
	;;
deb | rpm) "$kind" ;;
esac
