// SPDX-License-Identifier: GPL-2.0
//! `metrics`: the module's counters and doctor's verdicts in Prometheus' text format, for
//! node_exporter's textfile collector.

use crate::catalogue;
use crate::doctor::{bar1_in_use, Report};
use crate::machine::Machine;
use crate::peermem::Stats;
use anyhow::{Context, Result};
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;
type Float = Gauge<f64, AtomicU64>;

/// Returns all metrics as text.
pub fn text(machine: &Machine, report: &Report) -> Result<String> {
    let mut registry = Registry::with_prefix("nvidia_peermem");
    verdicts(&mut registry, machine, report);
    if let Ok(stats) = &machine.stats {
        gauges(&mut registry, stats);
        counters(&mut registry, stats);
        by_label(&mut registry, stats);
    }
    bar1(&mut registry, machine);
    let mut text = String::new();
    encode_registry(&mut text, &by_way(report)).context("encode metrics")?;
    encode(&mut text, &registry).context("encode metrics")?;
    Ok(in_order(&for_prometheus(&text)))
}

/// Turns OpenMetrics into Prometheus' text format, the only one that node_exporter reads: a type that
/// it does not know costs the whole file. There a family has the name of its series, and what
/// OpenMetrics calls an info is a gauge.
fn for_prometheus(text: &str) -> String {
    let types: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let line = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return format!("{line}\n");
        };
        let suffix = match types.get(name) {
            Some(&"counter") => "_total",
            Some(&"info") => "_info",
            _ => "",
        };
        let rest = if (kind, rest) == ("TYPE", "info") { "gauge" } else { rest };
        format!("# {kind} {name}{suffix} {rest}\n")
    };
    // Units are in the names.
    text.lines().filter(|line| !line.starts_with("# UNIT ")).map(line).collect()
}

/// Sorts the series of each metric. Families are hash maps, whose order changes with each run.
fn in_order(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let parts = lines.chunk_by(|a, b| a.starts_with('#') == b.starts_with('#'));
    let sorted = parts.flat_map(|part| {
        let mut part = part.to_vec();
        if !part.first().is_some_and(|line| line.starts_with('#')) {
            part.sort_unstable();
        }
        part
    });
    sorted.map(|line| format!("{line}\n")).collect()
}

/// Writes the file in one step: the collector never reads half of it.
pub fn write(text: &str, file: &Path) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder).with_context(|| format!("write to {}", folder.display()))?;
    std::io::Write::write_all(&mut new, text.as_bytes())?;
    // The collector that reads the file may not be root.
    fs::set_permissions(new.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    new.persist(file).with_context(|| format!("write {}", file.display()))?;
    Ok(())
}

/// Registers the verdict over all ways, and that of each.
fn by_way(report: &Report) -> Registry {
    let mut registry = Registry::with_prefix("gpudirect_rdma");
    let ways = Family::<Labels, Float>::default();
    for verdict in &report.ways {
        let value = verdict.usable.map_or(f64::NAN, |usable| f64::from(u8::from(usable)));
        ways.get_or_create(&vec![("way", verdict.way.label().to_owned())]).set(value);
    }
    registry.register("usable", "Whether a pair of a GPU and a NIC has this way: 1 yes, 0 no, NaN unknown", ways);
    let verdict: Gauge = Gauge::default();
    verdict.set(i64::from(report.outcome.exit_code()));
    let help = "Whether GPUDirect RDMA is usable: 0 usable, 1 usable with warnings, 2 not usable, 3 unknown";
    registry.register("verdict", help, verdict);
    registry
}

fn verdicts(registry: &mut Registry, machine: &Machine, report: &Report) {
    let checks = Family::<Labels, Gauge>::default();
    for entry in &catalogue::CHECKS {
        let levels = report.checks().filter(|check| check.id == entry.id).filter(|check| check.is_finding());
        let worst = levels.map(|check| check.level.exit_code()).max().unwrap_or(0);
        checks.get_or_create(&vec![("id", entry.id.to_owned())]).set(i64::from(worst));
    }
    registry.register(
        "check",
        "Verdict of a check of peermemctl doctor: 0 fine or not looked at, 1 warning, 2 failed",
        checks,
    );
    let or = |text: Option<&String>| text.cloned().unwrap_or_default();
    let loaded = machine.loaded.as_ref();
    let mode = machine.stats.as_ref().ok().and_then(|stats| stats.text("mode")).unwrap_or_default().to_owned();
    let labels = vec![
        ("version", or(loaded.and_then(|loaded| loaded.version.as_ref()))),
        ("mode", mode),
        ("driver", or(machine.driver.as_ref().and_then(|driver| driver.version.as_ref()))),
        ("kernel", or(machine.release.as_ref())),
    ];
    registry.register("module", "The loaded module, and what it works with", Info::new(labels));
}

fn gauges(registry: &mut Registry, stats: &Stats) {
    for (name, key, help) in [
        ("live", "total.live", "Pins that exist now"),
        ("orphans", "total.orphans", "Pins that wait for a callback or for their owner's next call"),
        ("callbacks_in_flight", "callbacks_in_flight", "Free callbacks that run now"),
    ] {
        let gauge: Gauge = Gauge::default();
        gauge.set(stats.number(key).and_then(|n| i64::try_from(n).ok()).unwrap_or(0));
        registry.register(name, help, gauge);
    }
    for (name, key, unit, scale, help) in [
        ("live", "total.live_bytes", Unit::Bytes, 1.0, "Bytes of the pins that exist now"),
        ("oldest_callback", "oldest_callback_ms", Unit::Seconds, 1e-3, "Age of the oldest free callback"),
    ] {
        let gauge = Float::default();
        gauge.set(stats.number(key).unwrap_or(0) as f64 * scale);
        registry.register_with_unit(name, help, unit, gauge);
    }
}

fn counters(registry: &mut Registry, stats: &Stats) {
    for (name, key, help) in [
        ("pins", "total.pins", "Pins that the GPU driver granted"),
        ("unpins", "total.unpins", "Pins that ended"),
        ("revocations", "total.revocations", "Pins that a free revoked"),
        ("put_errors", "put_errors", "Pins that the GPU driver failed to take back"),
        ("lost_pinned_bytes", "total.lost_bytes", "Bytes of GPU memory and BAR1 that lost pins keep"),
        (
            "unanswered",
            "unanswered",
            "Registrations of memory that is neither the CPU's nor GPU memory that can be pinned",
        ),
        ("late_callbacks", "late_callbacks", "Free callbacks that found nothing to do"),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(stats.number(key).unwrap_or(0));
        registry.register(name, help, counter);
    }
}

fn by_label(registry: &mut Registry, stats: &Stats) {
    let refused = Family::<Labels, Counter>::default();
    for (reason, count) in stats.below("refused.") {
        refused.get_or_create(&vec![("reason", reason.to_owned())]).inc_by(count);
    }
    registry.register("refused", "Registrations refused, by reason", refused);
    let calls = Family::<Labels, Counter>::default();
    let seconds = Family::<Labels, Counter<f64, AtomicU64>>::default();
    for call in ["get", "put", "map"] {
        let labels = vec![("call", call.to_owned())];
        calls.get_or_create(&labels).inc_by(stats.number(&format!("provider.{call}.calls")).unwrap_or(0));
        let ns = stats.number(&format!("provider.{call}.total_ns")).unwrap_or(0);
        seconds.get_or_create(&labels).inc_by(ns as f64 / 1e9);
    }
    registry.register("driver_calls", "Calls of the GPU driver", calls);
    registry.register_with_unit("driver_calls", "Time in calls of the GPU driver", Unit::Seconds, seconds);
}

fn bar1(registry: &mut Registry, machine: &Machine) {
    let (total, used) = (Family::<Labels, Float>::default(), Family::<Labels, Float>::default());
    for gpu in machine.gpus() {
        let Some((size, in_use, _)) = bar1_in_use(machine, gpu) else { continue };
        let labels = vec![("gpu", gpu.address.clone())];
        total.get_or_create(&labels).set(size as f64);
        used.get_or_create(&labels).set(in_use as f64);
    }
    registry.register_with_unit("bar1_size", "Size of a GPU's BAR1", Unit::Bytes, total);
    registry.register_with_unit("bar1_used", "BAR1 in use", Unit::Bytes, used);
}
