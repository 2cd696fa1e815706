// SPDX-License-Identifier: GPL-2.0

//! Tests kernels that come and go beside the package.

use super::test::{nothing_half_installed, one_line, says_why, Test};
use crate::machine::{Built, Resolved};
use anyhow::{ensure, Context, Result};

/// A make that fails where something is to be built for the kernel in /srv/kernel.
pub(super) const NOT_FOR_THE_NEXT_KERNEL: &str = r#"new=$(basename /srv/kernel/linux-headers-*-$(dpkg --print-architecture)_*.deb); new=${new#linux-headers-}; new=${new%%_*}
        printf '#!/bin/sh\ncase "$*" in *KDIR=/lib/modules/%s/build*) echo "error: of the test"; exit 2 ;; esac\nexec /usr/bin/make "$@"\n' "$new" >/usr/local/bin/make
        chmod +x /usr/local/bin/make"#;

/// A kernel is installed for which our module cannot be built. It gets its initrd and its
/// neighbours, and uses NVIDIA's module. Our module follows once it can be built.
pub(super) fn kernel_that_ours_is_not_built_for(test: &mut Test) -> Result<()> {
    let (old, version) = (test.kernel()?, test.version());
    let text = test.transaction(&format!("{NOT_FOR_THE_NEXT_KERNEL}\ndpkg -i /srv/kernel/*.deb"))?;
    says_why(&text, "of the test")?;
    nothing_half_installed(test)?;
    let new = test.machine.kernels()?.into_iter().find(|kernel| *kernel != old).context("a second kernel")?;
    let got = test.machine.resolved(&new)?;
    test.row(&new, "installation of a kernel for which ours is not built", &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "{got}");
    test.expect(
        "installation of a kernel for which ours is not built",
        &old,
        &Resolved::Ours { version, built: Built::Whole },
    )?;
    // apt goes on working.
    test.transaction("dpkg --configure --pending; dpkg-trigger --no-await /usr/src; dpkg --configure --pending")?;
    Ok(())
}

/// The same kernel's package is installed again, or after it was removed. Our module is there.
pub(super) fn kernel_installed_again(test: &mut Test) -> Result<()> {
    let (old, version) = (test.kernel()?, test.version());
    test.machine.must("dpkg -i /srv/kernel/*.deb")?;
    test.transaction("dpkg -i /srv/kernel/linux-image-*.deb")?;
    test.expect_ours("a kernel's package installed again", &version)?;
    test.transaction(
        "dpkg -P $(for file in /srv/kernel/linux-image-*.deb /srv/kernel/linux-headers-*-$(dpkg --print-architecture)_*.deb; do dpkg-deb -f $file Package; done); dpkg -i /srv/kernel/*.deb",
    )?;
    test.expect_ours("a kernel removed and installed again", &version)?;
    nothing_half_installed(test)?;
    ensure!(test.machine.kernels()?.contains(&old), "{old}");
    Ok(())
}

pub(super) fn kernel_upgrade_and_removal(test: &mut Test) -> Result<()> {
    let version = test.version();
    let old = test.kernel()?;
    test.transaction("dpkg -i /srv/kernel/*.deb")?;
    ensure!(test.machine.kernels()?.len() == 2, "two kernels should be there");
    test.expect_ours("installation of another kernel", &version)?;
    test.transaction(&format!("dpkg -P linux-image-{old} linux-headers-{old}"))?;
    test.expect_ours("removal of the first kernel", &version)?;
    let left = test.machine.must(&format!(
        "ls -d /usr/lib/nvidia-peermem-rust/{old} 2>/dev/null || true; grep -h {old} /usr/lib/depmod.d/00-* || true"
    ))?;
    ensure!(left.is_empty(), "of the kernel that is gone there is still: {left}");
    Ok(())
}

/// A kernel comes with a driver and without headers, and another one loses its headers before its
/// driver changes. One line for each says what to install, once; and of a module that no longer
/// fits, that the kernel will refuse it.
pub(super) fn kernel_without_headers(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let trigger = "for i in 1 2; do dpkg-trigger --no-await /usr/src; dpkg --configure --pending; done";
    let text = test.transaction(&format!(
        "new=/lib/modules/9.9.9-new; mkdir -p $new/kernel $new/updates; cp $(modinfo -k {kernel} -n nvidia) $new/updates/
        for part in order builtin builtin.modinfo; do : >$new/modules.$part; done; depmod 9.9.9-new; {trigger}"
    ))?;
    let words = ["nvidia-peermem-rust: not built for kernel 9.9.9-new: ", "install linux-headers-9.9.9-new", "no file"];
    one_line(&text, &words)?;
    // A kernel that has what fits needs nothing.
    let text = test.transaction(&format!("mv /lib/modules/{kernel}/build /srv/build; {trigger}"))?;
    ensure!(!text.contains(&format!("kernel {kernel} ")), "{text}");
    let text = test.transaction(&format!(
        "file=$(modinfo -k {kernel} -n nvidia); rm $file
        {{ printf '.section .modinfo,\"a\"\n.asciz \"license=GPL\"\n'
            for symbol in nvidia_p2p_get_pages nvidia_p2p_get_pages_persistent; do printf '.globl __crc_%s\n.set __crc_%s, 0x44444444\n' $symbol $symbol; done; }} >/tmp/ko.s
        as /tmp/ko.s -o ${{file%.ko*}}.ko; depmod {kernel}; {trigger}"
    ))?;
    let keeps = format!("nvidia-peermem-rust: kernel {kernel} keeps its module, which does not fit its GPU driver");
    one_line(&text, &[&keeps, "install linux-headers-"])?;
    test.expect("another driver, without headers", &kernel, &Resolved::Ours { version, built: Built::Former })
}

/// A rebuild for one kernel leaves the others' links as they are. An upgrade keeps every kernel's
/// module.
pub(super) fn each_kernel_by_itself(test: &mut Test) -> Result<()> {
    let kernel = test.kernel()?;
    let text = test.machine.must(&format!(
        "cd /usr/lib/nvidia-peermem-rust; mkdir -p 9.9.9 /lib/modules/9.9.9/kernel
        ln -s $(readlink {kernel}/nvidia-peermem.ko*) 9.9.9/
        mv 9.9.9/nvidia-peermem-rust.ko* 9.9.9/nvidia-peermem.ko 2>/dev/null || true
        printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        ./upkeep refresh
        test -L 9.9.9/nvidia-peermem.ko; test -L {kernel}/nvidia-peermem.ko*
        ./upkeep hold
        test ! -L 9.9.9/nvidia-peermem.ko; test -f 9.9.9/nvidia-peermem.ko; test ! -L {kernel}/nvidia-peermem.ko*"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel", &kernel])?;
    says_why(&text, "of the test")
}

/// `upkeep refresh` looks at the other kernels where the build for the first one fails, even if that cannot
/// be remembered. A kernel that has never had a module is not said to keep one.
pub(super) fn a_kernel_that_fails_beside_others(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let text = test.machine.must(
        "mkdir -p /lib/modules/5.0.0-a/kernel /lib/modules/5.0.0-a/build/include/config
        touch /lib/modules/5.0.0-a/build/Module.symvers /lib/modules/5.0.0-a/build/include/config/auto.conf; cp -R /lib/modules/5.0.0-a /lib/modules/9.0.0-b
        printf '#!/bin/sh\necho error: of the test; exit 1\n' >/usr/local/bin/make; chmod +x /usr/local/bin/make
        cat /dev/zero >/run/fill 2>/dev/null || true
        /usr/lib/nvidia-peermem-rust/upkeep refresh 2>&1",
    )?;
    for kernel in ["5.0.0-a", "9.0.0-b"] {
        one_line(&text, &[&format!("nvidia-peermem-rust: not built for kernel {kernel}: error: of the test")])?;
    }
    one_line(&text, &[&format!("nvidia-peermem-rust: kernel {kernel} keeps its module: error: of the test")])?;
    ensure!(text.lines().count() == 3, "more than a line for each kernel:\n{text}");
    // DKMS builds, and cannot install.
    let text = test.machine.must(
        r#"cat >/usr/local/bin/make <<'END'
#!/bin/sh
for word; do case $word in OUT=*) out=${word#OUT=} ;; KDIR=*) kdir=${word#KDIR=} ;; esac; done
mkdir -p "$out"; printf 'PREFLIGHT_KDIR=%s\nPREFLIGHT_SYMVERS=\nPREFLIGHT_NV_P2P=\nPREFLIGHT_PEER_MEM=\n' "$kdir" >"$out/preflight.env"
END
        printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms "$@" ;; install) echo "error: of the test"; exit 1 ;; esac\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms; /usr/lib/nvidia-peermem-rust/upkeep refresh 2>&1; rm /usr/local/sbin/dkms"#,
    )?;
    for kernel in ["5.0.0-a", "9.0.0-b"] {
        one_line(&text, &[&format!("nvidia-peermem-rust: kernel {kernel} has no module: error: of the test")])?;
    }
    test.expect("builds that fail for other kernels", &kernel, &Resolved::Ours { version, built: Built::Whole })?;
    // At an rpm's removal depmod fails for one kernel.
    let text = test.machine.must(
        "mkdir /usr/lib/nvidia-peermem-rust/5.0.0-a; touch /usr/lib/nvidia-peermem-rust/5.0.0-a/nvidia-peermem.ko /lib/modules/5.0.0-a/modules.dep
        printf '#!/bin/sh\n[ $1 != 5.0.0-a ] || exit 1\nexec /usr/sbin/depmod \"$@\"\n' >/usr/local/sbin/depmod; chmod +x /usr/local/sbin/depmod
        /usr/lib/nvidia-peermem-rust/upkeep drop 2>&1",
    )?;
    one_line(&text, &["nvidia-peermem-rust: modprobe on kernel 5.0.0-a takes what it took before: "])?;
    let got = test.machine.resolved(&kernel)?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "depmod was not called for {kernel}: {got}");
    Ok(())
}

/// When a kernel's rpm is removed, it calls kernel-install, which calls DKMS. No admin has
/// uninstalled the module, so it is built when that kernel is installed again. (The rpm is a
/// stand-in that has only the script; its kernel stays.)
pub(super) fn kernel_removed_by_rpm(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let text = test.transaction(&format!(
        "mkdir /tmp/rpm; cat >/tmp/rpm/kernel.spec <<'END'
Name: kernel-standin
Version: 1
Release: 1
Summary: kernel
License: none
BuildArch: noarch
%description
Stand-in.
%files
%preun
dkms uninstall -m nvidia-peermem-rust -v {version} -k {kernel} >/dev/null
END
        rpmbuild -bb --quiet --define '_topdir /tmp/rpm' /tmp/rpm/kernel.spec
        rpm -i --nodeps /tmp/rpm/RPMS/noarch/*.rpm; rpm -e kernel-standin
        printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        /usr/lib/nvidia-peermem-rust/upkeep refresh"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel", &kernel])
}
