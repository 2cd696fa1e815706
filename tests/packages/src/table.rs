// SPDX-License-Identifier: GPL-2.0

//! Writes the pages of docs/results.

use crate::transitions::Row;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// The page of what modprobe loads.
pub const FILE: &str = "packages.md";

const HEAD: &str = "# What modprobe loads

Written by `make soak ONLY=packages`: machines made of Debian packages, with stand-ins for NVIDIA's
driver and DOCA-OFED, and the real dpkg, rpm, dkms, depmod and modprobe. Nothing is loaded there.
\"exit\" is the exit code of dpkg or rpm, 137 where it was killed, and \"–\" where neither ran; \"initrd\"
says whether the kernel has one, which tiny-initramfs makes there. In many rows a module that is there
stands in for each build, which would take a minute: with the version and the symbol versions that the
build would give it.

| distribution | rustc | kernel | after | exit | initrd | `modprobe nvidia-peermem` takes |
|---|---|---|---|---|---|---|
";

/// Returns a line of the page.
pub fn line(distribution: &str, rustc: &str, row: &Row) -> String {
    let exit = row.exit.map_or_else(|| "–".to_string(), |code| code.to_string());
    let initrd = if row.initrd { "yes" } else { "no" };
    let Row { kernel, action, takes, .. } = row;
    format!("| {distribution} | {rustc} | {kernel} | {action} | {exit} | {initrd} | {takes} |\n")
}

/// Writes a page.
pub fn write(results: &Path, name: &str, text: &str) -> Result<()> {
    let file = results.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the page with these lines.
pub fn page(lines: &[String]) -> String {
    HEAD.to_string() + &lines.concat()
}

#[cfg(test)]
mod tests {
    use super::{line, page};
    use crate::transitions::Row;

    #[test]
    fn a_line_per_row() {
        let row = |exit| Row {
            kernel: "6.12".into(),
            action: "removal of ours".into(),
            exit,
            initrd: true,
            takes: "NVIDIA's".into(),
        };
        let lines = [line("trixie", "1.85.0", &row(Some(0))), line("trixie", "1.85.0", &row(None))];
        assert!(page(&lines).ends_with(
            "|---|---|---|---|---|---|---|\n| trixie | 1.85.0 | 6.12 | removal of ours | 0 | yes | NVIDIA's |\n| trixie | 1.85.0 | 6.12 | removal of ours | – | yes | NVIDIA's |\n"
        ));
    }
}
