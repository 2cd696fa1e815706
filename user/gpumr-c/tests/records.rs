// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that the figures in docs/dma-buf.md are those of the records that it names.

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}{file}")).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the figures in ns of the line that begins so: the last number before each "ns".
fn figures<'a>(record: &'a str, begins: &str) -> Vec<&'a str> {
    let line = record.lines().find(|line| line.starts_with(&format!("{begins}: ")));
    let line = line.unwrap_or_else(|| panic!("no line {begins}"));
    let before = line.split(" ns").map(|part| part.rsplit(' ').next().unwrap_or_default());
    before.filter(|word| word.parse::<u64>().is_ok()).collect()
}

/// Returns a figure as the page says it: in µs, with so many digits after the point.
fn us(ns: &str, digits: usize) -> String {
    format!("{:.digits$}", ns.parse::<f64>().expect("a number") / 1000.0)
}

#[test]
fn the_page_has_the_figures_of_the_records() {
    let (page, hits, cards) = (read("dma-buf.md"), read("results/bench/hits-h200.txt"), read("results/user-h100.txt"));
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let one = |begins: &str| *figures(&hits, begins).last().expect("a figure");
    let (checked, hooks) = ("identity checked", "with hooks");
    let segments = [8, 64, 512].map(|count| figures(&hits, &format!("hit, {count} segments, {checked}")));
    let all = |of: [&str; 3]| of.join(", ");
    // A line of C has two figures, or two pairs of the fastest and the slowest thread.
    let runs = |begins: &str, part: usize| -> Vec<u64> {
        let lines = hits.lines().filter(|line| line.starts_with(&format!("{begins}: ")));
        lines.map(|line| figures(line, begins)[part].parse().expect("a number")).collect()
    };
    let alone = |how: &str, part| {
        let each = runs(&format!("C, the first thread, {how}"), part);
        assert_eq!(each.len(), 3, "three runs");
        each.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    };
    let slowest =
        |n: u32, how: &str, part| runs(&format!("C, {n} other threads, a buffer each, {how}"), part).into_iter().max();
    let others =
        |how: &str, part| [1, 4, 8, 16].map(|n| slowest(n, how, part).expect("three runs").to_string()).join(", ");
    // The record compares the library with the one before it, beside three more runs.
    let words = hits.split_whitespace().collect::<Vec<_>>().join(" ");
    let beside = words.split_once("the slowest of 16 others: ").and_then(|(_, rest)| rest.split_once('.')).expect("it");
    let (before, now) = beside.0.split_once(", now ").expect("both");
    let numbers = |text: &str| text.split(' ').map(|word| word.parse().expect("a number")).collect::<Vec<u64>>();
    let ends = |all: &[u64]| format!("{} to {}", all.iter().min().expect("some"), all.iter().max().expect("some"));
    let mut slowest_now = numbers(now);
    slowest_now.extend(runs(&format!("C, 16 other threads, a buffer each, {hooks}"), 0));
    let wanted = format!(
        "the slowest of 16 threads took {} ns for a hit with reported frees, and {} ns with the library as it was",
        ends(&slowest_now),
        ends(&numbers(before))
    );
    let findings = read("results/user-findings.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(findings.contains(&wanted), "docs/results/user-findings.md does not say: {wanted}");
    let more =
        words.split_once("in five more runs, in ns: ").and_then(|(_, rest)| rest.split_once('.')).expect("them").0;
    let among = |count: u32, by: &str| one(&format!("{count} registrations, one more{by}"));
    let python: Vec<&str> = cards.lines().filter_map(|line| line.strip_prefix("a hit from Python: ")).collect();
    let python: Vec<String> = python.iter().map(|text| us(text.trim_end_matches(" ns"), 1)).collect();
    let all_hooks = hits.lines().filter(|line| line.starts_with("C, ") && line.contains(&format!(", {hooks}: ")));
    let all_hooks: Vec<u64> = all_hooks
        .map(|line| figures(line, line.split(": ").next().expect("a beginning"))[0].parse().expect("a number"))
        .collect();
    let above = all_hooks.iter().filter(|figure| **figure > 50).count();
    let [native, expandable, pool] = &python[..] else { panic!("three allocators: {python:?}") };
    for wanted in [
        format!(
            "| one thread | {} (wanted: ≤ 250) | {} | {} (wanted: ≤ 50) | |",
            one(&format!("hit, one buffer, {checked}")),
            figures(&hits, "BUFFER_ID")[1],
            one(&format!("hit, one buffer, {hooks}"))
        ),
        format!(
            "| 4 threads, a buffer each | {} | {} | {} | |",
            one(&format!("hit, 4 threads, a buffer each, {checked}")),
            one("BUFFER_ID with bounds, 4 threads, a buffer each"),
            one(&format!("hit, 4 threads, a buffer each, {hooks}"))
        ),
        format!("| {} | {} |", all([0, 1, 2].map(|n| segments[n][0])), all([0, 1, 2].map(|n| segments[n][1]))),
        format!(
            "three runs: one thread | {} | {} | {} (wanted: ≤ 50) | {} |",
            alone(checked, 0),
            alone(checked, 1),
            alone(hooks, 0),
            alone(hooks, 1)
        ),
        format!(
            "other threads | {} | {} | {} (wanted: ≤ 50; above in {above} of {} rows) | {} |",
            others(checked, 0),
            others(checked, 1),
            others(hooks, 0),
            all_hooks.len(),
            others(hooks, 1)
        ),
        format!(
            "takes {} µs among 1000 others and {} among 100 000",
            us(among(1000, ""), 1),
            us(among(100_000, ""), 1)
        ),
        format!("in five more runs one thread took {} ns for a hit with reported frees", ends(&numbers(more))),
        format!(
            "takes {} µs among 1000 and {} µs among 100 000",
            us(among(1000, ", which evicts one"), 1),
            us(among(100_000, ", which evicts one"), 1)
        ),
        format!("takes {} and {} µs", us(among(1000, " by dma-buf"), 0), us(among(100_000, " by dma-buf"), 0)),
        format!("NVML takes {} µs to answer", us(one("free memory, asked of NVML"), 1)),
        format!(
            "with its release, takes {} of x86-64",
            hits.split(" before, ").nth(1).and_then(|rest| rest.split(' ').next()).expect("instructions")
        ),
        format!("takes {pool} or {expandable} µs, by the allocator"),
        format!("call takes {native} µs"),
    ] {
        assert!(page.contains(&wanted), "docs/dma-buf.md does not say: {wanted}");
    }
}
