// SPDX-License-Identifier: GPL-2.0
//! Walks every cure over every kind of machine: each recorded machine is put into each setting, and what
//! doctor tells to do there must fit it. A command that helps on a bare host with an mlx5 NIC does
//! nothing, or harm, elsewhere.

use peermemctl::doctor::{self, Report};
use peermemctl::environment::Environment;
use peermemctl::machine::Machine;
use peermemctl::recorded;
use peermemctl::root::Root;
use peermemctl::setting::Setting;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Drivers of RDMA devices, with the PCI vendor of their NICs.
const NICS: [(&str, u16); 7] = [
    ("mlx5_ib", 0x15b3),
    ("bnxt_re", 0x14e4),
    ("efa", 0x1d0f),
    ("irdma", 0x8086),
    ("erdma", 0x1ded),
    ("mana_ib", 0x1414),
    ("ionic_rdma", 0x1dd8),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gpu {
    /// As the tree has it.
    Own,
    Geforce,
    Gb10,
    Orin,
}

/// A kind of machine.
#[derive(Clone, Copy, Debug)]
struct Kind {
    arm: bool,
    virtual_machine: bool,
    container: bool,
    driver_container: bool,
    by_namespace: bool,
    /// The node's system is an image that is not changed in place.
    image: bool,
    nic: Option<(&'static str, u16)>,
    gpu: Gpu,
}

/// Each combination of what software can be, with this NIC and GPU.
fn kinds(nic: Option<(&'static str, u16)>, gpu: Gpu) -> Vec<Kind> {
    let of = |bits: u32| Kind {
        arm: bits & 1 != 0,
        virtual_machine: bits & 2 != 0,
        container: bits & 4 != 0,
        driver_container: bits & 8 != 0,
        by_namespace: bits & 16 != 0,
        image: bits & 32 != 0,
        nic,
        gpu,
    };
    // An image on bare metal and in a virtual machine: nothing else changes with it.
    (0..32).chain([32, 34]).map(of).collect()
}

/// Makes a machine one of a kind, as far as software goes.
fn become_one_of(machine: &mut Machine, kind: Kind) {
    let seen = |it: bool| it.then(|| "the walk".to_owned());
    machine.setting = Setting {
        architecture: Some(if kind.arm { "aarch64" } else { "x86_64" }.to_owned()),
        virtual_machine: seen(kind.virtual_machine),
        container: seen(kind.container),
        driver_container: kind.driver_container,
        ofed_container: kind.driver_container,
        rdma_by_namespace: kind.by_namespace,
        fixed_system: seen(kind.image),
        tegra: kind.gpu == Gpu::Orin,
        ..Setting::default()
    };
    // Then it is in the container, and not on the host.
    if kind.driver_container || kind.image {
        machine.file = None;
    }
}

/// Reads a machine with another NIC and another GPU.
fn look<'a>(root: &'a Root, nic: Option<(&'static str, u16)>, gpu: Gpu) -> Machine<'a> {
    let mut machine = Machine::look(root);
    if let Some((module, vendor)) = nic {
        for device in machine.rdma.iter_mut().filter(|device| !device.software) {
            device.module = Some(module.to_owned());
        }
        for device in machine.devices.iter_mut().filter(|device| device.kind() >> 8 == 2) {
            // The tree's is the driver of another maker.
            (device.vendor, device.driver) = (vendor, None);
        }
        machine.drivers.clear();
    }
    let is_gpu = |vendor: u16, class: u32| vendor == 0x10de && class >> 8 == 3;
    match gpu {
        Gpu::Own => {}
        Gpu::Orin => machine.devices.retain(|device| !is_gpu(device.vendor, device.kind())),
        Gpu::Geforce | Gpu::Gb10 => {
            let id = if gpu == Gpu::Gb10 { 0x2e12 } else { 0x2b85 };
            machine
                .devices
                .iter_mut()
                .filter(|device| is_gpu(device.vendor, device.kind()))
                .for_each(|device| device.device = id);
        }
    }
    machine
}

/// Commands that change the kernel, its modules, its boot or its devices.
const OF_HOST: [&str; 16] = [
    "modprobe ",
    "rmmod ",
    "make ",
    "depmod",
    "dkms ",
    "setpci",
    "/etc/modprobe.d",
    "modules-load.d",
    "doca-ofed",
    "reboot",
    "systemctl ",
    "iommu.passthrough",
    "iommu=pt",
    "/sys/bus/pci/drivers",
    "nvidia-smi -r",
    "mokutil",
];

/// Returns what is wrong with a cure for a machine of a kind.
fn misfits(kind: Kind, id: &str, fix: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| fix.contains(word));
    let elsewhere =
        has(&["not in this container", "come from containers", "comes from a container", "virtual machine"]);
    if fix.trim().is_empty() {
        return Some("it is empty");
    }
    if kind.container && has(&OF_HOST) && !elsewhere && !has(&["on the node"]) {
        return Some("no container can do that");
    }
    if kind.driver_container && has(&["make ", "modprobe nvidia", "depmod", "doca-ofed", "nvidia-open"]) {
        return Some("the modules of this node come from containers");
    }
    if kind.image
        && has(&["make &&", "make install", "modprobe nvidia-peermem", "modules-load.d"])
        && !has(&["in place"])
    {
        return Some("the system of this node is an image");
    }
    if kind.driver_container && id == "limits.dkms" {
        return Some("DKMS builds nothing for containers");
    }
    if kind.virtual_machine
        && has(&["setpci", "firmware", " slot ", " cable", "Resizable BAR"])
        // The GPU driver's own firmware is a file of the guest's.
        && !has(&["virtual machine", "/lib/firmware"])
    {
        return Some("the hypervisor's host has the hardware");
    }
    if kind.arm && has(&["intel_iommu", "iommu=pt", "amd_iommu"]) {
        return Some("an option of x86");
    }
    if !kind.arm && has(&["iommu.passthrough"]) {
        return Some("an option of arm64");
    }
    let mlx5 = kind.nic.is_none_or(|(module, _)| module == "mlx5_ib");
    if !mlx5 && has(&["doca-ofed", "mlxfwreset", "modprobe mlx5_ib", "mlx5_ib's", "ConnectX"]) {
        return Some("for NICs of Mellanox only");
    }
    if kind.gpu != Gpu::Own && has(&["modprobe nvidia-peermem", "make ", "doca-ofed", "use dma-buf", "modules-load.d"])
    {
        return Some("no NIC gets memory of these GPUs");
    }
    None
}

fn trees() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn every_cure_fits_every_kind_of_machine() {
    let mut wrong = BTreeSet::new();
    let mut walked = BTreeSet::new();
    let mut cured = BTreeSet::new();
    for tree in trees() {
        let name = tree.file_stem().unwrap().to_string_lossy().into_owned();
        let dir = tempfile::tempdir().unwrap();
        recorded::unpack(&tree, dir.path()).unwrap();
        let root = Root::new(dir.path());
        let environment = Environment::own(&root);
        // Few trees have a blocked way. For these trees the test varies NICs and GPUs.
        const VARIED: [&str; 7] = [
            "one-pair",
            "acs-redirect",
            "public-efa",
            "public-pod-not-loaded",
            "public-iommu-linux-7",
            "public-netns-exclusive",
            "public-dma-buf-refused",
        ];
        let mut hardware = vec![(None, Gpu::Own)];
        if VARIED.contains(&name.as_str()) {
            let gpus = [Gpu::Own, Gpu::Geforce, Gpu::Gb10, Gpu::Orin];
            hardware.extend(NICS.iter().flat_map(|nic| gpus.map(|gpu| (Some(*nic), gpu))));
        }
        for (nic, gpu) in hardware {
            let mut machine = look(&root, nic, gpu);
            for kind in kinds(nic, gpu) {
                // Whoever has no file of the host in one kind has none in the next: read it again.
                if machine.file.is_none() && !kind.driver_container && !kind.image {
                    machine = look(&root, nic, gpu);
                }
                become_one_of(&mut machine, kind);
                let report: Report = doctor::examine(&machine, &environment, &[]);
                for check in report.checks().filter(|check| check.is_finding()) {
                    walked.insert(check.id);
                    let Some(fix) = &check.fix else { continue };
                    cured.insert(check.id);
                    if let Some(why) = misfits(kind, check.id, fix) {
                        wrong.insert(format!("[{}] {why}: {fix}\n  first in {name}", check.id));
                    }
                }
            }
        }
    }
    // One tree for each is enough.
    let mut said = BTreeSet::new();
    let first: Vec<&String> = wrong.iter().filter(|line| said.insert(line.split('\n').next())).collect();
    assert!(first.is_empty(), "{} cures do not fit:\n{first:#?}", first.len());
    // The walk met what it is about.
    assert!(walked.len() >= 50 && cured.len() >= 50, "{} findings, {} cures", walked.len(), cured.len());
}
