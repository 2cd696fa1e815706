// SPDX-License-Identifier: GPL-2.0
//! `watch` as text.

use crate::answer::Tick;
use crate::text;
use std::fmt::Write;

/// The head of what [`print_tick`] prints.
pub fn watch_head() -> String {
    format!(
        "{:>8} {:>10} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}\n",
        "LIVE", "BYTES", "ORPHANS", "PINS/s", "UNPINS/s", "REVOKED/s", "REFUSED/s", "GET µs", "CALLBACK ms"
    )
}

pub(super) fn print(out: &mut String, tick: &Tick) {
    let _ = writeln!(
        out,
        "{:>8} {:>10} {:>7} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10} {:>12}",
        tick.live,
        text::bytes(tick.live_bytes),
        tick.orphans,
        tick.pins_per_second,
        tick.unpins_per_second,
        tick.revocations_per_second,
        tick.refused_per_second,
        tick.get_mean_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
        tick.oldest_callback_ms,
    );
}
