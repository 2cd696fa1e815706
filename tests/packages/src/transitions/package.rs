// SPDX-License-Identifier: GPL-2.0

//! Tests the package itself: how it is installed, upgraded and removed, and what it says and keeps.

use super::test::{
    another_ofed, nothing_half_installed, one_line, says_why, Test, NO_NEIGHBOURS, QUICK_MAKE, UPKEEP_REFRESH,
};
use crate::machine::Resolved;
use crate::stubs::{deb, ours, BROKEN, DEBS, NEXT, NVIDIA, OFED};
use anyhow::{ensure, Context, Result};

/// lintian and rpmlint report nothing that packaging/ does not excuse with a reason.
pub(super) fn lint(test: &mut Test) -> Result<()> {
    test.machine.must(&format!(
        "cd {DEBS}; lintian --fail-on error,warning *_{v}-1_*.deb
        set -- *-{v}-1.*.rpm
        [ ! -e $1 ] || rpmlint -c /srv/source/packaging/rpm/rpmlint.toml $* /srv/source/packaging/rpm/*.spec",
        v = test.version
    ))?;
    Ok(())
}

/// systemd reports nothing about the units.
pub(super) fn units(test: &mut Test) -> Result<()> {
    let said = test.machine.must(
        "systemd-analyze verify --man=no /usr/lib/systemd/system/nvidia-peermem-rust.service /srv/source/packaging/monitoring/*.service /srv/source/packaging/monitoring/*.timer",
    )?;
    ensure!(said.is_empty(), "{said}");
    Ok(())
}

/// promtool finds each alert firing where it should, and only there; each has a test.
pub(super) fn alerts(test: &mut Test) -> Result<()> {
    test.machine.must("cd /srv/source/tests/packages/alerts; promtool test rules hours.yml week.yml")?;
    let rules = include_str!("../../../../packaging/monitoring/alerts.yml");
    let tests = [include_str!("../../alerts/hours.yml"), include_str!("../../alerts/week.yml")].concat();
    for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("{{labels: 'ALERTS{{alertname=\"{name}\",");
        ensure!(tests.contains(&fires), "no test has {name} fire");
    }
    Ok(())
}

pub(super) fn installed(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.expect_ours("installation", &version)?;
    let kernel = test.kernel()?;
    let status = test.machine.must("dkms status -m nvidia-peermem-rust")?;
    one_line(&status, &[&kernel, "installed"])?;
    // Without its neighbours' versions the kernel would not notice if it does not fit them.
    if test.machine.run(&format!("grep -q '^CONFIG_MODVERSIONS=y' /boot/config-{kernel}"))?.ok {
        let wants =
            test.machine.must(&format!("modprobe --dump-modversions $(modinfo -k {kernel} -n nvidia-peermem)"))?;
        for symbol in ["ib_register_peer_memory_client", "nvidia_p2p_get_pages", "nvidia_p2p_get_pages_persistent"] {
            let has = wants.lines().any(|line| line.ends_with(&format!("\t{symbol}")));
            ensure!(has, "no version of {symbol}:\n{wants}");
        }
    }
    // modprobe applies parameters by the module's name.
    let options = test.machine.must(&format!(
        "echo 'options nvidia-peermem persistent_api_support=0' >/etc/modprobe.d/admin.conf
        modprobe -S {kernel} -n --show-depends nvidia-peermem"
    ))?;
    one_line(&options, &["nvidia-peermem.ko", "persistent_api_support=0"])?;
    test.machine.must("test -f /lib/modules/*/updates/dkms/nvidia-peermem.ko*")?;
    units_document(test)
}

/// The page that our unit names exists.
pub(super) fn units_document(test: &Test) -> Result<()> {
    let unit = "/usr/lib/systemd/system/nvidia-peermem-rust.service";
    test.machine.must(&format!(r#"test -f "$(sed -n 's/^Documentation=file://p' {unit})""#))?;
    Ok(())
}

/// The same versions of ours, the driver and OFED are installed again: one by one, and in each order of
/// one transaction, also for the first time in that order. The module is built once where ours is among
/// them, and fits.
pub(super) fn reinstalled(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.machine.must(QUICK_MAKE)?;
    let packages = [
        ("ours", ours(&version)),
        ("the driver", deb("nvidia", NVIDIA[0])),
        ("OFED", deb("mlnx-ofed-kernel", OFED[0])),
    ];
    for (name, deb) in &packages {
        let text = test.transaction(&format!("dpkg -i {deb}"))?;
        if *name == "ours" {
            one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
        } else {
            ensure!(!text.contains("nvidia-peermem-rust: building"), "nothing that ours needs has changed:\n{text}");
        }
        test.expect_ours(&format!("{name} installed again"), &version)?;
        nothing_half_installed(test)?;
    }
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let [(a, first), (b, second), (c, third)] = order.map(|index| &packages[index]);
        let install = format!("dpkg -i {first} {second} {third}");
        test.machine.must(NO_NEIGHBOURS)?;
        for again in ["installed", "installed again"] {
            let text = test.transaction(&install)?;
            one_line(&text, &["nvidia-peermem-rust: building for kernel"])?;
            test.expect_ours(&format!("{a}, {b} and {c} {again} in one transaction, in this order"), &version)?;
            nothing_half_installed(test)?;
        }
    }
    Ok(())
}

pub(super) fn own_upgrade(test: &mut Test) -> Result<()> {
    test.transaction(&format!("dpkg -i {}", ours(NEXT)))?;
    test.expect_ours("upgrade of ours", NEXT)?;
    let left = test.machine.must("dkms status -m nvidia-peermem-rust")?;
    ensure!(left.lines().count() == 1, "{left}");
    Ok(())
}

pub(super) fn own_upgrade_that_fails(test: &mut Test) -> Result<()> {
    let version = test.version();
    let text = test.transaction(&format!("dpkg -i {}", ours(BROKEN)))?;
    says_why(&text, "no such kernel")?;
    test.expect_ours("upgrade of ours that does not build", &version)?;
    test.transaction("dpkg -P nvidia-peermem-rust-dkms")?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, "removal after that", &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "NVIDIA's file is not back: {got}");
    Ok(())
}

/// A build for kernel 6.1.0 forgets what failed for that kernel, but not what failed for 6.1.0.1.
pub(super) fn a_release_that_begins_another(test: &mut Test) -> Result<()> {
    test.machine.must(
        "tried=/run/nvidia-peermem-rust; mkdir -p $tried; cp -R /usr/src/nvidia-peermem-rust-*/ /tmp/build; cd /tmp/build
        touch $tried/6.1.0.failed $tried/6.1.0.1.failed $tried/6.1.0.1.tried; mkdir -p build/module
        printf 'PREFLIGHT_KDIR=/nowhere\nPREFLIGHT_SYMVERS=\nPREFLIGHT_NV_P2P=\nPREFLIGHT_PEER_MEM=\n' >build/module/preflight.env
        printf '#!/bin/sh\n' >/usr/local/bin/make; chmod +x /usr/local/bin/make
        /usr/lib/nvidia-peermem-rust/upkeep build 6.1.0 /nowhere
        test ! -e $tried/6.1.0.failed; test -e $tried/6.1.0.1.failed; test -e $tried/6.1.0.1.tried",
    )?;
    Ok(())
}

/// Secure Boot is on, and nobody has enrolled the key that DKMS signs with, or DKMS cannot sign
/// (mokutil is a stand-in, because the machine has no firmware). The package's own line tells the
/// user, who sees nothing of what DKMS prints.
pub(super) fn key_not_enrolled(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(&format!(
        "printf '#!/bin/sh\\ncase $1 in --sb-state) echo SecureBoot enabled ;; --test-key) echo \"$2 is not enrolled\"; exit 0 ;; esac\\n' >/usr/local/bin/mokutil
        chmod +x /usr/local/bin/mokutil
        {QUICK_MAKE}"
    ))?;
    let words = ["nvidia-peermem-rust: ", "not enrolled", "mokutil --import"];
    let text = test.transaction(&another_ofed(&kernel, 1))?;
    one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    one_line(&text, &words)?;
    one_line(&text, &["mokutil --import /var/lib/dkms/mok.pub,"])?;
    test.expect_ours("key of DKMS not enrolled", &version)?;
    let signer = test.machine.must("modinfo -k $(uname -r) -F signer nvidia-peermem")?;
    ensure!(!signer.trim().is_empty(), "DKMS has not signed it");
    // A call by hand says it, too.
    let text = test.machine.must(
        "v=$(cat /usr/lib/nvidia-peermem-rust/VERSION)
        dkms uninstall -m nvidia-peermem-rust -v $v -k $(uname -r); dkms install -m nvidia-peermem-rust -v $v -k $(uname -r)",
    )?;
    one_line(&text, &words)?;
    // A key of the admin's own, which DKMS makes there.
    test.machine.must(
        "mkdir /srv/keys
        printf 'mok_signing_key=/srv/keys/$kernelver.key\\nmok_certificate=/srv/keys/$kernelver.der\\n' >>/etc/dkms/framework.conf",
    )?;
    let text = test.transaction(&another_ofed(&kernel, 2))?;
    one_line(&text, &words)?;
    one_line(&text, &[&format!("mokutil --import /srv/keys/{kernel}.der,")])?;
    // Ubuntu's DKMS takes shim's key where the admin names none; another distribution's does not.
    let text = test.machine.must(&format!(
        "sed -i /^mok_/d /etc/dkms/framework.conf; mkdir -p /var/lib/shim-signed/mok; touch /var/lib/shim-signed/mok/MOK.der
        /usr/lib/nvidia-peermem-rust/upkeep installed {kernel}
        sed -i 's/^ID=.*/ID=ubuntu/' /usr/lib/os-release; /usr/lib/nvidia-peermem-rust/upkeep installed {kernel}
        sed -i 's/^ID=.*/ID=debian/' /usr/lib/os-release"
    ))?;
    one_line(&text, &["mokutil --import /var/lib/dkms/mok.pub,"])?;
    one_line(&text, &["mokutil --import /var/lib/shim-signed/mok/MOK.der,"])?;
    // Nothing signs.
    test.machine.must("echo sign_file=/nowhere >>/etc/dkms/framework.conf")?;
    let text = test.transaction(&another_ofed(&kernel, 3))?;
    one_line(&text, &["nvidia-peermem-rust: ", "is not signed", "dkms build --force"])?;
    ensure!(!text.contains("mokutil"), "there is no key to be enrolled:\n{text}");
    // Without mokutil the firmware's own variable says whether Secure Boot is on.
    for (on, lines) in [(1, 1), (0, 0)] {
        let text = test.machine.must(&format!(
            "while file=$(command -v mokutil); do rm $file; hash -r; done; mkdir -p /sys/firmware/efi/efivars
            printf '\\006\\000\\000\\000\\00{on}' >/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
            /usr/lib/nvidia-peermem-rust/upkeep installed {kernel} 2>&1"
        ))?;
        let said = text.lines().filter(|line| line.contains("is not signed")).count();
        ensure!(said == lines, "{said} lines, not {lines}:\n{text}");
    }
    // A module that an admin signs by hand is no broken installation, as long as DKMS has not
    // packed it.
    let text = test.transaction(
        "file=$(find /lib/modules -name nvidia-peermem-rust.ko); [ -z \"$file\" ] || head -c 700 /dev/urandom >>$file
        dpkg-trigger --no-await /usr/src; dpkg --configure --pending",
    )?;
    ensure!(!text.contains("nvidia-peermem-rust: "), "it was built again:\n{text}");
    Ok(())
}

/// An `override` in depmod.d comes before our folder. One line names the file that modprobe takes, and
/// what to do: after a build, where nothing is built, and only as long as it is so.
pub(super) fn another_file_is_taken(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(QUICK_MAKE)?;
    let (refresh, mut built) = ("dpkg-trigger --no-await /usr/src; dpkg --configure --pending", false);
    for (folder, conf, file, cure) in [
        (
            "updates/nvidia-peermem-rust",
            "override nvidia-peermem * updates/nvidia-peermem-rust",
            "nvidia-peermem-rust.conf",
            format!("make uninstall KDIR=/lib/modules/{kernel}/build"),
        ),
        (
            "weak-updates/nvidia",
            "override nvidia-peermem * weak-updates/nvidia",
            "kmod-nvidia.conf",
            "remove the line \"override nvidia-peermem * weak-updates/nvidia\" of /etc/depmod.d/kmod-nvidia.conf, then depmod"
                .to_string(),
        ),
        ("kernel/lib", "search built-in", "00-first.conf", "look for the lines that say so in depmod.d(5)".to_string()),
        // Lines for another kernel, and for a folder that has no such file, do nothing, and are
        // left alone.
        (
            "kernel/lib",
            "search built-in\noverride nvidia-peermem 9.9.9 kernel/lib\noverride nvidia-peermem * extra",
            "00-first.conf",
            "look for the lines that say so in depmod.d(5)".to_string(),
        ),
    ] {
        let taken = format!("/lib/modules/{kernel}/{folder}/nvidia-peermem.ko");
        test.machine.must(&format!(
            "mkdir -p /lib/modules/{kernel}/{folder} /etc/depmod.d; cp /srv/nvidia-peermem-rust.ko {taken}
            echo '{conf}' >/etc/depmod.d/{file}; depmod {kernel}"
        ))?;
        let words = ["nvidia-peermem-rust: modprobe on kernel ", &taken, &cure];
        one_line(&test.transaction(refresh)?, &words)?;
        if !built {
            built = true;
            let text = test.transaction(&another_ofed(&kernel, 1))?;
            one_line(&text, &words)?;
            let new = text.lines().find(|line| line.contains("has a new module")).context("nothing was built")?;
            ensure!(!new.contains("it is loaded"), "that is not what is loaded: {new}");
        }
        test.row(&kernel, &format!("`{}` of others", conf.replace('\n', "; ")), &format!("`{folder}/nvidia-peermem.ko`, and a line says so"))?;
        test.machine.must(&format!(
            "rm -r /lib/modules/{kernel}/{folder}/nvidia-peermem.ko /etc/depmod.d/{file}; depmod {kernel}"
        ))?;
        let text = test.transaction(refresh)?;
        ensure!(!text.contains("nvidia-peermem-rust: "), "nothing is wrong any more:\n{text}");
    }
    test.expect_ours("removal of those lines", &version)
}

/// openibd's hook is installed with our package if OFED is there, or with OFED if our package is.
/// An admin's own hook is left alone, and a removed one does not come back.
pub(super) fn openibd_hook(test: &mut Test) -> Result<()> {
    let hook = "/etc/infiniband/pre-stop-hook.sh";
    let text = test.machine.must(&format!(
        "mkdir -p /etc/infiniband; upkeep=/usr/lib/nvidia-peermem-rust/upkeep
        $upkeep refresh; rm {hook}; $upkeep refresh; test ! -e {hook}
        echo admin >{hook}; $upkeep refresh; $upkeep hook; cat {hook}
        rm -r /etc/infiniband; $upkeep refresh; mkdir /etc/infiniband; $upkeep hook; readlink {hook}; {hook}
        dpkg -P nvidia-peermem-rust-dkms >/dev/null; ls /etc/infiniband"
    ))?;
    one_line(&text, &["nvidia-peermem-rust: ", hook, "is left to you"])?;
    ensure!(text.lines().nth(1) == Some("admin"), "{text}");
    ensure!(text.lines().count() == 3 && text.ends_with("/openibd-pre-stop\n"), "{text}");
    Ok(())
}

/// A module that an admin uninstalls for one kernel stays away, until he installs it again.
pub(super) fn uninstalled_by_the_admin(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let dkms = |verb| format!("dkms {verb} -m nvidia-peermem-rust -v {version} -k {kernel} >/dev/null");
    let text = test
        .transaction(&format!("{}; dpkg-trigger --no-await /usr/src; dpkg --configure --pending", dkms("uninstall")))?;
    ensure!(!text.contains("nvidia-peermem-rust: "), "{text}");
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, "dkms uninstall of ours", &got.to_string())?;
    ensure!(matches!(got, Resolved::Nvidia(_)), "the admin wanted NVIDIA's: {got}");
    let again = format!("dkms install -m nvidia-peermem-rust -v {version} -k {kernel}");
    let text = test.machine.must(UPKEEP_REFRESH)?;
    one_line(&text, &["took it away", &again])?;
    let text = test.machine.must(&format!("{UPKEEP_REFRESH} if-changed"))?;
    ensure!(!text.contains("took it away"), "{text}");
    test.machine.must(&format!("{}; {UPKEEP_REFRESH}", dkms("install")))?;
    test.expect_ours("dkms install of ours", &version)?;
    test.machine.must(&format!("test ! -e /var/lib/nvidia-peermem-rust/{kernel}/uninstalled"))?;
    // Other reasons why nothing is built are told to whoever asks, and to nobody else.
    for (state, words) in [
        (
            "mkdir -p /lib/modules/9.9.9/kernel /lib/modules/9.9.9/build/include; touch /etc/dkms/no-autoinstall",
            ["kernel 9.9.9", "no-autoinstall is there"],
        ),
        ("rm -rf /var/lib/dkms/nvidia-peermem-rust", ["DKMS does not know the source", "upkeep register"]),
    ] {
        test.machine.must(state)?;
        one_line(&test.machine.must(UPKEEP_REFRESH)?, &words)?;
        // DKMS takes the source again where it builds.
        let text = test.machine.must(&format!("{state}; {UPKEEP_REFRESH} if-changed"))?;
        ensure!(!text.contains(words[1]), "{text}");
    }
    Ok(())
}

/// A refresh that has to wait says for what.
pub(super) fn one_refresh_at_a_time(test: &mut Test) -> Result<()> {
    let text = test.machine.must(
        "lib=/usr/lib/nvidia-peermem-rust; flock $lib sh -c 'touch /tmp/locked; sleep 2; echo first' &
        until [ -e /tmp/locked ]; do sleep 0.1; done; $lib/upkeep refresh; echo second; wait",
    )?;
    one_line(&text, &["nvidia-peermem-rust: waiting for another refresh"])?;
    ensure!(text.ends_with("first\nsecond\n"), "{text}");
    Ok(())
}

/// No program that DKMS starts has our lock open. One that DKMS leaves running would make every
/// later refresh wait.
pub(super) fn no_program_of_dkms_keeps_the_lock(test: &mut Test) -> Result<()> {
    let kernel = test.kernel()?;
    let text = test.machine.must(&format!(
        "printf '#!/bin/sh\nls -l /proc/self/fd >>/tmp/open; case $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        /usr/lib/nvidia-peermem-rust/upkeep refresh >/dev/null; cat /tmp/open"
    ))?;
    ensure!(text.contains("/dev/null") && !text.contains("nvidia-peermem-rust"), "{text}");
    Ok(())
}

/// A tool is missing, as in a container, or after a forced installation. One line names the tool,
/// instead of the shell's own message, and the former module stays.
pub(super) fn a_tool_is_missing(test: &mut Test) -> Result<()> {
    let version = test.version.clone();
    for tool in ["dkms", "depmod", "modinfo", "make"] {
        let said = test.machine.run(&format!(
            "file=$(command -v {tool}); mv $file $file.away
            code=0; /usr/lib/nvidia-peermem-rust/upkeep refresh 2>&1 || code=$?
            mv $file.away $file; exit $code"
        ))?;
        ensure!(!said.ok && said.text.trim().lines().count() == 1, "{tool}: {}", said.text);
        one_line(&said.text, &["nvidia-peermem-rust: nothing is built: this system has no ", tool])?;
        test.expect_ours(&format!("a refresh without {tool}"), &version)?;
    }
    Ok(())
}

/// Checks that NVIDIA's file is back, and nothing of ours is left.
pub(super) fn gone(test: &mut Test, action: &str, verb: &str) -> Result<()> {
    test.transaction(&format!("dpkg {verb} nvidia-peermem-rust-dkms"))?;
    let kernel = test.kernel()?;
    let got = test.machine.resolved(&kernel)?;
    test.row(&kernel, action, &got.to_string())?;
    ensure!(
        matches!(&got, Resolved::Nvidia(file) if file.starts_with("nvidia-peermem.ko")),
        "NVIDIA's file is not back: {got}"
    );
    // The admin's configuration says whether a unit is enabled, and stays until the purge.
    let units = if verb == "-r" { "! -path '*/systemd/*'" } else { "" };
    let left = test.machine.must(&format!("find / -xdev \\( -name '*nvidia-peermem-rust*' -o -lname '*nvidia-peermem-rust*' \\) ! -path '{DEBS}/*' ! -path '/srv/*' ! -path '/home/*' ! -path '/var/lib/dpkg/*' {units}"))?;
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

pub(super) fn removed(test: &mut Test) -> Result<()> {
    gone(test, "removal of ours", "-r")
}

pub(super) fn purged(test: &mut Test) -> Result<()> {
    gone(test, "purge of ours", "-P")
}

/// dpkg runs no prerm in this case. What an upgrade kept is removed, too.
pub(super) fn removed_while_unpacked(test: &mut Test) -> Result<()> {
    test.machine.must(&format!(
        "mkdir -p /etc/infiniband; /usr/lib/nvidia-peermem-rust/upkeep hook; dpkg --unpack {}",
        ours(&test.version)
    ))?;
    gone(test, "removal of ours, unpacked but not configured", "-r")
}
