// SPDX-License-Identifier: GPL-2.0
//! Measures who waits for which lock while several threads register. The provider sleeps for the
//! time that it costs, so that the threads really overlap. This does not measure speed.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use anyhow::{anyhow, ensure, Context, Result};
use nvlab::{Layout, Memory};
use serde_json::{json, Value};

use super::rig::{ns, positive, unload, Rig, Variant};
use crate::lab;
use crate::machine::SecondNic;
use crate::peermem::Stats;
use crate::test::{emit, Env};
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

const TRACING: &str = "/sys/kernel/tracing";
const SIZE: u64 = 1 << 20;
/// The number of registrations of each thread. The core's trace keeps 4096 lines, and a
/// registration has at most 10.
const ROUNDS: usize = 24;
/// The number of times that each row is measured, after one that warms up.
const REPEATS: usize = 5;
/// The cost of a pin: ten times a V100's, so that the sleeps outweigh the emulation.
const PIN_NS: u64 = 680_000;
const UNPIN_NS: u64 = 380_000;

fn set(file: &str, value: &str) -> Result<()> {
    let path = format!("{TRACING}/{file}");
    fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
}

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    let nic = SecondNic::add()?;
    let second = Pd::new(&Device::open(nic.name())?)?;
    set("options/hash-ptr", "0")?;
    set("buffer_size_kb", "8192")?;
    for variant in [Variant::OursPersistent, Variant::NvMem, Variant::OursRevocable] {
        variant.load(&rig)?;
        let own = |threads| Work { variant, threads, second: None, frees: false };
        run(&rig, &own(1))?;
        for _ in 0..REPEATS {
            for threads in [1, 2, 4, 8] {
                emit("threads", &run(&rig, &own(threads))?);
            }
            emit("threads", &run(&rig, &Work { second: Some(&second), ..own(8) })?);
            // NVIDIA's module has a use after free in this case.
            if variant != Variant::NvMem {
                emit("threads", &run(&rig, &Work { frees: true, ..own(8) })?);
            }
        }
    }
    unload()
}

/// Threads that register at the same time.
struct Work<'a> {
    variant: Variant,
    threads: usize,
    /// Another NIC, on which every second thread registers the same buffer as the others. Without
    /// it, each thread has a buffer of its own.
    second: Option<&'a Arc<Pd>>,
    /// Whether each round allocates its buffer, and frees it before deregistering it.
    frees: bool,
}

fn run(rig: &Rig, &Work { variant, threads, second, frees }: &Work) -> Result<Value> {
    rig.gpu.reset_cost()?;
    let buffers = if second.is_some() { 1 } else { threads };
    let memories = (0..buffers).map(|_| rig.memory(SIZE, Layout::Contiguous)).collect::<Result<Vec<_>>>()?;
    for (name, value) in [("pin_base", PIN_NS), ("unpin_base", UNPIN_NS), ("sleep", 1)] {
        rig.gpu.cost(name, value)?;
    }
    lab::clear_trace()?;
    rig.gpu.reset_accounting()?;
    let g_before = provider_ns()?;
    set("trace", "0")?;
    set("events/lock/contention_begin/enable", "1")?;
    set("events/lock/contention_end/enable", "1")?;
    let start_line = Barrier::new(threads);
    let start = Instant::now();
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let va = memories[thread % buffers].va();
                let pd = second.filter(|_| thread % 2 == 1).unwrap_or(&rig.pd);
                let start_line = &start_line;
                scope.spawn(move || -> Result<()> {
                    start_line.wait();
                    for _ in 0..ROUNDS {
                        let memory = if frees { Some(rig.memory(SIZE, Layout::Contiguous)?) } else { None };
                        let va = memory.as_ref().map_or(va, Memory::va);
                        let mr = Mr::reg(pd, va, usize::try_from(SIZE)?, FULL_ACCESS)?;
                        memory.map_or(Ok(()), Memory::free)?;
                        mr.dereg()?;
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    let elapsed = start.elapsed();
    set("events/lock/contention_begin/enable", "0")?;
    set("events/lock/contention_end/enable", "0")?;
    rig.gpu.reset_cost()?;
    let text = fs::read_to_string(format!("{TRACING}/trace")).context("read the kernel's trace")?;
    nothing_was_lost()?;
    let symbols = Symbols::load()?;
    symbols.names_all(variant)?;
    let waits = waits(&text, &symbols)?;
    let p_held: u64 = lab::trace()?.iter().filter(|e| e.callback == "acquire").map(|e| e.ns).sum();
    let api_held = positive(rig.gpu.accounting()?.get("api_lock_held_ns"));
    let g = provider_ns()?.map(|(get, put)| {
        let before = g_before.unwrap_or_default();
        // Persistent pins are put without the gate.
        [get - before.0, if variant == Variant::OursRevocable { put - before.1 } else { 0 }]
    });
    memories.into_iter().try_for_each(|m| m.free())?;
    Ok(json!({
        "variant": variant.name(), "threads": threads, "nics": if second.is_some() { 2 } else { 1 }, "frees": frees,
        "registrations": threads * ROUNDS, "elapsed": ns(elapsed.as_nanos()),
        "held": { "peer mutex": p_held, "RM API lock": api_held, "put gate": g }, "waited": waits,
    }))
}

/// Returns the time in the provider's gets and puts, during which the put gate is held, or `None`
/// with NVIDIA's module.
fn provider_ns() -> Result<Option<(i64, i64)>> {
    let Ok(stats) = Stats::read() else { return Ok(None) };
    Ok(Some((stats.number("provider.get.total_ns")?, stats.number("provider.put.total_ns")?)))
}

/// Fails if the kernel's trace had no room for an event, because the wait would be missing.
fn nothing_was_lost() -> Result<()> {
    let folder = format!("{TRACING}/per_cpu");
    for cpu in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        let file = cpu?.path().join("stats");
        let stats = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        for name in ["overrun", "commit overrun", "dropped events"] {
            let lost = stats.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
            let lost = lost.with_context(|| format!("no {name} in {}", file.display()))?;
            ensure!(lost == "0", "{}: {name} {lost}: buffer_size_kb is too small", file.display());
        }
    }
    Ok(())
}

/// The static locks: a part of the symbol of each, and its name in docs/rules.md. A lock whose
/// symbol contains another's part comes before that one.
const LOCKS: [(&str, &str); 7] = [
    ("peer_memory_mutex", "peer mutex"),
    ("nvpm_gpus", "GPUs found"),
    ("nvpm_put_gate", "put gate"),
    ("api_lock", "RM API lock"),
    ("REGISTRY", "registry"),
    ("WALK", "walk"),
    ("PAIRS", "pairs"),
];
/// The locks that exist without our module.
const NOT_OURS: [&str; 2] = ["peer mutex", "RM API lock"];

fn lock(symbol: &str) -> Option<&'static str> {
    LOCKS.iter().find(|(part, _)| symbol.contains(part)).map(|(_, name)| *name)
}

/// The kernel's data symbols by address.
struct Symbols(BTreeMap<u64, String>);

impl Symbols {
    fn load() -> Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/kallsyms").context("read /proc/kallsyms")?))
    }

    /// Parses kallsyms. Of several symbols at one address (all but one of them are empty), it keeps
    /// the lock, if there is one.
    fn parse(kallsyms: &str) -> Self {
        let mut symbols = BTreeMap::new();
        for line in kallsyms.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some("b" | "B" | "d" | "D")) = (words.next(), words.next()) else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            let symbol = words.collect::<Vec<_>>().join(" ");
            if lock(&symbol).is_some() || !symbols.contains_key(&address) {
                symbols.insert(address, symbol);
            }
        }
        Self(symbols)
    }

    /// Fails if a lock has no name. It would be counted with others, and look like one that nobody
    /// waited for.
    fn names_all(&self, variant: Variant) -> Result<()> {
        let ours = [Variant::OursPersistent, Variant::OursRevocable].contains(&variant);
        for (part, name) in LOCKS.into_iter().filter(|(_, name)| ours || NOT_OURS.contains(name)) {
            let known = self.0.values().any(|symbol| lock(symbol) == Some(name));
            ensure!(known, "/proc/kallsyms has no {part}: waits for it would go by another name");
        }
        Ok(())
    }

    /// Returns the lock's name in docs/rules.md, or its symbol if it is not there.
    fn name(&self, address: u64) -> String {
        const NEAR: u64 = 4096;
        match self.0.range(..=address).next_back() {
            Some((at, symbol)) if address - at <= NEAR => lock(symbol).unwrap_or(symbol).into(),
            _ => "heap".into(),
        }
    }
}

/// Returns nanoseconds and number of waits per lock, from pairs of contention_begin and
/// contention_end of one thread.
fn waits(trace: &str, symbols: &Symbols) -> Result<BTreeMap<String, (u64, u64)>> {
    let mut waiting: BTreeMap<(String, u64), f64> = BTreeMap::new();
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in trace.lines().filter(|l| !l.starts_with('#')) {
        let Some((head, event)) = line.split_once(": contention_") else { continue };
        // `comm-123     [001] d..2.    12.345678`
        let time: f64 =
            head.split_whitespace().next_back().context("no time")?.parse().context("time of a trace line")?;
        let task = head.split(" [").next().unwrap_or(head).trim().to_string();
        let (kind, rest) = event.split_once(": ").with_context(|| format!("trace line {line:?}"))?;
        let address = rest.split_whitespace().next().unwrap_or("").trim_start_matches("0x");
        let address = u64::from_str_radix(address, 16).with_context(|| format!("address in {line:?}"))?;
        if kind == "begin" {
            // A mutex that first spins writes two events. The first one counts.
            waiting.entry((task, address)).or_insert(time);
        } else if let Some(begin) = waiting.remove(&(task, address)) {
            let sum = sums.entry(symbols.name(address)).or_default();
            sum.0 += ((time - begin) * 1e9) as u64;
            sum.1 += 1;
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_paired_by_task_and_lock() {
        let symbols = Symbols::parse("0000ffff00001000 d peer_memory_mutex\t[ib_core]");
        let trace = "# tracer: nop\n\
             guest-12    [000] .....    10.000100: contention_begin: ffff00001000 (flags=SPIN|MUTEX)\n\
             guest-13    [001] .....    10.000150: contention_begin: 0000ffff00001000 (flags=MUTEX)\n\
             guest-12    [000] .....    10.000200: contention_begin: ffff00001000 (flags=MUTEX)\n\
             guest-12    [000] .....    10.000300: contention_end: ffff00001000 (ret=0)\n\
             guest-13    [001] .....    10.000250: contention_end: ffff00001000 (ret=0)\n\
             guest-13    [001] .....    10.000350: contention_begin: ffff80001000 (flags=MUTEX)\n\
             guest-13    [001] .....    10.000360: contention_end: ffff80001000 (ret=0)\n";
        let waits = waits(trace, &symbols).unwrap();
        assert_eq!(waits["peer mutex"].1, 2);
        assert!((290_000..310_000).contains(&waits["peer mutex"].0), "{}", waits["peer mutex"].0);
        assert_eq!(waits["heap"].1, 1);
    }

    #[test]
    fn a_lock_without_a_symbol_is_missed() {
        let kallsyms = "ffff00001000 d peer_memory_mutex\t[ib_core]\n\
             ffff00002000 d api_lock\t[nvidia]\n\
             ffff00003000 b nvpm_gpus\t[nvidia_peermem]\n\
             ffff00004000 t nvpm_put_gate_lock_shared\t[nvidia_peermem]\n\
             ffff00005000 d _RNv11peer_client7acquire4WALK\t[nvidia_peermem]\n\
             ffff00006000 d _RNv11peer_client8topology12PAIRS_ADDING\t[nvidia_peermem]\n\
             ffff00007000 d _RNv11peer_client8registry10REGISTRY_0\t[nvidia_peermem]\n\
             ffff00007000 d _RNv11peer_client8registry5CLASS\t[nvidia_peermem]\n";
        let symbols = Symbols::parse(kallsyms);
        assert_eq!(symbols.name(0xffff_0000_7008), "registry");
        symbols.names_all(Variant::NvMem).unwrap();
        let missed = symbols.names_all(Variant::OursRevocable).unwrap_err().to_string();
        assert!(missed.contains("nvpm_put_gate:"), "{missed}");
        let whole = format!("{kallsyms}ffff00008000 d nvpm_put_gate\t[nvidia_peermem]\n");
        Symbols::parse(&whole).names_all(Variant::OursRevocable).unwrap();
    }
}
