#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# mk/registry.sh WHO CARGO WORDS...: runs cargo. Where it cannot fetch the crates that it needs, one
# line says so in place of cargo's own, of which there are a dozen.
set -eu
who=$1
shift
exec 3>&1
{
	code=0
	"$@" 2>&1 >&3 3>&- || code=$?
	echo "status $code"
} | {
	code=1 held='' cause='' fetching=''
	while IFS= read -r line; do
		case $line in
		"status "*)
			code=${line#status }
			continue
			;;
		"error: "*) held="${held}$line
" ;;
		*)
			[ -n "$held" ] || {
				printf '%s\n' "$line" >&2
				continue
			}
			held="${held}$line
"
			;;
		esac
		case $line in
		*"download of "* | *"failed to download "* | *"curl failed"*) fetching=y ;;
		esac
		# The last error is the cause of all others.
		[ -z "$line" ] || cause=$line
	done
	if [ -n "$fetching" ]; then
		echo "$who: crates could not be fetched from the crate registry ($(echo "$cause" | sed 's/^ *//')): once this machine reaches it, the same command goes on" >&2
	else
		printf %s "$held" >&2
	fi
	exit "$code"
}
