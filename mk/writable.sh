#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Scripts that install source this. writable makes a folder, and ends the script with one line where that
# cannot be, or the folder cannot be written.
writable() { # FOLDER WHO WHAT TO DO
	mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || {
		echo "$2: $1 cannot be written: $3" >&2
		exit 1
	}
}
