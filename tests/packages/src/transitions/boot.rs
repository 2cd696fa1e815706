// SPDX-License-Identifier: GPL-2.0

//! Tests the service that looks at each boot whether the module is still right.

use super::test::{one_line, says_why, Test};
use crate::stubs::{deb, OFED};
use anyhow::{ensure, Result};

/// Prints the state of the service at boot, and its messages.
const SERVICE: &str = "unit=nvidia-peermem-rust.service
    systemctl show -p Result,ActiveState $unit
    started=$(systemctl show -p ExecMainStartTimestampMonotonic --value $unit)
    for target in local-fs sysinit; do
        [ $started -gt $(systemctl show -p ActiveEnterTimestampMonotonic --value $target.target) ] && echo after $target
    done
    systemctl show -p After $unit | grep -o dkms.service
    journalctl -q -o cat -u $unit | grep nvidia-peermem-rust: || true";

/// Checks that it ran after what it needs, ended well, and made nobody wait. Returns its messages.
fn service_ran(test: &Test) -> Result<Vec<String>> {
    let text = test.machine.boot(SERVICE)?;
    let lines: Vec<&str> = text.lines().collect();
    let (status, said) = lines.split_at(5.min(lines.len()));
    for want in ["Result=success", "ActiveState=inactive", "after local-fs", "after sysinit", "dkms.service"] {
        ensure!(status.contains(&want), "no {want}:\n{text}");
    }
    Ok(said.iter().map(|line| (*line).to_string()).collect())
}

/// systemd runs the service at each boot. It is silent where nothing changed, and fails no boot.
pub(super) fn booted(test: &mut Test) -> Result<()> {
    let (kernel, version) = (test.kernel()?, test.version());
    let said = service_ran(test)?;
    ensure!(said.is_empty(), "nothing had changed: {said:?}");
    test.expect_ours("a boot", &version)?;
    // This build fails.
    test.machine.must(&format!(
        "printf '#!/bin/sh\ncase $1 in status) exec /usr/sbin/dkms \"$@\" ;; esac; echo \"error: of the test\"; exit 1\n' >/usr/local/sbin/dkms
        chmod +x /usr/local/sbin/dkms
        cp /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers /srv/
        sed -i 's/^0x......../0x12345678/' /usr/src/ofa_kernel/$(uname -m)/{kernel}/Module.symvers"
    ))?;
    let said = service_ran(test)?;
    says_why(&said.join("\n"), "of the test")?;
    test.machine
        .must(&format!("mv /srv/Module.symvers /usr/src/ofa_kernel/$(uname -m)/{kernel}/; rm /usr/local/sbin/dkms"))?;
    test.expect_ours("a boot at which a build fails", &version)?;
    // There is neither GPU driver nor OFED.
    test.transaction("dpkg -P --no-triggers nvidia-dkms mlnx-ofed-kernel-dkms; rm -rf /usr/src/ofa_kernel")?;
    let said = service_ran(test)?;
    ensure!(said.len() <= 1, "more than a line: {said:?}");
    Ok(())
}

/// Something changed without a package, and so without a trigger.
pub(super) fn booted_after_a_change(test: &mut Test) -> Result<()> {
    let version = test.version();
    test.transaction(&format!("dpkg -i --no-triggers {}", deb("mlnx-ofed-kernel", OFED[1])))?;
    let said = service_ran(test)?.join("\n");
    one_line(&said, &["nvidia-peermem-rust: building for kernel"])?;
    one_line(&said, &["nvidia-peermem-rust: kernel ", "has a new module"])?;
    test.expect_ours("a boot after a change of OFED without a trigger", &version)
}
