// SPDX-License-Identifier: GPL-2.0
//! `list` as text.

use super::page::{table, tame, Page};
use crate::answer::List;
use crate::peermem::Registration;
use crate::text;
use anstyle::Style;

fn unique<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut values: Vec<&str> = values.collect();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() {
        "-".to_owned()
    } else {
        values.join(" ")
    }
}

/// Returns how many registrations there are, and in how many pieces if that is more.
fn registrations(rows: &[Registration]) -> String {
    let pieces = rows.iter().map(|row| row.pieces.max(1)).sum::<u64>();
    match u64::try_from(rows.len()) {
        Ok(count) if pieces > count => format!("{count} in {}", text::count(pieces, "piece")),
        _ => rows.len().to_string(),
    }
}

pub(super) fn print(page: &mut Page, list: &List) {
    if list.processes.is_empty() {
        page.line("No GPU memory is registered.");
    } else {
        let mut table =
            table(&["PID", "COMMAND", "REGS", "BYTES", "GPU", "NIC", "CLIENT", "STATE", "OLDEST"], &[0, 2, 3, 4, 9]);
        for process in &list.processes {
            let rows = &process.registrations;
            let state = match process.alive {
                Some(false) => "process is gone".to_owned(),
                _ => unique(rows.iter().map(|row| row.state.as_str())),
            };
            table.add_row([
                process.pid.to_string(),
                tame(&process.comm),
                registrations(rows),
                text::bytes(process.bytes),
                unique(rows.iter().filter_map(|row| row.gpu.as_deref())),
                unique(rows.iter().filter_map(|row| row.nic.as_deref())),
                unique(rows.iter().map(|row| row.client.as_str())),
                state,
                text::duration(rows.iter().map(|row| row.age_ms).max().unwrap_or(0)),
            ]);
        }
        page.table(&mut table);
    }
    if list.processes.iter().any(|process| process.alive.is_none()) {
        let why = "PID is the host's number of a process. This is a container, so which of them are gone cannot be seen from here.";
        page.wrapped("", why, Style::new());
    }
    match list.references {
        None => {
            page.wrapped(
                "",
                "rmmod does not work: this kernel unloads no module (CONFIG_MODULE_UNLOAD is off).",
                Style::new(),
            );
        }
        Some(0) => {
            page.line("rmmod nvidia_peermem would work: nothing is in use.");
        }
        Some(n) => {
            page.line(&format!("rmmod nvidia_peermem is refused: it is used {}.", text::count(n, "time")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_told_where_there_are_more_than_registrations() {
        let row = |pieces| Registration { pieces, ..Registration::default() };
        // A module of before does not tell.
        assert_eq!(registrations(&[row(0), row(1)]), "2");
        assert_eq!(registrations(&[row(1), row(52)]), "2 in 53 pieces");
    }
}
