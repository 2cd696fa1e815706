#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Prints a line every 15 seconds while a long command runs. Scripts source this, call `tell` before the
# command and `told` after it, and have the command write to the log. Ctrl-C reaches the command as ever.

# Starts to print how long the command has run, and the last line of its log.
teller=
tell() { # WHAT LOG
	: >>"$2"
	(
		seconds=0
		# Whoever called may have been killed, and nobody has asked how it ended yet (Z). What reads the
		# output does not wait for a sleep.
		while sleep 1 >/dev/null 2>&1 && grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$$/status"; do
			seconds=$((seconds + 1))
			[ $((seconds % 15)) != 0 ] || echo "$1, $seconds s: $(tail -n 1 "$2" 2>/dev/null | sed 's/^ *//' | cut -c 1-80)" >&2
		done
	) &
	teller=$!
}
told() {
	[ -n "$teller" ] || return 0
	# A new subshell may lose another signal: it has its parent's traps at first.
	kill -9 "$teller" 2>/dev/null || true
	wait "$teller" 2>/dev/null || true
	teller=
}
