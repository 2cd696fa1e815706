// SPDX-License-Identifier: GPL-2.0
//! Tests registration beyond `ibv_reg_mr()` of one buffer: other addresses, re-registration, many
//! regions on one allocation, several threads, fork, memory windows.

mod rereg;
mod source;

use std::collections::BTreeMap;
use std::io;
use std::sync::{mpsc, Arc};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult};
use procfs::process::{Process, VmFlags};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::scenarios::{fence_fails_in_dereg, key_not_destroyed};
use crate::common::{errno_name, expect_errno, page, pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB, STOP_TEST};
use crate::gpu;
use crate::lab;
use crate::machine::{Generation, Mode};
use crate::modules::{self, PEERMEM};
use crate::test::{emit, in_modes, Env, NvidiaC, Suite};
use crate::verbs::{Loopback, Mr, Op, Status, Window, WindowType, FULL_ACCESS, MW_BIND};
use source::Source;

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in BOTH {
        for (name, means, run) in [
            ("reg_mr_iova", NvidiaC::Same, reg_mr_iova as fn(&Env) -> Result<()>),
            ("rereg_moves_a_region_and_leaves_no_pin", NvidiaC::Recorded, rereg::rereg),
            ("rereg_fails", NvidiaC::Recorded, rereg::rereg_fails),
            ("rereg_without_mkey", NvidiaC::Recorded, rereg::rereg_without_mkey),
            ("overlapping_regions_end_one_by_one", NvidiaC::Recorded, overlapping_regions_end_one_by_one),
            ("unrelated_extents", NvidiaC::Recorded, unrelated_extents),
            ("thousand_regions_on_one_allocation", NvidiaC::Recorded, thousand_regions_on_one_allocation),
            ("fork_safe", NvidiaC::Recorded, fork_safe),
            ("threads_share_one_allocation", NvidiaC::Recorded, threads_share_one_allocation),
            ("dereg_in_another_thread", NvidiaC::Recorded, dereg_in_another_thread),
            ("fence_fails_in_dereg", NvidiaC::Recorded, fence_fails_in_dereg),
            ("key_not_destroyed", NvidiaC::Skip("its list has no such state"), key_not_destroyed),
            ("windows_close_when_memory_is_freed", NvidiaC::Recorded, windows_close_when_memory_is_freed),
        ] {
            tests.extend(in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t| {
                let t = t.nvidia_c(means);
                // Only what can be invalidated has a notifier to stop.
                let hangs = name == "rereg_without_mkey" && mode == Mode::Legacy;
                if hangs {
                    t.not_on(Generation::V2410, STOP_TEST)
                } else {
                    t
                }
            }));
        }
    }
    Suite { name: "verbs", tests }
}

/// Requests name addresses that are not the memory's own. These, and no others, reach it.
fn reg_mr_iova(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut source = Source::new(&bench, MIB)?;
    // The offset in a page is the same for both addresses, as the kernel requires.
    for (from, iova, len) in [
        (0, 0, MIB),
        (0, page() as u64, MIB),
        (GPU_PAGE + 123, 0x7654_0000 + 123, 300_001),
        (5 * page() + 1, 0xffff_8000_0000_0001, 70_000),
    ] {
        let what = format!("iova {iova:#x}, {len} bytes from {from:#x}");
        let mr = Mr::reg_iova(&bench.pd, memory.va() + from as u64, len, iova, FULL_ACCESS).context(what.clone())?;
        for (at, n) in [(0, 1), (len - 1, 1), (100, len - 200)] {
            source.deliver(&link, &mut rng, (&mr, at), (&memory, from), n).context(what.clone())?;
            // Use it as the local end of a request, too.
            rng.fill(&mut source.bytes[..n]);
            link.run(Op::Read, (&mr, at), (&source.mr, 0), n).context(what.clone())?;
            same_bytes(&format!("{what}, read into"), &memory.read(from + at, n)?, &source.bytes[..n])?;
        }
        // The memory's own address belongs to nobody, and neither does what lies behind the end.
        for stranger in [memory.va() + from as u64, iova + len as u64] {
            let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), stranger), 8)?;
            ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{what}: a write to {stranger:#x} ended with {status:?}");
        }
        mr.dereg()?;
    }
    source.mr.dereg()?;
    Ok(())
}

/// Regions lie inside each other and across each other, in the same pages. Each has its own pin and
/// its own end.
fn overlapping_regions_end_one_by_one(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut source = Source::new(&bench, 2 * MIB)?;
    let spans = [
        (0, MIB),
        // The same region again.
        (0, MIB),
        // A region inside it.
        (256 * KIB, 512 * KIB),
        (256 * KIB + 1, 3),
        // A region across its end.
        (512 * KIB, MIB),
        // A region around all of them.
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

/// Half of a range was mapped in BAR1 before, and the rest gets another place. So contiguous memory
/// has two unrelated addresses.
fn unrelated_extents(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (memory, other) = (bench.cuda.alloc(4 * MIB)?, bench.cuda.alloc(2 * MIB)?);
    let mut source = Source::new(&bench, 4 * MIB)?;
    let first = bench.reg(memory.va(), MIB)?;
    // This lies behind it.
    let beside = bench.reg(other.va(), 2 * MIB)?;
    let whole = bench.reg(memory.va(), 4 * MIB)?;
    let entries = lab::nic_mr(whole.lkey())?.sg_entries;
    ensure!(env.nvidia_c || entries == 2, "{entries} sg entries for two extents");
    for mr in [&first, &whole] {
        let len = if std::ptr::eq(mr, &first) { MIB } else { 4 * MIB };
        source.deliver(&link, &mut rng, (mr, 0), (&memory, 0), len)?;
    }
    // The first registration ends, but its extent stays.
    first.dereg()?;
    source.deliver(&link, &mut rng, (&whole, 0), (&memory, 0), 4 * MIB)?;
    beside.dereg()?;
    whole.dereg()?;
    source.mr.dereg()?;
    ensure!(gpu::accounting()?.get("bar1_used") == 0, "BAR1 still has {} bytes", gpu::accounting()?.get("bar1_used"));
    Ok(())
}

/// Makes more regions on one allocation than anything of ours has room for at once, and ends all of
/// them in any order. Revocable regions are ended once more, by a free.
fn thousand_regions_on_one_allocation(env: &Env) -> Result<()> {
    const COUNT: usize = 1100;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut source = Source::new(&bench, GPU_PAGE)?;
    let register = |rng: &mut fastrand::Rng| -> Result<Vec<(usize, usize, Mr)>> {
        let mut mrs = Vec::new();
        for n in 0..COUNT {
            // At most three begin in one page, because the kernel's DMA checks warn about an eighth
            // mapping of one cache line.
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
    ensure!(env.nvidia_c || users == Some(i32::try_from(COUNT)?), "lsmod counts {users:?} of {COUNT}");
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

/// Runs `run` in a forked child, which ends without unwinding, and returns its exit status.
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

/// Returns whether a forked child would lack the mapping that contains this address.
fn dont_fork(va: u64) -> Result<bool> {
    let maps = Process::myself()?.smaps().context("read /proc/self/smaps")?;
    let map = maps.into_iter().find(|m| (m.address.0..m.address.1).contains(&va));
    Ok(map.with_context(|| format!("{va:#x} is not mapped"))?.extension.vm_flags.contains(VmFlags::DC))
}

/// Keeps this thread from asking the RDMA core whether the kernel copies pinned pages at fork.
/// libibverbs then takes it for an older kernel, on which RDMAV_FORK_SAFE has an effect. This does
/// nothing if the kernel has no seccomp.
fn hide_copy_on_fork() -> Result<()> {
    let is = |argument, value: libc::c_int| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::try_from(value)?)
            .context("seccomp condition")
    };
    let rule = SeccompRule::new(vec![is(0, libc::AF_NETLINK)?, is(2, libc::NETLINK_RDMA)?])?;
    let errno = SeccompAction::Errno(u32::try_from(libc::EPROTONOSUPPORT)?);
    let rules = BTreeMap::from([(libc::SYS_socket, vec![rule])]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, TargetArch::try_from(std::env::consts::ARCH)?)?;
    if let Err(e) = seccompiler::apply_filter(&BpfProgram::try_from(filter)?) {
        println!("no seccomp: {e}");
    }
    Ok(())
}

/// With RDMAV_FORK_SAFE=1, the parent's regions outlive a child that exits, one that execs, and one
/// that deregisters another. (No child has the GPU's addresses, with the variable or without: the
/// driver's mappings are never copied.)
fn fork_safe(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    // libibverbs reads this when it is first called.
    std::env::set_var("RDMAV_FORK_SAFE", "1");
    hide_copy_on_fork()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (memory, mr) = bench.registered(MIB)?;
    let (_other, others) = bench.registered(MIB)?;
    let mut source = Source::new(&bench, MIB)?;
    source.deliver(&link, &mut rng, (&mr, 0), (&memory, 0), MIB)?;
    // Present versions of libibverbs do nothing if the kernel copies pinned pages at fork.
    let in_effect = dont_fork(source.bytes.as_ptr() as u64 + MIB as u64 / 2)?;

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

    // The child's deregistration reaches the kernel: the child has the file, not the memory.
    let mut others = Some(others);
    let errno = in_child(|| match others.take().map(Mr::dereg) {
        Some(Err(e)) => e.raw_os_error().unwrap_or(255),
        _ => 0,
    })?;
    ensure!(errno == 0, "the child's ibv_dereg_mr: {}", errno_name(errno));
    source.deliver(&link, &mut rng, (&mr, 0), (&memory, 0), MIB).context("after a child that deregistered another")?;
    // The kernel no longer has such a region. The parent only gets an error.
    let again = others.take().context("the parent's own")?.dereg();
    ensure!(again.is_err(), "the parent deregistered what its child had deregistered");
    mr.dereg()?;
    // The owner's next call puts what the child could not put.
    bench.reg(memory.va(), MIB)?.dereg()?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    source.mr.dereg()?;
    if !in_effect {
        println!("libibverbs ignores RDMAV_FORK_SAFE where the kernel copies pinned pages at fork");
    }
    Ok(())
}

/// Threads register and write on one allocation at once, each in its own part, and deregister what
/// their neighbour has registered. No region ends before the neighbour's has begun, so in each
/// round some regions that share a page live at the same time.
fn threads_share_one_allocation(env: &Env) -> Result<()> {
    const THREADS: usize = 6;
    const ROUNDS: usize = 12;
    const PART: usize = 2 * GPU_PAGE;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let before = pattern(&mut rng, 2 * MIB);
    memory.write(0, &before)?;
    let mut wanted = before;
    let work = |n: usize, mut rng: fastrand::Rng, next: mpsc::Sender<Mr>, mine: mpsc::Receiver<Mr>| {
        bench.cuda.attach()?;
        let link = Loopback::new(&bench.pd)?;
        let mut bytes = vec![0u8; PART];
        let host = bench.reg(bytes.as_ptr() as u64, PART)?;
        // Begin a byte off the pages, so that neighbours share them.
        let at = n * PART + 1;
        for round in 0..ROUNDS {
            let what = format!("thread {n}, round {round}");
            rng.fill(&mut bytes);
            let mr = bench.reg(memory.va() + at as u64, PART).with_context(|| what.clone())?;
            link.run(Op::Write, (&host, 0), (&mr, 0), PART).with_context(|| what.clone())?;
            same_bytes(&what, &memory.read(at, PART)?, &bytes)?;
            // A thread that fails drops its end, which ends the whole ring.
            next.send(mr).ok().with_context(|| format!("{what}: the next thread is gone"))?;
            let neighbours = mine.recv().with_context(|| format!("{what}: the thread before is gone"))?;
            neighbours.dereg().with_context(|| format!("{what}: the neighbour's region"))?;
        }
        host.dereg()?;
        Ok::<_, anyhow::Error>((at, bytes))
    };
    let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    // Each thread hands its region to the next one.
    senders.rotate_left(1);
    let results = std::thread::scope(|scope| {
        let running: Vec<_> = senders
            .into_iter()
            .zip(receivers)
            .enumerate()
            .map(|(n, (next, mine))| {
                let (rng, work) = (rng.fork(), &work);
                scope.spawn(move || work(n, rng, next, mine))
            })
            .collect();
        running.into_iter().map(|t| t.join()).collect::<Vec<_>>()
    });
    let mut wrong = Vec::new();
    for result in results {
        match result.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))) {
            Ok((at, bytes)) => wanted[at..at + PART].copy_from_slice(&bytes),
            Err(e) => wrong.push(format!("{e:#}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    same_bytes("the allocation", &memory.read(0, 2 * MIB)?, &wanted)?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// The same process is the same owner, so nothing is left for later.
fn dereg_in_another_thread(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(MIB)?;
    let (gets, puts) = gpu::provider_calls()?;
    std::thread::spawn(move || mr.dereg()).join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    let after = gpu::provider_calls()?;
    ensure!(after == (gets, puts + 1), "gets and puts went from {:?} to {after:?}", (gets, puts));
    // Now register there, and deregister here.
    let (pd, va) = (Arc::clone(&bench.pd), memory.va());
    let mr = std::thread::spawn(move || -> io::Result<Mr> { Mr::reg(&pd, va, MIB, FULL_ACCESS) });
    mr.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??.dereg()?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// Moves data through a memory window on GPU memory. The window holds the region, and after a
/// revocation nothing comes through. (This does not test what lies beside the window: rxe looks
/// only at the region's borders, check_rkey() in rxe_resp.c.)
fn windows_close_when_memory_is_freed(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
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

        let Err((mr, e)) = mr.try_dereg() else { bail!("{kind:?}: the region went from under its window") };
        expect_errno("deregister under a window", e.raw_os_error().unwrap_or(0), libc::EINVAL)?;
        ensure!(gpu::pins()? == 1, "{kind:?}: refused, but {} pins for one region", gpu::pins()?);
        rng.fill(&mut source.bytes);
        let status = link.attempt(Op::Write, (&source.mr, 0), (window.rkey(), target), len)?;
        ensure!(status == Status::IBV_WC_SUCCESS, "{kind:?}: after a refused deregistration {status:?}");
        wanted[at..at + len].copy_from_slice(&source.bytes[..len]);
        same_bytes(&format!("{kind:?}, after that"), &memory.read(0, 2 * MIB)?, &wanted)?;

        let revoked = env.mode()? == Mode::Legacy;
        if revoked {
            memory.free()?;
            let status = link.attempt(Op::Write, (&source.mr, 0), (window.rkey(), target), len)?;
            ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{kind:?}: after the free a write ended with {status:?}");
            ensure!(gpu::pins()? == 0, "{} pins outlived the free", gpu::pins()?);
        }
        // The window is dropped first, because it keeps the region alive.
        drop(window);
        mr.dereg().with_context(|| format!("{kind:?}: deregister after the window"))?;
        source.mr.dereg()?;
    }
    Ok(())
}
