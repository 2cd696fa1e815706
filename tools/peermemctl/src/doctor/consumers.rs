// SPDX-License-Identifier: GPL-2.0
//! Section 10: what applications do with each GPU and its NIC, by their own rules.

use super::{api, cure};
use crate::check::{Check, Kind, Level};
use crate::consumer::{self, libfabric, nccl, nvshmem, ucx, Consumer, Does, Pairing, Refusal, Registers};
use crate::environment::Environment;
use crate::giver::Giver;
use crate::machine::{Machine, NAME, PEERS};
use crate::rdma::RdmaDevice;
use crate::setting::{vendor, Vendor};
use crate::way::{self, Judged, Way};

pub fn checks(machine: &Machine, environment: &Environment) -> Vec<Check> {
    let pairings = consumer::pairings_for(machine, environment);
    let mut checks: Vec<Check> =
        consumer::ALL.iter().flat_map(|consumer| judged(machine, environment, consumer, &pairings)).collect();
    checks.push(operator(machine));
    let load_it = machine.load_it();
    for check in &mut checks {
        let Some(fix) = check.fix.as_ref() else { continue };
        let by_module = || (machine.loaded.is_none() && *fix == load_it).then_some("module.loaded");
        check.follows = consumer::cured_by(fix).or_else(by_module).or(check.follows);
    }
    checks
}

/// Judges what one program does with each GPU and the nearest NIC that it uses.
fn judged(machine: &Machine, environment: &Environment, consumer: &Consumer, pairings: &[Pairing]) -> Vec<Check> {
    let name = format!("{}: GPUDirect {}", consumer.name, environment.judged_for());
    // The core makes the directory, and newer kernels make it no more: nothing on this machine
    // fixes that.
    let looks_in_vain = consumer.id == "consumers.sharp" && machine.loaded.is_some() && !machine.root.exists(PEERS);
    let mut gpus: Vec<&str> = pairings.iter().map(|pairing| pairing.gpu.address.as_str()).collect();
    gpus.dedup();
    let of_gpu = |gpu: &str| {
        let mine = || pairings.iter().filter(|pairing| pairing.gpu.address == gpu);
        let does = |pairing: &Pairing| consumer.does(pairing, machine, environment);
        let is_direct = |pairing: &&Pairing| matches!(does(pairing), Does::Direct(..));
        let copies = |pairing: &&Pairing| matches!(does(pairing), Does::Copies(_));
        // It takes the nearest of those that it uses at all.
        let used = mine().filter(is_direct).min_by_key(|pairing| pairing.distance);
        let unknown = || mine().filter(|pairing| !copies(pairing)).min_by_key(|pairing| pairing.distance);
        let nearest = used.or_else(unknown).or_else(|| mine().min_by_key(|pairing| pairing.distance))?;
        let (nic, distance) = (&nearest.nic.name, nearest.distance.text());
        let check = match does(nearest) {
            Does::Direct(way, seen) => {
                let told = (consumer.told_by)(machine, nearest, environment);
                let told = told.map_or(String::new(), |told| format!("; {told}"));
                let by = way.text();
                Check::ok(consumer.id, format!("{name}: yes, GPU {gpu} with {nic} ({distance}), by {by}{told}"))
                    .about(Kind::Gpu, gpu, format!("{name}: yes, {{}}, nearest NIC ({distance}), by {by}{told}"))
                    .seen(seen)
            }
            Does::Unknown(why) => Check::skip(consumer.id, format!("{name}: unknown, {why}"))
                .about(Kind::Gpu, gpu, format!("{name}: unknown for {{}}, {why}"))
                .seen(format!("environment of {}", environment.whose)),
            // A NIC of another kind than the program wants is no fault.
            Does::Copies(refusal) if is_for_its_kind(&refusal, consumer, nearest, machine, environment) => {
                let set = refusal.set.map_or(String::new(), |set| format!(": {set}"));
                let because = refusal.because;
                Check::skip(consumer.id, format!("{name}: no, because {because}{set}"))
                    .about(Kind::Gpu, gpu, format!("{name}: no for {{}}, because {because}{set}"))
                    .seen(refusal.seen)
            }
            // gpus.present, gpus.fabric or gpus.context has said so.
            Does::Copies(refusal)
                if machine.refusal(nearest.gpu).is_some()
                    || machine.waits_for_fabric(nearest.gpu).is_some()
                    || machine.no_context(nearest.gpu).is_some() =>
            {
                Check::skip(consumer.id, format!("{name}: no, because {}", refusal.because))
                    .about(Kind::Gpu, gpu, format!("{name}: no for {{}}, because {}", refusal.because))
                    .seen(refusal.seen)
            }
            Does::Copies(refusal) if looks_in_vain => in_vain(consumer, refusal.seen),
            Does::Copies(refusal) => Check::warn(
                consumer.id,
                format!("{name}: no, GPU {gpu} with {nic} ({distance}), because {}", refusal.because),
                refusal.set.unwrap_or_else(|| by_module(machine)),
            )
            .about(
                Kind::Gpu,
                gpu,
                format!("{name}: no, {{}} with the nearest NIC ({distance}), because {}", refusal.because),
            )
            .seen(refusal.seen),
        };
        Some(check)
    };
    let mut checks: Vec<Check> = match gpus.is_empty() {
        true => vec![without_pairs(machine, environment, consumer, &name, looks_in_vain)],
        false => gpus.into_iter().filter_map(of_gpu).collect(),
    };
    if consumer.id == "consumers.nvshmem" {
        let nics: Vec<&str> = pairings.iter().map(|pairing| pairing.nic.name.as_str()).collect();
        note(&mut checks, &nvshmem::by_version(machine, environment, &nics));
    }
    if consumer.id == "consumers.nccl" {
        note(&mut checks, &nccl::notes(machine, environment));
    }
    if consumer.id == "consumers.ucx" {
        let active: Vec<&RdmaDevice> = machine.rdma.iter().filter(|nic| nic.is_active()).collect();
        note(&mut checks, &ucx::by_version(machine, environment, &active));
    }
    checks
}

/// Returns whether a program leaves out a NIC for its kind or its name.
fn is_for_its_kind(
    refusal: &Refusal,
    consumer: &Consumer,
    pairing: &Pairing,
    machine: &Machine,
    environment: &Environment,
) -> bool {
    let by_kind = match consumer.id {
        "consumers.gin" => return vendor(pairing.nic) != Vendor::Mellanox,
        "consumers.sharp" => return vendor(pairing.nic) == Vendor::Efa,
        "consumers.libfabric" => libfabric::by_name(pairing, machine),
        "consumers.nvshmem" => nvshmem::by_kind(pairing, environment),
        _ => None,
    };
    by_kind.is_some_and(|known| known.because == refusal.because)
}

/// Adds what other versions do to what is fine.
fn note(checks: &mut [Check], notes: &[String]) {
    for check in checks.iter_mut().filter(|check| check.level == Level::Ok) {
        if let Some(subject) = &mut check.subject {
            subject.many.extend(notes.iter().map(|note| format!("; {note}")));
        }
        check.message.extend(notes.iter().map(|note| format!("; {note}")));
    }
}

fn in_vain(consumer: &Consumer, seen: String) -> Check {
    let message =
        format!("{}: looks only where this kernel shows no clients, and copies through host memory", consumer.name);
    Check::skip(consumer.id, message).seen(seen)
}

/// Says what a program would do with a NIC that it looks for.
fn without_pairs(
    machine: &Machine,
    environment: &Environment,
    consumer: &Consumer,
    name: &str,
    looks_in_vain: bool,
) -> Check {
    let offered = match machine.dma_buf() {
        true => Judged::Yes(String::new()),
        false if machine.symbols.is_err() => Judged::Unknown("/proc/kallsyms cannot be read".to_owned()),
        false => Judged::No(String::new()),
    };
    if let (Some(why), false) = (consumer.not_understood(environment), looks_in_vain) {
        return Check::skip(consumer.id, format!("{name}: unknown, {why}"))
            .seen(format!("environment of {}", environment.whose));
    }
    // Software devices are in no pair, and registered with all the same.
    let mut hardware = machine.rdma.iter().filter(|nic| !nic.software).peekable();
    let by_software = machine.rdma.iter().any(|nic| nic.software && nic.can_connect());
    if hardware.peek().is_some() && !by_software {
        let gpus = machine.gpus();
        let none_given = !gpus.is_empty() && gpus.iter().all(|gpu| machine.was_given_gpu(gpu) == Some(false));
        let mut active = hardware.clone().filter(|nic| nic.is_active());
        let word = Giver::of(machine).word();
        let is_foreign =
            active.clone().next().is_some() && active.clone().all(|nic| machine.was_given_nic(nic) == Some(false));
        let said = match (gpus.is_empty(), hardware.any(RdmaDevice::is_active)) {
            (true, _) => "no, because there is no GPU".to_owned(),
            _ if none_given => format!("no, because this {word} was given no GPU"),
            _ if is_foreign => {
                format!("no, because this {word} was given none of the NICs whose ports are active")
            }
            (false, false) if machine.rdma.iter().all(|nic| nic.ports.is_empty()) => {
                "unknown, the ports of its NICs cannot be read".to_owned()
            }
            (false, false) => "no, because no port of a NIC is active".to_owned(),
            // What [fabric.gid] says. A pod may have the interface of one NIC, and the node of another.
            _ if !active.clone().any(|nic| nic.can_connect() && machine.was_given_nic(nic) != Some(false)) => {
                match active.any(RdmaDevice::can_connect) {
                    true => format!("no, because no NIC that this {word} was given has a GID in this network namespace, and one that it was not given has"),
                    false => "no, because no NIC with an active port has a GID in this network namespace".to_owned(),
                }
            }
            (false, true) => "unknown, where its NICs are on the PCI bus cannot be read".to_owned(),
        };
        return Check::skip(consumer.id, format!("{name}: {said}"))
            .seen("/sys/bus/pci/devices, state of each port in /sys/class/infiniband");
    }
    // A sandbox with a kernel of its own shows nothing of Linux's (gVisor).
    if machine.devices.is_empty() && !machine.modules_read {
        let said = format!("{name}: unknown, as neither modules nor PCI functions can be read");
        return Check::skip(consumer.id, said).seen("/proc/modules, /sys/module, /sys/bus/pci/devices");
    }
    match (consumer.registers)(machine, environment, &offered) {
        // The program finds the file that it looks for, and no module answers.
        Registers::By(Way::PeerMemory, seen) if machine.loaded.is_none() && machine.modules_read => {
            Check::warn(consumer.id, format!("{name}: no, because nvidia_peermem is not loaded"), machine.load_it())
                .seen(seen)
        }
        // Without an RDMA device no program registers anything.
        Registers::By(way, seen) => match machine.rdma.is_empty() {
            true => Check::skip(consumer.id, format!("{name}: with an RDMA device, by {}", way.text())),
            false => Check::ok(consumer.id, format!("{name}: yes, by {}", way.text())),
        }
        .seen(seen),
        Registers::Unknown(why) => Check::skip(consumer.id, format!("{name}: unknown, {why}")).seen(why),
        Registers::No(refusal) if looks_in_vain => in_vain(consumer, refusal.seen),
        Registers::No(refusal) => {
            let fix = refusal.set.unwrap_or_else(|| by_module(machine));
            Check::warn(consumer.id, format!("{name}: no, because {}", refusal.because), fix).seen(refusal.seen)
        }
    }
}

/// Returns what has a program find the module. Where dma-buf is offered, no check asks for the API that the module
/// needs, and this is the place to say where that comes from.
fn by_module(machine: &Machine) -> String {
    match way::no_peers(machine) && machine.loaded.is_none() && machine.dma_buf() {
        true => cure::chosen(machine, "api.exported", &api::api_cure(machine)),
        false => machine.load_it(),
    }
}

/// Checks whether the GPU Operator's validator finds the module, whose name it looks for in the
/// output of lsmod.
fn operator(machine: &Machine) -> Check {
    const ID: &str = "consumers.operator";
    let seen = "nvidia_peermem in /proc/modules, as lsmod prints it";
    if machine.modules.contains_key(NAME) {
        Check::ok(ID, "GPU Operator, cloud health checks: find the module").seen(seen)
    } else if !machine.modules_read {
        Check::skip(ID, "GPU Operator, cloud health checks: which modules are loaded cannot be read").seen(seen)
    } else {
        Check::warn(ID, "GPU Operator, cloud health checks: report the module missing", machine.load_it()).seen(seen)
    }
}
