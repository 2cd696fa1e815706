// SPDX-License-Identifier: GPL-2.0

//! Boots two machines joined by a cable at the same time. When one is lost, the other soon stops,
//! too.

use anyhow::{anyhow, Context, Result};
use lab::artefacts::{Built, Kind};
use lab::cable::{Cable, ROLES};
use lab::ctx::Lab;
use lab::machine::{Boot, Report};
use std::fs;

/// Boots both machines. Returns their reports in the order of `ROLES`, with tests named
/// `<boot>-<role>: …`.
pub fn run(lab: &Lab, built: &Built, kind: Kind, boot: &Boot) -> Result<Vec<Report>> {
    // The folder is outside the checkout, because the path of a socket can have little more than a
    // hundred characters.
    let dir = std::env::temp_dir().join(format!("nvpm-{}-{}", std::process::id(), boot.name.replace('/', "-")));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let cables = Cable::ends(&dir);
    let reports = std::thread::scope(|scope| {
        let machines: Vec<_> = ROLES
            .iter()
            .zip(cables)
            .map(|(name, cable)| {
                let mut boot = Boot { name: format!("{}-{name}", boot.name), ..boot.clone() };
                boot.append.push(format!("guest.role={name}"));
                boot.cable = Some(cable.clone());
                scope.spawn(move || {
                    let report = boot.run(lab, built, kind);
                    if let Err(e) = &report {
                        cable.lose(&format!("{e:#}"));
                    }
                    report
                })
            })
            .collect();
        machines
            .into_iter()
            .map(|m| m.join().unwrap_or_else(|_| Err(anyhow!("the lab itself panicked"))))
            .collect::<Result<Vec<Report>>>()
    });
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    reports
}
