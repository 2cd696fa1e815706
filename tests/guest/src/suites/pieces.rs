// SPDX-License-Identifier: GPL-2.0
//! Tests one registration over several allocations: neighbouring ones, of one GPU or two, and
//! segments of a reservation as PyTorch's expandable segments are. The CPU writes and reads the
//! bytes through the GPU's control interface.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use nvlab::{Layout, Memory, Reservation};

use super::scenarios::beside::{Beside, Stop};
use crate::common::{complaints, pattern, same_bytes, Bench, FAR, GPU_PAGE, KIB, MIB};
use crate::gpu;
use crate::helper::Helper;
use crate::lab;
use crate::machine::{Mode, SecondNic};
use crate::peermem;
use crate::test::{in_modes, skip, Env, NvidiaC, Suite};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, FULL_ACCESS};

const SEGMENT: usize = 2 * MIB;

pub fn suite(nvidia_c: bool) -> Suite {
    let tests = [
        ("bytes_over_each_boundary", bytes_over_each_boundary as fn(&Env) -> Result<()>),
        ("two_gpus", two_gpus),
        ("several_allocations_on_two_nics", several_allocations_on_two_nics),
        ("range_with_a_hole_is_refused", range_with_a_hole_is_refused),
        ("segment_unmapped", segment_unmapped),
        ("many_pieces", many_pieces),
        ("failed_put_loses_its_pin_alone", failed_put_loses_its_pin_alone),
    ];
    // NVIDIA's module refuses each of these ranges.
    let tests = tests.into_iter().flat_map(|(name, run)| in_modes(nvidia_c, &[Mode::Persistent], name, run));
    Suite { name: "pieces", tests: tests.map(|t| t.nvidia_c(NvidiaC::Recorded)).collect() }
}

/// Allocations side by side, and the bytes that they must hold.
struct Neighbours {
    /// The offset and memory of each allocation.
    pieces: Vec<(usize, Memory)>,
    wanted: Vec<u8>,
    addresses: Reservation,
}

impl Neighbours {
    /// Allocates neighbours on the GPUs that `gpu_of` chooses, each in pages of 64 KiB.
    fn new(
        rm: &nvlab::Client,
        lengths: &[usize],
        layout: Layout,
        gpu_of: impl Fn(usize) -> u32,
        rng: &mut fastrand::Rng,
    ) -> Result<Self> {
        let all: usize = lengths.iter().sum();
        let addresses = Reservation::new(0, all.next_multiple_of(2 * MIB) as u64, None)?;
        let mut this = Self { pieces: Vec::new(), wanted: pattern(rng, all), addresses };
        let mut at = 0;
        for (i, &len) in lengths.iter().enumerate() {
            let memory = rm.request(gpu_of(i), len as u64).layout(layout).unmapped().small().alloc()?;
            memory.write(0, &this.wanted[at..at + len])?;
            memory.register_at(this.va() + at as u64)?;
            this.pieces.push((at, memory));
            at += len;
        }
        Ok(this)
    }

    fn va(&self) -> u64 {
        self.addresses.va()
    }

    fn read(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut got = vec![0u8; range.len()];
        for (at, memory) in &self.pieces {
            let end = at + memory.size() as usize;
            let (from, to) = (range.start.max(*at), range.end.min(end));
            if from < to {
                memory.read((from - at) as u64, &mut got[from - range.start..to - range.start])?;
            }
        }
        Ok(got)
    }

    /// Compares all of the bytes.
    fn check(&self, what: &str) -> Result<()> {
        same_bytes(what, &self.read(0..self.wanted.len())?, &self.wanted)
    }

    /// Makes a NIC write new bytes to `range`, which lies in `mr`, and read them back. The bytes
    /// around them must not change.
    fn move_bytes(&mut self, nic: &mut Nic, (mr, from): (&Mr, usize), range: Range<usize>) -> Result<()> {
        let what = format!("{} bytes at {:#x} of a region from {from:#x}", range.len(), range.start);
        let (at, len) = (range.start - from, range.len());
        fastrand::fill(&mut nic.bytes[..len]);
        nic.link.run(Op::Write, (&nic.mr, 0), (mr, at), len).context(what.clone())?;
        self.wanted[range.clone()].copy_from_slice(&nic.bytes[..len]);
        let around = range.start.saturating_sub(GPU_PAGE)..(range.end + GPU_PAGE).min(self.wanted.len());
        same_bytes(&what, &self.read(around.clone())?, &self.wanted[around])?;
        nic.bytes[..len].fill(0);
        nic.link.run(Op::Read, (&nic.mr, 0), (mr, at), len).context(what.clone())?;
        same_bytes(&format!("{what}, read back"), &nic.bytes[..len], &self.wanted[range])
    }
}

/// A NIC, and registered host memory.
struct Nic {
    pd: Arc<Pd>,
    link: Loopback,
    bytes: Vec<u8>,
    mr: Mr,
}

impl Nic {
    fn new(pd: &Arc<Pd>) -> Result<Self> {
        let bytes = vec![0u8; 3 * MIB];
        let mr = Mr::reg(pd, bytes.as_ptr() as u64, bytes.len(), FULL_ACCESS).context("register host memory")?;
        Ok(Self { link: Loopback::new(pd)?, pd: Arc::clone(pd), bytes, mr })
    }

    fn reg(&self, va: u64, len: usize) -> Result<Mr> {
        Mr::reg(&self.pd, va, len, FULL_ACCESS).with_context(|| format!("ibv_reg_mr({va:#x}, {len})"))
    }
}

/// Returns the number of pieces of one registration, from /proc.
fn pieces_of(va: u64) -> Result<usize> {
    let rows = peermem::rows("registrations")?;
    let row = rows.iter().find(|row| row.number("va") == Some(va)).context("no row of this region")?;
    Ok(usize::try_from(row.number("pieces").context("no pieces in the row")?)?)
}

/// Registers the whole of each case in one region, and regions with odd ends. Moves bytes over each
/// boundary, and at both ends.
fn bytes_over_each_boundary(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let mut nic = Nic::new(&bench.pd)?;
    let rm = nvlab::Client::open()?;
    let cases: [(&[usize], Layout); 6] = [
        (&[GPU_PAGE; 5], Layout::Contiguous),
        (&[SEGMENT; 4], Layout::Broken64K),
        (&[20 * MIB; 3], Layout::Contiguous),
        (&[20 * MIB, SEGMENT, GPU_PAGE, 3 * GPU_PAGE, SEGMENT], Layout::Broken2M),
        (&[GPU_PAGE, 20 * MIB, 7 * GPU_PAGE], Layout::Contiguous),
        (&[SEGMENT, SEGMENT, 6 * MIB], Layout::Shuffled),
    ];
    for (lengths, layout) in cases {
        gpu::seed_layout(&mut rng)?;
        let what = format!("{lengths:?}, {layout:?}");
        let mut memory = Neighbours::new(&rm, lengths, layout, |_| 0, &mut rng)?;
        let all = memory.wanted.len();
        for (front, back) in [(0, 0), (4096 + 123, 1), (GPU_PAGE - 1, GPU_PAGE - 1)] {
            let end = all - back;
            let mr = nic.reg(memory.va() + front as u64, end - front).context(what.clone())?;
            let pieces = pieces_of(memory.va() + front as u64)?;
            ensure!(pieces >= lengths.len(), "{what}: {pieces} pieces");
            let mut boundary = 0;
            for len in &lengths[..lengths.len() - 1] {
                boundary += len;
                let (before, behind) = (rng.usize(1..GPU_PAGE / 2), rng.usize(1..GPU_PAGE / 2));
                let range = (boundary - before).max(front)..(boundary + behind).min(end);
                memory.move_bytes(&mut nic, (&mr, front), range).context(what.clone())?;
            }
            memory.move_bytes(&mut nic, (&mr, front), front..front + 1).context(what.clone())?;
            memory.move_bytes(&mut nic, (&mr, front), end - 1..end).context(what.clone())?;
            let most = (end - front).min(nic.bytes.len());
            memory.move_bytes(&mut nic, (&mr, front), end - most..end).context(what.clone())?;
            mr.dereg()?;
        }
        memory.check(&what)?;
        ensure!(gpu::pins()? == 0, "{what}: {} pins are left", gpu::pins()?);
    }
    Ok(())
}

/// Registers neighbours of two GPUs, which are two BARs with a mapping each.
fn two_gpus(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    if rm.info(0)?.gpus < 2 {
        skip("this machine has one GPU");
        return Ok(());
    }
    let mut nic = Nic::new(&bench.pd)?;
    let lengths = [SEGMENT, GPU_PAGE, SEGMENT, SEGMENT];
    let mut memory = Neighbours::new(&rm, &lengths, Layout::Contiguous, |i| i as u32 % 2, &mut rng)?;
    let all = memory.wanted.len();
    let mr = nic.reg(memory.va() + 5, all - 10)?;
    for boundary in [SEGMENT, SEGMENT + GPU_PAGE, 2 * SEGMENT + GPU_PAGE] {
        memory.move_bytes(&mut nic, (&mr, 5), boundary - 5000..boundary + 5000)?;
    }
    memory.move_bytes(&mut nic, (&mr, 5), SEGMENT - MIB..SEGMENT + MIB)?;
    mr.dereg()?;
    memory.check("memory of two GPUs")
}

/// Each NIC has a region of its own over the same pieces.
fn several_allocations_on_two_nics(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let second = SecondNic::add()?;
    {
        let mut nics = [Nic::new(&bench.pd)?, Nic::new(&Pd::new(&Device::open(second.name())?)?)?];
        let rm = nvlab::Client::open()?;
        let mut memory = Neighbours::new(&rm, &[SEGMENT; 3], Layout::Broken64K, |_| 0, &mut rng)?;
        let regions = [nics[0].reg(memory.va(), 3 * SEGMENT)?, nics[1].reg(memory.va() + 4096, 2 * SEGMENT)?];
        for ((nic, mr), from) in nics.iter_mut().zip(&regions).zip([0, 4096]) {
            memory.move_bytes(nic, (mr, from), SEGMENT - MIB..SEGMENT + MIB / 2)?;
        }
        memory.check("memory that two NICs write")?;
    }
    Ok(())
}

/// Registers a range that has a gap in the middle, or memory there that this process may not pin on
/// a GPU.
fn range_with_a_hole_is_refused(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let mut segments = bench.cuda.segments(SEGMENT, 4 * SEGMENT)?;
    bench.reg(segments.va(), 4 * SEGMENT).context("without a hole")?.dereg()?;
    let hole = segments.va() + 2 * SEGMENT as u64;
    segments.unmap(2 * SEGMENT)?;
    refused_at(&bench, "a segment that is unmapped", segments.va(), 4 * SEGMENT, hole)?;
    segments.map(2 * SEGMENT, SEGMENT, false)?;
    refused_at(&bench, "a segment without gpuDirectRDMACapable", segments.va(), 4 * SEGMENT, hole)?;
    segments.unmap(2 * SEGMENT)?;
    segments.map(2 * SEGMENT, SEGMENT, true)?;
    bench.reg(segments.va() + 77, 4 * SEGMENT - 99).context("with another segment in the hole")?.dereg()?;
    // No GPU has anything behind the last segment.
    refused_at(&bench, "the end of a reservation", segments.va(), 5 * SEGMENT, segments.va() + 4 * SEGMENT as u64)?;
    segments.unmap(2 * SEGMENT)?;
    host_memory_at(hole, SEGMENT)?;
    refused_at(&bench, "host memory in the middle", segments.va(), 4 * SEGMENT, hole)?;
    of_another_process()
}

/// Maps host memory with bytes in it in place of reserved addresses, until the reservation is
/// freed.
fn host_memory_at(va: u64, len: usize) -> Result<()> {
    let (rw, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the addresses are of a segment that was unmapped: nobody reads or writes there.
    let got = unsafe { libc::mmap(va as *mut libc::c_void, len, rw, kind, -1, 0) };
    ensure!(got as u64 == va, "mmap({va:#x}, {len}): {}", std::io::Error::last_os_error());
    // SAFETY: mapped above, for writing.
    unsafe { std::ptr::write_bytes(got.cast::<u8>(), 0x5a, len) };
    Ok(())
}

/// Has a process register three allocations that were shared with it, and then a range with one in
/// the middle that was not.
fn of_another_process() -> Result<()> {
    const MIDDLE: u64 = FAR + SEGMENT as u64;
    let mut other = Helper::start(&["actor", "nic"])?;
    let (shared, kept) = (nvlab::Client::open()?, nvlab::Client::open()?);
    let at = |rm: &nvlab::Client, va: u64| rm.request(0, SEGMENT as u64).at(va).alloc();
    let _first = at(&shared, FAR)?;
    let middle = at(&shared, MIDDLE)?;
    let _last = at(&shared, MIDDLE + SEGMENT as u64)?;
    shared.share_with(other.pid())?;
    let reg = format!("reg {FAR} {}", 3 * SEGMENT);
    let said = other.ask(&reg)?;
    ensure!(!said.starts_with("refused"), "three allocations that are shared: {said}");
    other.ask("dereg")?;
    middle.free()?;
    let _middle = at(&kept, MIDDLE)?;
    let said = other.ask(&reg)?;
    ensure!(said == format!("refused {}", libc::EINVAL), "one that is not shared: {said}");
    found_hole("memory of another process", MIDDLE)?;
    other.finish()
}

fn refused_at(bench: &Bench, what: &str, va: u64, len: usize, hole: u64) -> Result<()> {
    let got = bench.refused(what, va, len)?;
    let wrong = complaints(what, (va, len), got, libc::EINVAL, Some("hole"));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    found_hole(what, hole)
}

/// Checks that the last refusal named this address, and left no pin.
fn found_hole(what: &str, hole: u64) -> Result<()> {
    let rows = peermem::rows("failures")?;
    let found = rows.last().and_then(|row| row.number("found"));
    ensure!(found == Some(hole), "{what}: the hole is at {hole:#x}, told is {found:#x?}");
    ensure!(gpu::pins()? == 0, "{what}: refused, but {} pins stay", gpu::pins()?);
    Ok(())
}

/// A segment is unmapped at each step of a registration and of its end. Either persistent pins keep
/// the memory for the NIC, or the registration is refused. In no case is anything left.
fn segment_unmapped(_: &Env) -> Result<()> {
    const LEN: usize = 3 * SEGMENT;
    let bench = Bench::new()?;
    // The list says whether the point is the core's, and whether all pieces are pinned there.
    let points = [
        ("pget_found", false, false),
        ("pget_done", false, false),
        ("before_get_pages", true, false),
        ("before_dma_map", true, true),
        ("in_dma_map", true, true),
        ("before_activate", true, true),
    ];
    for (point, of_core, pinned) in points {
        let mut segments = bench.cuda.segments(SEGMENT, LEN)?;
        let stop = if of_core { Stop::core(point)? } else { Stop::gpu(point)? };
        let (pd, va) = (Arc::clone(&bench.pd), segments.va());
        let registering = Beside::start(move || Ok(Mr::reg(&pd, va, LEN, FULL_ACCESS)));
        stop.wait()?;
        segments.unmap(SEGMENT)?;
        stop.release()?;
        match registering.finish(point)? {
            Ok(mr) => {
                ensure!(pinned, "{point}: pinned all of a range with a hole");
                works(&bench, &mr)?;
                mr.dereg()?;
            }
            Err(e) => ensure!(!pinned && e.raw_os_error() == Some(libc::EINVAL), "{point}: {e}"),
        }
        ensure!(gpu::pins()? == 0, "{point}: {} pins are left", gpu::pins()?);
    }
    // Unmap a segment after the registration, and on the way to its end.
    let mut segments = bench.cuda.segments(SEGMENT, LEN)?;
    let mr = bench.reg(segments.va(), LEN)?;
    let bytes = pattern(&mut fastrand::Rng::new(), KIB);
    segments.write(2 * SEGMENT, &bytes)?;
    segments.unmap(SEGMENT)?;
    works(&bench, &mr)?;
    same_bytes("the other segments", &segments.read(2 * SEGMENT, KIB)?, &bytes)?;
    let stop = Stop::gpu("pput_before")?;
    let ending = Beside::start(move || Ok(mr.dereg()?));
    stop.wait()?;
    segments.unmap(2 * SEGMENT)?;
    stop.release()?;
    ending.finish("deregistration")?;
    ensure!(gpu::pins()? == 0, "{} pins are left", gpu::pins()?);
    drop(segments);
    gpu::wait_clean(std::time::Duration::from_secs(10))
}

/// Writes over the end of the first segment, and reads back.
fn works(bench: &Bench, mr: &Mr) -> Result<()> {
    let mut nic = Nic::new(&bench.pd)?;
    fastrand::fill(&mut nic.bytes[..KIB]);
    let wanted = nic.bytes[..KIB].to_vec();
    nic.link.run(Op::Write, (&nic.mr, 0), (mr, SEGMENT - KIB / 2), KIB)?;
    nic.bytes[..KIB].fill(0);
    nic.link.run(Op::Read, (&nic.mr, 0), (mr, SEGMENT - KIB / 2), KIB)?;
    same_bytes("read back through the MR", &nic.bytes[..KIB], &wanted)
}

/// Registers pieces of 64 KiB, and the same range without its last piece.
fn many_pieces(env: &Env) -> Result<()> {
    const PIECES: usize = 64;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    let mut nic = Nic::new(&bench.pd)?;
    let mut memory = Neighbours::new(&rm, &[GPU_PAGE; PIECES], Layout::Contiguous, |_| 0, &mut rng)?;
    let calls = gpu::accounting()?;
    let mr = nic.reg(memory.va(), memory.wanted.len())?;
    ensure!(pieces_of(memory.va())? == PIECES, "{} pieces", pieces_of(memory.va())?);
    let failed = gpu::accounting()?.get("persistent_get_failures") - calls.get("persistent_get_failures");
    ensure!(failed <= 12, "{failed} attempts failed");
    memory.move_bytes(&mut nic, (&mr, 0), 0..2 * MIB)?;
    mr.dereg()?;
    let (_, last) = memory.pieces.pop().context("the last piece")?;
    last.free()?;
    let len = memory.wanted.len();
    refused_at(&bench, "without its last piece", memory.va(), len, memory.va() + (len - GPU_PAGE) as u64)
}

/// Each of several pins is put once, whatever the puts before it return. Those whose put fails stay
/// until the driver shuts the GPU down.
fn failed_put_loses_its_pin_alone(_: &Env) -> Result<()> {
    let lost = || peermem::Stats::read()?.number("total.lost");
    let (bench, lost_before) = (Bench::new()?, lost()?);
    let segments = bench.cuda.segments(SEGMENT, 4 * SEGMENT)?;
    let before = lab::nic_mrs()?.len();
    let lab = gpu::lab()?;
    let mr = bench.reg(segments.va(), 4 * SEGMENT)?;
    lab.fault_n("persistent_put_errno", libc::ENOMEM as u64, 1)?;
    mr.dereg()?;
    ensure!(gpu::pins()? == 1, "{} pins after a put that failed, wanted 1", gpu::pins()?);
    bench.reg(segments.va(), KIB)?.dereg()?;
    ensure!(gpu::pins()? == 1, "{} pins after the owner's next call, wanted 1", gpu::pins()?);
    lab.fault_n("persistent_put_errno", libc::EIO as u64, 2)?;
    bench.reg(segments.va(), 4 * SEGMENT)?.dereg()?;
    ensure!(gpu::pins()? == 3, "{} pins after two more puts that failed, wanted 3", gpu::pins()?);
    ensure!(lost()? - lost_before == 3, "{} pins are lost, wanted 3", lost()? - lost_before);
    ensure!(lab::nic_mrs()?.len() == before, "MRs are left");
    lab.end_lost_pins()?;
    ensure!(gpu::pins()? == 0, "{} pins after the GPU was shut down", gpu::pins()?);
    Ok(())
}
