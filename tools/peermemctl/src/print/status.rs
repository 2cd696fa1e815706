// SPDX-License-Identifier: GPL-2.0
//! `status` as text.

use super::page::{style, Page};
use crate::answer::Status;
use crate::check::Level;
use crate::text;
use anstyle::Style;

pub(super) fn print(page: &mut Page, status: &Status) {
    page.wrapped("GPUDirect RDMA: ", &status.verdict, style(status.level));
    for folded in super::doctor::fold(status.because.iter(), page.detail) {
        page.check(&folded.check, &folded.check.message);
    }
    let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let module = match (status.module, &status.module_version) {
        (Some(maker), version) => {
            format!("nvidia_peermem {} ({maker}), mode {}", or(version), or(&status.mode))
        }
        (None, _) => "not loaded".to_owned(),
    };
    let driver = match &status.driver_version {
        Some(version) => format!("nvidia.ko {version} ({})", status.driver_flavour.unwrap_or("flavour unknown")),
        None => "not loaded".to_owned(),
    };
    let live = match (status.live, status.live_bytes) {
        (Some(live), Some(bytes)) => format!("{}, {}", text::count(live, "pin"), text::bytes(bytes)),
        (Some(live), None) => text::count(live, "registration"),
        _ => "-".to_owned(),
    };
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let gpus = match status.gpus.as_slice() {
        [] | [_] => list(&status.gpus),
        [first, ..] => format!("{}, the first {first}", status.gpus.len()),
    };
    let refused = match status.refused {
        None => "-".to_owned(),
        Some(0) => "0".to_owned(),
        Some(refused) => format!("{refused}; peermemctl failures (as root) says why"),
    };
    for (key, value) in [
        ("module", module),
        ("driver", driver),
        ("kernel", or(&status.kernel)),
        ("peer-memory API", or(&status.api)),
        ("clients", list(&status.clients)),
        ("GPUs", gpus),
        ("RDMA devices", list(&status.rdma_devices)),
        ("live", live),
        ("refused", refused),
    ] {
        page.wrapped(&format!("  {key:<21}"), &value, Style::new());
    }
    page.line("Ways:");
    for verdict in &status.ways {
        page.wrapped(&format!("  {:<21}", verdict.way.text()), &verdict.words(), Style::new());
    }
    page.line(match status.level {
        Level::Ok => "Every check, and what applications do: peermemctl doctor",
        _ => "More: peermemctl doctor (as root it sees more)",
    });
}
