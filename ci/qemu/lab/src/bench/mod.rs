//! `make bench`: ours beside NVIDIA's C module, measured in two boots, and what is made of the numbers.

mod figures;
mod plot;
mod report;

use crate::ctx::Lab;
use crate::image;
use crate::kernel::Flavour;
use crate::ktap::Outcome;
use crate::machine::{Boot, Clock};
use crate::prepare;
use crate::sh::{human, say};
use anyhow::{bail, Context, Result};
use figures::Figures;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The card: all of it is one sparse BAR, twice as large as what is registered, because NVIDIA's module cannot map a BAR's end.
const GPU_MIB: u64 = 128 << 10;
/// Both boots together take about ten minutes on two idle cores.
const LIMIT: Duration = Duration::from_secs(1800);

fn file(lab: &Lab) -> PathBuf {
    lab.repo.join("build/bench.json")
}

/// Measures. `false` if something could not be measured; what was measured is reported all the same.
pub fn run(lab: &Lab) -> Result<bool> {
    let start = Instant::now();
    let ready = prepare(lab, Flavour::Fast)?;
    let image = image::build_both(lab, &ready.kernel, &ready.parts)?;
    let mut rows: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut whole = true;
    for (name, clock, memory_mib) in [("bench", Clock::Instructions, 4096), ("bench_threads", Clock::Wall, 2048)] {
        let mut boot = Boot { gpu_mib: GPU_MIB, clock, memory_mib, limit: LIMIT, ..Boot::new(name, name) };
        // The processor's own counter is the clock, and accounting can be switched on.
        boot.append.extend(["tsc=reliable", "sysctl.vm.mem_profiling=0"].map(String::from));
        let report = boot.run(lab, &ready.kernel, &image, "")?;
        whole &= report.tests.iter().all(|t| t.outcome != Outcome::Failed) && !report.tests.is_empty();
        for alarm in &report.alarms {
            println!("FAILED  the kernel: {}", alarm.line);
            whole = false;
        }
        say(&format!("boot {name}: {}", human(report.elapsed)));
        rows.extend(report.json);
    }
    let all = json!({
        "command": "make bench", "kernel": ready.kernel.release, "seconds": start.elapsed().as_secs(), "rows": rows,
    });
    let file = file(lab);
    fs::write(&file, serde_json::to_string(&all)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", report::text(&Figures::new(&all)?));
    say(&format!("took {}; every sample: {}", human(start.elapsed()), lab.short(&file)));
    if !whole {
        println!("bench: not everything could be measured");
    }
    Ok(whole)
}

/// Writes what is checked in of the last measurement.
pub fn docs(lab: &Lab) -> Result<bool> {
    let file = file(lab);
    let text = fs::read_to_string(&file).with_context(|| format!("{}: run `make bench` first", lab.short(&file)))?;
    let all: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", lab.short(&file)))?;
    let figures = Figures::new(&all)?;
    let dir = lab.repo.join("docs/bench");
    fs::create_dir_all(&dir)?;
    for (name, text) in [
        ("tables.md", report::markdown(&figures)),
        ("time.svg", plot::time(&figures)?),
        ("memory.svg", plot::memory(&figures)?),
    ] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", lab.short(&path));
    }
    if figures.times.is_empty() {
        bail!("{} has no times", lab.short(&file));
    }
    Ok(true)
}
