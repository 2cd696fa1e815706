#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Checks format and lints of the module's Rust and of every program here, and runs their tests, as
# far as they need no kernel tree. It runs the small searches of the models only: the long ones
# belong to `make test`. A test that has nothing to look at here is left out, and named. In: cargo,
# and the folder for what it builds.
set -eu
cargo=$1
export CARGO_TARGET_DIR="$2"
not_run=$(sh "$(dirname "$0")/not-run.sh")
set --
while read -r test why; do
	[ -z "$test" ] || {
		echo "check: without $test: $why"
		set -- "$@" --skip "$test"
	}
done <<END
$not_run
END
rustfmt --check src/peer_client.rs samples/edu-dma/edu_dma.rs
# Folders are not listed by git, which may be missing, or refuse a clone of another user.
locks=$(find . \( -name target -o -name build -o -name deps -o -name .git \) -prune -o -name Cargo.lock -print | sort)
[ -n "$locks" ] || {
	echo "check: there is no Cargo.lock below $PWD, so there is nothing to check: is this the whole source?" >&2
	exit 1
}
for lock in $locks; do
	dir=$(dirname "$lock")
	echo "check: $dir"
	(
		cd "$dir"
		"$cargo" fmt --all --check
		"$cargo" clippy --quiet --locked --workspace --all-targets -- -Dwarnings
		if grep -q '^name = "run"' Cargo.lock; then
			"$cargo" test --quiet --locked --workspace --exclude run -- "$@"
			"$cargo" test --quiet --locked -p run --test models small_scenarios
		else
			"$cargo" test --quiet --locked --workspace -- "$@"
		fi
	)
done
echo "check: PASS"
