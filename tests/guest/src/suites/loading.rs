// SPDX-License-Identifier: GPL-2.0
//! Tests the module's code itself in this kernel: it is loaded and unloaded repeatedly, and the
//! kernel patches it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::machine::Level;
use crate::modules::{self, PEERMEM};
use crate::test::{skip, Env, Suite, Test};

/// The number of loads of `again_and_again`, unless `guest.loads=` names another.
const LOADS: u32 = 100;

pub fn suite() -> Suite {
    Suite {
        name: "loading",
        tests: vec![
            Test::new("kernel_patches_returns", Level::Any, kernel_patches_returns),
            Test::new("installed_wins", Level::Devices, installed_wins),
            Test::new("loaded_by_udev", Level::Devices, loaded_by_udev),
            Test::new("again_and_again", Level::Devices, again_and_again).limit(300),
        ],
    }
}

/// With `guest.retbleed=TEXT`, this boot is for a kernel that patches returns (and calls) of
/// modules, so it must be doing so.
fn kernel_patches_returns(env: &Env) -> Result<()> {
    const FILE: &str = "/sys/devices/system/cpu/vulnerabilities/retbleed";
    let Some(wanted) = env.values.get("retbleed") else {
        skip("this boot names no mitigation (guest.retbleed=)");
        return Ok(());
    };
    let said = fs::read_to_string(FILE).with_context(|| format!("read {FILE}"))?;
    println!("retbleed: {}", said.trim());
    ensure!(said.contains(wanted.as_str()), "the kernel says {:?}, wanted {wanted:?}", said.trim());
    Ok(())
}

/// Checks that modprobe loads ours where `make install` put it into the image (`guest.installed`)
/// beside NVIDIA's file of the same name, which is at its usual place.
pub(super) fn installed_wins(env: &Env) -> Result<()> {
    const OURS: &str = "/updates/nvidia-peermem-rust/";
    if !env.values.contains_key("installed") {
        skip("this boot's image was not made by make install (guest.installed)");
        return Ok(());
    }
    let file = modules::file_of("nvidia-peermem")?;
    ensure!(file.to_string_lossy().contains(OURS), "modprobe would load {}", file.display());
    println!("{}", file.display());
    modules::modprobe("nvidia-peermem", &[])?;
    // NVIDIA's module has no such folder.
    ensure!(Path::new("/proc/driver/nvidia-peermem/stats").exists(), "another module was loaded");
    modules::rmmod(PEERMEM)
}

/// This image has the packages' udev rule and the distribution's udevd. Each neighbour's event
/// loads the module, and a blacklist prevents that.
fn loaded_by_udev(env: &Env) -> Result<()> {
    if !env.values.contains_key("installed") {
        skip("this boot's image was not made by make install (guest.installed)");
        return Ok(());
    }
    let said = |program: &str, args: &[&str]| -> Result<()> {
        let status = Command::new(program).args(args).status().with_context(|| format!("start {program}"))?;
        ensure!(status.success(), "{program} {args:?}: {status}");
        Ok(())
    };
    // The kernel sends the event once more, as udev makes it do for each device when a machine
    // starts.
    let event = |of: &Path| -> Result<bool> {
        fs::write(of.join("uevent"), "add").with_context(|| format!("an event of {}", of.display()))?;
        said("udevadm", &["settle", "--timeout=60"])?;
        modules::loaded(PEERMEM)
    };
    let device = fs::read_dir("/sys/class/infiniband")?.next().context("no RDMA device")??.path();
    said("/usr/lib/systemd/systemd-udevd", &["--daemon"])?;
    for neighbour in [device.as_path(), Path::new("/sys/module/nvidia")] {
        ensure!(event(neighbour)?, "the event of {} did not load the module", neighbour.display());
        modules::rmmod(PEERMEM)?;
    }
    const OFF: &str = "/etc/modprobe.d/off.conf";
    fs::write(OFF, "blacklist nvidia_peermem\n")?;
    // udevd looks for changes only every three seconds.
    said("udevadm", &["control", "--reload"])?;
    let loaded = event(&device)?;
    fs::remove_file(OFF)?;
    said("udevadm", &["control", "--exit"])?;
    ensure!(!loaded, "the module was loaded in spite of a blacklist");
    Ok(())
}

pub(super) fn again_and_again(env: &Env) -> Result<()> {
    let loads = env.number("loads", LOADS)?;
    ensure!(loads > 0, "guest.loads=0: nothing would be tested");
    println!("{loads} loads");
    for round in 1..=loads {
        modules::modprobe("nvidia-peermem", &[]).with_context(|| format!("round {round}"))?;
        ensure!(modules::use_count(PEERMEM)? == Some(0), "round {round}: users right after loading");
        modules::rmmod(PEERMEM).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}
