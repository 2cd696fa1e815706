# SPDX-License-Identifier: GPL-2.0
# Debian packages of any suite, by name: to be sourced. apt works in a private folder of the cache
# and checks signatures as always; mirror and keyring are those of the machine's own configuration,
# whose package lists stay as they are. Files go to dl/, where what is there already is used as it
# is. Packages are of this machine's architecture, unless apt_arch names another one beforehand; of
# that one there are this release's, and those of apt_suites.

host_arch=$(dpkg --print-architecture)
apt_arch=${apt_arch:-$host_arch}
apt=$NVPM_CACHE/apt
[ "$apt_arch" = "$host_arch" ] || apt=$apt-$apt_arch${apt_suites:+-$apt_suites}
dl=$NVPM_CACHE/dl
mkdir -p "$apt"/{lists/partial,archives/partial,machine/partial} "$dl"

# Some release's mirror as the machine has it: `deb [signed-by=...] URI`.
apt_mirror() { # LABEL CODENAME
	local format='deb [signed-by=$(SIGNED_BY)] $(REPO_URI)'
	apt-get "${machine[@]}" indextargets --format "$format" 'Origin: Debian' "Label: $1" "Codename: $2" |
		sed -n '1s,\$(SIGNED_BY),/usr/share/keyrings/debian-archive-keyring.gpg,;1p'
}

# Fresh lists for an hour; one call at a time.
apt_update() {
	{
		flock 9
		[ -n "$(find "$apt/updated" -mmin -60 2>/dev/null)" ] || apt_lists
	} 9>"$apt/.lock"
}
apt_lists() {
	local VERSION_CODENAME suite mirror security
	. /etc/os-release
	machine=()
	mirror=$(apt_mirror Debian "$VERSION_CODENAME")
	if [ -z "$mirror" ]; then
		# apt lists its mirrors only while it has package lists.
		machine=(-o "Dir::State::lists=$apt/machine")
		apt-get -q "${machine[@]}" update
		mirror=$(apt_mirror Debian "$VERSION_CODENAME")
	fi
	[ -n "$mirror" ] || {
		echo "apt's configuration has no Debian mirror for $VERSION_CODENAME: add one to /etc/apt and run apt-get update" >&2
		return 1
	}
	security=$(apt_mirror Debian-Security "$VERSION_CODENAME-security")
	# Old releases lack the new pieces; Debian 11 has the oldest kernel.
	local suites="trixie trixie-backports forky sid bookworm bullseye"
	# Libraries of another architecture are to be those of this release.
	[ "$apt_arch" = "$host_arch" ] || suites=${apt_suites:-}
	{
		for suite in $suites "$VERSION_CODENAME" "$VERSION_CODENAME-backports"; do
			echo "$mirror $suite main contrib"
		done
		[ -z "$security" ] || echo "$security $VERSION_CODENAME-security main contrib"
		echo "${mirror/#deb/deb-src} trixie main contrib"
		echo "${mirror/#deb/deb-src} bookworm main"
	} | awk '!seen[$0]++' >"$apt/sources.list"
	apt_fill "${mirror##* }"
}

# Fetches the lists of what sources.list names. A suite that is gone ends nothing but what only it has. Where
# none answers, older lists serve, but not for an hour.
apt_fill() { # WHERE_FROM
	local said
	said=$(apt_private apt-get -q update 2>&1) || true
	if echo "$said" | grep -q '^\(Get\|Hit\):'; then
		touch "$apt/updated"
	elif [ -z "$(find "$apt/lists" -maxdepth 1 -name '*Release')" ]; then
		echo "nothing came from $1 ($(echo "$said" | sed -n 's/^[EW]: *//p' | head -n 1)): is this machine online? Once it is, the same command goes on" >&2
		return 1
	fi
	echo "$said"
}

# apt in the private folder. Of another architecture nothing is installed here.
apt_private() {
	local program=$1 status=/var/lib/dpkg/status
	shift
	[ "$apt_arch" = "$host_arch" ] || status=/dev/null
	"$program" -o APT::Architecture="$apt_arch" -o APT::Architectures::="$apt_arch" \
		-o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$status" \
		-o Dir::Cache="$apt" -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferences="$apt/preferences" -o Dir::Etc::preferencesparts=/dev/null \
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
		-o APT::Sandbox::User=root -o APT::Update::Post-Invoke-Success= "$@"
}

# The newest package whose name matches a regular expression.
apt_newest_name() { # REGEX
	apt_update >&2 || return 1
	local name
	name=$(apt_private apt-cache search --names-only "$1" | cut -d' ' -f1 | sort -V | tail -n 1)
	[ -n "$name" ] || {
		echo "no suite of this machine's mirror has $1" >&2
		return 1
	}
	echo "$name"
}

# The newest file in dl/ whose name begins by this pattern.
apt_found() { # PATTERN
	find "$dl" -maxdepth 1 \( -name "$1_$apt_arch.deb" -o -name "$1_all.deb" \) | sort -V | tail -n 1
}

# The file of a package, of a version that starts like this if one is named.
apt_deb() ( # PACKAGE [VERSION]
	file=$(apt_found "$1_${2:-}*")
	if [ -z "$file" ]; then
		apt_update >&2 || exit 1
		version=$(apt_private apt-cache madison "$1" | awk -F' *[|] *' -v package="$1" -v series="${2:-}" \
			'{ sub(/^ */, "", $1) } $1 == package && index($2, series) == 1 { print $2 }' | sort -V | tail -n 1)
		[ -n "$version" ] || {
			echo "no suite has $1 ${2:-} any more: put such a package into $dl, or teach the lab a newer one (ci/qemu/artefacts.mk)" >&2
			exit 1
		}
		# Another job may be downloading another version of the package.
		part=$(mktemp -d -p "$dl" part.XXXXXX) || exit 1
		trap 'rm -rf "$part"' EXIT
		(cd "$part" && apt_private apt-get -q download "$1=$version" && mv "$1"_*.deb "$dl/") >&2 || {
			echo "$1 $version could not be downloaded: is this machine online, and its disk not full? Once that is so, the same command goes on" >&2
			exit 1
		}
		file=$(apt_found "$1_${2:-}*")
	fi
	echo "$file"
)
