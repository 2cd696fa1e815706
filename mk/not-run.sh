#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints the tests of this checkout that have nothing to look at here, a line each: `NAME WHY`. Who
# runs the tests leaves these out and says so (`cargo test -- --skip NAME`): a test that is run and
# lacks its tool fails. In: KUBERNETES_VALIDATE and SBOM4RUST, the folders of two Python packages.
set -eu
cd "$(dirname "$0")/.."

[ -n "${KUBERNETES_VALIDATE:-}" ] ||
	echo "kubernetes_takes_the_manifest it needs kubernetes-validate: name the folder of that Python package: KUBERNETES_VALIDATE=<dir>"
[ -n "${SBOM4RUST:-}" ] ||
	echo "an_sbom_names_each_crate it needs sbom4rust: name the folder of that Python package: SBOM4RUST=<dir>"
[ "$(id -u)" = 0 ] ||
	echo "root_leaves_nothing_of_root it needs root: files are given to another user"
# An archive has no history, and may lie in the repository of somebody else.
history=
if [ ! -e .git ]; then
	history="this is no clone"
elif ! shallow=$(git rev-parse --is-shallow-repository 2>&1); then
	history="git fails ($(echo "$shallow" | head -n 1))"
elif [ "$shallow" != false ]; then
	history="the clone is shallow: git fetch --unshallow"
fi
[ -z "$history" ] || for test in each_commit_has_a_short_subject_and_a_body \
	the_commits_that_the_page_of_findings_names_are_in_this_history; do
	echo "$test it needs the history of commits, and $history"
done
