// SPDX-License-Identifier: GPL-2.0

//! Turns the guest's samples into figures: median and quartiles per row.

use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

pub const OURS: &str = "ours";
pub const OURS_REVOCABLE: &str = "ours_revocable";
pub const C: &str = "c_nv_mem";
pub const C_NC: &str = "c_nv_mem_nc";
/// The client `C` over a provider that maps as driver 550 does.
pub const C_550: &str = "c_nv_mem_550";

pub const GIB: u64 = 1 << 30;

/// The costs that were published for a V100 (docs/bench.md), in nanoseconds.
pub const PIN_NS: (f64, f64) = (68e3, 3.1e6);
pub const UNPIN_NS: (f64, f64) = (38e3, 1.6e6);

/// Returns the time of one pin and one put in nanoseconds. No client can be faster.
pub fn limit_ns(size: u64) -> f64 {
    let gib = size as f64 / GIB as f64;
    PIN_NS.0 + PIN_NS.1 * gib + UNPIN_NS.0 + UNPIN_NS.1 * gib
}

/// A median with the quartiles around it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    /// Returns the spread of the samples, or `None` if there are none.
    pub fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let at = |part: f64| -> Option<f64> {
            let place = part * (samples.len().checked_sub(1)? as f64);
            let (below, above) = (*samples.get(place.floor() as usize)?, *samples.get(place.ceil() as usize)?);
            Some(below + (above - below) * place.fract())
        };
        Some(Self { low: at(0.25)?, median: at(0.5)?, high: at(0.75)? })
    }
}

/// The subject of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub cost: String,
    pub layout: String,
    pub size: u64,
    pub variant: String,
}

/// The times of one registration and its deregistration, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Time {
    /// The sum of all seven callbacks.
    pub callbacks: Spread,
    /// The time of each callback, in the order acquire, get_pages, dma_map, get_page_size,
    /// dma_unmap, put_pages, release.
    pub each: [Spread; 7],
    /// The time spent in the provider.
    pub provider: Spread,
    /// The time of the callbacks without the provider.
    pub own: Spread,
    /// The time of `ibv_reg_mr` plus `ibv_dereg_mr`.
    pub verbs: Spread,
    /// The number of gets, puts, mappings and unmappings.
    pub calls: Vec<u64>,
    pub entries: u64,
    pub samples: usize,
}

impl Time {
    /// Returns the time for which the core holds its mutex: that of acquire.
    pub fn mutex(&self) -> Spread {
        self.each[0]
    }

    /// Returns `None` if there are no samples, or if one does not consist of seven callbacks, the
    /// provider and two verbs.
    fn new(samples: &[Vec<f64>], calls: Vec<u64>, entries: u64) -> Option<Self> {
        if samples.iter().any(|s| s.len() != 10) {
            return None;
        }
        let spread = |f: &dyn Fn(&[f64]) -> f64| Spread::of(samples.iter().map(|s| f(s)).collect());
        let sum = |s: &[f64]| s[..7].iter().sum::<f64>();
        let mut each = [Spread::default(); 7];
        for (i, each) in each.iter_mut().enumerate() {
            *each = spread(&|s| s[i])?;
        }
        Some(Self {
            callbacks: spread(&sum)?,
            each,
            provider: spread(&|s| s[7])?,
            own: spread(&|s| sum(s) - s[7])?,
            verbs: spread(&|s| s[8] + s[9])?,
            calls,
            entries,
            samples: samples.len(),
        })
    }
}

/// The number of bytes that a live registration holds.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub client: i64,
    pub provider: i64,
    pub stack: i64,
    pub total: i64,
}

/// The figures of a range over allocations of one length.
pub struct Pieces {
    pub segment: u64,
    pub size: u64,
    pub cost: String,
    pub time: Time,
    /// The number of gets that failed.
    pub failed: u64,
    /// The time that the provider takes to pin and unpin each allocation once, in nanoseconds.
    pub alone: f64,
}

impl Pieces {
    fn new(row: &Value) -> Result<Self> {
        let time = Time::new(&samples(row)?, Vec::new(), 0).context("a row without samples")?;
        let alone = row["alone_ns"].as_f64().context("no alone_ns")?;
        let (segment, size, failed) = (int(row, "segment")?, int(row, "size")?, int(row, "failed")?);
        Ok(Self { segment, size, cost: text(row, "cost")?, time, failed, alone })
    }

    /// Returns the time of the callbacks divided by that of the provider's own pins.
    pub fn ratio(&self) -> f64 {
        self.time.callbacks.median / self.alone
    }
}

/// The figures of threads that register at the same time, over several runs: nanoseconds per
/// registration, and number of waits.
pub struct Threads {
    pub held: BTreeMap<&'static str, Spread>,
    pub waited: BTreeMap<String, (Spread, f64)>,
}

/// Returns a sentence about the kernel and NVIDIA's parts: the module that ours is compared with,
/// and the driver's front under both.
pub fn machine(all: &Value) -> String {
    let text = |name: &str| all[name].as_str().unwrap_or("-").to_string();
    format!("{}, {}", text("kernel"), text("nvidia"))
}

/// Everything that the report shows.
pub struct Figures {
    pub machine: String,
    pub commit: String,
    pub times: BTreeMap<Key, Time>,
    /// The times by the wall clock.
    pub wall: BTreeMap<Key, Time>,
    pub memory: BTreeMap<Key, Memory>,
    /// The times by client and number of live registrations.
    pub live: BTreeMap<(String, u64), Time>,
    /// The figures of registrations over many allocations.
    pub pieces: Vec<Pieces>,
    /// The times of the free callback and of the core's invalidate within it, by client, size and
    /// fence.
    pub free: BTreeMap<(String, u64, u64), (Spread, Spread)>,
    /// The bandwidth in MB/s, by program, buffer and client.
    pub bandwidth: BTreeMap<(String, String, String), Vec<f64>>,
    /// The times of the last NIC's registration, by client, layout, size and number of NICs.
    pub nics: BTreeMap<(String, String, u64, u64), Time>,
    pub pages: Vec<Value>,
    pub bad_addresses: Vec<Value>,
    /// The figures by client, threads, NICs, and whether the memory is freed before it is
    /// deregistered.
    pub threads: BTreeMap<(String, u64, u64, bool), Threads>,
    pub profile: Vec<Value>,
}

impl Figures {
    pub fn new(all: &Value) -> Result<Self> {
        let empty = Vec::new();
        let rows = |name: &str| all["rows"][name].as_array().unwrap_or(&empty);
        let mut live = BTreeMap::new();
        for row in rows("live") {
            let time = Time::new(&samples(row)?, Vec::new(), 0).context("a row without samples")?;
            live.insert((text(row, "variant")?, int(row, "live")?), time);
        }
        let mut free = BTreeMap::new();
        for row in rows("free") {
            let samples = samples(row)?;
            let column = |i: usize| Spread::of(samples.iter().map(|s| s[i]).collect()).context("a row without samples");
            let key = (text(row, "variant")?, int(row, "size")?, int(row, "fence_ms")?);
            free.insert(key, (column(0)?, column(1)?));
        }
        let mut rates: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for row in rows("bandwidth") {
            let key = (text(row, "program")?, text(row, "buffer")?, text(row, "variant")?);
            rates.entry(key).or_default().push(row["mb_s"].as_f64().context("no mb_s")?);
        }
        let mut nics = BTreeMap::new();
        for row in rows("nics") {
            let time = Time::new(&samples(row)?, Vec::new(), 0).context("a row without samples")?;
            nics.insert((text(row, "variant")?, text(row, "layout")?, int(row, "size")?, int(row, "nics")?), time);
        }
        let mut memory = BTreeMap::new();
        for row in rows("memory") {
            let bytes = |name: &str| row[name].as_i64().with_context(|| format!("no {name} in {row}"));
            memory.insert(
                key(row)?,
                Memory {
                    client: bytes("client")?,
                    provider: bytes("provider")?,
                    stack: bytes("stack")?,
                    total: bytes("total")?,
                },
            );
        }
        Ok(Self {
            machine: machine(all) + ", fast kernel",
            commit: all["commit"].as_str().unwrap_or_default().to_string(),
            times: times(rows("times"))?,
            wall: times(rows("wall"))?,
            memory,
            live,
            pieces: rows("pieces").iter().map(Pieces::new).collect::<Result<_>>()?,
            free,
            bandwidth: rates,
            nics,
            pages: rows("pages").clone(),
            bad_addresses: rows("bad_addresses").clone(),
            threads: threads(rows("threads"))?,
            profile: rows("profile").clone(),
        })
    }

    pub fn time(&self, variant: &str, size: u64, layout: &str, cost: &str) -> Option<&Time> {
        self.times.get(&Key { cost: cost.into(), layout: layout.into(), size, variant: variant.into() })
    }

    /// Returns the instructions of the client's module in one registration and deregistration,
    /// including those of the kernel that it called.
    pub fn instructions(&self, variant: &str, size: u64) -> Option<u64> {
        let row = self.profile.iter().find(|row| row["variant"] == variant && row["size"] == size)?;
        row["modules"]["nvidia_peermem"].as_u64()
    }

    pub fn memory(&self, variant: &str, size: u64, layout: &str) -> Option<&Memory> {
        self.memory.get(&Key { cost: String::new(), layout: layout.into(), size, variant: variant.into() })
    }
}

pub fn text(row: &Value, name: &str) -> Result<String> {
    Ok(row[name].as_str().with_context(|| format!("no {name} in {row}"))?.to_string())
}

pub fn int(row: &Value, name: &str) -> Result<u64> {
    row[name].as_u64().with_context(|| format!("no {name} in {row}"))
}

fn key(row: &Value) -> Result<Key> {
    Ok(Key {
        cost: row["cost"].as_str().unwrap_or_default().to_string(),
        layout: text(row, "layout")?,
        size: int(row, "size")?,
        variant: text(row, "variant")?,
    })
}

fn samples(row: &Value) -> Result<Vec<Vec<f64>>> {
    let samples = row["samples"].as_array().with_context(|| format!("no samples in {row}"))?;
    samples
        .iter()
        .map(|s| s.as_array()?.iter().map(Value::as_f64).collect())
        .collect::<Option<_>>()
        .with_context(|| format!("samples that are no numbers in {row}"))
}

/// Merges the repeats of each row.
fn threads(rows: &[Value]) -> Result<BTreeMap<(String, u64, u64, bool), Threads>> {
    let mut repeats: BTreeMap<_, Vec<&Value>> = BTreeMap::new();
    for row in rows {
        let frees = row["frees"].as_bool().context("threads without frees")?;
        let key = (text(row, "variant")?, int(row, "threads")?, int(row, "nics")?, frees);
        repeats.entry(key).or_default().push(row);
    }
    let mut all = BTreeMap::new();
    for (key, rows) in repeats {
        let spread = |value: &dyn Fn(&Value) -> Option<f64>| {
            let per = |row: &&Value| Some(value(row)? / row["registrations"].as_f64()?);
            Spread::of(rows.iter().map(per).collect::<Option<_>>()?)
        };
        let mut held = BTreeMap::new();
        for (name, at) in [
            ("peer mutex", "/held/peer mutex"),
            ("RM API lock", "/held/RM API lock"),
            ("put gate, shared", "/held/put gate/0"),
            ("put gate, exclusive", "/held/put gate/1"),
        ] {
            held.extend(spread(&|row| row.pointer(at)?.as_f64()).map(|spread| (name, spread)));
        }
        let names: BTreeSet<&String> =
            rows.iter().filter_map(|row| row["waited"].as_object()).flat_map(|waits| waits.keys()).collect();
        let mut waited = BTreeMap::new();
        for name in names {
            // A row lists only the locks that somebody waited for in its run.
            let part = |at: usize| move |row: &Value| Some(row["waited"][name][at].as_f64().unwrap_or(0.0));
            let times = spread(&part(0)).context("a row of threads without registrations")?;
            let counts = Spread::of(rows.iter().filter_map(|row| part(1)(row)).collect());
            waited.insert(name.clone(), (times, counts.map_or(0.0, |c| c.median)));
        }
        all.insert(key, Threads { held, waited });
    }
    Ok(all)
}

/// Returns the median of the quotients of two sets of samples, and an interval that contains it
/// with 95 % probability. It resamples either set 2000 times (bootstrap, always with the same
/// random numbers).
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
    let median = |samples: Vec<f64>| Spread::of(samples).map(|s| s.median);
    let whole = median(ours.to_vec())? / median(theirs.to_vec())?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |from: &[f64]| -> Vec<f64> {
        let one = |_| {
            // One step of the random number generator xorshift64.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            from[(state % from.len() as u64) as usize]
        };
        (0..from.len()).map(one).collect()
    };
    let mut ratios = Vec::new();
    for _ in 0..2000 {
        ratios.push(median(draw(ours))? / median(draw(theirs))?);
    }
    ratios.sort_by(f64::total_cmp);
    Some(Spread { low: ratios[50], median: whole, high: ratios[1949] })
}

/// Merges the turns of each row.
fn times(rows: &[Value]) -> Result<BTreeMap<Key, Time>> {
    let mut turns: BTreeMap<Key, Vec<&Value>> = BTreeMap::new();
    for row in rows {
        turns.entry(key(row)?).or_default().push(row);
    }
    turns
        .into_iter()
        .map(|(key, rows)| {
            let mut all = Vec::new();
            for row in &rows {
                all.extend(samples(row)?);
            }
            for name in ["calls", "entries"] {
                ensure!(rows.iter().all(|row| row[name] == rows[0][name]), "{key:?}: turns differ in {name}");
            }
            let calls = rows[0]["calls"].as_array().map(|c| c.iter().filter_map(Value::as_u64).collect());
            let time = Time::new(&all, calls.context("no calls")?, int(rows[0], "entries")?);
            Ok((key, time.context("a row without samples")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quartiles() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![7.0]), Some(Spread { low: 7.0, median: 7.0, high: 7.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0, 3.0, 2.0, 5.0]), Some(Spread { low: 2.0, median: 3.0, high: 4.0 }));
        assert_eq!(Spread::of(vec![1.0, 2.0]).map(|s| s.median), Some(1.5));
    }

    #[test]
    fn turns_become_one_row() {
        let row = |n: u64| {
            json!({"variant": "ours", "size": 65536, "layout": "contiguous", "cost": "zero", "calls": [1, 1, 0, 0],
                "entries": 1, "samples": [[n, 1, 1, 1, 1, 1, 1, 4, 100, 50]]})
        };
        let all = json!({"kernel": "7.2", "rows": {"times": [row(10), row(20), row(30)]}});
        let figures = Figures::new(&all).unwrap();
        let time = figures.time("ours", 65536, "contiguous", "zero").unwrap();
        assert_eq!((time.samples, time.callbacks.median, time.own.median), (3, 26.0, 22.0));
        assert_eq!((time.verbs.median, time.mutex().high), (150.0, 25.0));
        assert!(Figures::new(&json!({"rows": {"times": [{"variant": "ours"}]}})).is_err());
        let mut other = row(10);
        other["entries"] = json!(2);
        assert!(Figures::new(&json!({"rows": {"times": [row(10), other]}})).is_err(), "turns of different kinds");
        let mut short = row(10);
        short["samples"] = json!([[1, 2, 3]]);
        assert!(Figures::new(&json!({"rows": {"times": [short]}})).is_err(), "a sample without its callbacks");
    }

    #[test]
    fn repeats_become_one_row_of_threads() {
        let row = |ns: u64| {
            json!({"variant": "ours", "threads": 2, "nics": 1, "frees": false, "registrations": 10,
                "held": {"peer mutex": ns, "RM API lock": ns, "put gate": [ns, 0]}, "waited": if ns > 100 { json!({"peer mutex": [ns, 4]}) } else { json!({}) }})
        };
        let all = json!({"rows": {"threads": [row(100), row(200), row(300)]}});
        let figures = Figures::new(&all).unwrap();
        let threads = &figures.threads[&("ours".to_string(), 2, 1, false)];
        assert_eq!(
            (threads.held["peer mutex"].low, threads.held["peer mutex"].median, threads.held["peer mutex"].high),
            (15.0, 20.0, 25.0)
        );
        assert_eq!((threads.waited["peer mutex"].0.median, threads.waited["peer mutex"].1), (20.0, 4.0));
    }

    #[test]
    fn a_ratio_knows_how_sure_it_is() {
        let few = ratio(&[99.0, 101.0, 95.0], &[100.0, 104.0, 97.0]).unwrap();
        let spread = |n: u32| (0..n).map(|i| 100.0 + f64::from(i % 5)).collect::<Vec<_>>();
        let many = ratio(&spread(100), &spread(100)).unwrap();
        assert_eq!(many.median, 1.0);
        assert!(many.high - many.low < few.high - few.low, "{many:?} {few:?}");
        assert!(few.low <= few.median && few.median <= few.high);
        assert_eq!(ratio(&[], &[1.0]), None);
    }
}
