// SPDX-License-Identifier: GPL-2.0
//! Runs real perftest, without any dma-buf option, with `libgpumr-preload.so`: on the kernel's own
//! RDMA core, where perftest alone fails on GPU memory, and beside nvidia-peermem, where the plain
//! call is enough. Host memory is registered by the same system calls with and without the library.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::Pid;

use crate::gpu;
use crate::lab;
use crate::machine::{self, Level, Mode};
use crate::modules;
use crate::perftest::{with_rate, Before, Run, Sizes};
use crate::test::{Env, NvidiaC, Suite, Test};

type Settings = &'static [(&'static str, &'static str)];

const LIBRARY: (&str, &str) = ("LD_PRELOAD", "libgpumr-preload.so");
const ALONE: Settings = &[];
const PRELOAD: Settings = &[LIBRARY];
const CACHED: Settings = &[LIBRARY, ("GPUMR_CACHE", "1")];
/// perftest's own message about a registration that fails.
const REFUSED: &str = "Couldn't allocate MR";

const IOCTL: u64 = libc::SYS_ioctl as u64;

pub fn suite() -> Suite {
    let mainline = [
        ("fails_without", fails_without as fn(&Env) -> Result<()>),
        ("ib_write_bw", |env| on_gpu(env, "ib_write_bw", PRELOAD)),
        ("ib_read_bw", |env| on_gpu(env, "ib_read_bw", PRELOAD)),
        ("ib_send_bw", |env| on_gpu(env, "ib_send_bw", PRELOAD)),
        ("ib_write_bw_with_the_cache", |env| on_gpu(env, "ib_write_bw", CACHED)),
        ("a_program_that_adopted_the_library_moves_the_same_bytes", adopted),
        ("host_memory", host_memory),
        ("host_memory_costs_no_system_call_more", same_calls),
        ("wrong_input", wrong_input),
        ("reaches_whom_the_manual_page_names", reaches_whom_the_manual_page_names),
    ];
    // It loads a soft NIC without dma-buf itself.
    let bare = [("no_importer", no_importer as fn(&Env) -> Result<()>)];
    let beside_nvidia_peermem = [
        ("ib_write_bw", (|env| on_gpu(env, "ib_write_bw", PRELOAD)) as fn(&Env) -> Result<()>),
        ("ib_write_bw_with_the_cache", |env| on_gpu(env, "ib_write_bw", CACHED)),
        ("a_program_that_adopted_the_library_moves_the_same_bytes", adopted),
        ("host_memory_costs_no_system_call_more", same_calls),
    ];
    let mut tests = Vec::new();
    for (place, level, list) in [
        ("mainline", Level::Mainline, &mainline[..]),
        ("mainline", Level::Bare, &bare),
        ("beside_nvidia_peermem", Level::Peermem(Mode::Persistent), &beside_nvidia_peermem),
    ] {
        for (name, run) in list {
            let means = NvidiaC::Skip("the library comes with ours");
            tests.push(Test::new(&format!("{place}/{name}"), level, *run).nvidia_c(means));
        }
    }
    Suite { name: "preload", tests }
}

/// The same command fails without the library, with perftest's own error. Nothing is exported or
/// left.
fn fails_without(env: &Env) -> Result<()> {
    let sizes = Sizes::of(env, 20)?;
    gpu::lab()?.reset_accounting()?;
    refused(&sizes, ALONE)?;
    let after = gpu::accounting()?;
    ensure!(after.get("dma_bufs") == 0, "exported without the library: {after:?}");
    gpu::wait_clean(Duration::from_secs(10))
}

/// Returns what perftest prints when it cannot register.
fn refused(sizes: &Sizes, settings: Settings) -> Result<String> {
    let run = Run { settings, ..Run::new("ib_write_bw", sizes, true) };
    let said = match run.on_this_machine() {
        Ok(_) => bail!("perftest registered GPU memory, which nothing here can"),
        Err(e) => format!("{e:#}"),
    };
    ensure!(said.contains(REFUSED), "perftest failed otherwise: {said}");
    Ok(said)
}

/// Checks that the right bytes arrive, by CRC and through BAR1, and that the library registers by
/// dma-buf where the plain call fails, and only there.
fn on_gpu(env: &Env, program: &str, settings: Settings) -> Result<()> {
    with_rate(|| {
        let sizes = Sizes::of(env, 20)?;
        let run = Run { settings, ..Run::new(program, &sizes, true) };
        let (report, counts) = run.over_gpu_memory()?;
        let after = gpu::accounting()?;
        // The module's first pin may come with one that tests what the provider can do.
        let pinned = gpu::provider_calls()?.0 >= 2;
        let ways = (after.get("dma_bufs"), after.get("dma_buf_maps"), counts.mrs, pinned);
        let wanted = if env.mode.is_some() { (0, 0, 2, true) } else { (2, 2, 0, false) };
        ensure!(ways == wanted, "exports, imports, peer regions, pinned: {ways:?}, wanted {wanted:?}");
        gpu::wait_clean(Duration::from_secs(10))?;
        Ok(report.rate)
    })
}

/// Runs the verbs program of `user/examples/adopt` as it is, and with the patch by which it uses libgpumr. It sends
/// four buffers 25 times and compares each byte that arrives; then it frees one, and sends what has its address. The
/// program itself registers each time, and only where plain calls are enough. The library registers each buffer
/// once.
fn adopted(env: &Env) -> Result<()> {
    let runs = |program: &str| -> Result<(bool, String, [u64; 3])> {
        let before = Before::now()?;
        let ran = Command::new(program).output()?;
        let counts = before.counts()?;
        let exports = gpu::accounting()?.get("dma_bufs");
        gpu::wait_clean(Duration::from_secs(10))?;
        let said = [ran.stdout, ran.stderr].concat();
        println!("{program}: {counts:?}, {exports} exports");
        let bytes = if counts.repeated == 0 { counts.read } else { counts.read.min(ARRIVE) };
        Ok((ran.status.success(), String::from_utf8(said)?, [exports.try_into()?, counts.mrs, bytes]))
    };
    const ARRIVE: u64 = 101 * 8192;
    let sent = || "sent 101, another key: 1\n".to_owned();
    let plain = match env.mode {
        Some(_) => (true, sent(), [0, 101, ARRIVE]),
        None => (false, "ibv_reg_mr: Bad address\n".to_owned(), [0, 0, 0]),
    };
    let ours = runs("/usr/bin/transfers")?;
    ensure!(ours == plain, "without the patch {ours:?}, wanted {plain:?}");
    let [exports, regions] = if env.mode.is_some() { [0, 5] } else { [5, 0] };
    let (ours, wanted) = (runs("/usr/bin/transfers-adopted")?, (true, sent(), [exports, regions, ARRIVE]));
    ensure!(ours == wanted, "with the patch {ours:?}, wanted {wanted:?}");
    Ok(())
}

fn host_memory(env: &Env) -> Result<()> {
    with_rate(|| {
        let sizes = Sizes::of(env, 20)?;
        let before = Before::now()?;
        let run = Run { settings: PRELOAD, ..Run::new("ib_write_bw", &sizes, false) };
        let (_, _, report) = run.on_this_machine()?;
        ensure!(report.bytes == (sizes.message * sizes.iterations) as u64, "perftest counted {}", report.bytes);
        before.counts()?.reconcile("the NIC", 0, 0)?;
        let after = gpu::accounting()?;
        ensure!(after.get("dma_bufs") == 0 && after.get("allocs") == 0, "host memory, but {after:?}");
        Ok(report.rate)
    })
}

/// Compares every system call of registrations of host memory, in a program with CUDA and in one
/// without.
fn same_calls(_: &Env) -> Result<()> {
    for cuda in ["with-cuda", "without-cuda"] {
        let alone = system_calls(cuda, ALONE)?;
        let with = system_calls(cuda, PRELOAD)?;
        println!("{cuda}: {} system calls", alone.len());
        ensure!(alone.iter().filter(|call| call.0 == IOCTL).count() >= 20, "these are no registrations: {alone:?}");
        ensure!(with == alone, "{cuda}: with the library {with:?}, without it {alone:?}");
    }
    Ok(())
}

/// Returns the numbers of the helper's system calls between its two stops, each with its second
/// argument, which is an ioctl's command.
fn system_calls(cuda: &str, settings: Settings) -> Result<Vec<(u64, u64)>> {
    let mut helper = Command::new("/proc/self/exe");
    let mut helper = helper.args(["helper", "host-memory", cuda]).envs(settings.iter().copied()).spawn()?;
    let calls = calls_between_stops(Pid::from_raw(i32::try_from(helper.id())?));
    if calls.is_err() {
        // It may be stopped, or gone.
        let _ = helper.kill();
        let _ = helper.wait();
    }
    let calls = calls?;
    let status = helper.wait().context("wait for the helper")?;
    ensure!(status.success(), "the helper: {status}");
    Ok(calls)
}

fn calls_between_stops(pid: Pid) -> Result<Vec<(u64, u64)>> {
    let stop = |status| match status {
        WaitStatus::Stopped(_, Signal::SIGSTOP) => Ok(true),
        WaitStatus::PtraceSyscall(_) => Ok(false),
        other => bail!("the helper: {other:?}"),
    };
    ensure!(stop(waitpid(pid, None)?)?, "the helper is not at its first stop");
    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL)?;
    let mut calls = Vec::new();
    loop {
        ptrace::syscall(pid, None)?;
        if stop(waitpid(pid, None)?)? {
            ptrace::detach(pid, None)?;
            return Ok(calls);
        }
        calls.extend(entered(pid)?);
    }
}

/// Returns the system call that a stopped process is entering. (nix passes no length for this, so
/// the kernel writes nothing.)
fn entered(pid: Pid) -> Result<Option<(u64, u64)>> {
    // SAFETY: It is made of integers.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    // SAFETY: The kernel writes at most the local's size to it.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid.as_raw(), size_of_val(&info), &mut info) };
    Errno::result(got).context("PTRACE_GET_SYSCALL_INFO")?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: `op` says that this is the part of the union that the kernel wrote.
    let entry = unsafe { info.u.entry };
    Ok(Some((entry.nr, if entry.nr == IOCTL { entry.args[1] } else { 0 })))
}

/// Memory that cannot be registered fails as without the library. If the library tried dma-buf, it
/// prints why.
fn wrong_input(_: &Env) -> Result<()> {
    let run = |settings: Settings| -> Result<(String, String)> {
        let ran =
            Command::new("/proc/self/exe").args(["helper", "wrong-input"]).envs(settings.iter().copied()).output()?;
        let [out, said] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        ensure!(ran.status.success(), "the helper: {}: {out}{said}", ran.status);
        Ok((out, said))
    };
    let (alone, _) = run(ALONE)?;
    let (with, said) = run(PRELOAD)?;
    println!("{}", alone.trim().replace('\n', ", "));
    let refused = alone.lines().filter(|line| line.ends_with("EFAULT") || line.ends_with("EINVAL")).count();
    ensure!((alone.lines().count(), refused) == (4, 4), "without the library: {alone}");
    ensure!(with == alone, "with the library: {with}");
    let causes = [
        "is no memory that CUDA knows: freed, of another process, or plain host memory",
        "leave allocated memory at ",
        "has no bytes: pass a length above 0",
        "pass the end of the address space: check the length",
    ];
    for why in causes {
        ensure!(said.lines().any(|line| line.contains(why)), "the library does not say {why:?}: {said}");
    }
    gpu::wait_clean(Duration::from_secs(10))
}

/// Checks that each way by which a program here finds libibverbs' functions is in the table of the library's manual
/// page, and works with the library if the page says that it is reached. As the lab links libibverbs, a program that
/// finds `ibv_reg_mr` by a handle is reached, too. Without the library only a dma-buf can be registered.
fn reaches_whom_the_manual_page_names(_: &Env) -> Result<()> {
    let page =
        include_str!("../../../../user/gpumr-preload/libgpumr-preload.so.7").replace("\\fB", "").replace("\\fR", "");
    let page = page.replace("dma\\-buf", "dma-buf");
    let table = page.split_once(".TS\n").and_then(|(_, rest)| rest.split_once(".TE\n")).context("a table")?.0;
    let (_, table) = table.split_once("_\n").context("a table's head")?;
    let (alone, with) = (ways(ALONE)?, ways(PRELOAD)?);
    println!("{with:?}");
    for row in table.lines() {
        let (how, says) = row.split_once('\t').context("a row")?;
        let wanted = match says {
            "reached" | "in part, see below" => ["fails", "works"],
            "not reached" => ["fails", "fails"],
            "passed on" => ["works", "works"],
            other => bail!("{how}: {other}"),
        };
        let found = [&alone, &with].map(|ways| ways.get(how).map(String::as_str));
        ensure!(found == wanted.map(Some), "{how}: {wanted:?}, but without the library and with it {found:?}");
    }
    ensure!(with.len() == table.lines().count(), "the page has no row for some of {with:?}");
    gpu::wait_clean(Duration::from_secs(10))
}

/// Returns what programs get that find libibverbs' functions in these ways, in the words of the manual page.
fn ways(settings: Settings) -> Result<BTreeMap<String, String>> {
    let run = |program: &str, words: &[&str]| -> Result<String> {
        let ran = Command::new(program).args(words).envs(settings.iter().copied()).output()?;
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        ensure!(ran.status.success(), "{program} {words:?}: {said}");
        // Its soft NIC takes no dma-buf, so what it prints would be the same if it were reached.
        let is_static = program.ends_with("linked-static");
        ensure!(!is_static || !said.contains("libgpumr-preload: "), "{program} is reached: {said}");
        Ok(String::from_utf8(ran.stdout)?)
    };
    let said = run("/proc/self/exe", &["helper", "reach"])?;
    let rows = said.lines().filter_map(|line| line.split_once('\t'));
    let mut found: BTreeMap<String, String> = rows.map(|(how, result)| (how.to_owned(), result.to_owned())).collect();
    for (how, program) in [
        ("loads a plug-in that is, also with RTLD_LOCAL", "/usr/bin/linked-by-plugin"),
        ("calls any form of ibv_reg_mr or ibv_reg_mr_ex", "/usr/bin/linked"),
        ("has libibverbs linked in statically", "/usr/bin/linked-static"),
    ] {
        let forms = run(program, &[])?;
        let results: BTreeSet<&str> = forms.lines().filter_map(|line| Some(line.split_once('\t')?.1)).collect();
        ensure!(results.len() == 1 && forms.lines().count() == 4, "{program} with {settings:?}: {forms}");
        found.extend(results.first().map(|result| (how.to_owned(), (*result).to_owned())));
    }
    Ok(found)
}

/// The NIC's driver does not support dma-buf. perftest's error is as without the library, and the
/// library prints why.
fn no_importer(env: &Env) -> Result<()> {
    machine::load_mainline_rdma(&[])?;
    modules::load("nvidia", &[])?;
    let sizes = Sizes::of(env, 20)?;
    let said = refused(&sizes, PRELOAD)?;
    let why = "by dma-buf: Operation not supported";
    ensure!(said.contains("libgpumr-preload: ") && said.contains(why), "the library does not say {why:?}: {said}");
    gpu::wait_clean(Duration::from_secs(10))?;
    ensure!(lab::clients()?.is_empty(), "this core has the peer-memory API");
    Ok(())
}
