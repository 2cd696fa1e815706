// SPDX-License-Identifier: GPL-2.0
//! One process of the fuzzer: an ordinary user who calls verbs with addresses of a GPU, of any
//! length, alignment and access, and who frees, forks and posts as it comes. What it does is a
//! function of the seed and its number.
//!
//! Most calls are refused. What succeeds is checked: a region lies in memory that this process has,
//! a request that arrives lies in its region, and memory that no region has keeps its bytes.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::sys::wait::waitpid;
use nix::unistd::{fork, ForkResult};

use crate::common::{pattern, same_bytes, FAR, GPU_PAGE, KIB, MIB};
use crate::cuda::{Cuda, DeviceMemory, Segments};
use crate::machine::RDMA_DEVICE;
use crate::storm::log::Log;
use crate::storm::Counts;
use crate::verbs::{
    Device, Loopback, Mr, Op, Pd, Rereg, Status, Window, WindowType, FULL_ACCESS, LOCAL_WRITE, ON_DEMAND,
    REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, ZERO_BASED,
};

/// The number of buffers that are kept at a time.
const BUFFERS: usize = 6;
const REGIONS: usize = 12;
/// The size of a segment of memory that is mapped and unmapped piece by piece, and the number of
/// segments that fit.
const SEGMENT: usize = 2 * MIB;
const SEGMENTS: usize = 3;
/// The time limit for a request whose outcome nobody can predict.
const LIMIT: Duration = Duration::from_secs(30);

type Call = fn(&mut Fuzzer) -> Result<()>;

/// The calls, and how often each is made in relation to all.
const CALLS: [(&str, usize, Call); 14] = [
    ("allocate", 8, Fuzzer::allocate),
    ("free", 6, Fuzzer::free),
    ("map", 3, Fuzzer::map),
    ("unmap", 3, Fuzzer::unmap),
    ("register", 30, Fuzzer::register),
    ("register_iova", 6, Fuzzer::register_iova),
    ("dma_buf", 5, Fuzzer::dma_buf),
    ("reregister", 5, Fuzzer::reregister),
    ("deregister", 10, Fuzzer::deregister),
    ("prefetch", 4, Fuzzer::prefetch),
    ("request", 14, Fuzzer::request),
    ("abandon", 3, Fuzzer::abandon),
    ("bind", 2, Fuzzer::bind),
    ("child", 2, Fuzzer::child),
];

/// Returns the names of what is counted: the calls, and their outcomes.
pub fn names() -> impl Iterator<Item = &'static str> {
    CALLS.iter().map(|call| call.0).chain(["registered", "reregistered", "refused", "arrived", "errors"])
}

/// The number of bytes on either side of the host memory that nobody may touch, so that a range
/// which begins beside it is refused, wherever the program's own memory is. It is wider than any
/// step of [`Fuzzer::range`].
const FENCE: usize = 4 * GPU_PAGE;

/// Stands for the memory of a dma-buf's region, which has no address in this process.
const DMA_BUF: Range<u64> = 0..0;

/// A region, with the memory that its keys reach and the addresses under which they reach it.
struct Region {
    mr: Mr,
    /// The address under which its keys reach the first byte. `None` where that is not known.
    first: Option<u64>,
    /// The access that the kernel was given. It keeps that in a re-registration which does not name
    /// another.
    access: i32,
    /// Whether the region is on demand. A region of a dma-buf never is, whatever its access says.
    on_demand: bool,
    /// The first byte. A region on demand reaches whatever is there when it is used.
    at: u64,
    len: usize,
}

/// Maps host memory to register, between fences, until the process ends.
fn host_memory() -> Result<Range<u64>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel likes.
    let all = unsafe { libc::mmap(std::ptr::null_mut(), MIB + 2 * FENCE, libc::PROT_NONE, flags, -1, 0) };
    ensure!(all != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    let start = all as u64 + FENCE as u64;
    // SAFETY: the middle of the mapping just made, which nobody else knows.
    let rc = unsafe { libc::mprotect(start as *mut libc::c_void, MIB, libc::PROT_READ | libc::PROT_WRITE) };
    ensure!(rc == 0, "mprotect: {}", io::Error::last_os_error());
    Ok(start..start + MIB as u64)
}

/// Returns the host memory of this process, without addresses of a GPU and without fences.
fn host_mappings() -> Result<Vec<Range<u64>>> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("read /proc/self/maps")?;
    let host = maps.lines().filter(|line| !line.contains("/dev/nvidia") && !line.contains(" ---"));
    let parse = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
    };
    host.map(|line| parse(line).with_context(|| format!("/proc/self/maps: {line}"))).collect()
}

/// Returns whether each of these bytes is in one of the areas.
fn covers(areas: &[Range<u64>], asked: &Range<u64>) -> bool {
    let mut at = asked.start;
    while at < asked.end {
        match areas.iter().find(|area| area.contains(&at)) {
            Some(area) => at = area.end,
            None => return false,
        }
    }
    true
}

pub struct Fuzzer {
    rng: fastrand::Rng,
    log: Log,
    counts: Counts,
    cuda: Arc<Cuda>,
    pds: [Arc<Pd>; 2],
    link: Option<Loopback>,
    buffers: Vec<DeviceMemory>,
    segments: Segments,
    /// The segments that are mapped.
    mapped: [bool; SEGMENTS],
    host: Range<u64>,
    regions: Vec<Region>,
    /// The keys of regions that no longer exist.
    stale: Vec<u32>,
    /// Memory that is never registered by itself, with its bytes.
    guard: DeviceMemory,
    guarded: Vec<u8>,
    /// Whether a region reached into it all the same, as one over several allocations may.
    guard_registered: bool,
}

/// Returns `start .. start + len`, if that does not wrap.
fn span(start: u64, len: usize) -> Option<Range<u64>> {
    Some(start..start.checked_add(len as u64)?)
}

fn within(inner: &Range<u64>, outer: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

impl Fuzzer {
    /// Makes a fuzzer. The user who is to post must call this, because the kernel takes requests
    /// only from the user who opened the NIC's file.
    pub fn new(seed: u64, process: u64, cuda: Arc<Cuda>, log: Log) -> Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed ^ process.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let device = Device::open(RDMA_DEVICE)?;
        let guard = cuda.alloc(4 * GPU_PAGE)?;
        let guarded = pattern(&mut rng, guard.size());
        guard.write(0, &guarded)?;
        Ok(Self {
            log,
            counts: Counts::default(),
            pds: [Pd::new(&device)?, Pd::new(&device)?],
            link: None,
            buffers: Vec::new(),
            segments: cuda.reserve(SEGMENTS * SEGMENT)?,
            mapped: [false; SEGMENTS],
            host: host_memory()?,
            regions: Vec::new(),
            stale: vec![0],
            guard,
            guarded,
            guard_registered: false,
            cuda,
            rng,
        })
    }

    /// Makes this many calls, and prints their counts as a line. At the end, it releases what is
    /// left, or leaves that to the end of the process.
    pub fn run(mut self, steps: u64) -> Result<()> {
        let all: usize = CALLS.iter().map(|call| call.1).sum();
        for step in 0..steps {
            let mut at = self.rng.usize(..all);
            let (name, _, call) = CALLS
                .iter()
                .find(|call| match at.checked_sub(call.1) {
                    Some(rest) => {
                        at = rest;
                        false
                    }
                    None => true,
                })
                .context("a call")?;
            self.counts.add(name);
            call(&mut self).with_context(|| format!("step {step}, {name}"))?;
        }
        if !self.guard_registered {
            same_bytes("memory that no region has", &self.guard.read(0, self.guarded.len())?, &self.guarded)?;
        }
        println!("fuzz {}", self.counts.print());
        if self.rng.bool() {
            std::mem::forget(self);
        }
        Ok(())
    }

    fn some<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    /// Returns the addresses that this process has. Memory from `cuMemAlloc()` is backed by whole blocks of
    /// 2 MiB, which small allocations share, and can be pinned wherever its blocks are (docs/facts.md#get).
    fn owned(&self) -> Vec<Range<u64>> {
        let backed = |buffer: &DeviceMemory| {
            let before = buffer.va() as usize % SEGMENT;
            span(buffer.va() - before as u64, (before + buffer.size()).next_multiple_of(SEGMENT))
        };
        let mut all: Vec<_> = self.buffers.iter().chain([&self.guard]).filter_map(backed).collect();
        let segment = |i: usize| span(self.segments.va() + (i * SEGMENT) as u64, SEGMENT);
        all.extend((0..SEGMENTS).filter(|i| self.mapped[*i]).filter_map(segment));
        all.push(self.host.clone());
        all
    }

    /// Returns whether requests to this region would write to the program's own memory. A region on
    /// demand may lie beside memory of the GPU, or where such memory was.
    fn would_hurt(&self, at: usize) -> Result<bool> {
        let Region { on_demand, at, .. } = self.regions[at];
        let end = at.saturating_add(MIB as u64);
        let hit = |area: &Range<u64>| !within(area, &self.host) && area.start < end && at < area.end;
        Ok(on_demand && host_mappings()?.iter().any(hit))
    }

    /// Returns an address and a length, mostly near existing memory.
    fn range(&mut self) -> (u64, usize) {
        let areas = self.owned();
        let area = areas[self.rng.usize(..areas.len())].clone();
        let size = area.end - area.start;
        if self.rng.u8(..10) == 0 {
            let any = self.rng.u64(..);
            let addr = self.some(&[0, 1, 4095, 1 << 47, FAR, u64::MAX, u64::MAX - 4095, any]);
            return (addr, self.length(size));
        }
        let (page, any) = (GPU_PAGE as u64, self.rng.u64(..size));
        let offset = self.some(&[
            0,
            0,
            0,
            1,
            63,
            4095,
            4096,
            4097,
            page - 1,
            page,
            page + 1,
            size - 1,
            size,
            size + 1,
            any,
            any,
        ]);
        let back = self.some(&[0, 0, 0, 0, 0, 1, 4096, page]);
        let left = size.saturating_sub(offset);
        let length = self.length(size);
        let len = if self.rng.bool() { left as usize } else { length };
        (area.start.wrapping_add(offset).wrapping_sub(back), len)
    }

    fn length(&mut self, size: u64) -> usize {
        let (size, any) = (size as usize, self.rng.usize(..size as usize));
        self.some(&[
            0,
            1,
            63,
            64,
            4095,
            4096,
            4097,
            GPU_PAGE - 1,
            GPU_PAGE,
            GPU_PAGE + 1,
            size - 1,
            size,
            size + 1,
            2 * size,
            any,
            any,
            1 << 30,
            1 << 40,
            1 << 47,
            usize::MAX / 2,
            usize::MAX - 4095,
            usize::MAX,
        ])
    }

    fn access(&mut self) -> i32 {
        let known = self.rng.i32(0..0x200) | self.some(&[0, 0, 1 << 20]);
        let any = self.rng.i32(..);
        let all = FULL_ACCESS | REMOTE_ATOMIC;
        self.some(&[FULL_ACCESS, FULL_ACCESS, all, all, all, 0, LOCAL_WRITE, FULL_ACCESS | ON_DEMAND, known, any])
    }

    /// Keeps a region that the kernel made of `memory`, if it was allowed to. `iova` is the address
    /// that its keys use for the first byte.
    fn keep(&mut self, mr: Mr, memory: Option<Range<u64>>, (iova, len): (u64, usize), access: i32) -> Result<()> {
        self.counts.add("registered");
        let at = memory.as_ref().map_or(0, |memory| memory.start);
        let on_demand = access & ON_DEMAND != 0 && memory != Some(DMA_BUF);
        // A region on demand pins nothing. Using it fails where there is no memory.
        if !on_demand {
            let memory = memory.context("a region whose end wraps was registered")?;
            if !covers(&self.owned(), &memory) {
                let host = covers(&host_mappings()?, &memory);
                ensure!(host, "{memory:x?} was registered, which is not all of it this process's");
                // The region reaches the program's own memory beside that of the GPU, so requests
                // would damage it.
                let _ = mr.dereg();
                return Ok(());
            }
            let guard = span(self.guard.va(), self.guard.size()).context("the guard")?;
            self.guard_registered |= memory.start < guard.end && guard.start < memory.end;
        } else {
            self.guard_registered = true;
        }
        let first = (access & ZERO_BASED == 0 && !on_demand).then_some(iova);
        if self.regions.len() == REGIONS {
            let at = self.rng.usize(..REGIONS);
            self.drop_region(at);
        }
        self.regions.push(Region { mr, first, access, on_demand, at, len });
        Ok(())
    }

    fn drop_region(&mut self, at: usize) {
        let region = self.regions.swap_remove(at);
        self.stale.push(region.mr.rkey());
        // A child may have deregistered it already.
        let _ = region.mr.dereg();
    }

    fn drop_some(&mut self) {
        for _ in 0..self.rng.usize(..3) {
            if let Some(at) = self.any_region() {
                self.drop_region(at);
            }
        }
    }

    fn any_region(&mut self) -> Option<usize> {
        (!self.regions.is_empty()).then(|| self.rng.usize(..self.regions.len()))
    }

    /// Returns a region that a program may sensibly use for both sides of a request, if it has some
    /// bytes.
    fn good_region(&mut self) -> Option<usize> {
        let good = |r: &Region| !r.on_demand && r.access & FULL_ACCESS == FULL_ACCESS && r.len >= 64;
        let good: Vec<usize> = (0..self.regions.len()).filter(|i| good(&self.regions[*i])).collect();
        (!good.is_empty()).then(|| self.some(&good))
    }

    fn allocate(&mut self) -> Result<()> {
        let size = self.some(&[1, 1, 2, 3, 16, 32, 33, 80]) * GPU_PAGE;
        self.log.line(&format!("allocate {size:#x}"))?;
        if self.buffers.len() == BUFFERS {
            self.free()?;
        }
        // The card may be full.
        if let Ok(buffer) = self.cuda.alloc(size) {
            self.buffers.push(buffer);
        }
        Ok(())
    }

    fn free(&mut self) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(..self.buffers.len());
        let buffer = self.buffers.swap_remove(at);
        self.log.line(&format!("free {:#x}", buffer.va()))?;
        buffer.free()
    }

    fn map(&mut self) -> Result<()> {
        let (at, rdma) = (self.rng.usize(..SEGMENTS), self.rng.u8(..4) != 0);
        if !self.mapped[at] {
            self.log.line(&format!("map segment {at}, for RDMA: {rdma}"))?;
            self.mapped[at] = self.segments.map(at * SEGMENT, SEGMENT, rdma).is_ok();
        }
        Ok(())
    }

    fn unmap(&mut self) -> Result<()> {
        let at = self.rng.usize(..SEGMENTS);
        if self.mapped[at] {
            self.log.line(&format!("unmap segment {at}"))?;
            self.segments.unmap(at * SEGMENT)?;
            self.mapped[at] = false;
        }
        Ok(())
    }

    fn register(&mut self) -> Result<()> {
        let ((addr, len), access) = (self.range(), self.access());
        self.log.line(&format!("ibv_reg_mr {addr:#x} {len:#x} access {access:#x}"))?;
        match Mr::reg(&self.pds[0], addr, len, access) {
            Ok(mr) => self.keep(mr, span(addr, len), (addr, len), access),
            Err(_) => {
                self.counts.add("refused");
                Ok(())
            }
        }
    }

    fn register_iova(&mut self) -> Result<()> {
        let ((addr, len), access) = (self.range(), self.access());
        let any = self.rng.u64(..);
        let iova = self.some(&[0, addr, addr & 0xfff, any, u64::MAX, addr.wrapping_add(1)]);
        self.log.line(&format!("ibv_reg_mr_iova {addr:#x} {len:#x} iova {iova:#x} access {access:#x}"))?;
        match Mr::reg_iova(&self.pds[0], addr, len, iova, access) {
            Ok(mr) => self.keep(mr, span(addr, len), (iova, len), access),
            Err(_) => {
                self.counts.add("refused");
                Ok(())
            }
        }
    }

    fn dma_buf(&mut self) -> Result<()> {
        let Some(at) = (!self.buffers.is_empty()).then(|| self.rng.usize(..self.buffers.len())) else { return Ok(()) };
        let (va, size) = (self.buffers[at].va(), self.buffers[at].size());
        let exported = self.some(&[size, size, size, GPU_PAGE, size + GPU_PAGE]);
        let Ok(fd) = self.cuda.dma_buf(va, exported) else { return Ok(()) };
        let (len, access) = (self.length(size as u64), self.access());
        let offset = self.some(&[0, 0, 0, 1, 4096, size as u64, u64::MAX]);
        let iova = self.some(&[va.wrapping_add(offset), 0, u64::MAX]);
        self.log.line(&format!("ibv_reg_dmabuf_mr {va:#x}+{offset:#x} {len:#x} iova {iova:#x} access {access:#x}"))?;
        if self.rng.u8(..8) == 0 {
            // The buffer outlives the memory.
            self.buffers.swap_remove(at).free()?;
        }
        match Mr::reg_dma_buf(&self.pds[0], fd.as_fd(), offset, len, iova, access) {
            Ok(mr) => {
                let asked = span(offset, len).context("a region whose end wraps was registered")?;
                ensure!(
                    within(&asked, &(0..exported as u64)),
                    "{asked:x?} of a dma-buf of {exported:#x} was registered"
                );
                // The memory may be free by now. The check of what the keys reach takes place all
                // the same.
                self.keep(mr, Some(DMA_BUF), (iova, len), access)
            }
            Err(_) => {
                self.counts.add("refused");
                Ok(())
            }
        }
    }

    fn reregister(&mut self) -> Result<()> {
        let Some(at) = self.any_region() else { return Ok(()) };
        let (range, access, pd) = (self.range(), self.access(), self.rng.usize(..2));
        let mut region = self.regions.swap_remove(at);
        self.stale.push(region.mr.rkey());
        let wish = Rereg {
            translation: self.rng.bool().then_some(range),
            access: self.rng.bool().then_some(access),
            pd: self.rng.bool().then(|| &self.pds[pd]),
        };
        self.log.line(&format!("rereg {:x?} access {:x?} pd {}", wish.translation, wish.access, wish.pd.is_some()))?;
        if region.mr.rereg(wish).is_err() {
            // It is up to the kernel what the region reaches now.
            self.counts.add("refused");
            let _ = region.mr.dereg();
            return Ok(());
        }
        self.counts.add("reregistered");
        let access = wish.access.unwrap_or(region.access);
        match wish.translation {
            Some((addr, len)) => self.keep(region.mr, span(addr, len), (addr, len), access),
            None => {
                // The kernel read a region anew that was on demand and no longer is.
                region.first = region.first.filter(|_| (access ^ region.access) & (ON_DEMAND | ZERO_BASED) == 0);
                region.on_demand = wish.access.map_or(region.on_demand, |access| access & ON_DEMAND != 0);
                region.access = access;
                self.regions.push(region);
                Ok(())
            }
        }
    }

    fn deregister(&mut self) -> Result<()> {
        if let Some(at) = self.any_region() {
            self.log.line("ibv_dereg_mr")?;
            self.drop_region(at);
        }
        Ok(())
    }

    fn prefetch(&mut self) -> Result<()> {
        let (Some(at), (addr, len)) = (self.any_region(), self.range()) else { return Ok(()) };
        let len = len.min(4 * MIB) as u32;
        self.log.line(&format!("ibv_advise_mr {addr:#x} {len:#x}"))?;
        // rdma-core may not support this call for this NIC.
        let _ = self.regions[at].mr.prefetch(addr, len);
        Ok(())
    }

    fn linked(&mut self) -> Result<&Loopback> {
        if self.link.is_none() {
            self.link = Some(Loopback::new(&self.pds[0])?);
        }
        self.link.as_ref().context("just made")
    }

    /// Posts a request between regions. Half of the requests have an offset, a length and a key
    /// that may be wrong.
    fn request(&mut self) -> Result<()> {
        let sane = self.rng.bool();
        let ends = if sane { (self.good_region(), self.good_region()) } else { (self.any_region(), self.any_region()) };
        let (Some(local), Some(remote)) = ends else { return Ok(()) };
        if self.would_hurt(local)? || self.would_hurt(remote)? {
            return Ok(());
        }
        let op = self.some(&[
            Op::Write,
            Op::Read,
            Op::Write,
            Op::Read,
            Op::FetchAdd(1),
            Op::CmpSwap { compare: 0, swap: 1 },
        ]);
        let room = self.regions[local].len.min(self.regions[remote].len).min(256 * KIB);
        let len = match op {
            Op::FetchAdd(_) | Op::CmpSwap { .. } => 8,
            _ if sane => self.some(&[1, 64, room]),
            _ => self.some(&[0, 1, 64, 4096, 4097, GPU_PAGE, 256 * KIB]),
        };
        let at = if sane { 0 } else { self.some(&[0, 0, 0, 1, 8, 4096, GPU_PAGE]) };
        let region = &self.regions[remote];
        let (right, first) = (region.mr.rkey(), region.mr.addr());
        let (wild, guard, stale) = (self.rng.u64(..), self.guard.va(), self.stale.len());
        let stale = self.stale[self.rng.usize(..stale)];
        let (to, rkey) = if sane {
            (first, right)
        } else {
            (
                self.some(&[first, first, first, first.wrapping_add(at as u64), guard, wild]),
                self.some(&[right, right, right, right, stale, wild as u32]),
            )
        };
        self.log.line(&format!("{op:?} {len:#x} to {to:#x} key {rkey:#x} (its own {right:#x})"))?;
        self.linked()?;
        let (link, region) = (self.link.take().context("just made")?, &self.regions[remote]);
        // The queue pairs are useless after an error, and also if no answer came.
        match link.attempt(op, (&self.regions[local].mr, at), (rkey, to), len) {
            Ok(Status::IBV_WC_SUCCESS) => {
                let (needs, name) = match op {
                    Op::Write => (REMOTE_WRITE, "write"),
                    Op::Read => (REMOTE_READ, "read"),
                    _ => (REMOTE_ATOMIC, "atomic"),
                };
                if rkey == right && len != 0 && !region.on_demand {
                    ensure!(region.access & needs != 0, "a {name} arrived by a key of access {:#x}", region.access);
                    if let Some(first) = region.first {
                        // A region may end at the last address of all. The address after it is 0.
                        let end = to.wrapping_sub(first).checked_add(len as u64);
                        ensure!(
                            end.is_some_and(|end| end <= region.len as u64),
                            "a {name} of {len:#x} bytes at {to:#x} arrived by the key of {:#x} bytes at {first:#x}",
                            region.len
                        );
                    }
                }
                self.counts.add("arrived");
                self.link = Some(link);
            }
            Ok(_) | Err(_) => self.counts.add("errors"),
        }
        Ok(())
    }

    /// Posts a request that nobody waits for. Often, its memory and region do not wait for it
    /// either.
    fn abandon(&mut self) -> Result<()> {
        let Some(at) = self.any_region() else { return Ok(()) };
        if self.would_hurt(at)? {
            return Ok(());
        }
        self.log.line("a request, abandoned")?;
        self.linked()?;
        let link = self.link.take().context("just made")?;
        let mr = &self.regions[at].mr;
        // The send queue may refuse it.
        let _ = link.write(1, (mr, 0), (mr, 0), GPU_PAGE);
        match self.rng.u8(..4) {
            0 => self.free()?,
            1 => self.drop_region(at),
            2 => drop(link.wait(LIMIT)),
            _ => {}
        }
        Ok(())
    }

    fn bind(&mut self) -> Result<()> {
        let Some(at) = self.any_region() else { return Ok(()) };
        let (kind, offset, len) =
            (self.some(&[WindowType::One, WindowType::Two]), self.some(&[0, 1, 4096]), self.some(&[0, 1, 4096, MIB]));
        self.log.line(&format!("bind a window, {kind:?}"))?;
        let Ok(mut window) = Window::new(&self.pds[0], kind) else { return Ok(()) };
        self.linked()?;
        let link = self.link.take().context("just made")?;
        if window.bind(&link, &self.regions[at].mr, offset, len).is_ok() {
            self.stale.push(window.rkey());
            self.link = Some(link);
        }
        Ok(())
    }

    /// Forks a child, which inherits everything, deregisters some of it, and ends without a report.
    fn child(&mut self) -> Result<()> {
        self.log.line("fork")?;
        // SAFETY: this process has one thread, so the child may do what it likes.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Parent { child } => drop(waitpid(child, None).context("wait for the child")?),
            ForkResult::Child => {
                self.drop_some();
                // SAFETY: ends the process, with all of its memory.
                unsafe { libc::_exit(0) };
            }
        }
        // Forget what the child deregistered, by the same random numbers. The kernel gives those
        // handles out again, and a call with such a handle would change another region.
        self.drop_some();
        if self.regions.len() > REGIONS {
            bail!("{} regions", self.regions.len());
        }
        Ok(())
    }
}
