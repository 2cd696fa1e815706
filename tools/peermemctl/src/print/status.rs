// SPDX-License-Identifier: GPL-2.0
//! `status` as text.

use super::{print_check, style, wrapped};
use crate::answer::Status;
use crate::check::Level;
use crate::text;
use anstyle::Style;
use std::fmt::Write;

pub(super) fn print(out: &mut String, status: &Status) {
    let style = style(status.level);
    let verdict = if status.usable { "yes" } else { "no" };
    let _ = writeln!(out, "GPUDirect RDMA by nvidia-peermem: {style}{verdict}{style:#}");
    for check in &status.because {
        print_check(out, check);
    }
    let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let module = match (status.module, &status.module_version) {
        (Some(maker), version) => {
            format!("nvidia_peermem {} ({maker}), mode {}", or(version), status.mode.unwrap_or("-"))
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
    for (key, value) in [
        ("module", module),
        ("driver", driver),
        ("kernel", or(&status.kernel)),
        ("peer-memory API", or(&status.api)),
        (
            "dma-buf instead",
            match (status.dma_buf, status.rdma_devices.is_empty()) {
                (false, _) => "no",
                (true, false) => "possible",
                (true, true) => "possible with an RDMA device",
            }
            .to_owned(),
        ),
        ("clients", list(&status.clients)),
        ("GPUs", list(&status.gpus)),
        ("RDMA devices", list(&status.rdma_devices)),
        ("live", live),
        (
            "refused",
            match status.refused {
                None => "-".to_owned(),
                Some(0) => "0".to_owned(),
                Some(refused) => format!("{refused}; peermemctl failures (as root) says why"),
            },
        ),
    ] {
        wrapped(out, &format!("  {key:<17}"), &value, Style::new());
    }
    if status.level != Level::Ok {
        let _ = writeln!(out, "More: peermemctl doctor");
    }
}
