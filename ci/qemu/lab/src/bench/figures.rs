//! From the guest's samples to figures: median and quartiles per row.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

pub const OURS: &str = "ours";
pub const OURS_REVOCABLE: &str = "ours_revocable";
pub const C: &str = "c_nv_mem";
pub const C_NC: &str = "c_nv_mem_nc";

pub const GIB: u64 = 1 << 30;

/// What design.md section 4 gives for a V100, in nanoseconds.
pub const PIN_NS: (f64, f64) = (68e3, 3.1e6);
pub const UNPIN_NS: (f64, f64) = (38e3, 1.6e6);

/// One pin and one put, which no client can do without.
pub fn limit_ns(size: u64) -> f64 {
    let gib = size as f64 / GIB as f64;
    PIN_NS.0 + PIN_NS.1 * gib + UNPIN_NS.0 + UNPIN_NS.1 * gib
}

/// Median with the quartiles around it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    /// `None` without any sample.
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

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub cost: String,
    pub layout: String,
    pub size: u64,
    pub variant: String,
}

/// Nanoseconds of one registration and its deregistration.
#[derive(Clone, Debug)]
pub struct Time {
    /// All seven callbacks.
    pub callbacks: Spread,
    /// Each of them, in the order acquire, get_pages, dma_map, get_page_size, dma_unmap, put_pages, release.
    pub each: [Spread; 7],
    /// In the provider.
    pub provider: Spread,
    /// Callbacks without the provider.
    pub own: Spread,
    /// `ibv_reg_mr` and `ibv_dereg_mr`.
    pub verbs: Spread,
    /// Gets, puts, mappings, unmappings.
    pub calls: Vec<u64>,
    pub entries: u64,
    pub samples: usize,
}

impl Time {
    /// The core's mutex is held over acquire.
    pub fn mutex(&self) -> Spread {
        self.each[0]
    }

    fn new(samples: &[Vec<f64>], calls: Vec<u64>, entries: u64) -> Option<Self> {
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

/// Bytes that a live registration holds.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub client: i64,
    pub provider: i64,
    pub stack: i64,
    pub total: i64,
}

/// Everything that is shown.
pub struct Figures {
    pub kernel: String,
    pub times: BTreeMap<Key, Time>,
    /// On the wall's clock.
    pub wall: BTreeMap<Key, Time>,
    pub memory: BTreeMap<Key, Memory>,
    /// By client and number of live registrations.
    pub live: BTreeMap<(String, u64), Time>,
    /// By client, size and fence: the free callback, and of it the core's invalidate.
    pub free: BTreeMap<(String, u64, u64), (Spread, Spread)>,
    /// MB/s by program, buffer and client.
    pub bandwidth: BTreeMap<(String, String, String), Spread>,
    pub pages: Vec<Value>,
    pub threads: Vec<Value>,
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
            kernel: all["kernel"].as_str().unwrap_or_default().to_string(),
            times: times(rows("times"))?,
            wall: times(rows("wall"))?,
            memory,
            live,
            free,
            bandwidth: rates.into_iter().filter_map(|(key, all)| Some((key, Spread::of(all)?))).collect(),
            pages: rows("pages").clone(),
            threads: rows("threads").clone(),
        })
    }

    pub fn time(&self, variant: &str, size: u64, layout: &str, cost: &str) -> Option<&Time> {
        self.times.get(&Key { cost: cost.into(), layout: layout.into(), size, variant: variant.into() })
    }

    pub fn memory(&self, variant: &str, size: u64, layout: &str) -> Option<&Memory> {
        self.memory.get(&Key { cost: String::new(), layout: layout.into(), size, variant: variant.into() })
    }
}

fn text(row: &Value, name: &str) -> Result<String> {
    Ok(row[name].as_str().with_context(|| format!("no {name} in {row}"))?.to_string())
}

fn int(row: &Value, name: &str) -> Result<u64> {
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
        .map(|s| s.as_array().map(|s| s.iter().filter_map(Value::as_f64).collect()))
        .collect::<Option<_>>()
        .with_context(|| format!("samples that are no numbers in {row}"))
}

/// The turns of one row are one row.
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
            let calls = rows[0]["calls"].as_array().map(|c| c.iter().filter_map(Value::as_u64).collect());
            let time = Time::new(&all, calls.unwrap_or_default(), int(rows[0], "entries")?);
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
    }
}
