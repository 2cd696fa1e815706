// SPDX-License-Identifier: GPL-2.0

//! Tests GPU drivers and RDMA cores that come, change and go beside the package.

use super::test::{nothing_half_installed, one_line, says_why, started, Test, NO_NEIGHBOURS, QUICK_MAKE};
use crate::machine::{Built, Resolved};
use crate::stubs::{deb, ours, NEXT, NVIDIA, OFED};
use anyhow::{ensure, Result};

pub(super) fn nvidia_same_interface(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(&format!("dpkg -i {}", deb("nvidia", NVIDIA[1])))?;
    ensure!(!text.contains("nvidia-peermem-rust: building"), "nothing that ours needs has changed:\n{text}");
    test.expect_ours("upgrade of NVIDIA's driver, same interface", &version)
}

pub(super) fn nvidia_up_and_down(test: &mut Test) -> Result<()> {
    let version = test.version();
    for (action, other) in [("upgrade of NVIDIA's driver", NVIDIA[2]), ("downgrade of NVIDIA's driver", NVIDIA[0])] {
        let text = test.transaction(&format!("dpkg -i {}", deb("nvidia", other)))?;
        one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
        test.expect_ours(action, &version)?;
    }
    Ok(())
}

pub(super) fn nvidia_removed(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction("dpkg -P nvidia-dkms")?;
    ensure!(!text.contains("nvidia-peermem-rust: building"), "there is nothing new to build against:\n{text}");
    test.expect_ours("removal of NVIDIA's driver", &version)?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    test.expect("removal of ours after NVIDIA's", &kernel, &Resolved::Nothing)
}

/// The package is unpacked, but its module does not compile.
pub(super) fn nvidia_half_installed(test: &mut Test) -> Result<()> {
    let version = test.version();
    let said = test.act(&format!(
        "dpkg --unpack {next} && echo '#error half' >>/usr/src/nvidia-{v}/nvidia.c && dpkg --configure nvidia-dkms",
        next = deb("nvidia", NVIDIA[2]),
        v = NVIDIA[2],
    ))?;
    ensure!(!said.ok, "the driver's build should have failed");
    test.expect_ours("NVIDIA's driver half installed", &version)?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    Ok(())
}

/// Debian's driver packages give their files other names, and make modprobe choose them by a line
/// `install`. modprobe ignores that for our module, which has a softdep, so the settings of admin
/// and packages are left alone.
pub(super) fn debians_driver(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.transaction(&format!(
        "dpkg -P nvidia-dkms
        echo 'install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS
        install nvidia-peermem modprobe nvidia ; modprobe -i nvidia-current-open-peermem $CMDLINE_OPTS' >/etc/modprobe.d/nvidia.conf
        dpkg -i {}",
        deb("nvidia-current-open", NVIDIA[0])
    ))?;
    test.expect_ours("Debian's own driver packages", &version)?;
    let lines = test.machine.must("modprobe --showconfig | grep '^install nvidia_peermem '")?;
    one_line(&lines, &["install nvidia_peermem"])?;
    test.transaction("dpkg -r nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, "removal of ours beside them", &got.to_string())?;
    ensure!(matches!(&got, Resolved::Nvidia(file) if file.starts_with("nvidia-current-open-peermem.ko")), "{got}");
    Ok(())
}

/// Ubuntu's kmod brings such a line.
pub(super) fn another_search_line(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.transaction(
        "mkdir -p /etc/depmod.d; echo 'search updates ubuntu built-in' >/etc/depmod.d/ubuntu.conf
        dpkg-trigger --no-await /lib/modules; dpkg --configure --pending",
    )?;
    let conf = test.machine.must("cat /usr/lib/depmod.d/00-nvidia-peermem-rust.conf")?;
    one_line(&conf, &["search external"])?;
    ensure!(conf.lines().any(|line| line == "search external"), "Ubuntu's own order is not to be changed:\n{conf}");
    test.expect_ours("a search line in depmod.d, as Ubuntu's", &version)
}

pub(super) fn ofed_upgrade(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(&format!("dpkg -i {}", deb("mlnx-ofed-kernel", OFED[1])))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("upgrade of OFED", &version)
}

/// `default` points at the build for another kernel, and files of another version exist. Only this
/// kernel's build counts.
pub(super) fn ofed_of_two_versions(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(
        "cd /usr/src/ofa_kernel && mkdir -p $(uname -m)/9.9.9-other && sed 's/^0x......../0x12345678/' default/Module.symvers >$(uname -m)/9.9.9-other/Module.symvers
        ln -sfn /usr/src/ofa_kernel/$(uname -m)/9.9.9-other default
        dpkg-trigger --no-await /usr/src; dpkg --configure --pending",
    )?;
    ensure!(!text.contains("nvidia-peermem-rust: "), "nothing of this kernel has changed:\n{text}");
    test.expect_ours("a second OFED, for another kernel", &version)?;
    // If this kernel's build is gone, another kernel's is not used in its place.
    let kernel = test.kernel()?;
    let text = test.machine.must(&format!(
        "rm -r /usr/src/ofa_kernel/$(uname -m)/{kernel}
        cd /usr/src/nvidia-peermem-rust-*/ && make -s preflight KDIR=/lib/modules/{kernel}/build OUT=/tmp/out 2>&1"
    ))?;
    one_line(&text, &["9.9.9-other", "another kernel"])?;
    ensure!(!text.contains("ib_register_peer_memory_client: /usr/src/ofa_kernel/default"), "{text}");
    Ok(())
}

/// The module does not fit a neighbour. Its build fails, and the former module stays.
pub(super) fn neighbour_of_another_abi(test: &mut Test) -> Result<()> {
    let version = test.version();
    let kernel = test.kernel()?;
    // Nothing has changed, so the build is not tried again.
    let text = test.transaction(&format!(
        "mkdir -p /usr/src/ofa_kernel/$(uname -m)/{kernel}/include/rdma
        echo '#error an interface that nobody knows' >/usr/src/ofa_kernel/$(uname -m)/{kernel}/include/rdma/peer_mem.h
        # As the service at boot does, beside apt.
        /usr/lib/nvidia-peermem-rust/upkeep refresh if-changed & /usr/lib/nvidia-peermem-rust/upkeep refresh if-changed; wait
        for i in 1 2; do dpkg-trigger --no-await /usr/src; dpkg --configure --pending; done"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    says_why(&text, "an interface that nobody knows")?;
    test.expect_ours("a rebuild that fails", &version)?;
    test.machine.must("dkms status -m nvidia-peermem-rust | grep installed")?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    let got = test.machine.resolved(&kernel)?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "after a removal then: {got}");
    Ok(())
}

/// Our package, the driver and OFED are installed in one call of dpkg, ours before what it is built
/// against.
pub(super) fn one_transaction(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.machine
        .must("dpkg -P nvidia-peermem-rust-dkms nvidia-dkms mlnx-ofed-kernel-dkms; rm -rf /usr/src/ofa_kernel")?;
    let (driver, ofed) = (deb("nvidia", NVIDIA[0]), deb("mlnx-ofed-kernel", OFED[0]));
    let text = test.transaction(&format!("dpkg -i {} {driver} {ofed}", ours(&version)))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module", "modprobe nvidia-peermem"])?;
    test.expect_ours("ours, driver and OFED in one transaction", &version)?;
    nothing_half_installed(test)
}

/// All three are upgraded in one call.
pub(super) fn upgrade_in_one_transaction(test: &mut Test) -> Result<()> {
    let (driver, ofed) = (deb("nvidia", NVIDIA[2]), deb("mlnx-ofed-kernel", OFED[1]));
    let text = test.transaction(&format!("dpkg -i {driver} {} {ofed}", ours(NEXT)))?;
    one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
    test.expect_ours("upgrade of all three in one transaction", NEXT)?;
    nothing_half_installed(test)
}

/// Ours is installed where a neighbour is missing, or both are. dpkg ends well, and one line says what
/// the module was built without. Each neighbour that comes has it built again, and in the end it has
/// the version of each symbol.
pub(super) fn without_neighbours(test: &mut Test) -> Result<()> {
    const CORE: &str = "an RDMA core with the peer-memory API (DOCA-OFED)";
    const DRIVER: &str = "NVIDIA's GPU driver";
    let (kernel, version) = (test.kernel()?, test.version());
    let (driver, ofed) = (deb("nvidia", NVIDIA[0]), deb("mlnx-ofed-kernel", OFED[0]));
    let without = |what: &str| {
        format!("has a new module, built without {what}, which kernel {kernel} does not have: it is built again once that is installed")
    };
    let layers = test.machine.layers()?;
    for (quick, first, steps) in [
        (
            "true",
            "true".to_string(),
            vec![
                ("ours with neither neighbour", ours(&version), Some(format!("{CORE} and {DRIVER}"))),
                ("ours with neither neighbour, then OFED", ofed.clone(), Some(DRIVER.to_string())),
                ("ours with neither neighbour, then OFED and the driver", driver.clone(), None),
            ],
        ),
        (
            QUICK_MAKE,
            format!("dpkg -i {driver}"),
            vec![
                ("ours with the driver alone", ours(&version), Some(CORE.to_string())),
                ("ours with the driver alone, then OFED", ofed.clone(), None),
            ],
        ),
        (
            QUICK_MAKE,
            format!("dpkg -i {ofed}"),
            vec![
                ("ours with OFED alone", ours(&version), Some(DRIVER.to_string())),
                ("ours with OFED alone, then the driver", driver.clone(), None),
            ],
        ),
    ] {
        let mut at = started(&layers, &version)?;
        at.machine.must(&format!("{quick}\n{NO_NEIGHBOURS}; {first}"))?;
        for (action, deb, lacks) in steps {
            let text = at.transaction(&format!("dpkg -i {deb}"))?;
            one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
            if let Some(lacks) = &lacks {
                one_line(&text, &["nvidia-peermem-rust: kernel ", &without(lacks)])?;
            } else {
                one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
                ensure!(!text.contains("built without"), "nothing is missing any more:\n{text}");
            }
            let got = at.machine.resolved(&kernel)?;
            let takes = lacks.as_ref().map_or_else(|| got.to_string(), |lacks| format!("{got}, built without {lacks}"));
            at.row(&kernel, action, &takes)?;
            let want = Resolved::Ours { version: version.clone(), built: Built::Whole };
            ensure!(got == want, "after {action} modprobe on {kernel} takes {got}");
            nothing_half_installed(&at)?;
        }
        test.rows.append(&mut at.rows);
    }
    // A driver is there whose file has no versions, so the kernel could not compare any.
    let mut at = started(&layers, &version)?;
    at.machine.must(&format!(
        r#"{QUICK_MAKE}
        {NO_NEIGHBOURS}; dpkg -i {ofed}; mkdir -p /lib/modules/{kernel}/updates
        printf '.section .modinfo,"a"\n.asciz "license=GPL"\n.asciz "version={}"\n' >/tmp/ko.s
        as /tmp/ko.s -o /lib/modules/{kernel}/updates/nvidia.ko; depmod {kernel}"#,
        NVIDIA[0]
    ))?;
    let text = at.transaction(&format!("dpkg -i {}", ours(&version)))?;
    let unchecked = format!("has a new module, without symbol versions of the GPU driver: kernel {kernel} will not notice if it does not fit");
    one_line(&text, &["nvidia-peermem-rust: kernel ", &unchecked])?;
    at.expect("ours, and a driver without symbol versions", &kernel, &Resolved::Ours { version, built: Built::Whole })?;
    test.rows.append(&mut at.rows);
    Ok(())
}
