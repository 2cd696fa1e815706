// SPDX-License-Identifier: GPL-2.0
//! Registers GPU memory by dma-buf, on the kernel's own RDMA core, where a plain `ibv_reg_mr()`
//! cannot work, and beside nvidia-peermem. The exporter is NVIDIA's own (ci/qemu/gpu/README.md), the
//! importer is the lab's soft NIC.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use nvlab::{Piece, State};

use crate::common::{expect_errno, page, pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::{self, Level, Mode, SecondNic, RDMA_DEVICE};
use crate::peermem;
use crate::perftest::{with_rate, Run, Sizes};
use crate::suites::iommu;
use crate::test::{skip, Env, NvidiaC, Suite, Test};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, Status, FULL_ACCESS};

const SEGMENT: usize = 2 * MIB;
/// Linux's own errno, which no libc has. The exporter gives it for an attachment that it refuses.
const ENOTSUPP: i32 = 524;

pub fn suite() -> Suite {
    let tests = [
        ("bytes", bytes as fn(&Env) -> Result<()>),
        ("several_allocations", several_allocations),
        ("more_handles_than_one_call_takes", more_handles_than_one_call_takes),
        ("outlives_the_memory", outlives_the_memory),
        ("two_nics", two_nics),
        ("refusals_have_an_errno_and_leave_nothing", refusals_have_an_errno_and_leave_nothing),
        ("pair_refused", pair_refused),
        ("behind_an_iommu", behind_an_iommu),
        ("perftest", perftest),
        ("selftest", selftest),
    ];
    let means = NvidiaC::Skip("it asks nothing of nvidia-peermem");
    let places = [("mainline", Level::Mainline), ("beside", Level::Peermem(Mode::Persistent))];
    let tests = places.into_iter().flat_map(|(place, level)| {
        tests.map(|(name, run)| Test::new(&format!("{place}/{name}"), level, run).nvidia_c(means))
    });
    Suite { name: "dma_buf", tests: tests.collect() }
}

/// A process with a NIC, a GPU, and host memory that the NIC reads and writes.
struct Rig {
    bench: Bench,
    link: Loopback,
    host: Vec<u8>,
    host_mr: Mr,
    rng: fastrand::Rng,
}

impl Rig {
    fn new(env: &Env) -> Result<Self> {
        let bench = Bench::new()?;
        // The longest region has 300 pages of the system, which are of 64 KiB at most.
        let host = vec![0u8; 20 * MIB];
        let host_mr = bench.reg(host.as_ptr() as u64, host.len()).context("register host memory")?;
        Ok(Self { link: Loopback::new(&bench.pd)?, bench, host, host_mr, rng: env.rng()? })
    }

    /// Moves new bytes through the NIC to `len` bytes at `at` of a region, and back. Returns them.
    fn move_bytes(&mut self, mr: &Mr, at: usize, len: usize) -> Result<Vec<u8>> {
        let new = pattern(&mut self.rng, len);
        self.host[..len].copy_from_slice(&new);
        self.link.run(Op::Write, (&self.host_mr, 0), (mr, at), len)?;
        self.host[..len].fill(0);
        self.link.run(Op::Read, (&self.host_mr, 0), (mr, at), len)?;
        same_bytes("read back by the NIC", &self.host[..len], &new)?;
        Ok(new)
    }

    fn reg(&self, fd: &OwnedFd, offset: usize, len: usize, iova: u64) -> io::Result<Mr> {
        Mr::reg_dma_buf(&self.bench.pd, fd.as_fd(), offset as u64, len, iova, FULL_ACCESS)
    }
}

/// Registers whole buffers and parts of them, in every layout of the memory, at addresses of their
/// own. The surrounding bytes stay as they were. On the kernel's own core, a plain registration of
/// the same memory fails.
fn bytes(env: &Env) -> Result<()> {
    const LEN: usize = 5 * MIB;
    // CUDA exports whole pages of the system (CUDA Driver API, cuMemGetHandleForAddressRange).
    let page = page();
    let mut rig = Rig::new(env)?;
    for layout in 1..=4 {
        gpu::seed_layout(&mut rig.rng)?;
        gpu::lab()?.set("layout", layout)?;
        let memory = rig.bench.cuda.alloc(LEN)?;
        let mut wanted = pattern(&mut rig.rng, LEN);
        memory.write(0, &wanted)?;
        if env.mode.is_none() {
            let got = rig.bench.refused("plain", memory.va(), LEN)?;
            expect_errno("a plain registration on a core without the API", got, libc::EFAULT)?;
        }
        // The cases: offset of the buffer in the memory, its length, and offset of the region in
        // the buffer.
        for (start, size, offset) in [
            (0, LEN, 0),
            (page, 2 * MIB, 0),
            (0, LEN, 3 * page + 100),
            (15 * page, 3 * MIB + 2 * page, page + 1),
            (LEN - page, page, 0),
        ] {
            let what = format!("layout {layout}, {size} bytes from {start:#x}, region from {offset:#x}");
            let fd = rig.bench.cuda.dma_buf(memory.va() + start as u64, size)?;
            // The address need not be CUDA's, but its place in a page must be that of the offset.
            for iova in [memory.va() + (start + offset) as u64, 0x7_0000_0000 + offset as u64] {
                let len = size - offset;
                let mr = rig.reg(&fd, offset, len, iova).context(what.clone())?;
                let nic = lab::nic_mr(mr.lkey())?;
                ensure!(nic.dma_buf, "{what}: not by dma-buf: {nic:?}");
                ensure!(in_one_piece()?, "{what}: BAR1 has it in pieces");
                for (at, n) in [(0, len.min(64 * KIB + 3)), (len / 2, (len / 2).min(MIB)), (len - 1, 1)] {
                    let new = rig.move_bytes(&mr, at, n).context(what.clone())?;
                    wanted[start + offset + at..][..n].copy_from_slice(&new);
                }
                mr.dereg()?;
            }
            same_bytes(&what, &memory.read(0, LEN)?, &wanted)?;
        }
    }
    ensure!(gpu::provider_calls()?.0 == 0, "something was pinned through nvidia_p2p_*");
    Ok(())
}

/// Returns whether all that BAR1 has mapped lies there in the order of the memory, without a gap.
fn in_one_piece() -> Result<bool> {
    let mut pages = gpu::lab()?.bar1()?;
    pages.sort_by_key(|page| page.page);
    Ok(!pages.is_empty() && pages.windows(2).all(|pair| pair[1].bar == pair[0].bar + GPU_PAGE as u64))
}

/// One descriptor and one region cover four segments, two of which cannot be pinned. The process
/// ends while it has them.
fn several_allocations(env: &Env) -> Result<()> {
    let mut rig = Rig::new(env)?;
    let mut segments = rig.bench.cuda.reserve(5 * SEGMENT)?;
    for i in 0..4 {
        segments.map(i * SEGMENT, SEGMENT, i % 2 == 0)?;
    }
    ensure!(rig.bench.cuda.dma_buf(segments.va(), 5 * SEGMENT).is_err(), "a buffer over a hole");
    let (start, len) = (page(), 4 * SEGMENT - 2 * page());
    let fd = rig.bench.cuda.dma_buf(segments.va() + start as u64, len)?;
    let mr = rig.reg(&fd, 0, len, segments.va() + start as u64)?;
    let mut wanted = segments.read(0, 4 * SEGMENT)?;
    for boundary in 1..4 {
        let at = boundary * SEGMENT - 100 * KIB - 5;
        let new = rig.move_bytes(&mr, at - start, 200 * KIB)?;
        wanted[at..][..new.len()].copy_from_slice(&new);
    }
    same_bytes("four segments", &segments.read(0, 4 * SEGMENT)?, &wanted)?;
    std::mem::forget((fd, mr));
    Ok(())
}

/// NVIDIA's driver takes 128 handles a call, so this buffer is made by three calls. It has the pages
/// of an allocation, the last one first, and each byte is where that order puts it. If a handle of
/// the second call is wrong, nothing of the buffer is left.
fn more_handles_than_one_call_takes(env: &Env) -> Result<()> {
    const PAGES: usize = 300;
    let size = page();
    let len = PAGES * size;
    let mut rig = Rig::new(env)?;
    let client = nvlab::Client::open()?;
    let memory = client.alloc(0, len as u64)?;
    let piece = |page| Piece { handle: memory.handle(), offset: (page * size) as u64, len: size as u64 };
    let mut pieces: Vec<Piece> = (0..PAGES).rev().map(piece).collect();
    let fd = client.export(0, &pieces)?;
    let mr = rig.reg(&fd, 0, len, 0x7_0000_0000)?;
    let wanted: Vec<u8> = rig.move_bytes(&mr, 0, len)?.chunks(size).rev().flatten().copied().collect();
    let mut got = vec![0; len];
    memory.read(0, &mut got)?;
    same_bytes("the pages in their own order", &got, &wanted)?;
    mr.dereg()?;
    drop(fd);
    pieces[200].handle += 1000;
    let e = client.export(0, &pieces).err().context("exported with a handle that nobody has")?;
    expect_errno("a wrong handle in the second call", e.errno().unwrap_or(0), libc::ENOENT)?;
    let left = gpu::accounting()?.get("live_dma_bufs");
    ensure!(left == 0, "{left} buffers are left of exports that ended or failed");
    Ok(())
}

/// Nobody tells the importer that memory is freed. The memory stays, and what the NIC writes to it
/// lands in nobody else's.
fn outlives_the_memory(env: &Env) -> Result<()> {
    let mut rig = Rig::new(env)?;
    let memory = rig.bench.cuda.alloc(SEGMENT)?;
    let (va, id) = (memory.va(), gpu::lab()?.allocations()?.last().context("no allocation")?.id);
    let state = || -> Result<_> {
        let log = gpu::lab()?.allocations()?;
        log.into_iter().find(|a| a.id == id).context("the allocation is not in the log")
    };
    let fd = rig.bench.cuda.dma_buf(va, SEGMENT)?;
    let mr = rig.reg(&fd, 0, SEGMENT, va)?;
    drop(fd);
    memory.free()?;
    ensure!(state()?.state == State::Kept, "freed under a dma-buf: {:?}", state()?);
    // The address is the same, the memory is another.
    let next = rig.bench.cuda.alloc(SEGMENT)?;
    ensure!(next.va() == va, "the next allocation is at {:#x}, not at {va:#x}", next.va());
    let wanted = next.read(0, SEGMENT)?;
    let new = rig.move_bytes(&mr, 0, SEGMENT)?;
    same_bytes("memory of the next allocation", &next.read(0, SEGMENT)?, &wanted)?;
    mr.dereg()?;
    let end = state()?;
    ensure!(end.state == State::Freed, "still {:?}", end.state);
    let copy = nvlab::Client::open()?.alloc(0, SEGMENT as u64)?;
    copy.write(0, &new)?;
    let crc = copy.crc32(0, SEGMENT as u64)?;
    ensure!(
        end.crc_free == Some(crc),
        "the kept memory held other bytes than the NIC wrote, of CRC {crc:08x}: {end:?}"
    );
    Ok(())
}

/// One descriptor serves both NICs. BAR1 is mapped once, until the last of them is deregistered.
fn two_nics(env: &Env) -> Result<()> {
    let mut rig = Rig::new(env)?;
    let second = SecondNic::add()?;
    let pd = Pd::new(&Device::open(second.name())?)?;
    let memory = rig.bench.cuda.alloc(SEGMENT)?;
    let fd = rig.bench.cuda.dma_buf(memory.va(), SEGMENT)?;
    let used = || Ok::<_, anyhow::Error>(gpu::accounting()?.get("bar1_used") as usize);
    let first = rig.reg(&fd, 0, SEGMENT, memory.va())?;
    let other = Mr::reg_dma_buf(&pd, fd.as_fd(), 0, SEGMENT, memory.va(), FULL_ACCESS)?;
    ensure!(used()? == SEGMENT, "BAR1 has {} bytes for one buffer of {SEGMENT}", used()?);
    let initiators = [&first, &other].map(|mr| lab::nic_mr(mr.lkey()).map(|nic| nic.initiator));
    let [Ok(a), Ok(b)] = &initiators else { anyhow::bail!("{initiators:?}") };
    ensure!(a != b, "both regions belong to {a}");
    let new = rig.move_bytes(&first, 5, MIB)?;
    first.dereg()?;
    ensure!(used()? == SEGMENT, "BAR1 has {} bytes for the buffer that the second NIC has", used()?);
    let mut link = (Loopback::new(&pd)?, vec![0u8; MIB]);
    let host = Mr::reg(&pd, link.1.as_ptr() as u64, MIB, FULL_ACCESS)?;
    link.0.run(Op::Read, (&host, 0), (&other, 5), MIB)?;
    same_bytes("read by the second NIC", &link.1, &new)?;
    link.1.fill(7);
    link.0.run(Op::Write, (&host, 0), (&other, MIB), 100)?;
    same_bytes("written by the second NIC", &memory.read(MIB, 100)?, &[7; 100])?;
    other.dereg()?;
    ensure!(used()? == 0, "BAR1 still has {} bytes", used()?);
    drop((host, link, pd));
    drop(second);
    Ok(())
}

/// Each wrong request gets its errno, and nothing stays mapped.
fn refusals_have_an_errno_and_leave_nothing(env: &Env) -> Result<()> {
    let rig = Rig::new(env)?;
    let gpu = gpu::lab()?;
    let memory = rig.bench.cuda.alloc(SEGMENT)?;
    let va = memory.va();
    let fd = rig.bench.cuda.dma_buf(va, SEGMENT)?;
    let refused = |what: &str, got: io::Result<Mr>, errno: i32| -> Result<()> {
        let e = got.err().with_context(|| format!("{what}: registered"))?;
        expect_errno(what, e.raw_os_error().unwrap_or(0), errno)?;
        let after = gpu::accounting()?;
        ensure!(after.get("live_mappings") == 0 && after.get("bar1_used") == 0, "{what}: {after:?}");
        Ok(())
    };
    refused("longer than the buffer", rig.reg(&fd, 0, SEGMENT + 1, va), libc::EINVAL)?;
    refused("from behind it", rig.reg(&fd, SEGMENT, 4 * KIB, va), libc::EINVAL)?;
    refused("an end that wraps", rig.reg(&fd, usize::MAX - 5, 4 * KIB, va - 6), libc::EINVAL)?;
    refused("of no length", rig.reg(&fd, 0, 0, va), libc::EINVAL)?;
    refused("another place in the page", rig.reg(&fd, 8, 4 * KIB, va), libc::EINVAL)?;
    let file = OwnedFd::from(File::open("/proc/self/exe")?);
    refused("no dma-buf", rig.reg(&file, 0, 4 * KIB, va), libc::EINVAL)?;
    // The part of BAR1 that pins leave free is free for a dma-buf.
    gpu.set("bar1_size", 37 * MIB as u64)?;
    rig.reg(&fd, 0, SEGMENT, va).context("in what pins leave free of BAR1")?.dereg()?;
    gpu.set("bar1_size", MIB as u64)?;
    refused("BAR1 full", rig.reg(&fd, 0, SEGMENT, va), libc::ENOMEM)?;
    gpu.reset_config()?;
    lab::set_nic("fail_mkey", 1)?;
    refused("a key that cannot be made", rig.reg(&fd, 0, SEGMENT, va), libc::ENOMEM)?;
    // The descriptor of the refused requests works with right ones.
    rig.reg(&fd, 0, SEGMENT, va)?.dereg()?;
    Ok(())
}

/// The driver refuses a pair of GPU and NIC. Drivers before 570 never do, so this runs on the odd
/// flavour of the GPU driver.
fn pair_refused(env: &Env) -> Result<()> {
    let rig = Rig::new(env)?;
    let gpu = gpu::lab()?;
    let memory = rig.bench.cuda.alloc(SEGMENT)?;
    let fd = rig.bench.cuda.dma_buf(memory.va(), SEGMENT)?;
    gpu.fault("attach_topology", 1)?;
    let e = rig.reg(&fd, 0, SEGMENT, memory.va()).err().context("registered")?;
    expect_errno("a pair that the driver refuses", e.raw_os_error().unwrap_or(0), ENOTSUPP)?;
    let after = gpu::accounting()?;
    ensure!(after.get("live_mappings") == 0 && after.get("bar1_used") == 0, "{after:?}");
    gpu.reset_faults()?;
    // The descriptor of the refused request works with the next one.
    rig.reg(&fd, 0, SEGMENT, memory.va())?.dereg()?;
    Ok(())
}

/// From Linux 6.12 on, nvidia.ko hands out untranslated addresses. Behind an IOMMU that translates,
/// no byte arrives, and the registration succeeds nevertheless. On an older kernel, nvidia.ko
/// translates.
fn behind_an_iommu(env: &Env) -> Result<()> {
    let mut rig = Rig::new(env)?;
    if !iommu::translates(&machine::pci_function(RDMA_DEVICE)?)? {
        skip("no IOMMU translates for the NIC");
        return Ok(());
    }
    let memory = rig.bench.cuda.alloc(SEGMENT)?;
    let fd = rig.bench.cuda.dma_buf(memory.va(), SEGMENT)?;
    gpu::lab()?.set("dma_mode", 550)?;
    let mr = rig.reg(&fd, 0, SEGMENT, memory.va())?;
    let new = rig.move_bytes(&mr, 3, MIB)?;
    same_bytes("translated", &memory.read(3, MIB)?, &new)?;
    mr.dereg()?;
    gpu::lab()?.set("dma_mode", 595)?;
    let mr = rig.reg(&fd, 0, SEGMENT, memory.va())?;
    let status = rig.link.attempt(Op::Write, (&rig.host_mr, 0), (mr.rkey(), mr.addr()), KIB)?;
    ensure!(status != Status::IBV_WC_SUCCESS, "a write to an untranslated address ended with {status:?}");
    ensure!(lab::fabric()?.faults > 0, "the IOMMU let it pass: {:?}", lab::fabric()?);
    same_bytes("untranslated", &memory.read(3, MIB)?, &new)?;
    // These faults were expected.
    lab::reset_fabric()
}

/// Runs real perftest with `--use_cuda_dmabuf`. The right bytes arrived, by CRC and through BAR1,
/// and nothing was pinned the other way.
fn perftest(env: &Env) -> Result<()> {
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        with_rate(|| {
            let sizes = Sizes::of(env, 20)?;
            let run = Run { dma_buf: true, ..Run::new(program, &sizes, true) };
            let (report, counts) = run.over_gpu_memory()?;
            let after = gpu::accounting()?;
            let buffers = (after.get("dma_bufs"), after.get("dma_buf_maps"), gpu::provider_calls()?.0, counts.mrs);
            ensure!(buffers == (2, 2, 0, 0), "exports, imports, pins, peer regions: {buffers:?}, wanted (2, 2, 0, 0)");
            gpu::wait_clean(Duration::from_secs(10))?;
            Ok(report.rate)
        })?;
    }
    Ok(())
}

/// `peermemctl selftest` moves bytes by dma-buf, with and without the other way.
fn selftest(env: &Env) -> Result<()> {
    let (told, code) = peermem::peermemctl_json(&["selftest", "--nic", RDMA_DEVICE, "--gpu", "0"])?;
    println!("{told}");
    let [peer, dma_buf] = [&told["ways"][0], &told["ways"][1]];
    ensure!(dma_buf["way"] == "dma-buf" && dma_buf["bytes_equal"] == true, "by dma-buf: {told}");
    let works = env.mode.is_some();
    ensure!((peer["bytes_equal"] == true) == works, "by peer memory: {told}");
    // A way that the RDMA core does not have is no failure if another way works.
    ensure!(code == Some(0), "exit {code:?}: {told}");
    let after = gpu::accounting()?;
    ensure!(after.is_clean() && after.get("dma_buf_maps") == 1, "{after:?}");
    Ok(())
}
