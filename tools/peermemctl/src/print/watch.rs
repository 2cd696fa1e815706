// SPDX-License-Identifier: GPL-2.0
//! `watch` as text: a line for each look, with as many columns as fit.

use super::page::Page;
use crate::answer::Tick;
use crate::text;

/// A column: head, width, and how much it is needed. The last ones to go have 0.
type Column = (&'static str, usize, u8);

const COLUMNS: [Column; 11] = [
    ("TIME", 8, 0),
    ("LIVE", 6, 0),
    ("BYTES", 9, 0),
    ("ORPHANS", 7, 2),
    ("PINS/s", 8, 0),
    ("UNPINS/s", 8, 1),
    ("REVOKED/s", 9, 2),
    ("REFUSED/s", 9, 0),
    ("GET µs", 8, 3),
    ("OLDEST ms", 9, 1),
    ("PINS", 9, 4),
];

/// Returns which columns fit.
fn fitting(width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..COLUMNS.len()).collect();
    let need = |n: &usize| COLUMNS.get(*n).map_or(0, |(.., need)| *need);
    while kept.iter().filter_map(|n| COLUMNS.get(*n)).map(|(_, width, _)| width + 1).sum::<usize>() > width + 1 {
        let Some(least) = kept.iter().copied().max_by_key(need).filter(|n| need(n) > 0) else { break };
        kept.retain(|n| *n != least);
    }
    kept
}

fn row(width: usize, values: &[String]) -> String {
    let kept = fitting(width).into_iter().filter_map(|n| Some((COLUMNS.get(n)?, values.get(n)?)));
    let cells: Vec<String> = kept.map(|((_, width, _), value)| format!("{value:>width$}")).collect();
    cells.join(" ")
}

/// Returns the head of what [`print`] prints.
pub fn watch_head(page: Page) -> String {
    row(page.width, &COLUMNS.map(|(head, ..)| head.to_owned())) + "\n"
}

pub(super) fn print(page: &mut Page, tick: &Tick) {
    let rate = |rate: f64| format!("{rate:.1}");
    let values = [
        text::clock(tick.time),
        tick.live.to_string(),
        text::bytes(tick.live_bytes),
        tick.orphans.to_string(),
        rate(tick.pins_per_second),
        rate(tick.unpins_per_second),
        rate(tick.revocations_per_second),
        rate(tick.refused_per_second),
        tick.get_mean_us.map_or("-".to_owned(), rate),
        tick.oldest_callback_ms.to_string(),
        sparkline(&tick.recent),
    ];
    page.line(&row(page.width, &values));
}

/// Draws a bar for each value, the highest for the largest.
fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| {
        let height = if most > 0.0 { (value / most * 7.0).round() as usize } else { 0 };
        BARS.get(height).copied().unwrap_or('█')
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_values() {
        assert_eq!(sparkline(&[0.0, 1.0, 3.5, 7.0]), "▁▂▅█");
        assert_eq!((sparkline(&[0.0, 0.0]).as_str(), sparkline(&[]).as_str()), ("▁▁", ""));
    }

    #[test]
    fn columns_that_do_not_fit_go() {
        let head = |width| row(width, &COLUMNS.map(|(head, ..)| head.to_owned()));
        assert!(head(100).ends_with("PINS") && head(100).chars().count() == 100, "{}", head(100));
        let narrow = head(60);
        assert!(narrow.chars().count() <= 60 && narrow.contains("PINS/s") && !narrow.contains("GET"), "{narrow}");
    }
}
