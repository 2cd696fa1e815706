// SPDX-License-Identifier: GPL-2.0
//! Breaks the machine in one way at a time. `peermemctl doctor` must name what is broken, with a
//! fix, and exit with 1 or 2. On an intact machine it must find nothing and exit with 0. The
//! situations have the names of recorded machines (tools/peermemctl/tests/trees).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use nix::sys::resource::{setrlimit, Resource, RLIM_INFINITY};
use serde_json::{json, Value};

use crate::common::{Bench, MIB};
use crate::gpu;
use crate::init::run;
use crate::lab;
use crate::machine::{self, Level, Mode, RDMA_DEVICE};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::{skip, Env, NvidiaC, Suite, Test};

pub fn suite() -> Suite {
    let tests = [
        ("nothing_loaded", Level::Bare, nothing_loaded as fn(&Env) -> Result<()>),
        ("not_loaded", Level::Devices, not_loaded),
        ("name_taken", Level::Devices, name_taken),
        ("devices_forbidden", Level::Peermem(Mode::Persistent), devices_forbidden),
        ("loaded", Level::Peermem(Mode::Persistent), loaded),
    ];
    let means = NvidiaC::Skip("it looks for ours");
    Suite {
        name: "doctor",
        tests: tests.into_iter().map(|(name, level, f)| Test::new(name, level, f).nvidia_c(means).limit(600)).collect(),
    }
}

const AUTOLOAD: &str = "/etc/modules-load.d/nvidia-peermem.conf";
const OPTIONS: &str = "/etc/modprobe.d/peermem.conf";

/// Does what an admin of a working machine has done. All processes that this one starts may lock
/// all memory.
fn configured() -> Result<()> {
    for dir in ["/etc/modules-load.d", "/etc/modprobe.d"] {
        fs::create_dir_all(dir)?;
    }
    fs::write(AUTOLOAD, "nvidia-peermem\n")?;
    let _ = fs::remove_file(OPTIONS);
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).context("memlock")
}

/// The answers of doctor about the recorded machines that this suite makes, too.
const SITUATIONS: &str = include_str!("../../../../tools/peermemctl/tests/situations/live.json");
/// The kernel on which those machines were recorded.
const RECORDED: &str = "7.2.13";

/// Pairs of cures that doctor gives for the same finding: one on the recorded machines, which are
/// bare metal, and one in the lab, which is a virtual machine.
const CURES: [(&str, &str); 2] = [
    ("plug in the cable", "its link is the matter of the host of this virtual machine"),
    (
        "switch on Resizable BAR / Above 4G Decoding in the firmware, which makes BAR1 as large as the memory",
        "have the hypervisor of this virtual machine give the GPU a larger BAR1",
    ),
];

/// Checks that doctor now reports what it said of the recorded machine: exit code, finding, message
/// and fix, or no finding at all. Consequences of that finding are ignored.
fn says(situation: &str) -> Result<()> {
    // The situations are about peer memory. The lab's rxe also has dma-buf, which serves other
    // programs.
    let args: &[&str] = if situation == "no-api" { &["doctor"] } else { &["doctor", "--for", "verbs"] };
    says_so(situation, peermem::peermemctl_json(args)?)
}

/// Checks a report that doctor has given already, and its exit code.
fn says_so(situation: &str, (report, code): (Value, Option<i32>)) -> Result<()> {
    let rows: Vec<Value> = serde_json::from_str(SITUATIONS)?;
    let row = rows
        .iter()
        .find(|row| row["tree"] == situation)
        .with_context(|| format!("tools/peermemctl/tests/situations/live.json has no {situation}"))?;
    let sections = report["sections"].as_array().context("no sections")?;
    let checks = sections.iter().flat_map(|s| s["checks"].as_array().into_iter().flatten());
    // Findings about applications follow from the others.
    let follows =
        |c: &Value| c["id"].as_str().is_some_and(|id| id.starts_with("consumers.")) && c["follows"].is_string();
    let found: Vec<&Value> =
        checks.filter(|c| matches!(c["level"].as_str(), Some("WARN" | "FAIL")) && !follows(c)).collect();
    let name = |c: &Value| format!("{} {}", c["level"].as_str().unwrap_or("?"), c["id"].as_str().unwrap_or("?"));
    let names: BTreeSet<String> = found.iter().map(|c| name(c)).collect();
    let also = row["also"].as_array().context("no list of further findings")?;
    let listed = |n: &String| row["finding"] == n.as_str() || also.iter().any(|other| other == n.as_str());
    ensure!(names.iter().all(listed), "{situation}: found {names:?}, its record has fewer: {found:?}");
    ensure!(row["exit"] == json!(code), "{situation}: exit {code:?}, wanted {}; found {found:?}", row["exit"]);
    let Some(finding) = row["finding"].as_str() else {
        return Ok(());
    };
    let Some(check) = found.iter().find(|c| name(c) == finding) else {
        bail!("{situation}: no {finding} in {names:?}");
    };
    println!("{situation}: {finding}: {} | {}", check["message"], check["fix"]);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("read osrelease")?;
    for what in ["message", "fix"] {
        let mut wanted = row[what].as_str().unwrap_or_default().replace(RECORDED, release.trim());
        for (bare_metal, virtual_machine) in CURES {
            wanted = wanted.replace(bare_metal, virtual_machine);
        }
        ensure!(check[what] == wanted, "{situation}: {what} is {}, wanted {wanted:?}", check[what]);
    }
    Ok(())
}

fn nothing_loaded(_: &Env) -> Result<()> {
    configured()?;
    says("nothing-loaded")?;
    modules::modprobe("nvidia", &[])?;
    says("no-rdma-core")?;
    if machine::peer_memory_core()? == "ib_uverbs" {
        modules::modprobe("ib_core", &[])?;
        says("api-not-loaded")?;
        machine::unload_rdma()?;
    }
    machine::load_mainline_rdma(&[])?;
    says("no-api")?;
    machine::unload_rdma()?;
    modules::rmmod("nvidia")?;
    machine::load_rdma()?;
    says("driver-not-loaded")
}

fn not_loaded(_: &Env) -> Result<()> {
    configured()?;
    says("module-not-loaded")?;
    for (situation, options) in [
        ("parameter-value", "options nvidia-peermem persistent_api_support=2"),
        ("parameter-unknown", "options nvidia-peermem peermem_mode=1"),
        ("plain-client", "options nvidia-peermem peerdirect_support=1"),
        ("blacklisted", "blacklist nvidia-peermem"),
    ] {
        fs::write(OPTIONS, format!("{options}\n"))?;
        if !options.starts_with("blacklist") {
            // The first module is refused.
            modules::try_modprobe("nvidia-peermem", &[])?;
        }
        let said = says(situation);
        if modules::loaded(PEERMEM)? {
            modules::rmmod(PEERMEM)?;
        }
        fs::remove_file(OPTIONS)?;
        said?;
    }
    Ok(())
}

fn name_taken(_: &Env) -> Result<()> {
    configured()?;
    modules::modprobe("lab_second_client", &["name=nv_mem"])?;
    let said = if lab::has_memory_peers() {
        says("name-taken")
    } else {
        skip("on this kernel the core takes two clients of one name");
        Ok(())
    };
    modules::rmmod("lab_second_client")?;
    said
}

/// Checks what doctor reports while a file is missing from its place.
fn without(situation: &str, path: &str) -> Result<()> {
    let away = "/dev/.away";
    fs::rename(path, away).with_context(|| format!("move {path} away"))?;
    let said = says(situation);
    fs::rename(away, path).with_context(|| format!("move {path} back"))?;
    said
}

/// Runs doctor in a container that was not given the devices.
fn devices_forbidden(_: &Env) -> Result<()> {
    const CGROUPS: &str = "/dev/.cgroup";
    if !fs::read_to_string("/proc/cgroups").is_ok_and(|all| all.contains("devices")) {
        skip("this kernel has no cgroup of devices");
        return Ok(());
    }
    configured()?;
    fs::create_dir_all(CGROUPS)?;
    run("mount", &["-t", "cgroup", "-o", "devices", "none", CGROUPS])?;
    let container = format!("{CGROUPS}/container");
    fs::create_dir(&container)?;
    fs::write(format!("{container}/devices.deny"), "a").context("deny all devices")?;
    for kept in ["c 1:* rwm", "c 5:* rwm"] {
        fs::write(format!("{container}/devices.allow"), kept)?;
    }
    let me = std::process::id().to_string();
    fs::write(format!("{container}/cgroup.procs"), &me).context("enter the container")?;
    let said = says("devices-forbidden");
    fs::write(format!("{CGROUPS}/cgroup.procs"), &me).context("leave the container")?;
    fs::remove_dir(&container)?;
    run("umount", &[CGROUPS])?;
    said
}

/// Makes the module forget what it counted, by loading it anew.
fn forget() -> Result<()> {
    modules::rmmod(PEERMEM)?;
    modules::modprobe("nvidia-peermem", Mode::Persistent.parameters(false)).map(drop)
}

fn loaded(_: &Env) -> Result<()> {
    configured()?;
    says("healthy-idle")?;
    let bench = Bench::new()?;
    let lab = gpu::lab()?;
    let (memory, mr) = bench.registered(4 * MIB)?;
    says("healthy")?;
    mr.dereg()?;
    memory.free()?;

    without("no-gpu-nodes", "/dev/nvidiactl")?;
    without("no-rdma-nodes", "/dev/infiniband")?;
    fs::remove_file(AUTOLOAD)?;
    says("fresh")?;
    configured()?;
    setrlimit(Resource::RLIMIT_MEMLOCK, 65536, 65536)?;
    says_so("memlock-users", peermem::doctor_with_memlock()?)?;
    configured()?;

    run("ip", &["link", "set", "eth0", "down"])?;
    machine::wait_for("a port that is down", || port_state() != "ACTIVE")?;
    let said = says("port-down");
    run("ip", &["link", "set", "eth0", "up"])?;
    machine::wait_for("a port that is up", || port_state() == "ACTIVE")?;
    said?;

    let memory = bench.cuda.alloc(216 * MIB)?;
    let mr = bench.reg(memory.va(), 216 * MIB)?;
    says("bar1-nearly-full")?;
    mr.dereg()?;
    memory.free()?;

    let memory = bench.cuda.alloc(MIB)?;
    lab.fault("persistent_errno", libc::EBUSY as u64)?;
    bench.refused("busy", memory.va(), MIB)?;
    lab.reset_faults()?;
    says("refused-busy")?;
    forget()?;
    lab.fault_n("persistent_put_errno", libc::EIO as u64, 1)?;
    bench.reg(memory.va(), MIB)?.dereg()?;
    says("put-errors")?;
    drop((memory, bench));
    lab.end_lost_pins()?;
    forget()?;
    says("healthy-idle")?;
    run("rdma", &["link", "delete", RDMA_DEVICE])?;
    let said = says("no-rdma-device");
    machine::load_rdma()?;
    said
}

fn port_state() -> String {
    let file = Path::new("/sys/class/infiniband").join(RDMA_DEVICE).join("ports/1/state");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split(": ").nth(1).unwrap_or_default().trim().to_string()
}
