// SPDX-License-Identifier: GPL-2.0

//! Compares peer memory with dma-buf: tables and a plot.

use crate::figures::{int, machine, text, Spread, GIB};
use crate::plot::{draw, Line, BLUE, GREY, RED};
use crate::words::{size_text, spread, us, words, Table, LAYOUTS};
use anyhow::{Context, Result};
use serde_json::Value;

const DMA_BUF: &str = "dma_buf";

/// The least number of held bytes that differs for certain from what the kernel's caches keep.
const SEEN: u64 = 32 << 10;

fn name(variant: &str) -> &str {
    if variant == DMA_BUF {
        "dma-buf"
    } else {
        words(variant)
    }
}

/// The figures of one size and layout, registered one way.
struct Row {
    variant: String,
    layout: String,
    size: u64,
    register: Spread,
    deregister: Spread,
    /// The kernel memory that a live registration holds.
    held: u64,
    /// The time that freeing registered memory takes.
    free: Spread,
    /// The GPU memory that is still in use after that free.
    kept: u64,
}

/// The figures of many allocations, registered one way.
struct Several {
    variant: String,
    allocations: u64,
    segment: u64,
    /// The times, or `None` if the registration was refused.
    times: Option<(Spread, Spread)>,
    refused: String,
}

/// Everything that the report shows.
pub struct Ways {
    pub machine: String,
    pub commit: String,
    rows: Vec<Row>,
    several: Vec<Several>,
}

/// Returns the spreads of the samples' first and second numbers, or `None` without samples.
fn pair(row: &Value, name: &str) -> Option<(Spread, Spread)> {
    let column = |i: usize| {
        let samples = row[name].as_array()?.iter().map(|sample| sample[i].as_f64());
        Spread::of(samples.collect::<Option<Vec<f64>>>()?)
    };
    Some((column(0)?, column(1)?))
}

impl Ways {
    pub fn new(all: &Value) -> Result<Self> {
        let empty = Vec::new();
        let rows = |name: &str| all["rows"][name].as_array().unwrap_or(&empty);
        let row = |row: &Value| {
            let (register, deregister) = pair(row, "samples").with_context(|| format!("no samples in {row}"))?;
            let (free, _) = pair(row, "free").with_context(|| format!("no free in {row}"))?;
            Ok(Row {
                variant: text(row, "variant")?,
                layout: text(row, "layout")?,
                size: int(row, "size")?,
                register,
                deregister,
                held: int(row, "held")?,
                free,
                kept: int(row, "kept")?,
            })
        };
        let several = |row: &Value| {
            Ok(Several {
                variant: text(row, "variant")?,
                allocations: int(row, "allocations")?,
                segment: int(row, "segment")?,
                times: pair(row, "samples"),
                refused: row["refused"].as_str().unwrap_or_default().to_string(),
            })
        };
        Ok(Self {
            machine: machine(all),
            commit: all["commit"].as_str().unwrap_or_default().to_string(),
            rows: rows("ways").iter().map(row).collect::<Result<_>>()?,
            several: rows("ways_several").iter().map(several).collect::<Result<_>>()?,
        })
    }

    pub fn tables(&self) -> Vec<Table> {
        vec![self.one(), self.many()]
    }

    fn one(&self) -> Table {
        let mut rows = Vec::new();
        for (layout, in_words) in LAYOUTS {
            let mut sizes: Vec<u64> = self.rows.iter().filter(|r| r.layout == layout).map(|r| r.size).collect();
            sizes.sort_unstable();
            sizes.dedup();
            for size in sizes {
                for row in self.rows.iter().filter(|r| r.layout == layout && r.size == size) {
                    rows.push(vec![
                        in_words.to_string(),
                        size_text(size),
                        name(&row.variant).to_string(),
                        spread(row.register),
                        spread(row.deregister),
                        if row.held < SEEN { format!("< {}", size_text(SEEN)) } else { size_text(row.held) },
                        spread(row.free),
                        if row.kept == 0 { "none".into() } else { size_text(row.kept) },
                    ]);
                }
            }
        }
        Table {
            title: "One registration, V100's pin cost (µs: median, quartiles)",
            header: "layout | size | way | register | deregister | kernel memory held | free while registered | \
            GPU memory that it leaves until deregistration"
                .into(),
            rows,
        }
    }

    fn many(&self) -> Table {
        let row = |s: &Several| {
            let (register, deregister) = match s.times {
                Some((register, deregister)) => (spread(register), us(deregister.median)),
                None => (format!("refused: {}", s.refused), "-".into()),
            };
            vec![s.allocations.to_string(), size_text(s.segment), name(&s.variant).to_string(), register, deregister]
        };
        Table {
            title: "One registration over several allocations, V100's pin cost (µs)",
            header: "allocations | each | way | register | deregister".into(),
            rows: self.several.iter().map(row).collect(),
        }
    }

    /// Plots the time of a registration over its size, for contiguous memory.
    pub fn plot(&self) -> Result<String> {
        let line = |variant: &str, name, color| Line {
            name,
            color,
            points: self
                .rows
                .iter()
                .filter(|r| r.variant == variant && r.layout == "contiguous" && r.size <= GIB)
                .map(|r| (r.size as f64, (r.register.median + r.deregister.median) / 1e3))
                .collect(),
        };
        draw(
            "One registration and deregistration, V100's pin cost",
            &[
                line(crate::figures::C, "NVIDIA's C module", RED),
                line(crate::figures::OURS, "this module", BLUE),
                line(DMA_BUF, "dma-buf", GREY),
            ],
            10.0,
            &|us| if us >= 1000.0 { format!("{} ms", us / 1000.0) } else { format!("{us} µs") },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_way_has_its_row() {
        let row = |variant: &str, register: u64, kept: u64| {
            json!({"variant": variant, "size": 65536, "layout": "contiguous", "held": 65536, "kept": kept,
                "samples": [[register, 500], [register, 500]], "free": [[9000, 1], [9000, 1]]})
        };
        let many = |variant: &str, samples: Value, refused: Value| json!({"variant": variant, "allocations": 52, "segment": 20 << 20, "samples": samples, "refused": refused});
        let all = json!({"kernel": "7.2", "commit": "abc", "rows": {
            "ways": [row("ours", 120_000, 65536), row("dma_buf", 110_000, 0)],
            "ways_several": [many("ours", json!([[1000, 2000]]), Value::Null), many("c_nv_mem", json!([]), json!("EINVAL"))],
        }});
        let ways = Ways::new(&all).unwrap();
        let [one, many] = &ways.tables()[..] else { panic!("two tables") };
        assert_eq!(
            one.rows[0][2..],
            ["ours", "120 [120–120]", "0.50 [0.50–0.50]", "64 KiB", "9.00 [9.00–9.00]", "64 KiB"]
        );
        assert_eq!((one.rows[1][2].as_str(), one.rows[1][7].as_str()), ("dma-buf", "none"));
        assert_eq!(many.rows[0][2..], ["ours", "1.00 [1.00–1.00]", "2.00"]);
        assert_eq!(many.rows[1][2..], ["C nv_mem", "refused: EINVAL", "-"]);
        assert!(ways.plot().unwrap().contains("dma-buf"));
        assert!(Ways::new(&json!({"rows": {"ways": [{"variant": "ours"}]}})).is_err());
    }
}
