// SPDX-License-Identifier: GPL-2.0

//! Kills transactions, and fills places or makes them read-only.

use super::package::gone;
use super::test::{
    another_ofed, nothing_half_installed, one_line, says_why, started, Test, QUICK_MAKE, UPKEEP_REFRESH,
};
use crate::machine::{Built, Resolved};
use crate::stubs::{ours, NEXT};
use anyhow::{ensure, Context, Result};

/// The exit code of who is killed by signal 9.
const KILLED: i32 = 128 + 9;

/// dpkg is killed while it builds; `dpkg --configure --pending` ends what it began.
pub(super) fn dpkg_interrupted(test: &mut Test) -> Result<()> {
    let version = test.version();
    let said = test.act(&format!(
        "dpkg -i {} >/tmp/log 2>&1 & pid=$!
        until pgrep -x rustc >/dev/null 2>&1 || [ -n \"$(grep -ls '^rustc' /proc/[0-9]*/comm)\" ]; do
            kill -0 $pid 2>/dev/null || {{ cat /tmp/log; exit 1; }}
            sleep 0.2
        done
        kill -9 $pid; code=0; wait $pid || code=$?
        for dir in /proc/[0-9]*; do
            [ ${{dir#/proc/}} = $$ ] || [ ${{dir#/proc/}} = 1 ] || kill -9 ${{dir#/proc/}} 2>/dev/null || true
        done
        exit $code",
        ours(NEXT)
    ))?;
    ensure!(said.code == KILLED, "dpkg was not killed:\n{}", said.text);
    test.expect_ours("upgrade of ours, dpkg killed in it", &version)?;
    test.transaction("dpkg --configure --pending")?;
    test.expect_ours("dpkg --configure --pending after it", NEXT)
}

/// The disk is full before the build ends. What existed before stays, and works.
pub(super) fn disk_full(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.machine.disk = Some(12);
    let said = test.act(&format!(
        "dpkg -i {}
        k=$(uname -r); file=$(modinfo -k $k -n nvidia-peermem); echo resolved $file $(modinfo -F version $file)",
        ours(NEXT)
    ))?;
    test.machine.disk = None;
    ensure!(said.ok, "{}", said.text);
    says_why(&said.text, "No space left")?;
    one_line(&said.text, &["resolved /usr/lib/nvidia-peermem-rust/", &version])?;
    let kernel = test.kernel()?;
    test.row(&kernel, "upgrade of ours, disk full", &format!("ours, {version}"))?;
    Ok(())
}

/// depmod's configuration stays as it was if the new text does not fit on the disk.
pub(super) fn disk_full_while_configuring(test: &mut Test) -> Result<()> {
    test.machine.disk = Some(8);
    let said = test.machine.run(
        "conf=/usr/lib/depmod.d/00-nvidia-peermem-rust.conf; cp $conf /tmp/
        mkdir /usr/lib/nvidia-peermem-rust/9.9.9; : >/usr/lib/nvidia-peermem-rust/9.9.9/nvidia-peermem.ko
        cat /dev/zero >/fill 2>/dev/null || true
        if /usr/lib/nvidia-peermem-rust/upkeep removed; then exit 1; fi
        cmp $conf /tmp/00-nvidia-peermem-rust.conf; ls /usr/lib/depmod.d",
    );
    test.machine.disk = None;
    let said = said?;
    ensure!(said.ok && !said.text.contains(".new\n"), "{}", said.text);
    one_line(&said.text, &["cannot write /lib/depmod.d/00-nvidia-peermem-rust.conf", "No space left on device"])
}

/// A neighbour has changed, but the disk cannot even hold a copy of the module during a build. No
/// build is begun.
pub(super) fn disk_full_at_a_refresh(test: &mut Test) -> Result<()> {
    let kernel = test.kernel()?;
    let version = test.version();
    test.machine.disk = Some(8);
    let said = test.machine.run(&format!(
        "sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
        cat /dev/zero >/fill 2>/dev/null || true
        /usr/lib/nvidia-peermem-rust/upkeep refresh
        file=$(modinfo -k {kernel} -n nvidia-peermem); echo resolved $file $(modinfo -F version $file)
        rm /fill; dkms status -m nvidia-peermem-rust"
    ));
    test.machine.disk = None;
    let said = said?;
    ensure!(said.ok, "{}", said.text);
    one_line(&said.text, &["nvidia-peermem-rust: cannot keep the module of kernel", "make room"])?;
    ensure!(!said.text.contains("cp: "), "{}", said.text);
    one_line(&said.text, &["resolved /usr/lib/nvidia-peermem-rust/", &version])?;
    one_line(&said.text, &[&kernel, "installed"])
}

/// Each place that a build or an installation writes to is full, or cannot be written. One line
/// says so, nothing else fails, and modprobe's choice stays. Where DKMS has built a module and
/// could not install it, the next trigger does.
pub(super) fn a_place_that_is_full_or_read_only(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let full = |dir: &str| {
        format!(
            "cp -a {dir} /tmp/copy; mount -t tmpfs -o size=$(($(du -sk {dir} | cut -f 1) + 512))k full {dir}; cp -a /tmp/copy/. {dir}/; cat /dev/zero >{dir}/fill 2>/dev/null || true"
        )
    };
    let read_only = |dir: &str| format!("mount --bind {dir} {dir}; mount -o remount,bind,ro {dir}");
    let places = [
        ("a full /var/lib/dkms", full("/var/lib/dkms"), "No space left"),
        ("a full /usr/lib/nvidia-peermem-rust", full("/usr/lib/nvidia-peermem-rust"), "No space left"),
        ("a full /tmp", "cat /dev/zero >/tmp/fill 2>/dev/null || true".to_string(), "/tmp"),
        ("a full /run", "cat /dev/zero >/run/fill 2>/dev/null || true".to_string(), "No space left"),
        ("a read-only /usr", read_only("/usr"), "Read-only file system"),
        ("a read-only /var/lib/dkms", read_only("/var/lib/dkms"), "Read-only file system"),
        // DKMS takes the former file away, so there is room for a part of a larger one.
        (
            "a full /lib/modules",
            format!(
                "{QUICK_MAKE}
                head -c 4000000 /dev/urandom >>/srv/nvidia-peermem-rust.ko; {}",
                full(&format!("/lib/modules/{kernel}/updates"))
            ),
            "No space left",
        ),
        ("a read-only /lib/modules", format!("{QUICK_MAKE}\n{}", read_only("/lib/modules")), "Read-only file system"),
        (
            "a read-only folder of /lib/modules",
            format!("{QUICK_MAKE}\n{}", read_only(&format!("/lib/modules/{kernel}/updates"))),
            "Read-only file system",
        ),
    ];
    let layers = test.machine.layers()?;
    for (place, lay, reason) in places {
        let mut at = started(&layers, &version)?;
        let said = at.act(&format!(
            "sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers
            {lay}
            dpkg-trigger --no-await /usr/src; dpkg --configure --pending
            file=$(modinfo -k {kernel} -n nvidia-peermem); echo resolved $file $(modinfo -F version $file)"
        ))?;
        ensure!(said.ok, "{place}: {}", said.text);
        let lines: Vec<&str> = said.text.lines().filter(|line| !line.starts_with("Processing triggers for ")).collect();
        let (last, lines) = lines.split_last().context("it says something")?;
        ensure!(
            last.starts_with("resolved /usr/lib/nvidia-peermem-rust/") && last.ends_with(&version),
            "{place}: {}",
            said.text
        );
        let lines: Vec<&&str> = lines.iter().filter(|line| !line.contains("building for kernel")).collect();
        ensure!(
            lines.len() == 1 && lines[0].starts_with("nvidia-peermem-rust: ") && lines[0].contains(reason),
            "{place}: not one line with {reason}:\n{}",
            said.text
        );
        at.row(&kernel, place, &format!("ours, {version}"))?;
        test.rows.append(&mut at.rows);
        // The folder that was mounted for that script is gone.
        if place.contains("/lib/modules") {
            let text = at.transaction("dpkg-trigger --no-await /usr/src; dpkg --configure --pending")?;
            one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
            let text = at.transaction("dpkg-trigger --no-await /usr/src; dpkg --configure --pending")?;
            ensure!(!text.contains("nvidia-peermem-rust: "), "{place}: it is whole now:\n{text}");
        }
    }
    Ok(())
}

/// A build may fail for a cause that passes without a trigger. `upkeep refresh` by hand tries again and
/// answers each time. Triggers try again only if the cause was a disk, memory or a tool; otherwise
/// they say nothing twice.
pub(super) fn a_build_that_failed_is_tried_again(test: &mut Test) -> Result<()> {
    let (kernel, upkeep) = (test.kernel()?, format!("{UPKEEP_REFRESH} 2>&1"));
    test.machine.must(QUICK_MAKE)?;
    test.machine.must("cp /usr/local/bin/make /srv/good-make")?;
    let fails = |words: &str| {
        format!("sed 's#&& cp .*#\\&\\& {{ echo \"{words}\"; exit 2; }}#' /srv/good-make >/usr/local/bin/make")
    };
    let trigger = "dpkg-trigger --no-await /usr/src; dpkg --configure --pending";
    // All in one boot: the next one forgets.
    let text = test.transaction(&format!(
        "{}; {}; echo ---; {trigger}; echo ---; {upkeep}; echo ---; {upkeep}; echo ---; cp /srv/good-make /usr/local/bin/make; {upkeep}",
        fails("error: of the test"),
        another_ofed(&kernel, 1)
    ))?;
    let parts: Vec<&str> = text.split("---\n").collect();
    ensure!(parts.len() == 5 && !parts[1].contains("nvidia-peermem-rust: "), "nothing has changed:\n{text}");
    for part in [parts[0], parts[2], parts[3]] {
        says_why(part, "of the test")?;
    }
    one_line(parts[4], &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    // A trigger tries what may have passed.
    for (version, cause) in
        [(2, "error: No space left on device"), (3, "sh: 1: gcc: not found"), (4, "gcc: fatal error: Killed signal")]
    {
        let text = test.transaction(&format!(
            "{}; {}; cp /srv/good-make /usr/local/bin/make; {trigger}",
            fails(cause),
            another_ofed(&kernel, version)
        ))?;
        says_why(&text, cause)?;
        one_line(&text, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    }
    Ok(())
}

/// A place at which the machine loses its power: a tool that is called with such words, as a pattern of
/// the shell.
pub(super) struct Place {
    pub(super) says: &'static str,
    tool: &'static str,
    words: String,
}

fn place(says: &'static str, tool: &'static str, words: &str) -> Place {
    Place { says, tool, words: words.to_string() }
}

pub(super) fn dkms(verb: &'static str) -> Place {
    Place { says: verb, tool: "dkms", words: format!("{}' '*", verb.trim_start_matches("dkms ")) }
}

impl Place {
    /// Returns a script in which a transaction runs, and in which everything but the script, which is the
    /// first process, ends at once at this place. Its exit code is the transaction's.
    fn interrupts(&self, transaction: &str) -> String {
        let Self { tool, words, .. } = self;
        format!(
            r#"file=$(command -v {tool}); mkdir -p /srv/kept /srv/real
            cp -a $file /srv/kept/{tool}; cp $(readlink -f $file) /srv/real/{tool}; rm $file
            printf '#!/bin/sh\ncase "$*" in %s) kill -9 -1; kill -9 $$ ;; esac\nexec /srv/real/{tool} "$@"\n' "{words}" >$file; chmod +x $file
            code=0; {transaction} >/tmp/log 2>&1 || code=$?
            [ $code = {KILLED} ] || cat /tmp/log
            rm $file; cp -a /srv/kept/{tool} $file; rm -r /srv/kept /srv/real; exit $code"#
        )
    }
}

/// Returns the places of an upgrade of ours: in `hold`, before and after it has its hard link, and at each
/// call of DKMS.
pub(super) fn of_an_upgrade() -> Vec<Place> {
    let hold = [place("upkeep hold", "ln", "-fL' '*"), place("upkeep hold, linked", "mv", "-T' '*")];
    hold.into_iter().chain(["dkms remove", "dkms add", "dkms build", "dkms install"].map(dkms)).collect()
}

/// Returns the places of a first installation.
pub(super) fn of_an_installation() -> Vec<Place> {
    ["dkms add", "dkms build", "dkms install"].map(dkms).into()
}

/// Returns the places of a removal: before modprobe chooses NVIDIA's file, before ours goes, and where
/// DKMS has taken its file away.
pub(super) fn of_a_removal(kernel: &str) -> Vec<Place> {
    vec![
        place("depmod", "depmod", kernel),
        place("the removal of the links", "rm", &format!("-rf' '/usr/lib/nvidia-peermem-rust/{kernel}")),
        dkms("dkms remove"),
        place("depmod of DKMS", "depmod", "-a' '*"),
    ]
}

/// Loses the power at a place of a transaction.
pub(super) fn interrupt(at: &mut Test, place: &Place, transaction: &str) -> Result<()> {
    let said = at.act(&place.interrupts(transaction))?;
    ensure!(said.code == KILLED, "{transaction} was not killed at {}: {}\n{}", place.says, said.code, said.text);
    Ok(())
}

/// The machine loses its power at each step of an upgrade, of a first installation and of a removal.
/// The former module stays. `dpkg --configure --pending` completes what was begun, after the same command
/// again if dpkg demands it.
pub(super) fn interrupted_at_each_step(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    test.machine.must(QUICK_MAKE)?;
    let ready = test.machine.layers()?;
    let completes = |version: &str| {
        format!("dpkg --configure --pending && [ \"$(dpkg-query -f '${{Status}} ${{Version}}' -W nvidia-peermem-rust-dkms)\" = 'install ok installed {version}-1' ] || dpkg -i {}", ours(version))
    };
    for place in of_an_upgrade() {
        let mut at = started(&ready, &version)?;
        interrupt(&mut at, &place, &format!("dpkg -i {}", ours(NEXT)))?;
        let action = format!("upgrade of ours, power lost at {}", place.says);
        at.expect_ours(&action, &version)?;
        at.transaction(&completes(NEXT))?;
        at.expect_ours(&format!("{action}, and dpkg again"), NEXT)?;
        nothing_half_installed(&at)?;
        test.rows.append(&mut at.rows);
    }
    // In postrm.
    let last = place("the removal of what is left", "rm", "-rf' '/usr/lib/nvidia-peermem-rust' '*");
    for place in of_a_removal(&kernel).into_iter().chain([last]) {
        let mut at = started(&ready, &version)?;
        interrupt(&mut at, &place, "dpkg -r nvidia-peermem-rust-dkms")?;
        let action = format!("removal of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        gone(&mut at, &format!("{action}, and dpkg again"), "-r")?;
        nothing_half_installed(&at)?;
        test.rows.append(&mut at.rows);
    }
    test.machine.must("dpkg -P nvidia-peermem-rust-dkms")?;
    let without = test.machine.layers()?;
    for place in of_an_installation() {
        let mut at = started(&without, &version)?;
        interrupt(&mut at, &place, &format!("dpkg -i {}", ours(&version)))?;
        let action = format!("first installation of ours, power lost at {}", place.says);
        something_is_there(&mut at, &action)?;
        at.transaction(&completes(&version))?;
        at.expect_ours(&format!("{action}, and dpkg again"), &version)?;
        nothing_half_installed(&at)?;
        test.rows.append(&mut at.rows);
    }
    Ok(())
}

/// Checks that modprobe finds a module whole, ours or NVIDIA's.
pub(super) fn something_is_there(test: &mut Test, action: &str) -> Result<()> {
    for kernel in test.machine.kernels()? {
        let got = test.machine.resolved(&kernel)?;
        test.row(&kernel, action, &got.to_string())?;
        let good = matches!(got, Resolved::Nvidia(_) | Resolved::Ours { built: Built::Whole, .. });
        ensure!(good, "after {action} modprobe on {kernel} takes {got}");
    }
    Ok(())
}
