// SPDX-License-Identifier: GPL-2.0
//! Registration beyond `ibv_reg_mr()` of one buffer: other addresses, re-registration, many regions on one
//! allocation, several threads, fork, memory windows.

use std::io;
use std::sync::Arc;

use anyhow::{bail, ensure, Context, Result};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult};

use super::{expect_errno, pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB, STOP_TEST};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::lab;
use crate::machine::{Generation, Mode};
use crate::modules::{self, PEERMEM};
use crate::test::{emit, in_modes, Env, Rival, Suite};
use crate::verbs::{Loopback, Mr, Op, Pd, Rereg, Status, Window, WindowType, FULL_ACCESS, LOCAL_WRITE, MW_BIND};

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

pub fn suite(rival: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in BOTH {
        for (name, means, run) in [
            ("reg_mr_iova", Rival::Same, reg_mr_iova as fn(&Env) -> Result<()>),
            ("rereg", Rival::Recorded, rereg),
            ("rereg_fails", Rival::Recorded, rereg_fails),
            ("overlapping", Rival::Recorded, overlapping),
            ("many", Rival::Recorded, many),
            ("fork_safe", Rival::Recorded, fork_safe),
            ("threads", Rival::Recorded, threads),
            ("dereg_in_another_thread", Rival::Recorded, dereg_in_another_thread),
            ("windows", Rival::Recorded, windows),
        ] {
            tests.extend(in_modes(rival, &[mode], name, run).into_iter().map(|t| t.rival(means).limit(120)));
        }
    }
    Suite { name: "verbs", tests }
}

/// Source of what is moved: registered host memory, never itself under test.
struct Source {
    bytes: Vec<u8>,
    mr: Mr,
}

impl Source {
    fn new(bench: &Bench, len: usize) -> Result<Self> {
        let bytes = vec![0u8; len];
        let mr = bench.reg(bytes.as_ptr() as u64, len).context("register host memory")?;
        Ok(Self { bytes, mr })
    }

    /// Random bytes into `mr` at `at`, and whether they are all that has changed in `memory`. `from` is where the
    /// region lies in it.
    fn deliver(
        &mut self,
        link: &Loopback,
        rng: &mut fastrand::Rng,
        (mr, at): (&Mr, usize),
        (memory, from): (&DeviceMemory, usize),
        len: usize,
    ) -> Result<()> {
        let mut wanted = memory.read(0, memory.size())?;
        rng.fill(&mut self.bytes[..len]);
        link.run(Op::Write, (&self.mr, 0), (mr, at), len)?;
        wanted[from + at..][..len].copy_from_slice(&self.bytes[..len]);
        same_bytes("the memory", &memory.read(0, memory.size())?, &wanted)
    }
}

/// Requests name addresses that are not the memory's own; these, and no others, reach it.
fn reg_mr_iova(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut source = Source::new(&bench, MIB)?;
    // The offset in a page is the same at both, as the kernel asks.
    for (from, iova, len) in [
        (0, 0, MIB),
        (0, 0x1000, MIB),
        (GPU_PAGE + 123, 0x7654_3000 + 123, 300_001),
        (5 * 4096 + 1, 0xffff_8000_0000_0001, 70_000),
    ] {
        let what = format!("iova {iova:#x}, {len} bytes from {from:#x}");
        let mr = Mr::reg_iova(&bench.pd, memory.va() + from as u64, len, iova, FULL_ACCESS).context(what.clone())?;
        for (at, n) in [(0, 1), (len - 1, 1), (100, len - 200)] {
            source.deliver(&link, &mut rng, (&mr, at), (&memory, from), n).context(what.clone())?;
        }
        // Its own address is nobody's, and neither is what lies behind the end.
        for stranger in [memory.va() + from as u64, iova + len as u64] {
            let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), stranger), 8)?;
            ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{what}: a write to {stranger:#x} ended with {status:?}");
        }
        mr.dereg()?;
    }
    source.mr.dereg()?;
    Ok(())
}

/// Onto, within and off GPU memory, and access and protection domain alone: bytes go where the region now lies, and
/// no pin stays behind.
fn rereg(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let mut source = Source::new(&bench, MIB)?;
    let (first, second) = (bench.cuda.alloc(2 * MIB)?, bench.cuda.alloc(2 * MIB)?);
    let host = vec![0u8; MIB];
    let mut mr = bench.reg(host.as_ptr() as u64, host.len())?;
    for (what, memory, from, len) in [
        ("host memory to a GPU", &first, 0, MIB),
        ("within its allocation", &first, MIB + 4097, 300_000),
        ("to another allocation", &second, GPU_PAGE, MIB),
        ("to less of it", &second, GPU_PAGE, 1),
    ] {
        let old = mr.rkey();
        mr.rereg(Rereg { translation: Some((memory.va() + from as u64, len)), ..Default::default() })
            .with_context(|| what.to_string())?;
        ensure!(gpu::pins()? == 1, "{what}: {} pins for one region", gpu::pins()?);
        source.deliver(&link, &mut rng, (&mr, 0), (memory, from), len).with_context(|| what.to_string())?;
        if old != mr.rkey() {
            let (at, status) = (mr.addr(), Loopback::new(&bench.pd)?);
            let status = status.attempt(Op::Write, (&source.mr, 0), (old, at), 1)?;
            ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{what}: the old key's write ended with {status:?}");
        }
    }
    // Access alone: remote writes end, remote reads go on. Then another domain, and all rights again.
    let (at, len) = (second.va() + GPU_PAGE as u64, MIB);
    mr.rereg(Rereg { translation: Some((at, len)), ..Default::default() })?;
    mr.rereg(Rereg { access: Some(LOCAL_WRITE | crate::verbs::REMOTE_READ), ..Default::default() })?;
    let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), at), 8)?;
    ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "a write without the right to ended with {status:?}");
    link.run(Op::Read, (&source.mr, 0), (&mr, 0), len)?;
    same_bytes("what is read without the right to write", &source.bytes[..len], &second.read(GPU_PAGE, len)?)?;
    let other = Pd::new(bench.pd.device())?;
    mr.rereg(Rereg { pd: Some(&other), access: Some(FULL_ACCESS), ..Default::default() })?;
    let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), at), 8)?;
    ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "a write from the old protection domain ended with {status:?}");
    mr.rereg(Rereg { pd: Some(&bench.pd), ..Default::default() })?;
    source.deliver(&link, &mut rng, (&mr, 0), (&second, GPU_PAGE), len).context("after all that")?;
    // Off the GPU.
    mr.rereg(Rereg { translation: Some((host.as_ptr() as u64, host.len())), ..Default::default() })?;
    ensure!(gpu::pins()? == 0, "back in host memory, but {} pins stay", gpu::pins()?);
    rng.fill(&mut source.bytes);
    link.run(Op::Write, (&source.mr, 0), (&mr, 0), MIB)?;
    same_bytes("host memory again", &host, &source.bytes)?;
    mr.dereg()?;
    source.mr.dereg()?;
    Ok(())
}

/// A re-registration that fails leaves the region as it was: key, memory, bytes.
fn rereg_fails(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let mut source = Source::new(&bench, MIB)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let other = bench.cuda.alloc(2 * MIB)?;
    let host = vec![0u8; MIB];
    let gone = {
        let freed = bench.cuda.alloc(2 * MIB)?;
        let va = freed.va();
        freed.free()?;
        va
    };
    let mut on_gpu = bench.reg(memory.va(), MIB)?;
    let mut on_host = bench.reg(host.as_ptr() as u64, MIB)?;
    // (what, where to, length, errno, an mkey fails)
    let wishes = [
        ("to freed memory", gone, MIB, libc::EFAULT, false),
        ("beyond the allocation's end", other.va(), 2 * MIB + 4096, libc::EINVAL, false),
        ("to nobody's memory", 0x7000_dead_0000, 4096, libc::EFAULT, false),
        ("without an mkey left", other.va(), MIB, libc::ENOMEM, true),
    ];
    for (what, to, len, errno, no_mkey) in wishes {
        if no_mkey && env.generation == Generation::G55 && env.mode()? == Mode::Legacy {
            println!("{what}: not run on generation {}: {STOP_TEST}", env.generation.name());
            continue;
        }
        for mr in [&mut on_gpu, &mut on_host] {
            let key = mr.rkey();
            lab::set_nic("fail_mkey", u64::from(no_mkey))?;
            let result = mr.rereg(Rereg { translation: Some((to, len)), ..Default::default() });
            lab::set_nic("fail_mkey", 0)?;
            let Err(e) = result else { bail!("{what}: it went through") };
            expect_errno(what, e.raw_os_error().unwrap_or(0), errno)?;
            ensure!(mr.rkey() == key, "{what}: it failed, but the key is another");
            ensure!(gpu::pins()? == 1, "{what}: {} pins, wanted the one of the region on the GPU", gpu::pins()?);
        }
        source.deliver(&link, &mut rng, (&on_gpu, 0), (&memory, 0), MIB).with_context(|| what.to_string())?;
        rng.fill(&mut source.bytes);
        link.run(Op::Write, (&source.mr, 0), (&on_host, 0), MIB).with_context(|| what.to_string())?;
        same_bytes(what, &host, &source.bytes)?;
    }
    on_host.dereg()?;
    on_gpu.dereg()?;
    source.mr.dereg()?;
    Ok(())
}

/// Regions inside each other and across each other, in the same pages: each its own pin, each its own end.
fn overlapping(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut source = Source::new(&bench, 2 * MIB)?;
    let spans = [
        (0, MIB),
        // The same again.
        (0, MIB),
        // Inside it.
        (256 * KIB, 512 * KIB),
        (256 * KIB + 1, 3),
        // Across its end.
        (512 * KIB, MIB),
        // Around all of them.
        (0, 2 * MIB),
    ];
    let mut mrs = Vec::new();
    for (at, len) in spans {
        mrs.push((at, len, bench.reg(memory.va() + at as u64, len)?));
    }
    rng.shuffle(&mut mrs);
    while !mrs.is_empty() {
        ensure!(gpu::pins()? == i64::try_from(mrs.len())?, "{} pins for {} regions", gpu::pins()?, mrs.len());
        for (at, len, mr) in &mrs {
            source
                .deliver(&link, &mut rng, (mr, 0), (&memory, *at), *len)
                .with_context(|| format!("{len} bytes at {at:#x}, {} regions left", mrs.len()))?;
        }
        if let Some((_, _, mr)) = mrs.pop() {
            mr.dereg()?;
        }
    }
    source.mr.dereg()?;
    Ok(())
}

/// More regions than anything of ours has room for at once, on one allocation, and all of them over in any order; the
/// revocable ones once more, by a free.
fn many(env: &Env) -> Result<()> {
    const COUNT: usize = 1100;
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut source = Source::new(&bench, GPU_PAGE)?;
    let register = |rng: &mut fastrand::Rng| -> Result<Vec<(usize, usize, Mr)>> {
        let mut mrs = Vec::new();
        for n in 0..COUNT {
            // Three at most begin in one page: the kernel's DMA checks warn of an eighth mapping of one cache line.
            let at = n * 4 * KIB % (2 * MIB - GPU_PAGE) + rng.usize(0..4 * KIB);
            let len = rng.usize(1..=GPU_PAGE - 4 * KIB);
            let mr = bench.reg(memory.va() + at as u64, len).with_context(|| format!("region {n}"))?;
            mrs.push((at, len, mr));
        }
        Ok(mrs)
    };
    let mut mrs = register(&mut rng)?;
    ensure!(gpu::pins()? == COUNT as i64, "{} pins for {COUNT} regions", gpu::pins()?);
    let users = modules::use_count(PEERMEM)?;
    ensure!(env.rival || users == Some(i32::try_from(COUNT)?), "lsmod counts {users:?} of {COUNT}");
    rng.shuffle(&mut mrs);
    for (at, len, mr) in mrs.iter().take(12) {
        source.deliver(&link, &mut rng, (mr, 0), (&memory, *at), *len)?;
    }
    for (_, _, mr) in mrs {
        mr.dereg()?;
    }
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    if env.mode()? == Mode::Legacy {
        let mrs = register(&mut rng)?;
        lab::reset_nic()?;
        memory.free()?;
        let killed = lab::nic_stat("mrs_killed")?;
        ensure!(killed == COUNT as u64, "the free revoked {killed} of {COUNT} regions");
        ensure!(gpu::pins()? == 0, "{} pins outlived the free", gpu::pins()?);
        for (_, _, mr) in mrs {
            mr.dereg()?;
        }
    }
    emit("many", &serde_json::json!({"mode": env.mode()?.name(), "regions": COUNT}));
    source.mr.dereg()?;
    Ok(())
}

/// Runs `run` in a child of fork, which ends without unwinding; its exit status.
fn in_child(run: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: this process has one thread; the child runs `run` and leaves by _exit.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Child => {
            let code = run();
            // SAFETY: ends the child at once: what it inherited is the parent's to release.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).context("wait for the child")? {
            WaitStatus::Exited(_, code) => Ok(code),
            other => bail!("the child: {other:?}"),
        },
    }
}

/// RDMAV_FORK_SAFE=1: the parent's regions outlive a child that exits, one that execs, and one that deregisters another.
fn fork_safe(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    // Read by libibverbs when it is first called.
    std::env::set_var("RDMAV_FORK_SAFE", "1");
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (memory, mr) = bench.registered(MIB)?;
    let (_other, others) = bench.registered(MIB)?;
    let mut source = Source::new(&bench, MIB)?;
    source.deliver(&link, &mut rng, (&mr, 0), (&memory, 0), MIB)?;

    ensure!(in_child(|| 0)? == 0, "the child that exits");
    source.deliver(&link, &mut rng, (&mr, 0), (&memory, 0), MIB).context("after a child that exited")?;

    let code = in_child(|| {
        let argv = [c"/bin/true".as_ptr(), std::ptr::null()];
        // SAFETY: a terminated argument list of live strings.
        unsafe { libc::execv(argv[0], argv.as_ptr()) };
        127
    })?;
    ensure!(code == 0, "the child that execs ended with {code}");
    source.deliver(&link, &mut rng, (&mr, 0), (&memory, 0), MIB).context("after a child that ran exec")?;

    // The child's deregistration is the kernel's: it has the file, not the memory.
    let mut others = Some(others);
    let errno = in_child(|| match others.take().map(Mr::dereg) {
        Some(Err(e)) => e.raw_os_error().unwrap_or(255),
        _ => 0,
    })?;
    ensure!(errno == 0, "the child's ibv_dereg_mr: {}", super::errno_name(errno));
    source.deliver(&link, &mut rng, (&mr, 0), (&memory, 0), MIB).context("after a child that deregistered another")?;
    // The kernel has no such region any more; for the parent that is an error and no more.
    let again = others.take().context("the parent's own")?.dereg();
    ensure!(again.is_err(), "the parent deregistered what its child had deregistered");
    mr.dereg()?;
    // What the child could not put is put by the owner's next call.
    bench.reg(memory.va(), MIB)?.dereg()?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    source.mr.dereg()?;
    Ok(())
}

/// Threads that register, write and deregister on one allocation at once, each in its own part.
fn threads(env: &Env) -> Result<()> {
    const THREADS: usize = 6;
    const ROUNDS: usize = 12;
    const PART: usize = 2 * GPU_PAGE;
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let before = pattern(&mut rng, 2 * MIB);
    memory.write(0, &before)?;
    let mut wanted = before;
    let va = memory.va();
    let work = |pd: &Arc<Pd>, n: usize, mut rng: fastrand::Rng| -> Result<(usize, Vec<u8>)> {
        let link = Loopback::new(pd)?;
        let mut bytes = vec![0u8; PART];
        let host = Mr::reg(pd, bytes.as_ptr() as u64, PART, FULL_ACCESS)?;
        // A byte off the pages, so that neighbours share them.
        let at = n * PART + 1;
        for round in 0..ROUNDS {
            rng.fill(&mut bytes);
            let mr =
                Mr::reg(pd, va + at as u64, PART, FULL_ACCESS).with_context(|| format!("thread {n}, round {round}"))?;
            link.run(Op::Write, (&host, 0), (&mr, 0), PART)?;
            mr.dereg()?;
        }
        host.dereg()?;
        Ok((at, bytes))
    };
    let results = std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .map(|n| {
                let (pd, rng) = (&bench.pd, rng.fork());
                scope.spawn(move || work(pd, n, rng))
            })
            .collect();
        running.into_iter().map(|t| t.join()).collect::<Vec<_>>()
    });
    for result in results {
        let (at, bytes) = result.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        wanted[at..at + PART].copy_from_slice(&bytes);
    }
    same_bytes("the allocation", &memory.read(0, 2 * MIB)?, &wanted)?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// The same process is the same owner: nothing is left for later.
fn dereg_in_another_thread(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(MIB)?;
    let (gets, puts) = gpu::provider_calls()?;
    std::thread::spawn(move || mr.dereg()).join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    let after = gpu::provider_calls()?;
    ensure!(after == (gets, puts + 1), "gets and puts went from {:?} to {after:?}", (gets, puts));
    // And registered there, deregistered here.
    let (pd, va) = (Arc::clone(&bench.pd), memory.va());
    let mr = std::thread::spawn(move || -> io::Result<Mr> { Mr::reg(&pd, va, MIB, FULL_ACCESS) });
    mr.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??.dereg()?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// Data through a memory window on GPU memory; the region is held by it; and after a revocation nothing comes through.
fn windows(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    for kind in [WindowType::One, WindowType::Two] {
        let link = Loopback::new(&bench.pd)?;
        let mut source = Source::new(&bench, MIB)?;
        let memory = bench.cuda.alloc(2 * MIB)?;
        let mr = Mr::reg(&bench.pd, memory.va(), 2 * MIB, FULL_ACCESS | MW_BIND)?;
        let mut window = Window::new(&bench.pd, kind).with_context(|| format!("{kind:?}"))?;
        let (at, len) = (GPU_PAGE + 77, 300_000);
        window.bind(&link, &mr, at, len).with_context(|| format!("{kind:?}"))?;
        let target = memory.va() + at as u64;

        let mut wanted = pattern(&mut rng, 2 * MIB);
        memory.write(0, &wanted)?;
        rng.fill(&mut source.bytes);
        let status = link.attempt(Op::Write, (&source.mr, 0), (window.rkey(), target), len)?;
        ensure!(status == Status::IBV_WC_SUCCESS, "{kind:?}: a write through the window ended with {status:?}");
        wanted[at..at + len].copy_from_slice(&source.bytes[..len]);
        same_bytes(&format!("{kind:?}"), &memory.read(0, 2 * MIB)?, &wanted)?;

        let revoked = env.mode()? == Mode::Legacy;
        if revoked {
            memory.free()?;
            let status = link.attempt(Op::Write, (&source.mr, 0), (window.rkey(), target), len)?;
            ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{kind:?}: after the free a write ended with {status:?}");
            ensure!(gpu::pins()? == 0, "{} pins outlived the free", gpu::pins()?);
        }
        // The window goes first; it is what keeps the region from going.
        drop(window);
        mr.dereg().with_context(|| format!("{kind:?}: deregister after the window"))?;
        source.mr.dereg()?;
    }
    Ok(())
}
