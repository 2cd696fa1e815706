// SPDX-License-Identifier: GPL-2.0
//! Section 10: what applications do with each GPU and its NIC, by their own rules.

use crate::check::{Check, Kind};
use crate::consumer::{self, Consumer, Registers, Setting};
use crate::environment::Environment;
use crate::machine::{Machine, NAME, PEERS};

pub fn checks(machine: &Machine, environment: &Environment) -> Vec<Check> {
    let settings = consumer::settings(machine);
    let mut checks: Vec<Check> =
        consumer::ALL.iter().flat_map(|consumer| judged(machine, environment, consumer, &settings)).collect();
    checks.push(operator(machine));
    checks
}

/// What one program does with each GPU, and the nearest NIC that it uses.
fn judged(machine: &Machine, environment: &Environment, consumer: &Consumer, settings: &[Setting]) -> Vec<Check> {
    let name = format!("{}: GPUDirect {}", consumer.name, environment.judged_for());
    // The directory is the core's, and new kernels have it no more: nothing on this machine fixes
    // that.
    let looks_in_vain = consumer.id == "consumers.sharp" && machine.loaded.is_some() && !machine.root.exists(PEERS);
    let (way, seen) = match (consumer.registers)(machine, environment) {
        Registers::By(way, seen) => (way, seen),
        Registers::No(refusal) if looks_in_vain => {
            let message = format!(
                "{}: looks only where this kernel shows no clients, and copies through host memory",
                consumer.name
            );
            return vec![Check::skip(consumer.id, message).seen(refusal.seen)];
        }
        Registers::No(refusal) => {
            let fix = refusal.set.unwrap_or_else(|| machine.load_it());
            let message = format!("{name}: no, because {}", refusal.because);
            return vec![Check::warn(consumer.id, message, fix).seen(refusal.seen)];
        }
    };
    let mut gpus: Vec<&str> = settings.iter().map(|setting| setting.gpu.address.as_str()).collect();
    gpus.dedup();
    if gpus.is_empty() {
        // Nothing is registered without a device that does it.
        let check = match machine.rdma.is_empty() {
            true => Check::skip(consumer.id, format!("{name}: with an RDMA device, by {}", way.text())),
            false => Check::ok(consumer.id, format!("{name}: yes, by {}", way.text())),
        };
        return vec![check.seen(seen)];
    }
    let of_gpu = |gpu: &str| {
        let mine = || settings.iter().filter(|setting| setting.gpu.address == gpu);
        let judge = |setting| (consumer.refuses)(setting, machine, environment);
        // It takes the nearest of those that it uses at all.
        let used = mine().filter(|setting| judge(setting).is_none()).min_by_key(|setting| setting.distance);
        let nearest = used.or_else(|| mine().min_by_key(|setting| setting.distance))?;
        let (nic, distance) = (&nearest.nic.name, nearest.distance.text());
        let check = match judge(nearest) {
            None => {
                Check::ok(consumer.id, format!("{name}: yes, GPU {gpu} with {nic} ({distance}), by {}", way.text()))
                    .about(
                        Kind::Gpu,
                        gpu,
                        format!("{name}: yes, {{}} with the nearest NIC ({distance}), by {}", way.text()),
                    )
                    .seen(seen.clone())
            }
            Some(refusal) => Check::warn(
                consumer.id,
                format!("{name}: no, GPU {gpu} with {nic} ({distance}), because {}", refusal.because),
                refusal.set.unwrap_or_else(|| machine.load_it()),
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
    gpus.into_iter().filter_map(of_gpu).collect()
}

/// The validator greps lsmod for the module's name.
fn operator(machine: &Machine) -> Check {
    const ID: &str = "consumers.operator";
    let seen = "nvidia_peermem in /proc/modules, as lsmod prints it";
    if machine.modules.contains_key(NAME) {
        Check::ok(ID, "GPU Operator, Mooncake, cloud health checks: find the module").seen(seen)
    } else {
        Check::warn(ID, "GPU Operator, Mooncake, cloud health checks: report the module missing", machine.load_it())
            .seen(seen)
    }
}
