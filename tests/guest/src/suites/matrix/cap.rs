// SPDX-License-Identifier: GPL-2.0
//! Tests runs longer than the cap. They are cut at its multiples and nowhere else, and the right
//! bytes are on both sides of each cut.

use anyhow::{ensure, Context, Result};
use nvlab::{Layout, Memory};

use super::rig::Nic;
use crate::common::{page, pattern, same_bytes, GPU_PAGE, KIB, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::{pci_function, Generation, OtherRxe, RDMA_DEVICE};
use crate::suites::iommu;
use crate::test::{emit, skip, Env};
use crate::verbs::{Mr, Op};

/// A limit on entries. `limit` is what the NIC announces, `cap` the longest entry that may result.
struct Setting {
    limit: u64,
    cap: usize,
    layout: Layout,
}

impl Setting {
    fn contiguous(limit: u64, cap: usize) -> Self {
        Self { limit, cap, layout: Layout::Contiguous }
    }

    /// Returns the length of the memory's longest piece in bytes. The piece begins at a multiple of
    /// that.
    fn run(&self) -> usize {
        if self.layout == Layout::Broken2M {
            2 * MIB
        } else {
            usize::MAX
        }
    }

    /// Returns the number of pieces of the pages from `first` to `last`, and the number of cuts at
    /// which the memory itself continues. The cuts are at multiples of the NIC's addresses, of
    /// which `begin` is the first. These are the BAR's own or, if `translated`, those of a range in
    /// which each run's mapping begins with a GPU page, at a multiple of its length (rounded up to
    /// a power of two; kernel: drivers/iommu/dma-iommu.c).
    fn pieces(&self, first: usize, last: usize, begin: usize, translated: bool) -> (usize, usize) {
        let (run, cap) = (self.run(), self.cap);
        let (mut pieces, mut cuts, mut from) = (0, 0, first);
        while from < last {
            let to = (from / run + 1).saturating_mul(run).min(last);
            // Memory and BAR are aligned alike below 2 MiB, and no run is longer if the memory is
            // in pieces.
            let begin = match (translated, run == usize::MAX) {
                (true, _) => from % GPU_PAGE,
                (false, true) => begin,
                (false, false) => from,
            };
            let n = if to - from <= cap { 1 } else { (begin + to - from).div_ceil(cap) - begin / cap };
            (pieces, cuts, from) = (pieces + n, cuts + n - 1, to);
        }
        (pieces, cuts)
    }
}

fn settings() -> [Setting; 6] {
    [
        Setting::contiguous(2 * MIB as u64, 2 * MIB),
        // This is what a PCI device has that announces nothing.
        Setting::contiguous(64 << 10, 64 * KIB),
        // A value that is no power of two is rounded down to one.
        Setting::contiguous(3 * MIB as u64 - 4096, 2 * MIB),
        Setting::contiguous(100_001, 64 * KIB),
        // Less than a page counts as a page.
        Setting::contiguous(511, page()),
        // Each of several runs is longer than the cap.
        Setting { limit: MIB as u64, cap: MIB, layout: Layout::Broken2M },
    ]
}

pub fn segment_limit_cuts_long_runs(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    for setting in &settings() {
        let rxe = OtherRxe::load(&[&format!("peer_max_seg={}", setting.limit)])?;
        one_cap(setting, 8 * MIB, env.generation, &mut rng)
            .with_context(|| format!("segment limit {}", setting.limit))?;
        drop(rxe);
    }
    Ok(())
}

/// Every device that announces more has a cap of 1 GiB. This needs a card of 4 GiB.
pub fn long_runs_are_cut_at_one_gibibyte(env: &Env) -> Result<()> {
    const GIB: usize = 1 << 30;
    gpu::lab()?.set("bar1_reserve", 0)?;
    one_cap(&Setting::contiguous(2 << 30, GIB), 4 * GIB, env.generation, &mut env.rng()?)
}

/// An IOMMU with 32 bits of addresses has no block of 2 GiB, which a range of more than 1 GiB needs
/// in one piece. All of it is mapped in pieces, and unmapped. This needs a card of 4 GiB.
pub fn long_range_without_a_large_block_is_mapped_in_pieces(env: &Env) -> Result<()> {
    const GIB: usize = 1 << 30;
    if !iommu::translates(&pci_function(RDMA_DEVICE)?)? {
        skip("no IOMMU translates for the NIC");
        return Ok(());
    }
    let mut rng = env.rng()?;
    gpu::lab()?.set("bar1_reserve", 0)?;
    gpu::lab()?.set("crc_max", 0)?;
    let _rxe = OtherRxe::load(&["peer_dma_bits=32"])?;
    let nic = Nic::open(RDMA_DEVICE)?;
    let rm = nvlab::Client::open()?;
    let memory = rm.alloc(0, 2 * GIB as u64)?;
    let (start, len) = (GPU_PAGE + 4097, GIB + MIB);
    for _ in 0..2 {
        let mr = nic.reg(memory.va() + start as u64, len)?;
        let held = nic.held(&mr)?;
        ensure!(held.page_size == GPU_PAGE as u64, "pages of {}", held.page_size);
        let dma: Vec<u64> = lab::translations(mr.lkey())?.iter().map(|t| t.dma).collect();
        ensure!(dma.iter().all(|dma| *dma < 4 << 30), "an address of more than 32 bits");
        let breaks = dma.windows(2).filter(|w| w[1] != w[0] + GPU_PAGE as u64).count();
        ensure!(breaks == 1, "{breaks} breaks in the addresses of two pieces");
        across_cuts(&nic, &memory, (start, len), &mr, GIB, &mut rng)?;
        mr.dereg()?;
    }
    // A short range needs no pieces.
    nic.reg(memory.va(), MIB)?.dereg()?;
    Ok(())
}

/// Tests one cap. `size` is a multiple of the cap, and contiguous memory of that size begins at
/// one.
fn one_cap(setting: &Setting, size: usize, generation: Generation, rng: &mut fastrand::Rng) -> Result<()> {
    let cap = setting.cap;
    // Its pattern and its CRC are not looked at here, and cost time.
    gpu::lab()?.set("crc_max", 0)?;
    let nic = Nic::open(RDMA_DEVICE)?;
    let translated = iommu::translates(&pci_function(RDMA_DEVICE)?)?;
    let rm = nvlab::Client::open()?;
    let memory = rm.request(0, size as u64).layout(setting.layout).alloc()?;
    let (page, mut rows) = (page(), Vec::new());
    for (start, len) in [
        // These ranges end at multiples of the cap.
        (0, cap),
        (0, 2 * cap),
        (cap, 3 * cap),
        // These ranges cross them.
        (0, cap + 1),
        (0, 2 * cap - 1),
        (0, 2 * cap + 1),
        (cap - 1, 2),
        (cap - page, page + cap + page),
        (page, 2 * cap),
        (cap / 2 + 1, cap),
    ] {
        let what = format!("{len} bytes at {start:#x}, cap {cap}");
        let mr = nic.reg(memory.va() + start as u64, len)?;
        let held = nic.held(&mr)?;
        let (first, last) = (start / page * page, (start + len).div_ceil(page) * page);
        let begin = lab::translations(mr.lkey())?.first().map_or(0, |t| t.dma);
        let (pieces, cuts) = setting.pieces(first, last, usize::try_from(begin)?, translated);
        rows.push(held.sg_entries);
        ensure!(held.sg_entries == pieces as u64, "{what}: {} sg entries, wanted {pieces}", held.sg_entries);
        ensure!(held.longest_entry <= cap as u64, "{what}: an entry of {} bytes", held.longest_entry);
        ensure!(
            cuts == 0 || held.cut_align >= cap as u64,
            "{what}: two entries meet at an address that is only a multiple of {}",
            held.cut_align
        );
        // A core of 24.10 takes each entry's end for one of the memory's, as long as addresses and
        // memory are aligned alike:
        if (start, len) == (0, 2 * cap) && len <= 2 * MIB && setting.layout == Layout::Contiguous {
            let hca = held.page_size;
            let right = if generation == Generation::V2410 { hca == cap as u64 } else { hca >= 2 * cap as u64 };
            ensure!(right, "{what}: the core of {} allows the NIC pages of {hca}", generation.name());
        }
        across_cuts(&nic, &memory, (start, len), &mr, cap, rng).with_context(|| what.clone())?;
        mr.dereg()?;
    }
    emit("cap", &serde_json::json!({"limit": setting.limit, "cap": cap, "sg_entries": rows}));
    Ok(())
}

/// The operations that move the bytes of a part, in turns, and whether they write to the
/// registration.
const MOVES: [(Op, bool); 6] =
    [(Op::Write, true), (Op::Read, true), (Op::Send, true), (Op::Write, false), (Op::Read, false), (Op::Send, false)];

/// Moves both ends of a registration, a little across each cut, and all of it if that is not too
/// much, and counts on both sides of each cut. The neighbouring bytes stay as they are.
fn across_cuts(
    nic: &Nic,
    memory: &Memory,
    (start, len): (usize, usize),
    mr: &Mr,
    cap: usize,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let end = start + len;
    let size = usize::try_from(memory.size())?;
    let cuts = (start / cap + 1..=end / cap).map(|n| n * cap).map(|cut| cut - 33..cut + 34);
    let ends = [start..start + 40, end.saturating_sub(40)..end];
    let all = (len <= MIB).then_some(start..end);
    let turns = MOVES.iter().cycle().skip(rng.usize(..MOVES.len()));
    for (part, (op, into)) in cuts.clone().chain(ends).chain(all).zip(turns) {
        let part = part.start.max(start)..part.end.min(end);
        if part.is_empty() {
            continue;
        }
        let guard = part.start.saturating_sub(page())..(part.end + page()).min(size);
        let mut wanted = pattern(rng, guard.len());
        memory.write(guard.start as u64, &wanted)?;
        let what = format!("{part:x?}, {op:?} {}", if *into { "into it" } else { "out of it" });
        let here = part.start - guard.start..part.end - guard.start;
        let mut bytes = pattern(rng, part.len());
        let host = nic.reg(bytes.as_mut_ptr() as u64, bytes.len())?;
        let (ours, theirs) = ((&host, 0), (mr, part.start - start));
        // The source of a read is the remote side.
        let (local, remote) = if *into == matches!(op, Op::Read) { (theirs, ours) } else { (ours, theirs) };
        nic.link.run(*op, local, remote, part.len()).with_context(|| what.clone())?;
        host.dereg()?;
        if *into {
            wanted[here].copy_from_slice(&bytes);
        } else {
            same_bytes(&what, &bytes, &wanted[here])?;
        }
        let mut got = vec![0; guard.len()];
        memory.read(guard.start as u64, &mut got)?;
        same_bytes(&format!("{what}, and its neighbours"), &got, &wanted)?;
    }
    for cut in cuts.map(|around| around.start + 33).filter(|cut| *cut >= start + WORD && cut + WORD <= end) {
        count_beside(nic, memory, (mr, start), cut, rng).with_context(|| format!("beside {cut:#x}"))?;
    }
    Ok(())
}

const WORD: usize = size_of::<u64>();

/// Adds to the last word before a cut and to the first one after it.
fn count_beside(
    nic: &Nic,
    memory: &Memory,
    (mr, start): (&Mr, usize),
    cut: usize,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let two = || -> Result<[u64; 2]> {
        let mut words = [0; 2];
        for (word, at) in words.iter_mut().zip([cut - WORD, cut]) {
            let mut bytes = [0; WORD];
            memory.read(at as u64, &mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(words)
    };
    let before = two()?;
    let mut found = [0u64; 2];
    let host = nic.reg(found.as_mut_ptr() as u64, size_of_val(&found))?;
    let add = [rng.u64(..), rng.u64(..)];
    for (i, at) in [cut - WORD, cut].into_iter().enumerate() {
        nic.link.run(Op::FetchAdd(add[i]), (&host, i * WORD), (mr, at - start), WORD)?;
    }
    host.dereg()?;
    ensure!(found == before, "fetched {found:x?}, there was {before:x?}");
    let wanted = [before[0].wrapping_add(add[0]), before[1].wrapping_add(add[1])];
    let after = two()?;
    ensure!(after == wanted, "{after:x?}, wanted {wanted:x?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4 * KIB;

    #[test]
    fn pieces_of_runs_and_the_cuts_in_them() {
        let [whole, .., broken] = settings();
        for (setting, first, last, wanted) in [
            (&whole, PAGE, PAGE + 2 * MIB, (1, 0)),
            (&whole, PAGE, PAGE + 4 * MIB, (3, 2)),
            (&broken, 0, 2 * MIB, (2, 1)),
            // A run that is no longer than the cap is not cut.
            (&broken, PAGE, PAGE + MIB, (1, 0)),
            (&broken, 2 * MIB - PAGE, 2 * MIB + PAGE, (2, 0)),
            (&broken, PAGE, 4 * MIB, (4, 2)),
        ] {
            assert_eq!(setting.pieces(first, last, first, false), wanted, "{first:#x} to {last:#x}");
        }
        // The same at another place in the BAR.
        assert_eq!(whole.pieces(PAGE, PAGE + 4 * MIB, 6 * MIB, false), (2, 1));
        // The GPU page in which a range begins is mapped as a whole.
        assert_eq!(whole.pieces(PAGE, PAGE + 4 * MIB, 0, true), (3, 2));
        assert_eq!(whole.pieces(GPU_PAGE, GPU_PAGE + 4 * MIB, 0, true), (2, 1));
        assert_eq!(broken.pieces(PAGE, 4 * MIB, 0, true), (4, 2));
    }
}
