// SPDX-License-Identifier: GPL-2.0

//! Builds the tables for the terminal and for docs/.

use crate::figures::{limit_ns, Figures, Spread, Time, C, C_550, C_NC, GIB, OURS, OURS_REVOCABLE};
use crate::targets::targets;
use crate::words::{broken, percent, size_text, spread, us, words, Table, LAYOUTS, VARIANTS};
use comfy_table::{presets, CellAlignment, Table as Terminal};
use lab::page;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

pub fn text(kernel: &str, tables: Vec<Table>) -> String {
    let mut out = format!("Linux {kernel}, one instruction = 1 ns unless said otherwise\n");
    for table in tables {
        let mut terminal = Terminal::new();
        terminal.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        terminal.set_header(table.header.split(" | ")).add_rows(&table.rows);
        for column in terminal.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = write!(out, "\n{}\n{terminal}\n", table.title);
    }
    out
}

/// Returns a page of tables. `how` says which command wrote it, and from what.
pub fn markdown(how: &str, commit: &str, kernel: &str, tables: Vec<Table>) -> String {
    let mut out = format!(
        "# Tables of the last benchmark\n\nWritten by {how} at commit {}; Linux {kernel}. Read [bench.md](../../bench.md) first.\n",
        commit.get(..12).unwrap_or("-"),
    );
    for table in tables {
        let _ = write!(
            out,
            "\n## {}\n\n{}",
            table.title,
            page::table(&table.header.split(" | ").collect::<Vec<_>>(), table.rows)
        );
    }
    out
}

pub fn tables(figures: &Figures) -> Vec<Table> {
    vec![
        targets(figures),
        times(
            figures,
            "v100",
            "Callbacks of one registration and deregistration, V100's pin cost (µs: median, quartiles)",
        ),
        times(figures, "zero", "The same, the provider's calls cost their own work only"),
        rows(
            figures,
            "v100",
            "Each row whole, V100's pin cost (µs, medians; nv_mem_nc is also the C module's default since 560, derived)",
        ),
        rows(figures, "zero", "Each row whole, the provider's calls cost their own work only (µs, medians)"),
        memory(figures),
        live(figures),
        pieces(figures),
        bad_addresses(figures),
        free(figures),
        nics(figures),
        pages(figures),
        threads(figures),
        bandwidth(figures),
        wall(figures),
        profile(figures),
        lines(figures),
    ]
    .into_iter()
    .filter(|table| !table.rows.is_empty())
    .collect()
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
                format!("{} / {}", ours.samples, other(C).map_or("-".into(), |c| c.samples.to_string())),
            ]);
        }
    }
    Table {
        title,
        header: "layout | size | ours | C nv_mem | ours/C | ours, revocable | C nv_mem_nc | of it ours | \
            of it C | one pin and put | rounds (ours / C)"
            .into(),
        rows,
    }
}

/// Returns a table with each row of the times: each callback, the verbs around them, and the
/// provider's calls.
fn rows(figures: &Figures, cost: &str, title: &'static str) -> Table {
    let mut rows = Vec::new();
    let more = [(C_550, "C nv_mem, the provider maps as 550")];
    for (layout, in_words) in LAYOUTS {
        let sizes: BTreeSet<u64> =
            figures.times.keys().filter(|k| k.cost == cost && k.layout == layout).map(|k| k.size).collect();
        for size in sizes {
            for (variant, name) in VARIANTS.into_iter().chain(more) {
                let Some(time) = figures.time(variant, size, layout, cost) else { continue };
                let mut row = vec![in_words.to_string(), size_text(size), name.to_string()];
                row.extend(time.each.iter().map(|s| us(s.median)));
                row.extend([time.provider, time.own, time.verbs].map(|s| us(s.median)));
                row.extend(time.calls.iter().map(u64::to_string));
                row.push(time.entries.to_string());
                rows.push(row);
            }
        }
    }
    Table {
        title,
        header: "layout | size | client | acquire = mutex held | get_pages | dma_map | get_page_size | \
            dma_unmap | put_pages | release | of all: provider | of all: client | \
            ibv_reg_mr + ibv_dereg_mr | gets | puts | mappings | unmappings | sg entries"
            .into(),
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
        header: "layout | size | ours | C nv_mem | ours, revocable | C nv_mem_nc | provider (ours) | \
            RDMA stack (ours) | slab + vmalloc (ours) | provider (C) | RDMA stack (C) | \
            slab + vmalloc (C)"
            .into(),
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
        header: "client | live | client's own | provider | ibv_reg_mr + ibv_dereg_mr".into(),
        rows,
    }
}

fn pieces(figures: &Figures) -> Table {
    let row = |p: &crate::figures::Pieces| {
        vec![
            size_text(p.size),
            p.size.div_ceil(p.segment).to_string(),
            size_text(p.segment),
            if p.cost == "v100" { "V100's".into() } else { "its own work".into() },
            p.failed.to_string(),
            us(p.alone),
            spread(p.time.callbacks),
            format!("{:.3}", p.ratio()),
            us(p.time.own.median),
            us(p.time.mutex().median),
            figures.time(C, p.size, "contiguous", &p.cost).map_or("-".into(), |c| us(c.mutex().median)),
        ]
    };
    Table {
        title: "One registration over many allocations, persistent pins (µs)",
        header: "size | allocations | each | a pin costs | gets that failed | \
            the provider's pins and unpins alone | callbacks | against that | client's own | \
            under the peer mutex | C nv_mem, one allocation of that size: under the peer mutex"
            .into(),
        rows: figures.pieces.iter().map(row).collect(),
    }
}

fn bad_addresses(figures: &Figures) -> Table {
    let row = |row: &Value| {
        vec![
            words(row["variant"].as_str().unwrap_or_default()).to_string(),
            format!("{} in {}", size_text(int(row, "size")), int(row, "segments")),
            us(int(row, "registration") as f64),
            int(row, "attempts").to_string(),
            int(row, "longest_us").to_string(),
        ]
    };
    Table {
        title: "A bad host address, registered again and again while another process registers much memory: how long \
                its refusal takes (µs; a V100's pin cost, asleep, wall clock)",
        header: "client | memory in allocations | its registration | bad addresses | the longest refusal".into(),
        rows: figures.bad_addresses.iter().map(row).collect(),
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
        header: "client | size | fence (ms) | callback | of it the core's invalidate | client's own | share".into(),
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
        header: "client | layout | core | sg entries | page".into(),
        rows: rows.collect(),
    }
}

fn threads(figures: &Figures) -> Table {
    let rows = figures.threads.iter().map(|((variant, threads, nics, frees), row)| {
        let held = |name: &str| row.held.get(name).map_or("-".into(), |s| spread(*s));
        let waited = |name: &str| match row.waited.get(name) {
            Some((time, count)) => format!("{} ({count})", spread(*time)),
            None => "0".into(),
        };
        let others: Vec<String> = row
            .waited
            .iter()
            .filter(|(name, _)| !["peer mutex", "put gate", "RM API lock", "registry"].contains(&name.as_str()))
            .map(|(name, (time, count))| format!("{name} {} ({count})", spread(*time)))
            .collect();
        vec![
            words(variant).to_string(),
            threads.to_string(),
            match (nics, frees) {
                (1, false) => "1".into(),
                (1, true) => "1, freed while registered".into(),
                _ => format!("{nics}, one buffer"),
            },
            held("peer mutex"),
            waited("peer mutex"),
            held("RM API lock"),
            waited("RM API lock"),
            held("put gate, shared"),
            held("put gate, exclusive"),
            waited("put gate"),
            waited("registry"),
            others.join(", "),
        ]
    });
    Table {
        title: "Threads that register 1 MiB at once, on eight processors: time per registration and deregistration (µs: median, quartiles of five runs; number of waits), provider ten times a V100, asleep, wall clock",
        header: "client | threads | NICs | peer mutex held | peer mutex waited | RM API lock held | \
            RM API lock waited | put gate held, shared | put gate held, exclusive | put gate waited | \
            registry waited | others waited".into(),
        rows: rows.collect(),
    }
}

/// Returns the table about the second registration of a buffer, by another NIC.
fn nics(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for ((variant, layout, size, nics), time) in &figures.nics {
        rows.push(vec![
            words(variant).to_string(),
            format!("{}{}", size_text(*size), broken(layout)),
            if *nics == 1 { "the only one".into() } else { "the second NIC's, while the first one's lives".into() },
            spread(time.callbacks),
            us(time.own.median),
            us(time.mutex().median),
            spread(time.verbs),
        ]);
    }
    Table {
        title: "One buffer, two NICs: one registration and deregistration, V100's pin cost (µs)",
        header: "client | size | registration | callbacks | client's own | mutex held | \
            ibv_reg_mr + ibv_dereg_mr"
            .into(),
        rows,
    }
}

/// Returns the heading of a column of the profile.
fn profiled(column: &Value) -> &'static str {
    match (column["layout"].as_str(), column["size"].as_u64()) {
        (Some("2m"), _) => "1 GiB broken at 2 MiB",
        (Some("64k"), _) => "1 GiB broken at 64 KiB",
        (_, Some(GIB)) => "1 GiB",
        _ => "64 KiB",
    }
}

fn header(of: &str, columns: &[&Value]) -> String {
    columns.iter().fold(of.to_string(), |header, column| header + " | " + profiled(column))
}

/// Returns the instructions by function: each of our functions, the kernel's functions that run
/// many instructions, and one line for each other module.
fn profile(figures: &Figures) -> Table {
    /// The least number of instructions in some column for which a kernel function gets a line of
    /// its own.
    const SHOWN: u64 = 2_000;
    let columns: Vec<&Value> = figures.profile.iter().filter(|row| row["variant"] == OURS).collect();
    let mut names: Vec<(String, Vec<u64>)> = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        for function in column["functions"].as_array().into_iter().flatten() {
            let (module, name) = (function[0].as_str().unwrap_or_default(), function[1].as_str().unwrap_or_default());
            let name = match module {
                "nvidia_peermem" => format!("`{name}`"),
                "" => format!("kernel: `{name}`"),
                "nvidia" => "the provider's stand-in".to_string(),
                _ => "RDMA core and NIC".to_string(),
            };
            let place = names.iter().position(|n| n.0 == name).unwrap_or_else(|| {
                names.push((name, vec![0; columns.len()]));
                names.len() - 1
            });
            names[place].1[at] += function[2].as_u64().unwrap_or(0);
        }
    }
    let (shown, rest): (Vec<_>, Vec<_>) = names
        .into_iter()
        .partition(|(name, counts)| !name.starts_with("kernel: ") || counts.iter().any(|&count| count >= SHOWN));
    let mut others = vec![0; columns.len()];
    for (_, counts) in &rest {
        others.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let mut shown: Vec<_> = shown.into_iter().filter(|(_, counts)| counts.iter().any(|&count| count >= 20)).collect();
    shown.sort_by_key(|(name, counts)| (!name.starts_with('`'), std::cmp::Reverse(counts.iter().max().copied())));
    if !rest.is_empty() {
        shown.push((format!("kernel: {} others", rest.len()), others));
    }
    let rows = shown
        .into_iter()
        .map(|(name, counts)| std::iter::once(name).chain(counts.iter().map(u64::to_string)).collect());
    Table {
        title: "Instructions of one registration and deregistration with ours, from system call to system call, by function (inlined ones are their callers')",
        header: header("function", &columns),
        rows: rows.collect(),
    }
}

/// Returns the lines of our module that run most of its instructions.
fn lines(figures: &Figures) -> Table {
    const SHOWN: usize = 30;
    let columns: Vec<&Value> = figures.profile.iter().filter(|row| row["variant"] == OURS).collect();
    let mut lines: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (at, column) in columns.iter().enumerate() {
        for line in column["lines"].as_array().into_iter().flatten() {
            let name = line[0].as_str().unwrap_or_default();
            lines.entry(name).or_insert_with(|| vec![0; columns.len()])[at] += line[1].as_u64().unwrap_or(0);
        }
    }
    // A line is shown for its share of any column, so the sum of each column is needed.
    let sums: Vec<u64> = (0..columns.len()).map(|at| lines.values().map(|counts| counts[at]).sum()).collect();
    let weight = |counts: &[u64]| -> u64 {
        counts.iter().zip(&sums).map(|(count, sum)| count * 1_000_000 / (*sum).max(1)).max().unwrap_or(0)
    };
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|(_, counts)| std::cmp::Reverse(weight(counts)));
    let rows = lines.into_iter().take(SHOWN).map(|(name, counts)| {
        let name = if name == "-" { "outside src/".to_string() } else { format!("`{name}`") };
        std::iter::once(name).chain(counts.iter().map(u64::to_string)).collect()
    });
    Table {
        title: "The lines of ours with the most instructions (what is inlined counts for the line of ours that it is called in)",
        header: header("line", &columns),
        rows: rows.collect(),
    }
}

fn bandwidth(figures: &Figures) -> Table {
    let rows = figures.bandwidth.iter().filter_map(|((program, buffer, variant), rates)| {
        let rate = Spread::of(rates.clone())?;
        Some(vec![
            program.clone(),
            buffer.clone(),
            words(variant).to_string(),
            format!("{:.2} [{:.2}–{:.2}]", rate.median, rate.low, rate.high),
            rates.len().to_string(),
        ])
    });
    Table {
        title: "perftest, messages of 1 MiB (MB/s at one instruction per nanosecond: read side by side only)",
        header: "program | buffer | client | MB/s | runs".into(),
        rows: rows.collect(),
    }
}

fn wall(figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for (key, ours) in figures.wall.iter().filter(|(k, _)| k.variant == OURS) {
        let mut row = vec![size_text(key.size)];
        let of = |variant: &str| {
            let key = crate::figures::Key { variant: variant.to_string(), ..key.clone() };
            figures.wall.get(&key)
        };
        row.extend(VARIANTS.iter().map(|(variant, _)| of(variant).map_or("-".into(), |t| spread(t.callbacks))));
        row.push(of(C).map_or("-".into(), |c| format!("{:.2}", ours.callbacks.median / c.callbacks.median)));
        rows.push(row);
    }
    Table {
        title: "Cross-check on the wall clock: callbacks, contiguous, V100's pin cost (µs)",
        header: "size | ours | C nv_mem | ours, revocable | C nv_mem_nc | ours/C".into(),
        rows,
    }
}
