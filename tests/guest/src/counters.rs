// SPDX-License-Identifier: GPL-2.0
//! Compares what the module counts with what the stand-ins saw, and tests that its figures add up.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nvlab::Accounting;

use crate::gpu;
use crate::lab;
use crate::modules::{self, PEERMEM};
use crate::peermem::{rows, Stats};

/// The counters of both sides at a time when nothing was going on. [`Ledger::check`] fails if
/// anything but the module pins GPU memory in between (`/dev/nvlab_gdr`), or empties the
/// accounting.
pub struct Ledger {
    stats: Stats,
    accounting: Accounting,
}

/// A figure of ours, and the value that somebody else has for it.
struct Figure {
    what: String,
    ours: i64,
    theirs: i64,
}

impl Ledger {
    /// Reads the counters. It must be called while nobody registers, deregisters or frees. Existing
    /// registrations do not matter.
    pub fn begin() -> Result<Self> {
        Ok(Self { stats: Stats::read()?, accounting: gpu::accounting()? })
    }

    /// Compares every figure. It must be called while nobody registers, deregisters or frees.
    /// Existing registrations do not matter. What a killed process had is given back a moment after
    /// its death, so this waits a little.
    pub fn check(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match self.compare() {
                Err(_) if Instant::now() < end => sleep(Duration::from_millis(100)),
                other => return other,
            }
        }
    }

    fn compare(&self) -> Result<()> {
        let (stats, accounting) = (Stats::read()?, gpu::accounting()?);
        let mut figures = self.grown(&stats, &accounting)?;
        figures.extend(living(&stats, &accounting)?);
        let compared = figures.len();
        figures.extend(sums(&stats)?);
        let wrong: Vec<String> = figures
            .iter()
            .filter(|f| f.ours != f.theirs)
            .map(|f| format!("{}: the module counts {}, wanted {}", f.what, f.ours, f.theirs))
            .collect();
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        println!("{compared} figures of stats are those of the stand-ins");
        Ok(())
    }

    /// Returns the figures that only grow, counted since `begin`.
    fn grown(&self, stats: &Stats, accounting: &Accounting) -> Result<Vec<Figure>> {
        let ours = |key: &str| -> Result<i64> { Ok(stats.number(key)? - self.stats.number(key)?) };
        let of = |client, key: &str| -> Result<i64> { Ok(stats.of(client, key)? - self.stats.of(client, key)?) };
        let theirs = |name: &str| accounting.get(name) - self.accounting.get(name);
        let (persistent, revocable) = stats.clients()?;
        let mut all = Vec::new();
        for (client, get, put, failures) in [
            (Some(persistent), "persistent_gets", "persistent_puts", "persistent_get_failures"),
            (revocable, "gets", "puts", "get_failures"),
        ] {
            for (key, theirs) in [
                ("pins", theirs(get) - theirs(failures)),
                ("provider.get.calls", theirs(get)),
                ("provider.put.calls", theirs(put)),
            ] {
                let what = format!("{}.{key}", client.unwrap_or("no client"));
                all.push(Figure { ours: of(client, key)?, theirs, what });
            }
        }
        all.push(Figure {
            what: "provider.map.calls".into(),
            ours: ours("provider.map.calls")?,
            theirs: theirs("dma_maps"),
        });
        // The module does not count puts that fail with ENOMEM, because the pin still exists.
        // Nobody makes a put fail like that here.
        all.push(Figure {
            what: "put_errors".into(),
            ours: ours("put_errors")?,
            theirs: theirs("put_failures") + theirs("persistent_put_failures"),
        });
        all.push(Figure {
            what: "revocations and late callbacks".into(),
            ours: ours("total.revocations")? + ours("late_callbacks")?,
            theirs: theirs("callbacks"),
        });
        Ok(all)
    }
}

/// Returns the figures about what exists now.
fn living(stats: &Stats, accounting: &Accounting) -> Result<Vec<Figure>> {
    let (persistent, revocable) = stats.clients()?;
    let pins = gpu::lab()?.pins()?;
    let mut all = Vec::new();
    for (client, is_persistent) in [(Some(persistent), true), (revocable, false)] {
        let mine = || pins.iter().filter(move |p| p.persistent == is_persistent);
        let bytes: u64 = mine().map(|p| p.len).sum();
        let pages: u64 = mine().map(|p| u64::from(p.entries)).sum();
        for (key, theirs) in [
            ("live", i64::try_from(mine().count())?),
            ("live_bytes", i64::try_from(bytes)?),
            ("live_pages", i64::try_from(pages)?),
        ] {
            let what = format!("{}.{key}", client.unwrap_or("no client"));
            all.push(Figure { ours: stats.of(client, key)?, theirs, what });
        }
    }
    let listed = rows("registrations")?;
    let sum = |key: &str, state: Option<&str>| -> Result<i64> {
        let rows = listed.iter().filter(|r| state.is_none() || r.text("state") == state);
        let numbers = rows.map(|r| r.number(key).with_context(|| format!("no number {key} in {r:?}")));
        Ok(i64::try_from(numbers.sum::<Result<u64>>()?)?)
    };
    let mapped = listed.iter().filter(|r| r.text("state") == Some("mapped")).count();
    let orphans = listed.iter().filter(|r| r.text("state") == Some("orphan")).count();
    let mrs = lab::nic_mrs()?;
    let nic = mrs.iter().filter(|m| m.state == "live").count();
    let entries: u64 = mrs.iter().filter(|m| m.state == "live").map(|m| m.sg_entries).sum();
    let maps = stats.number("total.maps")? - stats.number("total.unmaps")?;
    for (what, ours, theirs) in [
        ("pages of all registrations", sum("pages", None)?, pins.iter().map(|p| i64::from(p.entries)).sum()),
        ("total.live_runs, against the NIC's lists", stats.number("total.live_runs")?, i64::try_from(entries)?),
        ("runs that are mapped, against the NIC's lists", sum("runs", Some("mapped"))?, i64::try_from(entries)?),
        ("orphans, against the list of registrations", stats.number("total.orphans")?, i64::try_from(orphans)?),
        ("callbacks in flight", stats.number("callbacks_in_flight")?, accounting.get("callbacks_running")),
        ("live mappings, against the NIC", maps, i64::try_from(nic)?),
        ("live mappings, against the list of registrations", maps, i64::try_from(mapped)?),
    ] {
        all.push(Figure { what: what.into(), ours, theirs });
    }
    Ok(all)
}

/// Returns the figures that must add up within `stats` itself.
fn sums(stats: &Stats) -> Result<Vec<Figure>> {
    let (persistent, revocable) = stats.clients()?;
    let mut all = Vec::new();
    let refused = |prefix: &str| stats.below(prefix).map(|(_, n)| n).sum::<i64>();
    for client in ["total", persistent].into_iter().chain(revocable) {
        let n = |key: &str| stats.number(&format!("{client}.{key}"));
        let prefix = if client == "total" { String::new() } else { format!("{client}.") };
        for (what, ours, theirs) in [
            ("pins, against unpins + live", n("pins")?, n("unpins")? + n("live")?),
            ("refused.*, against refused", refused(&format!("{prefix}refused.")), n("refused")?),
            ("errno.*, against refused", refused(&format!("{prefix}errno.")), n("refused")?),
        ] {
            all.push(Figure { what: format!("{client}: {what}"), ours, theirs });
        }
    }
    for key in ["pins", "live", "live_bytes", "live_runs", "maps", "unmaps", "revocations", "orphans", "refused"] {
        all.push(Figure {
            what: format!("total.{key}"),
            ours: stats.number(&format!("total.{key}"))?,
            theirs: stats.of(Some(persistent), key)? + stats.of(revocable, key)?,
        });
    }
    Ok(all)
}

/// Waits until the module and everybody else report that nothing is pinned, mapped, left behind or
/// referenced.
pub fn settled(limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        match unsettled()?.as_slice() {
            [] => return Ok(()),
            // What a dying process held is released a moment after its parent learns of the death.
            what if Instant::now() > end => bail!("after {limit:?}: {}", what.join(", ")),
            _ => sleep(Duration::from_millis(20)),
        }
    }
}

fn unsettled() -> Result<Vec<String>> {
    let mut out = Vec::new();
    let stats = Stats::read()?;
    for key in ["live", "orphans", "live_bytes", "live_pages", "live_runs"] {
        let value = stats.number(&format!("total.{key}"))?;
        if value != 0 {
            out.push(format!("total.{key} is {value}"));
        }
    }
    let (pins, unpins) = (stats.number("total.pins")?, stats.number("total.unpins")?);
    if pins != unpins {
        out.push(format!("{pins} pins, {unpins} unpins"));
    }
    if stats.number("callbacks_in_flight")? != 0 {
        out.push("a free callback is running".to_string());
    }
    let accounting = gpu::accounting()?;
    for key in ["live_pins", "live_persistent", "live_mappings", "violations", "callbacks_running"] {
        if accounting.get(key) != 0 {
            out.push(format!("the GPU's {key} is {}", accounting.get(key)));
        }
    }
    let mrs = lab::nic_stat("mrs_live")?;
    if mrs != 0 {
        out.push(format!("the NIC has {mrs} MRs of peer memory"));
    }
    match modules::use_count(PEERMEM)? {
        Some(0) => {}
        count => out.push(format!("{PEERMEM}'s use count is {count:?}")),
    }
    Ok(out)
}
