//! The tables, once for the terminal and once for docs/.

use super::figures::{limit_ns, Figures, Spread, Time, C, C_NC, GIB, OURS, OURS_REVOCABLE};
use comfy_table::{presets, CellAlignment, Table as Terminal};
use serde_json::Value;
use std::fmt::Write;

struct Table {
    title: &'static str,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

pub fn text(figures: &Figures) -> String {
    let mut out = format!("Linux {}, fast kernel, one instruction = 1 ns unless said otherwise\n", figures.kernel);
    for table in tables(figures) {
        let mut terminal = Terminal::new();
        terminal.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        terminal.set_header(&table.header).add_rows(&table.rows);
        for column in terminal.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = write!(out, "\n{}\n{terminal}\n", table.title);
    }
    out
}

pub fn markdown(figures: &Figures) -> String {
    let mut out = format!(
        "# Tables of the last benchmark\n\nWritten by `make bench-docs` from `build/bench.json` of `make bench`; Linux {}, fast kernel. Read [bench.md](../bench.md) first.\n",
        figures.kernel
    );
    for table in tables(figures) {
        let _ = write!(
            out,
            "\n## {}\n\n| {} |\n|{}\n",
            table.title,
            table.header.join(" | "),
            "---|".repeat(table.header.len())
        );
        for row in &table.rows {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
    }
    out
}

fn tables(figures: &Figures) -> Vec<Table> {
    vec![
        targets(figures),
        times(
            figures,
            "v100",
            "Callbacks of one registration and deregistration, V100's pin cost (µs: median, quartiles)",
        ),
        times(figures, "zero", "The same, the provider's calls cost their own work only"),
        callbacks(figures),
        provider(figures),
        memory(figures),
        live(figures),
        free(figures),
        pages(figures),
        threads(figures),
        bandwidth(figures),
        wall(figures),
    ]
    .into_iter()
    .filter(|table| !table.rows.is_empty())
    .collect()
}

pub fn size_text(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GiB", round(b as f64 / (1u64 << 30) as f64)),
        b if b >= 1 << 20 => format!("{} MiB", round(b as f64 / (1u64 << 20) as f64)),
        b if b >= 1 << 10 => format!("{} KiB", round(b as f64 / 1024.0)),
        b => format!("{b} B"),
    }
}

fn round(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_string).unwrap_or(text)
}

fn us(ns: f64) -> String {
    if ns < 100_000.0 {
        format!("{:.2}", ns / 1e3)
    } else {
        format!("{:.0}", ns / 1e3)
    }
}

fn spread(s: Spread) -> String {
    format!("{} [{}–{}]", us(s.median), us(s.low), us(s.high))
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole)
}

/// Layouts as the guest names them, and in words.
const LAYOUTS: [(&str, &str); 3] =
    [("contiguous", "contiguous"), ("2m", "broken at 2 MiB"), ("64k", "broken at 64 KiB")];
const VARIANTS: [(&str, &str); 4] =
    [(OURS, "ours"), (C, "C nv_mem"), (OURS_REVOCABLE, "ours, revocable"), (C_NC, "C nv_mem_nc")];

fn words(variant: &str) -> &str {
    VARIANTS.iter().find(|v| v.0 == variant).map_or(variant, |v| v.1)
}

/// What design.md promises, and what was measured.
fn targets(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    let mut row = |what: &str, wanted: String, got: Option<(f64, String)>, good: &dyn Fn(f64) -> bool| {
        let (verdict, got) = match got {
            Some((value, text)) => (if good(value) { "met" } else { "NOT met" }, text),
            None => ("not measured", "-".into()),
        };
        rows.push(vec![what.to_string(), wanted, got, verdict.to_string()]);
    };
    let v100 = |variant: &str, size: u64| figures.time(variant, size, "contiguous", "v100");
    row(
        "provider pins per registration, 1 GiB",
        "1".into(),
        v100(OURS, GIB).and_then(|t| t.calls.first().map(|&n| (n as f64, n.to_string()))),
        &|n| n == 1.0,
    );
    for (size, limit) in [(64 << 10, 0.6), (GIB, 0.55)] {
        for (ours, c) in [(OURS, C), (OURS_REVOCABLE, C), (OURS, C_NC)] {
            let ratio = v100(ours, size).zip(v100(c, size)).map(|(o, c)| o.callbacks.median / c.callbacks.median);
            row(
                &format!("callbacks of {} against {}, {}", words(ours), words(c), size_text(size)),
                format!("≤ {limit}"),
                ratio.map(|r| (r, format!("{r:.3}"))),
                &|r| r <= limit,
            );
        }
    }
    for size in [64 << 10, 1 << 20, 16 << 20, 256 << 20, GIB, 64 * GIB] {
        for variant in [OURS, OURS_REVOCABLE] {
            let share = v100(variant, size).map(|t| t.own.median / t.callbacks.median);
            row(
                &format!("own share of the callbacks, {}, {}", words(variant), size_text(size)),
                "≤ 5 %".into(),
                share.map(|s| (s, percent(s, 1.0))),
                &|s| s <= 0.05,
            );
        }
    }
    row(
        "sg entries of 1 GiB contiguous",
        "1".into(),
        v100(OURS, GIB).map(|t| {
            let c = v100(C, GIB).map_or("?".to_string(), |c| c.entries.to_string());
            (t.entries as f64, format!("{} (C: {c})", t.entries))
        }),
        &|n| n == 1.0,
    );
    row(
        "memory that we hold per contiguous GiB",
        "≤ 4 KiB".into(),
        figures.memory(OURS, GIB, "contiguous").map(|m| {
            let c = figures.memory(C, GIB, "contiguous").map_or(0, |c| c.client);
            (m.client as f64, format!("{} B (C: {c} B)", m.client))
        }),
        &|bytes| bytes <= 4096.0,
    );
    for variant in [OURS, OURS_REVOCABLE] {
        let own = |live: u64| figures.live.get(&(variant.to_string(), live)).map(|t| t.own.median);
        let worst = [1_000, 10_000, 100_000]
            .into_iter()
            .filter_map(|n| Some(own(n)? / own(1)?))
            .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()));
        row(
            &format!("own time with 1000 to 100 000 live against 1, {}", words(variant)),
            "within 10 %".into(),
            worst.map(|w| (w, format!("{w:.3}"))),
            &|w| (w - 1.0).abs() <= 0.1,
        );
    }
    for program in ["ib_write_bw", "ib_read_bw"] {
        let rate = |variant: &str| {
            figures.bandwidth.get(&(program.to_string(), "gpu".to_string(), variant.to_string())).map(|s| s.median)
        };
        row(
            &format!("{program} on GPU memory against the C module's"),
            "within 1 %".into(),
            rate(OURS).zip(rate(C)).map(|(o, c)| (o / c, format!("{:.4}", o / c))),
            &|r| (r - 1.0).abs() <= 0.01,
        );
    }
    Table { title: "Targets", header: vec!["what", "wanted", "measured", "verdict"], rows }
}

fn times(figures: &Figures, cost: &str, title: &'static str) -> Table {
    let mut rows = Vec::new();
    for (layout, in_words) in LAYOUTS {
        for (key, ours) in
            figures.times.iter().filter(|(k, _)| k.cost == cost && k.layout == layout && k.variant == OURS)
        {
            let other = |variant| figures.time(variant, key.size, layout, cost);
            let cell = |variant| other(variant).map_or("-".into(), |t: &Time| spread(t.callbacks));
            let ratio = other(C).map_or("-".into(), |c| format!("{:.2}", ours.callbacks.median / c.callbacks.median));
            rows.push(vec![
                in_words.to_string(),
                size_text(key.size),
                cell(OURS),
                cell(C),
                ratio,
                cell(OURS_REVOCABLE),
                cell(C_NC),
                us(ours.own.median),
                other(C).map_or("-".into(), |c| us(c.own.median)),
                if cost == "v100" { us(limit_ns(key.size)) } else { "-".into() },
                ours.samples.to_string(),
            ]);
        }
    }
    Table {
        title,
        header: vec![
            "layout",
            "size",
            "ours",
            "C nv_mem",
            "ours/C",
            "ours, revocable",
            "C nv_mem_nc",
            "of it ours",
            "of it C",
            "one pin and put",
            "rounds",
        ],
        rows,
    }
}

/// Each callback, and the verb around them.
fn callbacks(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for size in [64 << 10, GIB] {
        for (variant, name) in VARIANTS {
            for cost in ["zero", "v100"] {
                let Some(time) = figures.time(variant, size, "contiguous", cost) else { continue };
                let mut row = vec![name.to_string(), size_text(size), cost.to_string()];
                row.extend(time.each.iter().map(|s| us(s.median)));
                row.push(us(time.provider.median));
                row.push(us(time.own.median));
                row.push(us(time.verbs.median));
                rows.push(row);
            }
        }
    }
    Table {
        title: "Each callback, contiguous (µs, medians). The core's mutex is held over acquire",
        header: vec![
            "client",
            "size",
            "cost",
            "acquire",
            "get_pages",
            "dma_map",
            "get_page_size",
            "dma_unmap",
            "put_pages",
            "release",
            "of all: provider",
            "of all: client",
            "ibv_reg_mr + ibv_dereg_mr",
        ],
        rows,
    }
}

fn provider(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for (layout, in_words) in LAYOUTS {
        for (variant, name) in VARIANTS {
            let Some(time) = figures.time(variant, GIB, layout, "v100") else { continue };
            let mut row = vec![in_words.to_string(), name.to_string()];
            row.extend(time.calls.iter().map(u64::to_string));
            row.push(us(time.mutex().median));
            row.push(time.entries.to_string());
            rows.push(row);
        }
    }
    Table {
        title: "Provider calls, the core's mutex, and sg entries, 1 GiB, V100's pin cost",
        header: vec!["layout", "client", "gets", "puts", "mappings", "unmappings", "mutex held (µs)", "sg entries"],
        rows,
    }
}

fn memory(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for (layout, in_words) in LAYOUTS {
        for key in figures.memory.keys().filter(|k| k.layout == layout && k.variant == OURS) {
            let mut row = vec![in_words.to_string(), size_text(key.size)];
            for (variant, _) in VARIANTS {
                row.push(figures.memory(variant, key.size, layout).map_or("-".into(), |m| m.client.to_string()));
            }
            for variant in [OURS, C] {
                let m = figures.memory(variant, key.size, layout);
                row.push(m.map_or("-".into(), |m| m.provider.to_string()));
                row.push(m.map_or("-".into(), |m| m.stack.to_string()));
                row.push(m.map_or("-".into(), |m| m.total.to_string()));
            }
            rows.push(row);
        }
    }
    Table {
        title: "Memory held by one live registration (bytes)",
        header: vec![
            "layout",
            "size",
            "ours",
            "C nv_mem",
            "ours, revocable",
            "C nv_mem_nc",
            "provider (ours)",
            "RDMA stack (ours)",
            "slab + vmalloc (ours)",
            "provider (C)",
            "RDMA stack (C)",
            "slab + vmalloc (C)",
        ],
        rows,
    }
}

fn live(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for ((variant, live), time) in &figures.live {
        rows.push(vec![
            words(variant).to_string(),
            live.to_string(),
            spread(time.own),
            spread(time.provider),
            spread(time.verbs),
        ]);
    }
    Table {
        title: "One more registration of 64 KiB while others live (µs)",
        header: vec!["client", "live", "client's own", "provider", "ibv_reg_mr + ibv_dereg_mr"],
        rows,
    }
}

fn free(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for ((variant, size, fence), (callback, invalidate)) in &figures.free {
        rows.push(vec![
            words(variant).to_string(),
            size_text(*size),
            fence.to_string(),
            us(callback.median),
            us(invalidate.median),
            us(callback.median - invalidate.median),
            percent(callback.median - invalidate.median, callback.median),
        ]);
    }
    Table {
        title: "Memory freed while registered: the free callback (µs)",
        header: vec![
            "client",
            "size",
            "fence (ms)",
            "callback",
            "of it the core's invalidate",
            "client's own",
            "share",
        ],
        rows,
    }
}

fn int(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or(0)
}

fn pages(figures: &Figures) -> Table {
    let rows = figures.pages.iter().map(|row| {
        let layout = row["layout"].as_str().unwrap_or_default();
        vec![
            words(row["variant"].as_str().unwrap_or_default()).to_string(),
            LAYOUTS.iter().find(|l| l.0 == layout).map_or(layout, |l| l.1).to_string(),
            format!(
                "{} ({})",
                row["generation"].as_str().unwrap_or_default(),
                if row["merges"] == true { "merges" } else { "does not merge" }
            ),
            int(row, "entries").to_string(),
            size_text(int(row, "page")),
        ]
    });
    Table {
        title: "HCA page size that ib_umem_find_best_pgsz finds, 1 GiB",
        header: vec!["client", "layout", "core", "sg entries", "page"],
        rows: rows.collect(),
    }
}

fn threads(figures: &Figures) -> Table {
    let rows = figures.threads.iter().map(|row| {
        let count = int(row, "registrations").max(1) as f64;
        let per = |ns: u64| us(ns as f64 / count);
        let waited = |name: &str| {
            let wait = &row["waited"][name];
            let ns = wait[0].as_u64().unwrap_or(0);
            format!("{} ({})", per(ns), wait[1].as_u64().unwrap_or(0))
        };
        let mut others: Vec<String> = row["waited"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !["P", "G", "R", "registry"].contains(&name.as_str()))
            .map(|(name, wait)| format!("{name} {} ({})", per(wait[0].as_u64().unwrap_or(0)), wait[1]))
            .collect();
        others.sort();
        let g = match row["held"]["G"].as_array() {
            Some(held) => held.iter().map(|ns| per(ns.as_u64().unwrap_or(0))).collect::<Vec<_>>().join(" + "),
            None => "-".into(),
        };
        vec![
            words(row["variant"].as_str().unwrap_or_default()).to_string(),
            int(row, "threads").to_string(),
            per(int(&row["held"], "P")),
            waited("P"),
            per(int(&row["held"], "R")),
            waited("R"),
            g,
            waited("G"),
            waited("registry"),
            others.join(", "),
        ]
    });
    Table {
        title: "Threads that register 1 MiB at once: time per registration and deregistration (µs; number of waits), provider ten times a V100, asleep, wall clock",
        header: vec![
            "client", "threads", "P held", "P waited", "R held", "R waited", "G held (shared + exclusive)", "G waited",
            "registry waited", "others waited",
        ],
        rows: rows.collect(),
    }
}

fn bandwidth(figures: &Figures) -> Table {
    let rows = figures.bandwidth.iter().map(|((program, buffer, variant), rate)| {
        vec![
            program.clone(),
            buffer.clone(),
            words(variant).to_string(),
            format!("{:.2} [{:.2}–{:.2}]", rate.median, rate.low, rate.high),
        ]
    });
    Table {
        title: "perftest, messages of 1 MiB (MB/s at one instruction per nanosecond: read side by side only)",
        header: vec!["program", "buffer", "client", "MB/s"],
        rows: rows.collect(),
    }
}

fn wall(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for (key, ours) in figures.wall.iter().filter(|(k, _)| k.variant == OURS) {
        let mut row = vec![size_text(key.size)];
        let of = |variant: &str| {
            let key = super::figures::Key { variant: variant.to_string(), ..key.clone() };
            figures.wall.get(&key)
        };
        row.extend(VARIANTS.iter().map(|(variant, _)| of(variant).map_or("-".into(), |t| spread(t.callbacks))));
        row.push(of(C).map_or("-".into(), |c| format!("{:.2}", ours.callbacks.median / c.callbacks.median)));
        rows.push(row);
    }
    Table {
        title: "Cross-check on the wall clock: callbacks, contiguous, V100's pin cost (µs)",
        header: vec!["size", "ours", "C nv_mem", "ours, revocable", "C nv_mem_nc", "ours/C"],
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(variant: &str, size: u64, callback: u64, provider: u64) -> Value {
        json!({"variant": variant, "size": size, "layout": "contiguous", "cost": "v100", "calls": [1, 1, 0, 0],
            "entries": 1, "samples": [[callback, 0, 0, 0, 0, 0, 0, provider, 0, 0]]})
    }

    #[test]
    fn a_target_is_met_or_not() {
        let all = json!({"rows": {"times": [row(OURS, 65536, 59, 56), row(C, 65536, 100, 90), row(OURS, GIB, 56, 50), row(C, GIB, 100, 90)]}});
        let targets = targets(&Figures::new(&all).unwrap());
        let verdict = |what: &str| {
            let row = targets.rows.iter().find(|r| r[0].starts_with(what)).unwrap();
            (row[2].clone(), row[3].clone())
        };
        assert_eq!(verdict("callbacks of ours against C nv_mem, 64 KiB"), ("0.590".into(), "met".into()));
        assert_eq!(verdict("callbacks of ours against C nv_mem, 1 GiB"), ("0.560".into(), "NOT met".into()));
        assert_eq!(verdict("own share of the callbacks, ours, 1 GiB").1, "NOT met");
        assert_eq!(verdict("ib_read_bw"), ("-".into(), "not measured".into()));
    }

    #[test]
    fn sizes_in_words() {
        assert_eq!([512, 65536, 3 << 19, 64 << 30].map(size_text), ["512 B", "64 KiB", "1.5 MiB", "64 GiB"]);
    }
}
