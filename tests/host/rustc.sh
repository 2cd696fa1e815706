#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# shuttle-engine uses one method of integers that is stable since Rust 1.87; Debian 13 has 1.85.
# Nothing else is let in.
case " $* " in
*" --crate-name shuttle_engine "*)
	minor=$("$1" --version | cut -d. -f2)
	if [ "$minor" -lt 87 ]; then
		RUSTC_BOOTSTRAP=1 exec "$@" '-Zcrate-attr=feature(unsigned_is_multiple_of)'
	fi
	;;
esac
exec "$@"
