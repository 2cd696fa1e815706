// SPDX-License-Identifier: GPL-2.0

//! Writes a table, and figures in words.

use crate::figures::{Spread, C, C_NC, OURS, OURS_REVOCABLE};

pub struct Table {
    pub title: &'static str,
    /// The header as Markdown has it: `a | b`.
    pub header: String,
    pub rows: Vec<Vec<String>>,
}

pub fn size_text(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GiB", round(b as f64 / (1u64 << 30) as f64)),
        b if b >= 1 << 20 => format!("{} MiB", round(b as f64 / (1u64 << 20) as f64)),
        b if b >= 1 << 10 => format!("{} KiB", round(b as f64 / 1024.0)),
        b => format!("{b} B"),
    }
}

pub fn round(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_string).unwrap_or(text)
}

pub fn us(ns: f64) -> String {
    if ns < 100_000.0 {
        format!("{:.2}", ns / 1e3)
    } else {
        format!("{:.0}", ns / 1e3)
    }
}

pub fn spread(s: Spread) -> String {
    format!("{} [{}–{}]", us(s.median), us(s.low), us(s.high))
}

pub fn percent(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole)
}

/// The layouts: the guest's name, and words for people.
pub const LAYOUTS: [(&str, &str); 3] =
    [("contiguous", "contiguous"), ("2m", "broken at 2 MiB"), ("64k", "broken at 64 KiB")];
pub const VARIANTS: [(&str, &str); 4] =
    [(OURS, "ours"), (C, "C nv_mem"), (OURS_REVOCABLE, "ours, revocable"), (C_NC, "C nv_mem_nc")];

pub fn words(variant: &str) -> &str {
    VARIANTS.iter().find(|v| v.0 == variant).map_or(variant, |v| v.1)
}

/// Returns the words about the layout that follow a size.
pub fn broken(layout: &str) -> String {
    match LAYOUTS.iter().find(|l| l.0 == layout) {
        Some((_, in_words)) if layout != "contiguous" => format!(" {in_words}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_words() {
        assert_eq!([512, 65536, 3 << 19, 64 << 30].map(size_text), ["512 B", "64 KiB", "1.5 MiB", "64 GiB"]);
    }
}
