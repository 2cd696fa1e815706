// SPDX-License-Identifier: GPL-2.0
//! Section 3: who exports the peer-memory API, and whether the RDMA drivers ask it.

use super::hardware::WSL;
use super::load_refused::load_refused;
use super::{limits, module};
use crate::check::{Check, Kind, Level};
use crate::facts;
use crate::kernel::{self, modules_dir};
use crate::machine::{Machine, OFED_MODULE, REGISTER};
use crate::module_file::{self, ModuleFile};
use crate::nvidia::Flavour;
use crate::rdma::RdmaDevice;
use crate::setting::{vendor, Vendor};
use crate::way::{self, Way};

const EXPORTED: &str = "api.exported";
/// The function that a driver calls which lets peers answer for memory.
const ASK: &str = "ib_umem_get_peer";

pub fn checks(machine: &Machine) -> Vec<Check> {
    let exported = exported(machine);
    let mut checks = vec![exported];
    checks.extend(version_mismatch(machine));
    if machine.has_symbol(REGISTER) == Some(true) {
        checks.extend(drivers(machine));
    }
    checks
}

fn exported(machine: &Machine) -> Check {
    let release = machine.release.as_deref().unwrap_or("(unknown)");
    match (machine.has_symbol(REGISTER), machine.owner_of_symbol(REGISTER)) {
        (Some(true), Some(owner)) => {
            let stack = match machine.modules.contains_key(OFED_MODULE) {
                true => "; the RDMA stack is MLNX_OFED or DOCA-OFED (mlx_compat is loaded)",
                false => "",
            };
            Check::ok(EXPORTED, format!("{owner} exports the peer-memory API{stack}"))
                .seen(format!("{REGISTER} in /proc/kallsyms"))
        }
        (Some(_), _) if !loaded_core(machine) => {
            let none = "no RDMA core is loaded, so nobody exports the peer-memory API";
            let mut check = match load_refused(machine, "ib_uverbs") {
                Some(refused) => {
                    Check::fail(EXPORTED, format!("{none}; {}", refused.why), refused.fix).seen(refused.seen)
                }
                None => Check::fail(EXPORTED, none, "modprobe ib_uverbs"),
            };
            // What brings the driver of the NIC brings the core that it needs.
            let of_nic = machine.rdma.is_empty().then_some("fabric.rdma");
            check.follows = if machine.root.exists(WSL) { Some("gpus.present") } else { of_nic };
            check.seen(format!(
                "neither {REGISTER} nor ib_umem_dmabuf_get in /proc/kallsyms, no ib_core in /proc/modules"
            ))
        }
        (Some(_), _) => match machine.api_to_load() {
            Some(module) => Check::fail(
                EXPORTED,
                format!("module {module} exports the peer-memory API and is not loaded"),
                format!("modprobe {module}"),
            )
            .seen(format!("{REGISTER} of {module} in {}/modules.symbols", modules_dir(release)))
            .seen(format!("no {REGISTER} in /proc/kallsyms, no {module} in /proc/modules")),
            None => no_api(machine, release),
        },
        (None, _) => Check::skip(EXPORTED, "/proc/kallsyms cannot be read"),
    }
}

fn no_api(machine: &Machine, release: &str) -> Check {
    let none = match not_reloaded(machine) {
        Some(core) => format!(
            "the loaded RDMA core has no peer-memory API, although the installed {core} of kernel {release} has it"
        ),
        None => format!("the RDMA core of kernel {release} has no peer-memory API"),
    };
    let seen = format!("no {REGISTER} in /proc/kallsyms");
    let by_dma_buf: Vec<&RdmaDevice> = machine.rdma.iter().filter(|nic| has_dma_buf(machine, nic)).collect();
    // With dma-buf nothing is missing.
    if !by_dma_buf.is_empty() {
        // Each kind of NIC is explained once.
        let of_kind = |nic: &RdmaDevice| no_need(nic).map(|_| nic.module.clone());
        let mut kinds: Vec<(Option<String>, String, Vec<&str>)> = Vec::new();
        for (nic, kind) in by_dma_buf.iter().filter_map(|nic| Some((nic, of_kind(nic)?))) {
            match kinds.iter_mut().find(|(other, ..)| *other == kind) {
                Some((.., others)) => others.push(&nic.name),
                None => kinds.push((kind, no_need(nic).unwrap_or_default(), Vec::new())),
            }
        }
        let explained = kinds.into_iter().map(|(_, words, others)| match others.is_empty() {
            true => words,
            false => format!("{words}; so it is with {}", others.join(", ")),
        });
        let explained: Vec<String> = explained.collect();
        let words = match explained.is_empty() {
            true => "which programs use that register by dma-buf (NCCL, UCX, NVSHMEM and libfabric by default); a plain ibv_reg_mr() of GPU memory fails".to_owned(),
            false => explained.join("; "),
        };
        return Check::ok(EXPORTED, format!("{none}: {words}")).seen(seen);
    }
    if machine.dma_buf() && machine.rdma.is_empty() {
        let words =
            "with an RDMA device, programs could register by dma-buf (NCCL, UCX, NVSHMEM and libfabric by default)";
        return Check::ok(EXPORTED, format!("{none}: {words}")).seen(seen);
    }
    let mut check = Check::fail(EXPORTED, format!("{none}: no nvidia-peermem can work here"), api_cure(machine));
    // Whose memory it would be is the first question.
    if machine.gpus().is_empty() && !machine.devices.is_empty() {
        check.follows = Some("gpus.present");
    }
    check.seen(seen)
}

/// Returns the module that is installed for the running kernel with the peer-memory API while another build of it,
/// without, is loaded: an RDMA stack was installed after the kernel was booted, or is not in the initial RAM disk.
fn not_reloaded(machine: &Machine) -> Option<String> {
    if machine.has_symbol(REGISTER) != Some(false) || machine.setting.modules_in_containers() {
        return None;
    }
    let core = kernel::exporter(machine.root, machine.release.as_deref()?, REGISTER)?;
    machine.modules.contains_key(&core).then_some(core)
}

/// Returns whether a GPU has dma-buf with a NIC.
fn has_dma_buf(machine: &Machine, nic: &RdmaDevice) -> bool {
    machine.gpus().iter().any(|gpu| way::possible(machine, gpu, nic, Way::DmaBuf).is_yes())
}

/// Returns that a NIC's driver takes dma-bufs only, so that the API would not help.
fn no_need(nic: &RdmaDevice) -> Option<String> {
    let name = &nic.name;
    match vendor(nic) {
        Vendor::Efa => {
            // aws/aws-ofi-nccl#861
            let plugin = "NCCL's plugin aws-ofi-nccl does so with EFAs of the fourth generation on, and needs Amazon's own driver for the others";
            Some(format!(
                "{name} is an EFA: it needs no nvidia-peermem; its driver takes GPU memory by dma-buf ({plugin})"
            ))
        }
        Vendor::NeverAsks => {
            let module = nic.module.as_deref().unwrap_or("its driver");
            Some(format!("{name} needs no nvidia-peermem: {module} takes GPU memory by dma-buf only"))
        }
        _ => None,
    }
}

/// Returns whether the driver of a NIC takes dma-bufs, or may do so.
fn takes_dma_buf(machine: &Machine) -> bool {
    machine.rdma.is_empty() || machine.rdma.iter().any(|nic| !way::nic_takes_dma_buf(machine, nic).is_no())
}

/// Returns what has programs register by dma-buf. What closes it for every GPU and NIC has a check of its own.
fn dma_buf_cure(machine: &Machine) -> Option<String> {
    let open = machine.setting.open_modules();
    let flavour = machine.driver.as_ref().and_then(|driver| driver.flavour);
    let from = facts::CORE_DMA_BUF.from.unwrap_or_default();
    let is_core_old = loaded_core(machine) && machine.has_symbol("ib_umem_dmabuf_get") == Some(false);
    match (flavour, way::closed_by(machine)) {
        _ if !takes_dma_buf(machine) => newer_kernel(machine),
        (Some(Flavour::Closed), _) if !super::driver::takes_open(machine) => None,
        (Some(Flavour::Closed), _) if is_core_old => {
            Some(format!("{open} and boot Linux {from} or later, for dma-buf"))
        }
        (Some(Flavour::Closed), _) => Some(format!("{open}, for dma-buf")),
        _ if is_core_old => Some(format!("boot Linux {from} or later, whose RDMA core has dma-buf")),
        (_, Some(id)) => Some(format!("do what [{id}] says, and use dma-buf")),
        _ => Some("use dma-buf".to_owned()),
    }
}

/// Returns where a core with the API comes from, by the vendors of the NICs; nothing else of a vendor
/// brings it to another's. dma-buf is named where drivers have it.
pub(super) fn api_cure(machine: &Machine) -> String {
    let has = |wanted: Vendor| machine.rdma.iter().any(|nic| vendor(nic) == wanted);
    let takes = takes_dma_buf(machine);
    let dma_buf = dma_buf_cure(machine);
    let setting = &machine.setting;
    if setting.modules_in_containers() {
        let open = "the GPU Operator load the open kernel modules (driver.kernelModuleType=open), for dma-buf";
        let core = match setting.ofed_container {
            true => "the pod of DOCA-OFED load its core again (delete it)",
            false => "the network operator bring DOCA-OFED (ofedDriver of its NicClusterPolicy)",
        };
        let has_core = has(Vendor::Mellanox) || machine.rdma.is_empty();
        return match (has_core, dma_buf) {
            (true, Some(by)) if by.starts_with("install") => containers(&format!("have {core}, or {open}")),
            (true, Some(by)) => containers(&format!("have {core}, or {by}")),
            (true, None) => containers(&format!("have {core}")),
            (false, Some(by)) if by.starts_with("install") => containers(&format!("have {open}")),
            (false, Some(by)) => containers(&by),
            (false, None) => NO_WAY.to_owned(),
        };
    }
    let or = dma_buf.as_ref().map_or(String::new(), |dma_buf| format!(", or {dma_buf}"));
    let release = machine.release.as_deref().unwrap_or_default();
    // Mellanox/nv_peer_memory#39 and #79: a kernel that was updated after OFED was installed.
    let others = match has(Vendor::Mellanox) {
        true => kernel::others_that_export(machine.root, release, REGISTER),
        false => Vec::new(),
    };
    let unbuilt = limits::unbuilt(machine, OFED_MODULE).filter(|_| has(Vendor::Mellanox));
    if let Some(core) = not_reloaded(machine) {
        format!("end the programs that use RDMA devices (fuser -v /dev/infiniband/uverbs*), then load the installed {core}: reboot, or for OFED /etc/init.d/openibd restart from a console, as the network over these NICs goes down meanwhile (if the other one comes back with the next boot, it is in the initial RAM disk: update-initramfs -u or dracut -f, before the reboot){or}")
    } else if let Some(unbuilt) = unbuilt {
        format!("{}, then reboot{or}", unbuilt.command())
    } else if let Some(last) = others.last() {
        let for_others = others.join(", ");
        format!("OFED is installed for kernel {for_others} only: build it for this one (dkms autoinstall -k {release}, with that kernel's headers; without DKMS install it again), or boot {last}{or}")
    } else if has(Vendor::Mellanox) || machine.rdma.is_empty() || has(Vendor::Software) && machine.rdma.len() == 1 {
        // linux-nvidia is a flavour of Ubuntu's kernel. Elsewhere dma-buf needs less.
        const DOCA: &str = "install DOCA-OFED (package doca-ofed)";
        match (setting.distribution.as_deref(), dma_buf) {
            (None | Some("ubuntu"), _) => format!("{DOCA} or a linux-nvidia kernel{or}"),
            (_, Some(dma_buf)) if setting.has_no_packages() => dma_buf,
            (_, Some(dma_buf)) => format!("{dma_buf}, or {DOCA}"),
            (_, None) => DOCA.to_owned(),
        }
    } else if has(Vendor::Broadcom) {
        format!("install Broadcom's own bnxt_re with its ib_peer_mem (its driver bundle){or}")
    } else if has_efa_module(machine) {
        // Amazon's own client of its driver (src/efa_nvmem_impl.h of amzn-drivers 47cf9fef56e9).
        machine.setting.on_host(&format!("modprobe {EFA_MODULE}"))
    } else {
        match dma_buf {
            Some(dma_buf) if never_asks(machine) => {
                format!("{dma_buf}; the drivers of these NICs know no peer memory, whatever is installed")
            }
            Some(dma_buf) => format!("{dma_buf}, if the drivers of these NICs take it: peermemctl selftest tries"),
            // What is missing is the GPU's side.
            None if takes => {
                "use GPUs from Turing on with the open kernel modules of their driver, for dma-buf".to_owned()
            }
            None => NO_WAY.to_owned(),
        }
    }
}

const NO_WAY: &str = "use another NIC: the drivers of these neither ask peers for memory nor register dma-bufs";

/// Returns what to do on a node whose modules come from containers.
fn containers(what: &str) -> String {
    format!("the modules of this node come from containers: {what}")
}

/// Returns whether the drivers of all NICs are known to ask no peers for memory.
fn never_asks(machine: &Machine) -> bool {
    machine.rdma.iter().all(|nic| way::nic_asks_peers(machine, nic).is_no())
}

const EFA_MODULE: &str = "efa_nv_peermem";

/// Returns whether Amazon's module that gives an EFA GPU memory is installed, and not loaded.
fn has_efa_module(machine: &Machine) -> bool {
    let release = machine.release.as_deref().unwrap_or_default();
    machine.rdma.iter().any(|nic| vendor(nic) == Vendor::Efa)
        && !machine.modules.contains_key(EFA_MODULE)
        && module_file::chosen(machine.root, release, EFA_MODULE).is_some()
}

/// Returns the kernel from which on the driver of a NIC registers dma-bufs, as a way to have them.
fn newer_kernel(machine: &Machine) -> Option<String> {
    let release = machine.release.as_deref().unwrap_or_default();
    if machine.rdma.iter().any(|nic| way::mlx5_can(machine, nic).is_no()) {
        return Some(format!("boot a kernel that is built with {}, by which mlx5_ib has dma-buf", way::ON_DEMAND));
    }
    let of = |nic: &RdmaDevice| {
        let (module, from, _) =
            facts::DMA_BUF_DRIVERS.iter().find(|(module, ..)| nic.module.as_deref() == Some(*module))?;
        let is_sure = !facts::is_backported(release) && way::is_of_kernel(machine, module);
        (!facts::at_least(release, from) && is_sure)
            .then(|| format!("boot Linux {from} or later, whose {module} has dma-buf"))
    };
    machine.rdma.iter().find_map(of)
}

fn loaded_core(machine: &Machine) -> bool {
    machine.modules.contains_key("ib_core")
        || machine.root.exists("/sys/module/ib_core")
        || machine.has_symbol("ib_umem_dmabuf_get") == Some(true)
}

/// Reports that the kernel refused the module because it was built against another core than the
/// loaded one, if the kernel log says so. Before any try to load it, `module.versions` compares
/// what the files say.
fn version_mismatch(machine: &Machine) -> Option<Check> {
    if machine.loaded.is_some() {
        return None;
    }
    let (_, _, line) = module::why_not(machine)?;
    // The loader's second line about each symbol; the first says that it "disagrees about version".
    if !line.contains("(err -22)") {
        return None;
    }
    Some(
        Check::fail(
            "api.version",
            "nvidia-peermem was built against another RDMA core or GPU driver than the loaded one",
            module::REBUILD,
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Checks whether the drivers of the RDMA devices let peers answer. A driver of the kernel's own
/// next to an OFED core does not.
fn drivers(machine: &Machine) -> Vec<Check> {
    const ID: &str = "api.driver";
    let Some(release) = machine.release.as_deref() else { return Vec::new() };
    let mut checks = Vec::new();
    // One driver that asks is enough, whatever the others do.
    let mut served = false;
    for device in &machine.rdma {
        let name = &device.name;
        let check = match asks(machine, release, device) {
            Ok((module, path, true)) => {
                served = true;
                Check::ok(ID, format!("{name}: its driver {module} asks peers for memory"))
                    .about(Kind::Nic, name, format!("have a driver ({module}) that asks peers for memory"))
                    .seen(format!("{ASK} in {path}"))
            }
            // This device takes dma-buf instead.
            Ok((_, path, false)) if has_dma_buf(machine, device) && no_need(device).is_some() => {
                let words = no_need(device).unwrap_or_default();
                Check::ok(ID, words)
                    .about(Kind::Nic, name, "take GPU memory by dma-buf, and need no nvidia-peermem")
                    .seen(format!("no {ASK} in {path}"))
            }
            Ok((module, path, false)) => Check::fail(
                ID,
                format!(
                    "{name}: its driver {module} never asks peers for memory: GPU memory cannot be registered with it"
                ),
                match (vendor(device), dma_buf_cure(machine)) {
                    (Vendor::Mellanox, _) => "install the RDMA driver that comes with the core that has the API (DOCA-OFED's mlx5_ib), then reboot".to_owned(),
                    (Vendor::Broadcom, dma_buf) => format!(
                        "install Broadcom's own bnxt_re with its ib_peer_mem, then reboot{}",
                        dma_buf.map_or(String::new(), |dma_buf| format!("; or {dma_buf}"))
                    ),
                    (_, Some(dma_buf)) => format!("{dma_buf}: this driver knows no peer memory, whatever is installed"),
                    (_, None) => NO_WAY.to_owned(),
                },
            )
            .about(
                Kind::Nic,
                name,
                format!("have a driver ({module}) that never asks peers: GPU memory cannot be registered with them"),
            )
            .seen(format!("no {ASK} in {path}")),
            Err(why) => Check::skip(ID, format!("{name}: {why}")).about(Kind::Nic, name, format!("({why})")),
        };
        checks.push(check);
    }
    for check in checks.iter_mut().filter(|check| served && check.level == Level::Fail) {
        check.level = Level::Warn;
    }
    checks
}

/// Returns the module and the file of the driver of `device`, and whether it asks peers for memory;
/// or why that is unknown.
fn asks(machine: &Machine, release: &str, device: &RdmaDevice) -> Result<(String, String, bool), String> {
    let module = device.module.as_deref().ok_or("its driver is not known to this program")?;
    let path = module_file::chosen(machine.root, release, module)
        .ok_or_else(|| format!("the file of its driver {module} is not found"))?;
    let file = ModuleFile::read(machine.root, &path).map_err(|error| format!("{error:#}"))?;
    Ok((module.to_owned(), path, file.needs(ASK)))
}
