// SPDX-License-Identifier: GPL-2.0
//! Answers as text: at most 100 columns, colour only on a terminal.

use crate::answer::{Answer, Failures, List, Place, Selftest, Status, Tick, Topo};
use crate::check::{Check, Level};
use crate::doctor::Report;
use crate::pci::Distance;
use crate::text;
use anstyle::{AnsiColor, Style};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::fmt::Write;

/// Columns of the text.
pub const WIDTH: usize = 100;

fn style(level: Level) -> Style {
    let colour = match level {
        Level::Ok => AnsiColor::Green,
        Level::Skip => AnsiColor::Cyan,
        Level::Warn => AnsiColor::Yellow,
        Level::Fail => AnsiColor::Red,
    };
    Style::new().bold().fg_color(Some(colour.into()))
}

/// `text`, with control characters of foreign origin taken out: a process chooses its own name.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `first` and then `text`, wrapped; later lines are indented as far as `first` is wide.
fn wrapped(out: &mut String, first: &str, text: &str, style: Style) {
    let text = tame(text);
    let indent = " ".repeat(first.chars().count());
    let options = textwrap::Options::new(WIDTH - indent.len()).word_splitter(textwrap::WordSplitter::NoHyphenation);
    for (n, line) in textwrap::wrap(&text, options).into_iter().enumerate() {
        let lead = if n == 0 { first } else { &indent };
        let _ = writeln!(out, "{lead}{style}{line}{style:#}");
    }
}

/// The text of an answer; the caller prints it to a stream that drops colour where there is no terminal.
pub fn text(answer: &Answer) -> String {
    let mut out = String::new();
    match answer {
        Answer::Status(status) => print_status(&mut out, status),
        Answer::Doctor(report) => print_doctor(&mut out, report),
        Answer::List(list) => print_list(&mut out, list),
        Answer::Watch(tick) => print_tick(&mut out, tick),
        Answer::Failures(failures) => print_failures(&mut out, failures),
        Answer::Topo(topo) => print_topo(&mut out, topo),
        Answer::Selftest(selftest) => print_selftest(&mut out, selftest),
    }
    out
}

/// What the program says on stderr when a command fails.
pub fn failed(error: &anyhow::Error) -> String {
    let mut out = String::new();
    wrapped(&mut out, "peermemctl: ", &format!("{error:#}"), Style::new());
    out
}

fn print_check(out: &mut String, check: &Check) {
    let style = style(check.level);
    let _ = write!(out, "  {style}{:<5}{style:#}", check.level.text());
    let mut body = String::new();
    wrapped(&mut body, "       ", &check.message, Style::new());
    out.push_str(body.trim_start());
    for evidence in &check.evidence {
        wrapped(out, "       seen: ", evidence, Style::new().dimmed());
    }
    if let Some(fix) = &check.fix {
        wrapped(out, "        fix: ", fix, Style::new().bold());
    }
}

fn print_status(out: &mut String, status: &Status) {
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

fn print_doctor(out: &mut String, report: &Report) {
    for (n, section) in report.sections.iter().enumerate() {
        let bold = Style::new().bold();
        let _ = writeln!(out, "{bold}{:>2} {}{bold:#}", n + 1, section.title);
        for check in &section.checks {
            print_check(out, check);
        }
    }
    let count = |level: Level| {
        report.sections.iter().flat_map(|section| &section.checks).filter(|check| check.level == level).count()
    };
    let style = style(report.verdict);
    let _ = writeln!(
        out,
        "{style}{}{style:#}: {} failed, {}, {} fine, {} skipped",
        report.verdict.text(),
        count(Level::Fail),
        text::count(count(Level::Warn), "warning"),
        count(Level::Ok),
        count(Level::Skip)
    );
    if let Some(fix) = first_fix(report) {
        wrapped(out, "Begin with: ", fix, Style::new().bold());
    }
}

/// What fixes the first failure, or without one the first warning: what comes later often follows from it. What the consumers
/// find always follows from the rest.
fn first_fix(report: &Report) -> Option<&str> {
    let checks = || report.sections.iter().flat_map(|section| &section.checks);
    let first = |level| checks().find(|check| check.level == level && !check.id.starts_with("consumers."));
    first(Level::Fail).or_else(|| first(Level::Warn))?.fix.as_deref()
}

fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    let width = u16::try_from(WIDTH).unwrap_or(u16::MAX);
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(width).set_header(head);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn print_table(out: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

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

fn print_list(out: &mut String, list: &List) {
    if list.processes.is_empty() {
        let _ = writeln!(out, "No GPU memory is registered.");
    } else {
        let mut table =
            table(&["PID", "COMMAND", "REGS", "BYTES", "GPU", "NIC", "CLIENT", "STATE", "OLDEST"], &[0, 2, 3, 8]);
        for process in &list.processes {
            let rows = &process.registrations;
            let state = match process.alive {
                Some(false) => "process is gone".to_owned(),
                _ => unique(rows.iter().map(|row| row.state.as_str())),
            };
            table.add_row([
                process.pid.to_string(),
                tame(&process.comm),
                rows.len().to_string(),
                text::bytes(process.bytes),
                unique(rows.iter().filter_map(|row| row.gpu.as_deref())),
                unique(rows.iter().filter_map(|row| row.nic.as_deref())),
                unique(rows.iter().map(|row| row.client.as_str())),
                state,
                text::duration(rows.iter().map(|row| row.age_ms).max().unwrap_or(0)),
            ]);
        }
        print_table(out, &table);
    }
    if list.processes.iter().any(|process| process.alive.is_none()) {
        let why = "PID is the host's number of a process. This is a container, so which of them are gone cannot be told from here.";
        wrapped(out, "", why, Style::new());
    }
    match list.references {
        None => {
            let _ = writeln!(out, "rmmod does not work: this kernel unloads no module (CONFIG_MODULE_UNLOAD is off).");
        }
        Some(0) => {
            let _ = writeln!(out, "rmmod nvidia_peermem would work: nothing is in use.");
        }
        Some(n) => {
            let _ = writeln!(out, "rmmod nvidia_peermem is refused: it is used {}.", text::count(n, "time"));
        }
    }
    if list.stays_loaded {
        let why = "One of these is its own, until the next boot: a revocable pin was taken, and this build (plain exports only) cannot tell when the callback of such a pin has left the module.";
        wrapped(out, "", why, Style::new());
    }
}

/// The head of what [`print_tick`] prints.
pub fn watch_head() -> String {
    format!(
        "{:>8} {:>10} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}\n",
        "LIVE", "BYTES", "ORPHANS", "PINS/s", "UNPINS/s", "REVOKED/s", "REFUSED/s", "GET µs", "CALLBACK ms"
    )
}

fn print_tick(out: &mut String, tick: &Tick) {
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

fn print_failures(out: &mut String, failures: &Failures) {
    if failures.failures.is_empty() {
        let _ = writeln!(out, "No registration of GPU memory was refused.");
        return;
    }
    for row in &failures.failures {
        let who = format!("process {} ({}), {} at {:#x}", row.pid, tame(&row.comm), text::bytes(row.length), row.va);
        wrapped(
            out,
            &format!("{}  ", text::time(row.time)),
            &format!("{who}: {}", text::errno(row.errno)),
            Style::new().bold(),
        );
        wrapped(out, "    ", &format!("{} [{}, client {}]", row.text, row.reason, row.client), Style::new());
    }
}

fn print_topo(out: &mut String, topo: &Topo) {
    if topo.gpus.is_empty() || topo.nics.is_empty() {
        let _ = writeln!(
            out,
            "{}, {} with a PCI address.",
            text::count(topo.gpus.len(), "GPU"),
            text::count(topo.nics.len(), "RDMA device")
        );
    }
    for (what, places) in [("GPU", &topo.gpus), ("NIC", &topo.nics)] {
        for place in places {
            let numa = place.numa_node.map_or("-".to_owned(), |node| node.to_string());
            wrapped(
                out,
                &format!("{what} {}  ", place.address),
                &format!("{}, NUMA node {numa}, below {}", place.name, place.way.join(" > ")),
                Style::new(),
            );
        }
    }
    if topo.pairs.is_empty() {
        return;
    }
    // As many NICs side by side as leave whole PCI addresses in their cells.
    for nics in topo.nics.chunks(4) {
        let _ = writeln!(out);
        print_table(out, &matrix(topo, nics));
    }
    let _ = writeln!(out);
    let words = [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys]
        .map(|distance| format!("{}: {}", distance.text(), distance.words()));
    wrapped(out, "", &words.join(" · "), Style::new());
}

/// All GPUs, and how far from them `nics` are.
fn matrix(topo: &Topo, nics: &[Place]) -> Table {
    let mut head = vec!["GPU \\ NIC".to_owned()];
    head.extend(nics.iter().map(|nic| nic.name.clone()));
    let mut table = table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    for gpu in &topo.gpus {
        let mut row = vec![gpu.address.clone()];
        for nic in nics {
            let pair = topo.pairs.iter().find(|pair| pair.gpu == gpu.address && pair.nic == nic.address);
            row.push(pair.map_or(String::new(), |pair| {
                let acs = match (pair.acs_redirects.is_empty(), pair.acs_known) {
                    (false, _) => ", ACS redirects",
                    (true, false) => ", ACS unknown",
                    (true, true) => "",
                };
                let driver = match pair.driver_says.as_deref() {
                    Some("unsupported") => ", the GPU driver refuses",
                    _ => "",
                };
                let meet = pair.meet.as_ref().map_or(", no common bridge".to_owned(), |bridge| format!(" at {bridge}"));
                format!("{}{meet}{acs}{driver}", pair.distance.text())
            }));
        }
        table.add_row(row);
    }
    table
}

fn print_selftest(out: &mut String, selftest: &Selftest) {
    let _ = writeln!(out, "{} of {}, through {}", text::bytes(selftest.bytes), selftest.gpu, selftest.device);
    for way in &selftest.ways {
        let style = style(way.level);
        let _ = write!(out, "  {style}{:<5}{style:#}{:<12}", way.level.text(), way.way);
        let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
        match &way.message {
            Some(message) => {
                let mut body = String::new();
                wrapped(&mut body, &" ".repeat(19), message, Style::new());
                out.push_str(body.trim_start());
            }
            None => {
                let _ = writeln!(
                    out,
                    "register {}, write {}, deregister {}, bytes equal",
                    time(way.register_us),
                    time(way.write_us),
                    time(way.deregister_us)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Pair, SelftestWay};

    fn fits(answer: Answer) -> String {
        let text = anstream::adapter::strip_str(&text(&answer)).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        text
    }

    #[test]
    fn eight_gpus_and_eight_nics_fit() {
        let place = |bus: usize, name: String| Place {
            address: format!("0000:{bus:02x}:00.0"),
            name,
            numa_node: Some(1),
            way: (0..6).map(|n| format!("0000:{bus:02x}:{n:02x}.0")).collect(),
        };
        let gpus: Vec<Place> = (16..24).map(|n| place(n, "GH100 [H200 SXM 141GB]".to_owned())).collect();
        let nics: Vec<Place> = (24..32).map(|n| place(n, format!("rocep{n}s0f0np0"))).collect();
        let pairs = gpus.iter().flat_map(|gpu| nics.iter().map(move |nic| (gpu, nic)));
        let pairs = pairs.map(|(gpu, nic)| Pair {
            gpu: gpu.address.clone(),
            nic: nic.address.clone(),
            distance: Distance::Pxb,
            meet: Some("0000:00:01.0".to_owned()),
            acs_redirects: vec!["0000:00:02.0".to_owned()],
            acs_known: true,
            driver_says: Some("unsupported".to_owned()),
        });
        let pairs: Vec<Pair> = pairs.collect();
        let text = fits(Answer::Topo(Topo { gpus, nics, pairs }));
        // No address is torn in two by its column.
        assert_eq!(text.matches("0000:00:01.0").count(), 64, "{text}");
    }

    #[test]
    fn selftest_fits() {
        let way = |message: Option<&str>| SelftestWay {
            way: "peer-memory",
            level: Level::Ok,
            message: message.map(str::to_owned),
            register_us: Some(123_456.7),
            write_us: Some(123_456.7),
            deregister_us: Some(123_456.7),
            bytes_equal: Some(true),
        };
        let ways = vec![way(None), way(Some(&"ibv_reg_mr() says: Bad address ".repeat(9)))];
        let (gpu, device) = ("GPU 0 (NVIDIA H200)".to_owned(), "mlx5_0".to_owned());
        fits(Answer::Selftest(Selftest { level: Level::Ok, gpu, device, bytes: 65536, ways }));
    }
}
