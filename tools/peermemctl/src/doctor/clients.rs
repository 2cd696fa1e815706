// SPDX-License-Identifier: GPL-2.0
//! Section 5: the clients of the peer-memory core, and what the module counts.

use crate::check::Check;
use crate::machine::{Machine, NAME, OLD_MODULE, PEERS, REGISTER};
use crate::module_file::Maker;
use crate::peermem::{Stats, KNOW_IT, STUCK_MS, UNKNOWN};
use crate::root::Missing;
use crate::text;
use crate::unload::unload;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![registered(machine)];
    checks.extend(old_module(machine));
    checks.extend(counters(machine));
    checks
}

fn registered(machine: &Machine) -> Check {
    const ID: &str = "clients.registered";
    let served = machine.peers.iter().any(|name| name == "nv_mem");
    if machine.old_module_serves() {
        let message =
            format!("{OLD_MODULE} answers for GPU memory in the place of nvidia_peermem; nobody maintains it");
        let fix = format!(
            "install this project's module, then {}, and uninstall the package that loads {OLD_MODULE}",
            unload(machine, OLD_MODULE, "modprobe nvidia-peermem")
        );
        return Check::warn("clients.nv_peer_mem", message, fix).seen(format!("{OLD_MODULE} in /proc/modules"));
    }
    if machine.loaded.is_none() {
        return match served {
            true if !machine.modules_read => Check::skip(
                ID,
                "a module serves the client name nv_mem, and whether it is nvidia_peermem cannot be read",
            )
            .seen(format!("{PEERS}/nv_mem exists; neither /proc/modules nor /sys/module tells")),
            true => {
                let holder = holders(machine);
                Check::fail(
                    "clients.taken",
                    format!(
                        "another module serves the client name nv_mem ({}): ours cannot be loaded beside it",
                        among(&holder)
                    ),
                    match holder.first() {
                        Some(first) => unload(machine, first, "modprobe nvidia-peermem"),
                        None => "lsmod shows which modules use the RDMA core: rmmod the one that is no driver of it"
                            .to_owned(),
                    },
                )
                .seen(format!("{PEERS}/nv_mem exists, and nvidia_peermem is not loaded"))
            }
            false => Check::skip(ID, "no client: nvidia_peermem is not loaded"),
        };
    }
    let ours = machine.stats.as_ref().map(|stats| stats.clients().join(", ")).unwrap_or_default();
    match (ours.is_empty(), machine.peers.is_empty()) {
        (false, _) => Check::ok(ID, format!("registered with the core: {ours}"))
            .seen("clients in /proc/driver/nvidia-peermem/stats"),
        (true, false) if served => {
            Check::ok(ID, format!("clients of the core: {}", machine.peers.join(", "))).seen(PEERS)
        }
        (true, false) => Check::fail(
            ID,
            format!("the core does not show a client nv_mem, only {}", machine.peers.join(", ")),
            unload(machine, NAME, "modprobe nvidia-peermem"),
        )
        .seen(PEERS),
        (true, true) => {
            Check::skip(ID, "neither this kernel nor the loaded module shows the clients").seen(format!("no {PEERS}"))
        }
    }
}

/// Returns the modules that use the one that exports the API, and are neither ours nor RDMA
/// drivers.
fn holders(machine: &Machine) -> Vec<String> {
    let owner = machine.symbols.as_ref().ok().and_then(|symbols| symbols.get(REGISTER));
    let Some(Some(owner)) = owner else { return Vec::new() };
    let users = machine.modules.get(owner).map_or(&[][..], |module| &module.used_by);
    // Parts of the core, its users in the kernel, and drivers of RDMA devices.
    let others =
        ["ib_", "rdma_", "iw_", "rpcrdma", "nvme_rdma", "nvmet_rdma", "mlx4_ib", "mlx5_ib", "bnxt_re", "irdma", "efa"];
    let drivers: Vec<&str> = machine.rdma.iter().filter_map(|device| device.module.as_deref()).collect();
    users
        .iter()
        .filter(|user| {
            !others.iter().any(|name| user.starts_with(name)) && !drivers.contains(&user.as_str()) && *user != NAME
        })
        .cloned()
        .collect()
}

fn among(holders: &[String]) -> String {
    match holders {
        [] => "its name is unknown".to_owned(),
        [one] => one.clone(),
        many => format!("one of {}", many.join(", ")),
    }
}

fn old_module(machine: &Machine) -> Option<Check> {
    (machine.modules.contains_key(OLD_MODULE) && machine.loaded.is_some()).then(|| {
        Check::warn(
            "clients.nv_peer_mem",
            format!("{OLD_MODULE} is loaded beside nvidia_peermem: whichever came first answers for GPU memory"),
            format!("{}, and uninstall the package that loads it", unload(machine, OLD_MODULE, "")),
        )
        .seen("/proc/modules")
    })
}

fn counters(machine: &Machine) -> Vec<Check> {
    const ID: &str = "clients.counters";
    let Some(loaded) = &machine.loaded else { return Vec::new() };
    let stats = match &machine.stats {
        Ok(stats) => stats,
        Err(Missing::Denied) => return vec![Check::skip(ID, "the counters may not be read").seen(crate::peermem::DIR)],
        Err(Missing::Absent) if loaded.maker == Maker::Nvidia => {
            return vec![Check::skip(ID, "NVIDIA's module has no counters, and keeps no reasons of refusals")];
        }
        Err(Missing::Absent) => {
            return vec![Check::skip(ID, "this build of the module has no counters").seen(crate::peermem::DIR)]
        }
        Err(Missing::Unknown) => {
            return vec![Check::warn(ID, UNKNOWN, KNOW_IT).seen("format in /proc/driver/nvidia-peermem/stats")]
        }
    };
    let number = |key: &str| stats.number(key).unwrap_or(0);
    let (pins, unpins, live) = (number("total.pins"), number("total.unpins"), number("total.live"));
    let mut check = Check::ok(
        ID,
        format!(
            "{} live ({}), {pins} made, {unpins} ended, {} of them by a free; {}{}",
            text::count(live, "pin"),
            text::bytes(number("total.live_bytes")),
            number("total.revocations"),
            text::count(number("total.refused"), "refusal"),
            match number("unanswered") {
                0 => String::new(),
                asks => format!("; {} of memory that is nobody's (\"Bad address\")", text::count(asks, "ask")),
            },
        ),
    )
    .seen("/proc/driver/nvidia-peermem/stats");
    check.evidence.extend(figures(stats));
    let mut checks = vec![check];
    let oldest = number("oldest_callback_ms");
    checks.push(
        match oldest {
            0 => Check::ok("clients.callbacks", "no free callback is running"),
            STUCK_MS.. => Check::fail(
                "clients.callbacks",
                format!(
                    "a free callback has waited for the RDMA core for {} s: the GPU driver stands still for everybody",
                    oldest / 1000
                ),
                stuck_fix(machine),
            ),
            _ => Check::ok(
                "clients.callbacks",
                format!(
                    "{} running, the oldest for {oldest} ms",
                    text::count(number("callbacks_in_flight"), "free callback")
                ),
            ),
        }
        .seen("oldest_callback_ms in /proc/driver/nvidia-peermem/stats"),
    );
    if number("put_errors") > 0 {
        checks.push(put_errors(stats));
    }
    checks
}

/// Reports pins that the driver failed to take back, those that are lost among them.
fn put_errors(stats: &Stats) -> Check {
    let number = |key: &str| stats.number(key).unwrap_or(0);
    let failed = format!("the GPU driver failed to take back {}", text::count(number("put_errors"), "pin"));
    let (message, fix) = match number("total.lost") {
        0 => (failed, "see the NVRM lines in the kernel log; a revocable pin ends when its memory is freed".to_owned()),
        lost => (
            format!(
                "{failed}; {} cannot be taken back any more, and {} of GPU memory and BAR1 stay in use",
                text::count(lost, "pin"),
                text::bytes(number("total.lost_bytes"))
            ),
            "see the NVRM lines in the kernel log; to get the memory back, end every user of that GPU and stop \
             nvidia-persistenced, so that the driver shuts the GPU down, or reboot"
                .to_owned(),
        ),
    };
    Check::warn("clients.put_errors", message, fix)
        .seen("put_errors, total.lost and total.lost_bytes in /proc/driver/nvidia-peermem/stats")
}

/// Returns the figures that say something as soon as they are not zero, though none is wrong by
/// itself.
fn figures(stats: &Stats) -> Vec<String> {
    let mut figures = Vec::new();
    let refused: Vec<String> = stats.nonzero("refused.").map(|(reason, count)| format!("{reason} {count}")).collect();
    if !refused.is_empty() {
        figures.push(format!("refused since the module was loaded: {}", refused.join(", ")));
    }
    let longest = ["get", "put", "map"].into_iter().filter_map(|call| {
        let ns = stats.number(&format!("provider.{call}.longest_ns")).filter(|ns| *ns > 0)?;
        Some(format!("{call} {:.3} ms", ns as f64 / 1e6))
    });
    let longest: Vec<String> = longest.collect();
    if !longest.is_empty() {
        figures.push(format!("longest calls of the GPU driver: {}", longest.join(", ")));
    }
    let unanswered = stats.number("unanswered").filter(|asks| *asks > 0);
    figures.extend(unanswered.map(|asks| {
        format!(
            "{} of memory that is nobody's: a wrong or freed pointer, or GPU memory that may not be pinned (docs/doctor.md, \"Bad address\")",
            text::count(asks, "registration")
        )
    }));
    let late = stats.number("late_callbacks").filter(|late| *late > 0);
    figures.extend(late.map(|late| format!("{} found nothing to do", text::count(late, "late free callback"))));
    figures
}

/// Says what ends a free callback that is stuck: the freeing thread waits in the kernel, where no
/// signal ends the wait (docs/safety.md#endless-fence).
fn stuck_fix(machine: &Machine) -> String {
    let row = machine.callbacks.as_ref().ok().and_then(|rows| rows.first());
    let Some(row) = row else {
        return "reset the NIC or reboot, as no kill ends that wait, then update the RDMA core; as root, peermemctl doctor names NIC and process".to_owned();
    };
    let mut registrations = machine.registrations.iter().flatten();
    let nic = registrations.find(|other| (other.pid, other.va) == (row.pid, row.va)).and_then(|row| row.nic.as_deref());
    format!(
        "reset the NIC{} or reboot, as no kill ends that wait, then update the RDMA core; the registration is of process {} ({})",
        nic.map_or(String::new(), |nic| format!(" {nic}")),
        row.pid,
        row.comm
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_are_not_zero_are_told() {
        let told = |text: &str| figures(&Stats::parse(text));
        assert!(told("refused.busy 0\nprovider.get.longest_ns 0\nlate_callbacks 0\n").is_empty());
        assert_eq!(
            told("refused.busy 2\nrefused.freed 1\nnv_mem.refused.busy 2\nprovider.get.longest_ns 12345678\nprovider.map.longest_ns 900\nunanswered 3\nlate_callbacks 1\n"),
            [
                "refused since the module was loaded: busy 2, freed 1",
                "longest calls of the GPU driver: get 12.346 ms, map 0.001 ms",
                "3 registrations of memory that is nobody's: a wrong or freed pointer, or GPU memory that may not be pinned (docs/doctor.md, \"Bad address\")",
                "1 late free callback found nothing to do",
            ]
        );
    }
}
