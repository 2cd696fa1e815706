//! `make demo`: real perftest with GPU memory, within one machine and between two; two tables, one
//! verdict.

use crate::judge::judge;
use crate::pair;
use anyhow::{anyhow, Result};
use comfy_table::{presets, CellAlignment, Table};
use lab::artefacts::build;
use lab::axes::{Also, Kernel, Module, Named};
use lab::ctx::Lab;
use lab::machine::{Boot, Report};
use lab::nvidia_c;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Three machines beside each other take longer than one alone.
const LIMIT: Duration = Duration::from_secs(900);

pub fn run(lab: &Lab, module: Module, kernel: Kernel) -> Result<bool> {
    let built = &build(lab, kernel, &[(module, Also::Demo)], &[])?;
    let image = built.image((module, Also::Demo));
    let modes = modes(lab, module)?;
    let what = match module {
        Module::NvidiaC => format!("NVIDIA's C nvidia-peermem {}", nvidia_c::version(lab)?),
        _ => "nvidia-peermem in Rust".to_string(),
    };
    let name = name(module, kernel);
    let start = Instant::now();
    let mut one = Boot::new(&name, "demo");
    one.append.extend(module.word(kernel));
    one.limit = LIMIT;
    let mut two = Boot { name: format!("{name}-pair"), run: "pair".to_string(), ..one.clone() };
    two.append.push(format!("guest.only={}", only(modes)));
    // One machine does not keep two processors busy.
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| one.run(lab, built, &image));
        let two = pair::run(lab, built, &image, &two);
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

    println!("\n{what}, Linux {} in virtual machines (emulated: read the numbers side by side only)", built.release);
    println!("\nOne machine, one GPU, two processes:\n\n{}", table(&one));
    println!("\nTwo machines, a GPU in each (server + client):\n\n{}\n", pair_table(&two));
    let file = format!("build/{name}.json");
    let result = if passed { "PASS" } else { "FAIL" };
    lab.write_json(
        &file,
        &json!({"result": result, "reasons": reasons, "module": what, "kernel": built.release,
            "seconds": start.elapsed().as_secs(), "boots": reports}),
    )?;
    let consoles: Vec<String> = reports.iter().map(|r| lab.short(&r.console).to_string()).collect();
    println!("numbers: {file}   consoles: {}", consoles.join(" "));
    println!("{}", format!("demo: {result} {}", reasons.join("; ")).trim_end());
    Ok(passed)
}

fn rows(reports: &[Report], name: &str) -> Vec<Value> {
    reports.iter().filter_map(|r| r.json.get(name)).flatten().cloned().collect()
}

/// Of the boot and of the report.
fn name(module: Module, kernel: Kernel) -> String {
    let kernel = if kernel == Kernel::Debian612 { String::new() } else { format!("-{}", kernel.name()) };
    format!("demo{kernel}{}", if module == Module::NvidiaC { "-nvidia_c" } else { "" })
}

const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_read_bw", "ib_send_bw"];

/// What is shown between two machines: program, connection, buffer; in which modes. (ib_write_lat
/// polls its buffer with the CPU: perftest refuses it with GPU memory, and the suite `pair` sees
/// that it does.)
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

/// NVIDIA's module has revocable pins only before driver 560.
fn modes(lab: &Lab, module: Module) -> Result<&'static [&'static str]> {
    Ok(match module {
        Module::NvidiaC if !nvidia_c::is_persistent(lab)? => &["legacy"],
        _ => &["persistent", "legacy"],
    })
}

/// A row that the guest's report must have: a demo that did not show what it is there to show has
/// not passed, whatever the guest says.
struct Wanted {
    /// Host memory knows of no mode: once is enough.
    mode: Option<&'static str>,
    program: &'static str,
    /// Between two machines.
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
            // Between two machines, bytes moved and proven, on both sides.
            && (self.connect.is_none() || self.buffer == "host" || row["chunks"].as_u64() > Some(0))
    }
}

fn alone(modes: &[&'static str], module: Module) -> Vec<Wanted> {
    let of = |program, buffer, mode| Wanted { mode, program, connect: None, buffer };
    let gpu = |program| modes.iter().map(move |mode| of(program, "gpu", Some(*mode)));
    let mut all: Vec<_> = PROGRAMS.into_iter().flat_map(|p| gpu(p).chain([of(p, "host", None)])).collect();
    // NVIDIA's module refuses a region over several allocations.
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

/// `guest.only=` for all pairs; the leading slash keeps `host/x` from matching more than itself.
fn only(modes: &[&str]) -> String {
    let name = |wanted: &Wanted| {
        let cm = if wanted.connect == Some("rdma_cm") { "rdma_cm/" } else { "" };
        format!("pair/{}/{cm}{}", wanted.mode.unwrap_or(wanted.buffer), wanted.program)
    };
    let mut words: Vec<String> = pairs(modes).iter().map(name).collect();
    words.push("pair/write_lat_wants_host_memory".to_string());
    words.join(",")
}

fn new_table(columns: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(columns);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn table(rows: &[Value]) -> Table {
    let mut table = new_table(&["mode", "program", "buffer", "MB/s", "MRs", "sg entries", "bytes pinned"], 3);
    for row in rows {
        // Host memory does not pass through the module: it has no mode.
        let mode = if row["buffer"] == "host" { "-".to_string() } else { text(row, "mode") };
        let rest = ["test", "buffer", "mb_s", "mrs", "sg_entries", "bytes_pinned"].map(|name| text(row, name));
        table.add_row([mode].into_iter().chain(rest));
    }
    table
}

fn pair_table(rows: &[Value]) -> Table {
    let columns =
        ["mode", "program", "connected by", "buffer", "MB/s", "µs", "MRs", "sg entries", "bytes by BAR", "proven"];
    let mut table = new_table(&columns, 4);
    for row in rows {
        let both = |name: &str| format!("{} + {}", text(&row["server"], name), text(&row["client"], name));
        let moved = |side: &str| {
            ["bar_read", "bar_wrote"].iter().map(|n| row[side][n].as_u64().unwrap_or(0)).sum::<u64>().to_string()
        };
        let gpu = row["buffer"] == "gpu";
        let dash = |text: String| if gpu { text } else { "-".to_string() };
        let (moved, proven) = (format!("{} + {}", moved("server"), moved("client")), text(row, "chunks"));
        let cells = [both("mrs"), both("sg_entries"), moved, format!("{proven} × 64 KiB")].map(dash);
        table.add_row(
            ["mode", "test", "connect", "buffer", "mb_s", "usec"].map(|name| text(row, name)).iter().chain(&cells),
        );
    }
    table
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
    fn the_table_has_a_dash_for_what_is_not_known() {
        let table =
            table(&[json!({"mode": "legacy", "test": "ib_read_bw", "buffer": "host", "mb_s": 12.345})]).to_string();
        assert!(table.contains("12.3") && table.contains(" - ") && !table.contains("legacy"), "{table}");
        let both = json!({"mrs": 1, "sg_entries": 2, "bar_read": 0, "bar_wrote": 77});
        let row = json!({"mode": "legacy", "test": "ib_send_lat", "connect": "tcp", "buffer": "gpu", "usec": 81.5,
            "chunks": 4, "server": both, "client": both});
        let table = pair_table(&[row]).to_string();
        assert!(table.contains("2 + 2") && table.contains("77 + 77") && table.contains("81.5"), "{table}");
    }
}
