// SPDX-License-Identifier: GPL-2.0
//! Tests every refusal that the lab can cause. The first read of `failures` after the failed call
//! has it, and `peermemctl failures` gives the reason in words.
//!
//! Two refusals are not tested here: `core_order` (no core is known that calls out of order;
//! tests/host/kernel-lite plays one) and `too_many_entries` (2^31 entries or 65 536 pieces), which
//! nothing tests.

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context, Result};
use serde_json::json;

use crate::common::{errno_name, expect_errno, Bench, MIB};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::inject;
use crate::lab::CoreHold;
use crate::machine::{Mode, OtherRxe};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::{emit, in_modes, skip, Env, NvidiaC, Suite};
use crate::verbs::PATIENCE;

const SIZE: usize = MIB;

pub fn suite(nvidia_c: bool) -> Suite {
    let persistent = [Mode::Persistent];
    let tests = [
        in_modes(nvidia_c, &persistent, "new_pair_in_words", new_pair_in_words),
        in_modes(
            nvidia_c,
            &[Mode::Persistent, Mode::Fallback, Mode::Legacy],
            "in_words_each_refusal_says_what_to_do",
            in_words_each_refusal_says_what_to_do,
        ),
        in_modes(nvidia_c, &[Mode::Persistent, Mode::Legacy], "tables_in_words", tables_in_words),
        in_modes(nvidia_c, &persistent, "no_memory_in_words", no_memory_in_words),
    ];
    Suite {
        name: "reasons",
        tests: tests.into_iter().flatten().map(|t| t.nvidia_c(NvidiaC::Skip("it gives none"))).collect(),
    }
}

/// The way to cause a refusal.
enum How {
    /// Faults of the GPU driver, each with name, value and count.
    Faults(Faults),
    /// Register more than was allocated.
    TooLong,
    /// Register more than any BAR holds.
    LongerThanBar,
    /// Free the memory while it is being registered.
    Freed,
    /// The kernel has no memory for one of the module's own allocations.
    NoMemory,
    /// GPU and NIC meet for the first time, and the provider refuses the pair.
    NewPair,
    /// The NIC hands out this DMA device (`rdma_rxe.peer_dma_device`), with these faults of the GPU
    /// driver.
    Nic(&'static str, Faults),
}

type Faults = &'static [(&'static str, u64, u64)];

/// The reason, the errno, and the way to cause it.
type Case = (&'static str, i32, How);

const ALWAYS: u64 = 100;

fn cases(mode: Mode) -> Vec<Case> {
    use How::{Faults, Freed, LongerThanBar, Nic, TooLong};
    if mode == Mode::Legacy {
        return vec![
            ("freed", libc::EFAULT, Freed),
            ("busy", libc::EBUSY, Faults(&[("get_errno", 16, ALWAYS)])),
            ("leaves_allocation", libc::EINVAL, TooLong),
        ];
    }
    if mode == Mode::Fallback {
        let neither = &[("persistent_errno", 524, ALWAYS), ("get_errno", 524, ALWAYS)];
        return vec![("not_supported", libc::EOPNOTSUPP, Faults(neither))];
    }
    vec![
        ("not_persistent", libc::EOPNOTSUPP, Faults(&[("persistent_errno", 524, ALWAYS)])),
        ("busy", libc::EBUSY, Faults(&[("persistent_errno", 16, ALWAYS)])),
        ("no_gpu", libc::ENODEV, Faults(&[("persistent_errno", 19, ALWAYS)])),
        ("out_of_bar", libc::ENOMEM, Faults(&[("persistent_errno", 12, 1)])),
        ("provider_fault", libc::EIO, Faults(&[("persistent_errno", 5, 1)])),
        ("unproven", libc::EFAULT, Faults(&[("persistent_errno", 12, ALWAYS)])),
        ("persistent_fault", libc::EFAULT, Faults(&[("persistent_errno", 5, ALWAYS)])),
        ("longer_than_bar", libc::ENOMEM, LongerThanBar),
        ("hole", libc::EINVAL, TooLong),
        // It leaves no NIC behind, so it comes last.
        ("no_device", libc::ENODEV, Nic("peer_dma_device=none", &[])),
    ]
}

/// Returns the cases with tables that NVIDIA's own front does not make.
fn cases_of_tables(mode: Mode) -> Vec<Case> {
    use How::{Faults, Nic};
    if mode == Mode::Legacy {
        return vec![("outside_bar", libc::EOPNOTSUPP, Faults(&[("table_outside", 1, 1)]))];
    }
    vec![
        ("table_version", libc::EIO, Faults(&[("table_version", 0x30000, 1)])),
        ("table_page_size", libc::EIO, Faults(&[("table_page_size", 7, 1)])),
        ("table_entries", libc::EIO, Faults(&[("table_short", 1, 1)])),
        ("table_no_pages", libc::EIO, Faults(&[("table_null_pages", 1, 1)])),
        ("table_address", libc::EIO, Faults(&[("table_misalign", 4096, 1)])),
        (
            "dma_mapping",
            libc::EIO,
            Faults(&[("table_version", 0x10002, 1), ("table_outside", 1, 1), ("map_errno", 5, 1)]),
        ),
        // It leaves no NIC behind, so it comes last.
        (
            "not_pci",
            libc::EOPNOTSUPP,
            Nic("peer_dma_device=platform", &[("table_version", 0x10002, 1), ("table_outside", 1, 1)]),
        ),
    ]
}

fn in_words_each_refusal_says_what_to_do(env: &Env) -> Result<()> {
    all(cases(env.mode()?))
}

fn tables_in_words(env: &Env) -> Result<()> {
    // The odd flavour of the GPU driver alone can change it.
    gpu::lab()?.set("table_version", 0x2_0000)?;
    all(cases_of_tables(env.mode()?))
}

fn all(cases: Vec<Case>) -> Result<()> {
    let mut wrong = Vec::new();
    for (reason, errno, how) in cases {
        if let Err(e) = one(reason, errno, &how) {
            wrong.push(format!("{reason}: {e:#}"));
        }
        gpu::lab()?.reset_faults()?;
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// The module does not ask again about a pair that it knows, and does not forget the answer.
fn new_pair_in_words(env: &Env) -> Result<()> {
    load_anew(env.mode()?)?;
    // The text is made of the same rows, so one look at it is enough.
    let told = one("topology", libc::EOPNOTSUPP, &How::NewPair).and_then(|words| in_text(&words, libc::EOPNOTSUPP));
    gpu::lab()?.reset_faults()?;
    load_anew(env.mode()?)?;
    told
}

fn no_memory_in_words(_: &Env) -> Result<()> {
    if !inject::available() {
        skip("this kernel has no fault injection");
        return Ok(());
    }
    if cfg!(target_arch = "aarch64") {
        skip("DMA debugging gives up for good where it has no memory");
        return Ok(());
    }
    one("no_memory", libc::ENOMEM, &How::NoMemory).map(drop)
}

fn load_anew(mode: Mode) -> Result<()> {
    modules::rmmod(PEERMEM)?;
    modules::modprobe("nvidia-peermem", mode.parameters(false)).map(drop)
}

/// Causes one refusal and asks for it. Returns the words of peermemctl.
fn one(reason: &str, errno: i32, how: &How) -> Result<String> {
    let _nic = match how {
        How::Nic(parameter, _) => Some(OtherRxe::load(&[parameter])?),
        _ => None,
    };
    let bench = Bench::new()?;
    if matches!(how, How::NoMemory) {
        // Use memory in pieces, because contiguous memory needs no list of the module's own.
        gpu::lab()?.set("layout", 3)?;
    }
    let memory = bench.cuda.alloc(2 * SIZE)?;
    gpu::lab()?.reset_config()?;
    let va = memory.va();
    let begin = now()?;
    let got = refuse(&bench, memory, reason, how)?;
    let (end, returned) = (now()?, Instant::now());
    // Read once, without waiting.
    let row = peermem::last_failure()?.context("failures is empty")?;
    let readable = returned.elapsed();
    ensure!((row.reason.as_str(), row.va) == (reason, va), "the first read of failures after the call has {row:?}");
    ensure!(readable < Duration::from_secs(1), "readable only after {readable:?}");
    let start = Instant::now();
    let (answer, code) = peermem::peermemctl_json(&["failures"])?;
    let ms = start.elapsed().as_millis();
    expect_errno("ibv_reg_mr", got, errno)?;
    ensure!(code == Some(1), "peermemctl failures exits with {code:?}");
    let last = answer["failures"].as_array().and_then(|rows| rows.last()).context("peermemctl knows no failure")?;
    println!("{last}");
    ensure!(last["reason"] == reason && last["errno"] == errno, "told as {last}");
    ensure!(last["pid"] == std::process::id() && last["va"] == va, "told of somebody else: {last}");
    let time = last["time"].as_f64().context("time")?;
    // Milliseconds are cut off.
    ensure!(begin - 0.002 <= time && time <= end, "at {time}, but it was between {begin} and {end}");
    let words = last["text"].as_str().unwrap_or_default();
    ensure!(words.len() > 20, "no words: {words:?}");
    let told = json!({ "reason": reason, "readable_us": u64::try_from(readable.as_micros())?,
                       "peermemctl_ms": u64::try_from(ms)? });
    emit("reason_told", &told);
    Ok(words.to_string())
}

/// Checks the text for people: the words, wrapped, with errno and process.
fn in_text(words: &str, errno: i32) -> Result<()> {
    let said = peermem::peermemctl(&["failures"])?;
    let flat = said.text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in words.split_whitespace().take(4).map(str::to_string).chain([errno_name(errno)]) {
        ensure!(flat.contains(&part), "{part:?} is not in {}", said.text);
    }
    ensure!(said.text.lines().all(|l| l.chars().count() <= 100), "wider than 100 columns: {}", said.text);
    Ok(())
}

fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Causes a refusal and returns the errno of ibv_reg_mr().
fn refuse(bench: &Bench, memory: DeviceMemory, reason: &str, how: &How) -> Result<i32> {
    let (va, lab) = (memory.va(), gpu::lab()?);
    match how {
        How::Faults(faults) | How::Nic(_, faults) => {
            for (name, value, times) in *faults {
                lab.fault_n(name, *value, *times)?;
            }
            bench.refused(reason, va, SIZE)
        }
        How::NewPair => {
            lab.fault("map_topology", 1)?;
            bench.refused(reason, va, SIZE)
        }
        How::TooLong => bench.refused(reason, va, 3 * SIZE),
        How::LongerThanBar => {
            lab.reset_accounting()?;
            let errno = bench.refused(reason, va, 8 << 40)?;
            let (gets, puts) = gpu::provider_calls()?;
            ensure!(
                (gets, puts) == (1, 1),
                "{gets} gets and {puts} puts: the provider was asked for more than the start"
            );
            Ok(errno)
        }
        How::Freed => {
            let hold = CoreHold::arm("before_dma_map")?;
            std::thread::scope(|scope| {
                let reg = scope.spawn(|| bench.refused(reason, va, SIZE));
                hold.wait(PATIENCE)?;
                memory.free()?;
                hold.release();
                reg.join().expect("no panic")
            })
        }
        How::NoMemory => no_memory(bench, va),
    }
}

/// Makes each allocation of a registration fail in turn, until it is one of the module's own.
fn no_memory(bench: &Bench, va: u64) -> Result<i32> {
    const FAILSLAB: &str = "/sys/kernel/debug/failslab";
    for (file, value) in [("ignore-gfp-wait", "N"), ("verbose", "0")] {
        fs::write(format!("{FAILSLAB}/{file}"), value).with_context(|| format!("write {FAILSLAB}/{file}"))?;
    }
    let known = peermem::last_failure()?.map(|f| f.seq);
    let (mut found, mut nth, mut rounds) = (None, 0, 0);
    // The number of allocations before the module's own differs between registrations, so a round
    // may miss it.
    while found.is_none() && rounds < 5 {
        nth += 1;
        fs::write("/proc/thread-self/fail-nth", nth.to_string()).context("write fail-nth")?;
        let got = bench.reg(va, SIZE);
        // 0 means that one has failed. Otherwise there were fewer allocations. The read's own may
        // have failed, or that of the write below.
        let left = fs::read_to_string("/proc/thread-self/fail-nth").unwrap_or_else(|e| e.to_string());
        fs::write("/proc/thread-self/fail-nth", "0").or_else(|_| fs::write("/proc/thread-self/fail-nth", "0"))?;
        let told = peermem::last_failure()?.filter(|f| Some(f.seq) != known && f.reason == "no_memory");
        match (got, told) {
            (Err(e), Some(_)) => found = e.raw_os_error(),
            (Ok(mr), _) => mr.dereg()?,
            (Err(_), None) => {}
        }
        if left.trim() != "0" {
            (nth, rounds) = (0, rounds + 1);
        }
    }
    fs::write(format!("{FAILSLAB}/ignore-gfp-wait"), "Y").context("reset failslab")?;
    found.context("no allocation of the module failed")
}
