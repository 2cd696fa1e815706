// SPDX-License-Identifier: GPL-2.0

//! Tests the same package by rpm.

use super::interrupted::{interrupt, of_a_removal, of_an_installation, of_an_upgrade, something_is_there};
use super::kernels::NOT_FOR_THE_NEXT_KERNEL;
use super::package::units_document;
use super::test::{
    nothing_half_installed, one_line, says_why, started, Test, NO_NEIGHBOURS, QUICK_MAKE, UPKEEP_REFRESH,
};
use crate::machine::{Built, Resolved};
use crate::stubs::{deb, our_rpm, BROKEN, NEXT, NVIDIA, OFED};
use anyhow::{ensure, Context, Result};

/// Tests rpm's own order of scripts. (`--nodeps`: what the package needs was installed from Debian
/// packages.)
pub(super) fn rpm(test: &mut Test) -> Result<()> {
    let version = test.version();
    let kernel = test.kernel()?;
    // If there is nothing to build it with, a line says so, and it is built once that is installed.
    let text = test.transaction(&format!(
        "mv /lib/modules/{kernel}/build /tmp/build; rpm -i --nodeps {}; mv /tmp/build /lib/modules/{kernel}/build",
        our_rpm(&version)
    ))?;
    one_line(&text, &["nvidia-peermem-rust: not built", "install linux-headers-"])?;
    units_document(test)?;
    test.machine.must(UPKEEP_REFRESH)?;
    test.expect_ours("rpm: installation", &version)?;
    test.transaction(&format!("rpm -U --nodeps {}", our_rpm(NEXT)))?;
    test.expect_ours("rpm: upgrade of ours", NEXT)?;
    let (driver, again) = (deb("nvidia", NVIDIA[2]), our_rpm(NEXT));
    // Debian 13's rpm has a plugin that gives each script a /tmp of its own.
    let unshare = test.machine.must("rpm --eval '%{?__transaction_unshare}'")?;
    let bookworm = test.machine.run("grep -q '^VERSION_ID=.12' /etc/os-release")?.ok;
    ensure!(bookworm || !unshare.trim().is_empty(), "this rpm has no plugin unshare");
    test.transaction(&format!("rpm --reinstall --nodeps {again}"))?;
    test.expect_ours("rpm: ours installed again", NEXT)?;
    test.transaction(&format!("dpkg -i --no-triggers {driver}; rpm --reinstall --nodeps {again}"))?;
    test.expect_ours("rpm: ours installed again, with another driver", NEXT)?;
    let text = test.transaction(&format!("rpm -U --nodeps {}", our_rpm(BROKEN)))?;
    says_why(&text, "no such kernel")?;
    test.expect_ours("rpm: upgrade of ours that does not build", NEXT)?;
    test.transaction(&format!("rpm -U --oldpackage --nodeps {}", our_rpm(&version)))?;
    test.expect_ours("rpm: downgrade of ours", &version)?;
    gone_by_rpm(test, "rpm: removal of ours")
}

/// Checks that rpm knows one version of ours, whose files are all as it has installed them, and that no
/// kernel lacks its initrd.
fn nothing_half_installed_by_rpm(test: &Test, version: &str) -> Result<()> {
    let said = test.machine.must("rpm -q nvidia-peermem-rust-dkms; rpm -V --nodeps nvidia-peermem-rust-dkms")?;
    ensure!(said == format!("nvidia-peermem-rust-dkms-{version}-1.noarch\n"), "{said}");
    nothing_half_installed(test)
}

/// Checks that NVIDIA's file is back after a removal by rpm, and that nothing of ours is left.
pub(super) fn gone_by_rpm(test: &mut Test, action: &str) -> Result<()> {
    test.transaction("rpm -e nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, action, &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "NVIDIA's file is not back: {got}");
    let left = test.machine.must(
        "find / -xdev -name '*nvidia-peermem-rust*' ! -path '/srv/*' ! -path '/home/*' ! -path '/var/lib/dpkg/*'",
    )?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// The machine loses its power at each step of an upgrade, of a first installation and of a removal by
/// rpm. The former module stays, and the same command again completes what was begun.
pub(super) fn rpm_interrupted(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(&format!("{QUICK_MAKE}\ndpkg -P nvidia-peermem-rust-dkms"))?;
    let without = test.machine.layers()?;
    let ready = started(&without, &version)?;
    ready.machine.must(&format!("rpm -i --nodeps {}", our_rpm(&version)))?;
    nothing_half_installed_by_rpm(&ready, &version)?;
    let layers = ready.machine.layers()?;
    for place in of_an_upgrade() {
        let mut at = started(&layers, &version)?;
        interrupt(&mut at, &place, &format!("rpm -U --nodeps {}", our_rpm(NEXT)))?;
        let action = format!("rpm: upgrade of ours, power lost at {}", place.says);
        at.expect_ours(&action, &version)?;
        at.transaction(&format!("rpm -U --force --nodeps {}", our_rpm(NEXT)))?;
        at.expect_ours(&format!("{action}, and rpm again"), NEXT)?;
        nothing_half_installed_by_rpm(&at, NEXT)?;
        test.rows.append(&mut at.rows);
    }
    for place in of_a_removal(&kernel) {
        let mut at = started(&layers, &version)?;
        interrupt(&mut at, &place, "rpm -e nvidia-peermem-rust-dkms")?;
        let action = format!("rpm: removal of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        gone_by_rpm(&mut at, &format!("{action}, and rpm again"))?;
        test.rows.append(&mut at.rows);
    }
    for place in of_an_installation() {
        let mut at = started(&without, &version)?;
        interrupt(&mut at, &place, &format!("rpm -i --nodeps {}", our_rpm(&version)))?;
        let action = format!("rpm: first installation of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        at.transaction(&format!("rpm -U --force --nodeps {}", our_rpm(&version)))?;
        at.expect_ours(&format!("{action}, and rpm again"), &version)?;
        nothing_half_installed_by_rpm(&at, &version)?;
        test.rows.append(&mut at.rows);
    }
    Ok(())
}

/// Makes an rpm of a stand-in's Debian package, or of the Debian packages of a kernel, with scripts as
/// NVIDIA's, DOCA's and a kernel's rpm have them: NAME, VERSION, then the Debian packages.
const AS_RPM: &str = r#"as_rpm() {
        name=$1 version=$2 top=/tmp/rpm/$1-$2
        shift 2
        mkdir -p $top/root
        for deb; do dpkg-deb -x $deb $top/root; done
        rm -rf $top/root/usr/share
        kernel=$(ls $top/root/lib/modules $top/root/usr/lib/modules 2>/dev/null | grep -v : | head -n 1)
        {
            printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: stand-in\nLicense: none\nAutoReqProv: no\n' $name $version
            printf '%%global _binary_payload w0.gzdio\n%%global __os_install_post %%{nil}\n%%global debug_package %%{nil}\n'
            printf '%%description\nStand-in.\n%%install\ncp -a %s/root/. %%{buildroot}/\n' $top
            if [ -n "$kernel" ]; then
                printf '%%post\nDEB_MAINT_PARAMS=configure run-parts --exit-on-error --arg=%s --arg=/boot/vmlinuz-%s /etc/kernel/postinst.d\n' $kernel $kernel
            else
                printf '%%post\nPATH=/usr/local/bin:$PATH\ndkms add -m %s -v %s && dkms build -m %s -v %s && dkms install --force -m %s -v %s\n' $name $version $name $version $name $version
                printf '%%preun\ndkms remove -m %s -v %s --all\n' $name $version
            fi
            printf '%%files\n'
            (cd $top/root && find . ! -type d | sed 's/^\.//; s/.*/"&"/')
        } >$top/spec
        rpmbuild -bb --quiet --define "_topdir $top" --define '_build_id_links none' $top/spec >$top/log 2>&1 || { tail $top/log; exit 1; }
        mv $top/RPMS/*/*.rpm /srv/rpms/
        rm -r $top
    }
    mkdir -p /srv/rpms"#;

/// The neighbours are rpms: both come with ours in one transaction, OFED is upgraded alone, and a kernel
/// comes for which our module cannot be built. rpm ends well, and its triggers have ours follow.
pub(super) fn neighbours_by_rpm(test: &mut Test) -> Result<()> {
    let (old, version) = (test.kernel()?, test.version());
    test.machine.must(&format!(
        "{QUICK_MAKE}
        {NO_NEIGHBOURS}
        {AS_RPM}
        as_rpm nvidia {n} {}
        as_rpm mlnx-ofed-kernel {o} {}
        as_rpm mlnx-ofed-kernel {u} {}
        as_rpm kernel-standin 1 /srv/kernel/*.deb",
        deb("nvidia", NVIDIA[0]),
        deb("mlnx-ofed-kernel", OFED[0]),
        deb("mlnx-ofed-kernel", OFED[1]),
        n = NVIDIA[0],
        o = OFED[0],
        u = OFED[1],
    ))?;
    let rpm = |name: &str, version: &str| format!("/srv/rpms/{name}-{version}-1.*.rpm");
    let text = test.transaction(&format!(
        "rpm -U --nodeps {} {} {}",
        our_rpm(&version),
        rpm("nvidia", NVIDIA[0]),
        rpm("mlnx-ofed-kernel", OFED[0])
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("rpm: ours, driver and OFED in one transaction", &version)?;
    nothing_half_installed_by_rpm(test, &version)?;
    let text = test.transaction(&format!("rpm -U --nodeps {}", rpm("mlnx-ofed-kernel", OFED[1])))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("rpm: upgrade of OFED alone", &version)?;
    nothing_half_installed_by_rpm(test, &version)?;
    let text = test.transaction(&format!(
        "{NOT_FOR_THE_NEXT_KERNEL}
        rpm -U --nodeps {}",
        rpm("kernel-standin", "1")
    ))?;
    says_why(&text, "of the test")?;
    nothing_half_installed_by_rpm(test, &version)?;
    let new = test.machine.kernels()?.into_iter().find(|kernel| *kernel != old).context("a second kernel")?;
    let (action, got) = ("rpm: installation of a kernel for which ours is not built", test.machine.resolved(&new)?);
    test.row(&new, action, &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "{got}");
    test.expect(action, &old, &Resolved::Ours { version, built: Built::Whole })
}
