#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Fails if a function of the module $1 whose address is taken does not begin with an instruction
# that an indirect call may reach: the kernel of $KDIR would stop there (IBT of x86, BTI of arm64).
# objtool only warns of it.
set -eu
grep -qsE '^CONFIG_(X86_KERNEL_IBT|ARM64_BTI_KERNEL)=y' "$KDIR/include/config/auto.conf" || exit 0
. "${0%/*}/tool.sh"
objdump=$(tool objdump "${OBJDUMP:-}")
readelf=$(tool readelf "${READELF:-}")
# The results go into variables: in a pipe nobody would see a tool that fails.
code=$("$objdump" -d --no-show-raw-insn "$1")
sections=$("$readelf" -SW "$1")
symbols=$("$readelf" -sW "$1")
relocations=$("$readelf" -rW "$1")
# A place is a section's name and an offset in it. Reads first where a landing pad is, then the
# functions, then what refers to one: an address in data, or an operand in code.
found=$({
	echo "$code" | awk '
		/^Disassembly of section/ { section = $4; sub(/:$/, "", section); next }
		$2 ~ /^(endbr64|bti|paciasp)$/ { sub(/:$/, "", $1); print "pad", section, $1 }'
	echo "$sections" | sed -n 's/^ *\[ *\([0-9]*\)\] \([^ ]*\) .*/section \1 \2/p'
	echo "$symbols" | awk '$4 == "FUNC" && $7 ~ /^[0-9]+$/ { print "function", $7, $2, $8 }'
	echo "$relocations" | awk '
		/^Relocation section/ { inside = ($3 ~ /\.(data|rodata|gnu\.linkonce|text|init\.text|exit\.text)/); next }
		inside && $3 ~ /^R_(X86_64_(64|32S)|AARCH64_(ABS64|ADR_PREL_PG_HI21))$/ {
			print "reference", $5, ($7 == "" ? "0" : ($6 == "-" ? "-" : "") $7) }'
} | awk '
	function place(section, offset) { sub(/^0+/, "", offset); return section " " (offset == "" ? "0" : offset) }
	$1 == "pad" { pad[place($2, $3)] = 1 }
	$1 == "section" { named[$2] = $3 }
	$1 == "function" { at = place(named[$2], $3); is[at] = $4; where[$4] = at; }
	$1 == "reference" {
		at = $2 in where && $3 == "0" ? where[$2] : place($2, $3)
		if (at in is && !(at in pad)) print is[at]
	}' | sort -u | tr '\n' ' ')
[ -z "$found" ] || {
	rm -f "$1"
	echo "landing-pads: the kernel would stop in $found, so the module was removed: use the kernel's own compiler, and report its version" >&2
	exit 1
}
