// SPDX-License-Identifier: GPL-2.0

//! `make demo`: runs real perftest with GPU memory, within one machine and between two, and shows
//! on one screen what was moved, and a verdict.

use crate::judge::judge;
use crate::pair;
use anyhow::{anyhow, Result};
use comfy_table::{presets, CellAlignment, Table};
use lab::artefacts::build;
use lab::axes::{Also, Kernel, Module, Named};
use lab::ctx::Lab;
use lab::ktap::{Counts, Screen};
use lab::machine::{Boot, Report};
use lab::nvidia_c;
use lab::parts;
use lab::sh::human;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time limit of a machine. It is long because three machines run at the same time.
const LIMIT: Duration = Duration::from_secs(900);

pub fn run(lab: &Lab, module: Module, kernel: Kernel) -> Result<bool> {
    let built = &build(lab, kernel, &[(module, Also::Demo)], &[])?;
    let kind = (module, Also::Demo);
    let modes = modes(lab, module)?;
    let what = if module == Module::NvidiaC { "NVIDIA's C nvidia-peermem" } else { "nvidia-peermem in Rust" };
    let nvidia = parts::line(&built.nvidia(kind));
    let name = name(module, kernel);
    println!("three machines start, one by itself and two with a cable between them; what they move:");
    let start = Instant::now();
    let mut one = Boot::new(&name, "demo");
    one.screen = Screen::Rows(moved);
    one.append.extend(module.word(kernel));
    one.limit = LIMIT;
    let mut two = Boot { name: format!("{name}-pair"), run: "pair".to_string(), ..one.clone() };
    two.append.push(format!("guest.only={}", only(modes)));
    // A single machine would leave one of the host's two processors idle.
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| one.run(lab, built, kind));
        let two = pair::run(lab, built, kind, &two);
        (one.join().unwrap_or_else(|_| Err(anyhow!("the lab itself panicked"))), two)
    });
    let mut reports: Vec<Report> = [one?].into_iter().chain(two?).collect();
    for report in &mut reports {
        judge(report, &BTreeMap::new(), module).into_iter().for_each(|test| report.add(test));
    }
    let (one, two) = (rows(&reports, "demo"), rows(&reports, "pair"));
    let mut reasons = missing(&one, &alone(modes, module));
    reasons.extend(missing(&two, &pairs(modes)));
    reasons.extend(reports.iter().flat_map(|r| &r.tests).filter(|t| t.has_failed()).map(|t| t.name.clone()));
    let passed = reasons.is_empty();

    let file = format!("build/{name}.json");
    let result = if passed { "PASS" } else { "FAIL" };
    lab.write_json(
        &file,
        &json!({"result": result, "reasons": reasons, "module": what, "nvidia": nvidia, "kernel": built.release,
            "seconds": start.elapsed().as_secs(), "boots": reports}),
    )?;
    println!(
        "\n{what} on Linux {}, with\n{nvidia}.\nThe machines are emulated: compare the numbers with each other only.\n",
        built.release
    );
    println!("{}\n\n{}", table(&one, &two), sum(&reports));
    let consoles = lab.short(&lab.build.join("run")).to_string();
    println!("Logs: {file} has every number,\n{consoles}/{name}*/console.log what the machines said.");
    println!("They ran for {}. Next: README.md to install, `make test` for the rest.", human(start.elapsed()));
    println!("{}", format!("demo: {result} {}", reasons.join("; ")).trim_end());
    Ok(passed)
}

fn rows(reports: &[Report], name: &str) -> Vec<Value> {
    reports.iter().filter_map(|r| r.json.get(name)).flatten().cloned().collect()
}

/// Returns the name of the boot and of its report.
fn name(module: Module, kernel: Kernel) -> String {
    let kernel = if kernel == Kernel::Debian612 { String::new() } else { format!("-{}", kernel.name()) };
    format!("demo{kernel}{}", if module == Module::NvidiaC { "-nvidia_c" } else { "" })
}

const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_read_bw", "ib_send_bw"];

/// The rows for two machines: program, connection, buffer, and the modes to run it in.
/// (ib_write_lat polls its buffer with the CPU, so perftest refuses to run it with GPU memory; the
/// suite `pair` tests that refusal.)
const PAIR: [(&str, &str, &str, &[&str]); 9] = [
    ("ib_write_bw", "tcp", "gpu", &["persistent", "legacy"]),
    ("ib_read_bw", "tcp", "gpu", &["persistent", "legacy"]),
    ("ib_send_bw", "tcp", "gpu", &["persistent", "legacy"]),
    ("ib_send_lat", "tcp", "gpu", &["persistent"]),
    ("ib_write_lat", "tcp", "host", &[]),
    ("ib_write_bw", "rdma_cm", "gpu", &["persistent", "legacy"]),
    ("ib_read_bw", "rdma_cm", "gpu", &["persistent"]),
    ("ib_send_bw", "rdma_cm", "gpu", &["persistent"]),
    ("ib_send_lat", "rdma_cm", "gpu", &["persistent"]),
];

fn text(row: &Value, name: &str) -> String {
    match &row[name] {
        Value::Null => "-".to_string(),
        Value::String(s) => s.clone(),
        Value::Number(n) if n.is_f64() => format!("{:.1}", n.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// Returns the modes that the demo shows. NVIDIA's module has revocable pins only before driver
/// 560.
fn modes(lab: &Lab, module: Module) -> Result<&'static [&'static str]> {
    Ok(match module {
        Module::NvidiaC if !nvidia_c::is_persistent(lab)? => &["legacy"],
        _ => &["persistent", "legacy"],
    })
}

/// A row that the guest's report must have. A demo that did not show all its rows has failed, even
/// if the guest reports no failure.
struct Wanted {
    /// The way of pinning, or `None` for host memory, which needs none and is shown once.
    mode: Option<&'static str>,
    program: &'static str,
    /// The connection, for rows between two machines.
    connect: Option<&'static str>,
    buffer: &'static str,
}

impl Wanted {
    fn is_shown_by(&self, row: &Value) -> bool {
        self.mode.is_none_or(|mode| row["mode"] == mode)
            && row["test"] == self.program
            && row["connect"].as_str() == self.connect
            && row["buffer"] == self.buffer
            && (row["mb_s"].as_f64() > Some(0.0) || row["usec"].as_f64() > Some(0.0))
            // Between two machines, both sides must have moved and checked bytes.
            && (self.connect.is_none() || self.buffer == "host" || row["chunks"].as_u64() > Some(0))
    }
}

fn alone(modes: &[&'static str], module: Module) -> Vec<Wanted> {
    let of = |program, buffer, mode| Wanted { mode, program, connect: None, buffer };
    let gpu = |program| modes.iter().map(move |mode| of(program, "gpu", Some(*mode)));
    let mut all: Vec<_> = PROGRAMS.into_iter().flat_map(|p| gpu(p).chain([of(p, "host", None)])).collect();
    // NVIDIA's module refuses a region that spans several allocations.
    all.extend((module != Module::NvidiaC).then(|| of("write, read", "3 segments", None)));
    all
}

fn pairs(modes: &[&str]) -> Vec<Wanted> {
    let mut all = Vec::new();
    for (program, connect, buffer, in_modes) in PAIR {
        let of = |mode| Wanted { mode, program, connect: Some(connect), buffer };
        if in_modes.is_empty() {
            all.push(of(None));
        }
        all.extend(in_modes.iter().filter(|mode| modes.contains(mode)).map(|mode| of(Some(*mode))));
    }
    all
}

fn missing(rows: &[Value], wanted: &[Wanted]) -> Vec<String> {
    let missing = wanted.iter().filter(|wanted| !rows.iter().any(|row| wanted.is_shown_by(row)));
    let words = |Wanted { mode, program, connect, buffer }: &Wanted| {
        let mode = mode.map_or(String::new(), |mode| format!(" in mode {mode}"));
        let connect = connect.map_or(String::new(), |connect| format!(" between two machines by {connect}"));
        format!("{program}{connect} with a buffer \"{buffer}\"{mode} was not shown")
    };
    missing.map(words).collect()
}

/// Returns `guest.only=` for all pairs. The leading slash keeps `host/x` from matching other names
/// that end with it.
fn only(modes: &[&str]) -> String {
    let name = |wanted: &Wanted| {
        let cm = if wanted.connect == Some("rdma_cm") { "rdma_cm/" } else { "" };
        format!("pair/{}/{cm}{}", wanted.mode.unwrap_or(wanted.buffer), wanted.program)
    };
    let mut words: Vec<String> = pairs(modes).iter().map(name).collect();
    words.push("pair/write_lat_wants_host_memory".to_string());
    words.join(",")
}

/// Returns the line that reports what a row has shown, to be printed as soon as the row arrives.
fn moved(name: &str, row: &Value) -> Option<String> {
    let buffer = match row["buffer"].as_str()? {
        "gpu" => "GPU memory",
        "host" => "host memory, to compare",
        _ => "GPU memory of three allocations",
    };
    let by = match (name, row["connect"].as_str()) {
        ("demo", _) => "one machine",
        ("pair", Some("rdma_cm")) => "two machines, RDMA CM",
        ("pair", _) => "two machines",
        _ => return None,
    };
    Some(format!("  {:<12} {:>11}  {by}, {buffer}", text(row, "test"), speed(row)))
}

fn speed(row: &Value) -> String {
    match (row["mb_s"].as_f64(), row["usec"].as_f64()) {
        (Some(rate), _) => format!("{rate:.1} MB/s"),
        (None, Some(usec)) => format!("{:.1} ms", usec / 1000.0),
        _ => "-".to_string(),
    }
}

/// Returns the lines of the table: program, buffer, and the mode in which the buffer is pinned.
fn lines() -> Vec<(&'static str, &'static str, Option<&'static str>)> {
    let mut lines = Vec::new();
    for mode in ["persistent", "legacy"] {
        lines.extend(PROGRAMS.map(|program| (program, "gpu", Some(mode))));
    }
    lines.push(("ib_send_lat", "gpu", Some("persistent")));
    lines.push(("write, read", "3 segments", Some("persistent")));
    lines.extend(PROGRAMS.map(|program| (program, "host", None)));
    lines.push(("ib_write_lat", "host", None));
    lines
}

/// Builds the table from the rows of the single machine and of the two machines.
fn table(one: &[Value], two: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["program", "memory", "one machine", "two, by TCP", "two, by RDMA CM"]);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (program, buffer, mode) in lines() {
        let of = |rows: &[Value], connect: Option<&str>| {
            // Host memory does not pass through the module, so its rows may have any mode.
            let is = |row: &&Value| {
                row["test"] == program
                    && row["buffer"] == buffer
                    && row["connect"].as_str() == connect
                    && mode.is_none_or(|mode| row["mode"] == mode)
            };
            rows.iter().find(is).map_or("-".to_string(), speed)
        };
        let cells = [of(one, None), of(two, Some("tcp")), of(two, Some("rdma_cm"))];
        if cells.iter().all(|cell| cell == "-") {
            continue;
        }
        let memory = match (buffer, mode) {
            ("host", _) => "host",
            ("3 segments", _) => "GPU, 3 allocations",
            (_, Some("legacy")) => "GPU, revocable",
            _ => "GPU, persistent",
        };
        table.add_row([program.to_string(), memory.to_string()].into_iter().chain(cells));
    }
    table
}

/// Returns a line that sums up what all rows have shown.
fn sum(reports: &[Report]) -> String {
    let (one, two) = (rows(reports, "demo"), rows(reports, "pair"));
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0);
    let sides = || two.iter().flat_map(|row| [&row["server"], &row["client"]]);
    let regions: u64 = one.iter().chain(sides()).map(|row| number(row, "mrs")).sum();
    let moved = one.iter().map(|row| number(row, "bar_bytes")).sum::<u64>()
        + sides().map(|side| number(side, "bar_read") + number(side, "bar_wrote")).sum::<u64>();
    let counts = Counts::of(reports.iter().flat_map(|report| &report.tests));
    format!(
        "{regions} registrations of GPU memory; {:.1} MiB went through the GPUs' BARs.\n{} checks passed, {} failed: of \
         the bytes, of what stays pinned, of the kernels' logs.",
        moved as f64 / f64::from(1 << 20),
        counts.passed,
        counts.failed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [&str; 2] = ["persistent", "legacy"];

    fn shown(wanted: &[Wanted]) -> Vec<Value> {
        let row = |w: &Wanted| {
            json!({"mode": w.mode, "test": w.program, "connect": w.connect, "buffer": w.buffer, "mb_s": 1.5,
                "chunks": 4})
        };
        wanted.iter().map(row).collect()
    }

    #[test]
    fn everything_promised_must_be_shown() {
        for wanted in [alone(&BOTH, Module::Ours), alone(&["legacy"], Module::NvidiaC), pairs(&BOTH)] {
            let rows = shown(&wanted);
            assert_eq!(missing(&rows, &wanted), [] as [&str; 0]);
            assert_eq!(missing(&[], &wanted).len(), wanted.len());
            assert_eq!(missing(&rows[1..], &wanted).len(), 1);
            let mut still = rows;
            still[0]["mb_s"] = json!(0.0);
            assert_eq!(missing(&still, &wanted).len(), 1, "a row without any data moved counts as shown");
        }
        let mut rows = shown(&pairs(&BOTH));
        rows[0]["chunks"] = json!(null);
        assert_eq!(missing(&rows, &pairs(&BOTH)).len(), 1, "bytes that nobody proved count as shown");
        let rows = shown(&alone(&["persistent"], Module::NvidiaC));
        let not = missing(&rows, &alone(&BOTH, Module::Ours));
        assert_eq!(not.len(), 4);
        assert_eq!(not[0], "ib_write_bw with a buffer \"gpu\" in mode legacy was not shown");
    }

    #[test]
    fn the_guest_is_asked_for_what_must_be_shown() {
        assert!(only(&BOTH).contains("pair/persistent/rdma_cm/ib_read_bw"));
        let legacy = only(&["legacy"]);
        assert!(!legacy.contains("persistent") && legacy.contains("pair/host/ib_write_lat"));
    }

    #[test]
    fn the_table_puts_one_machine_beside_two() {
        let one = json!({"mode": "legacy", "test": "ib_read_bw", "buffer": "gpu", "mb_s": 12.345});
        let two = json!({"mode": "legacy", "test": "ib_read_bw", "connect": "rdma_cm", "buffer": "gpu", "mb_s": 7.25});
        let late = json!({"mode": null, "test": "ib_write_lat", "connect": "tcp", "buffer": "host", "usec": 81_500.0});
        let table = table(&[one], &[two, late]).to_string();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["ib_read_bw", "GPU,", "revocable", "12.3", "MB/s", "-", "7.2", "MB/s"]);
        assert_eq!(lines[2], ["ib_write_lat", "host", "-", "81.5", "ms", "-"]);
        assert_eq!(lines.len(), 3, "{table}");
    }

    /// A terminal has 24 lines of 80 characters, and the first of them holds the command.
    #[test]
    fn the_end_fits_one_screen() {
        let rows: Vec<Value> = lines()
            .into_iter()
            .flat_map(|(test, buffer, mode)| {
                ["tcp", "rdma_cm"].map(
                    |connect| json!({"mode": mode, "test": test, "connect": connect, "buffer": buffer, "mb_s": 1234.5}),
                )
            })
            .collect();
        let table = table(&rows, &rows).to_string();
        assert!(table.lines().count() + 11 <= 24, "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn what_was_moved_is_said_at_once() {
        let row = json!({"mode": "legacy", "test": "ib_read_bw", "buffer": "gpu", "mb_s": 12.345});
        assert_eq!(moved("demo", &row).unwrap(), "  ib_read_bw     12.3 MB/s  one machine, GPU memory");
        assert_eq!(moved("bench", &row), None);
    }
}
