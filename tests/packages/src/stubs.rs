// SPDX-License-Identifier: GPL-2.0

//! Builds packages of neighbours and of ours in the machine, with the tools that build the real
//! ones.

use crate::machine::Machine;
use anyhow::{Context, Result};
use std::path::Path;

/// The folder of packages in the machine.
pub const DEBS: &str = "/srv/debs";

/// The versions of NVIDIA's driver package: the present, the former and the next one. The number
/// before the dot is its interface.
pub const NVIDIA: [&str; 3] = ["580.95", "580.105", "595.10"];
/// The versions of DOCA-OFED.
pub const OFED: [&str; 2] = ["24.10", "25.10"];
/// The versions of our package: the next one, and one that does not compile.
pub const NEXT: &str = "0.90.0";
pub const BROKEN: &str = "0.91.0";

/// Removes most modules from the kernels, both the installed one and the package of the next,
/// because each call of depmod reads them all, and no test needs them.
const FEW_MODULES: &str = r#"few() {
        for part in "$1"/kernel/sound "$1"/kernel/fs "$1"/kernel/net "$1"/kernel/drivers/*; do
            [ "${part##*/}" = infiniband ] || rm -rf "$part"
        done
    }
    for dir in /lib/modules/*; do few "$dir"; depmod "${dir##*/}"; done
    for deb in /srv/kernel/linux-image-*.deb; do
        [ -e "$deb" ] || continue
        dpkg-deb -R "$deb" /tmp/image
        for dir in $(find /tmp/image -path '*/lib/modules/*' -name kernel -type d); do few "${dir%/kernel}"; done
        dpkg-deb --root-owner-group -b /tmp/image "$deb" >/dev/null
        rm -r /tmp/image
    done"#;

/// Builds the stand-ins' packages, on a machine with few modules.
pub fn build(machine: &Machine) -> Result<()> {
    machine.must(FEW_MODULES).context("fewer modules")?;
    let stubs = Path::new(env!("CARGO_MANIFEST_DIR")).join("stubs");
    machine.put(&stubs, "/srv/stubs")?;
    // The machine's own kernel is the first, whatever runs outside.
    machine.must(
        r#"kernel=$(basename $(dirname /lib/modules/*/kernel))
        mkdir -p /srv/debs /usr/local/bin
        printf '#!/bin/sh\n[ "$*" = -r ] && echo %s || exec /usr/bin/uname "$@"\n' "$kernel" >/usr/local/bin/uname
        chmod +x /usr/local/bin/uname"#,
    )?;
    for (stub, name, version) in NVIDIA
        .iter()
        .map(|version| ("nvidia", "nvidia", *version))
        .chain([("nvidia", "nvidia-current-open", NVIDIA[0])])
        .chain(OFED.iter().map(|version| ("ofed", "mlnx-ofed-kernel", *version)))
    {
        machine
            .must(&format!("sh /srv/stubs/package.sh {stub} {name} {version} {DEBS}"))
            .context("a stand-in's package")?;
    }
    Ok(())
}

/// Builds our Debian packages that the quick transitions need or, with `whole`, all Debian packages
/// and the rpm packages. `archive` is what `make dist` made. `vendor` has what cargo needs for
/// peermemctl and the libraries, so that the network is not needed.
pub fn build_ours(machine: &Machine, archive: &Path, version: &str, whole: bool, vendor: Option<&Path>) -> Result<()> {
    machine.put(archive, "/srv/source.tar.xz")?;
    if let Some(vendor) = vendor {
        machine.put(vendor, "/srv/vendor")?;
        machine.must(
            r#"mkdir -p /root/.cargo
            # cargo may have made these files readable for their owner only, and README's user reads them, too.
            chmod -R a+rX /srv/vendor
            printf '[source.crates-io]\nreplace-with = "here"\n[source.here]\ndirectory = "/srv/vendor"\n' >/root/.cargo/config.toml"#,
        )?;
    }
    let first = if vendor.is_some() { "binary" } else { "all" };
    let (kinds, broken) = if whole { ("deb rpm", BROKEN) } else { ("deb", "") };
    machine
        .must(&format!(
            r#"mkdir /srv/source && tar -xf /srv/source.tar.xz -C /srv/source --strip-components=1
        cd /srv/source
        for version in {version} {NEXT} {broken}; do
            echo $version >VERSION
            [ $version != {BROKEN} ] || echo '#error no such kernel' >>src/ffi/core.c
            build=all
            [ $version != {version} ] || build={first}
            for kind in {kinds}; do make -s $kind BUILD=$build; done
            mv build/packages/*.deb {DEBS}/
            [ '{kinds}' = deb ] || mv build/packages/*.rpm {DEBS}/
        done"#
        ))
        .context("packages of ours")?;
    Ok(())
}

/// Returns the file of a package.
pub fn deb(name: &str, version: &str) -> String {
    format!("{DEBS}/{name}-dkms_{version}_all.deb")
}

/// Returns the file of our rpm package.
pub fn our_rpm(version: &str) -> String {
    format!("{DEBS}/nvidia-peermem-rust-dkms-{version}-1.noarch.rpm")
}

/// Returns the file of our Debian package.
pub fn ours(version: &str) -> String {
    format!("{DEBS}/nvidia-peermem-rust-dkms_{version}-1_all.deb")
}
