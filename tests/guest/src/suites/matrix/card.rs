// SPDX-License-Identifier: GPL-2.0
//! Tests one registration of a whole card.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use nvlab::{Layout, Memory};

use super::rig::Nic;
use crate::common::{page, pattern, same_bytes, GPU_PAGE, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::RDMA_DEVICE;
use crate::test::Env;
use crate::verbs::Op;

/// The time in which all of a card must be moved.
const WHOLE_CARD: Duration = Duration::from_secs(900);

/// Allocates all of GPU 1, and as much of GPU 0, which nothing else uses here.
fn card(rm: &nvlab::Client, gpu: u32, layout: Layout, rng: &mut fastrand::Rng) -> Result<Memory> {
    gpu::seed_layout(rng)?;
    let memory = rm.request(gpu, rm.info(gpu)?.memory).layout(layout).alloc();
    memory.with_context(|| format!("all of GPU {gpu}"))
}

/// Tests the first and last page, the last byte, and each side of every sort of border, in the
/// card's one registration.
pub fn ends(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    gpu::lab()?.set("bar1_reserve", 0)?;
    let nic = Nic::open(RDMA_DEVICE)?;
    let rm = nvlab::Client::open()?;
    let source = rm.alloc(0, 2 * MIB as u64)?;
    let source_mr = nic.reg(source.va(), 2 * MIB)?;
    for layout in [Layout::Contiguous, Layout::Shuffled] {
        let memory = card(&rm, 1, layout, &mut rng)?;
        let size = usize::try_from(memory.size())?;
        let mr = nic.reg(memory.va(), size).with_context(|| format!("{layout:?}"))?;
        let entries = nic.held(&mr)?.sg_entries;
        ensure!(layout != Layout::Contiguous || entries == 1, "{entries} sg entries for contiguous memory");
        // The registration covers all of BAR1, up to its end.
        let end = gpu::bar(&rm, 1)?.end() + 1 - GPU_PAGE as u64;
        let seen = lab::translations(mr.lkey())?;
        ensure!(seen.iter().any(|t| t.phys == end), "no address is the BAR's last GPU page at {end:#x}");
        for (what, at, len) in [
            ("the first byte", 0, 1),
            ("the first page", 0, page()),
            ("across the first 2 MiB", 2 * MIB - 1000, 2001),
            ("the middle", size / 2 - 70_000, 140_001),
            ("across the last GPU page's start", size - GPU_PAGE - 100, 200),
            ("the last page", size - page(), page()),
            ("the last byte", size - 1, 1),
        ] {
            let what = format!("{layout:?}, {what}");
            let guard = at.saturating_sub(GPU_PAGE)..(at + len + GPU_PAGE).min(size);
            let mut wanted = pattern(&mut rng, guard.len());
            memory.write(guard.start as u64, &wanted)?;
            let bytes = pattern(&mut rng, len);
            source.write(0, &bytes)?;
            nic.link.run(Op::Write, (&source_mr, 0), (&mr, at), len).with_context(|| what.clone())?;
            wanted[at - guard.start..][..len].copy_from_slice(&bytes);
            let mut got = vec![0; guard.len()];
            memory.read(guard.start as u64, &mut got)?;
            same_bytes(&what, &got, &wanted)?;
            // The same in the other direction.
            source.fill(0, len as u64, 0)?;
            nic.link.run(Op::Read, (&source_mr, 0), (&mr, at), len).with_context(|| what.clone())?;
            let mut got = vec![0; len];
            source.read(0, &mut got)?;
            same_bytes(&format!("{what}, read"), &got, &bytes)?;
        }
        mr.dereg()?;
        // Register the last page of the kernel and of the GPU separately.
        for len in [page(), GPU_PAGE] {
            let what = format!("{layout:?}, the last {len} bytes alone");
            let at = size - len;
            let mr = nic.reg(memory.va() + at as u64, len).with_context(|| what.clone())?;
            let mut wanted = pattern(&mut rng, 2 * GPU_PAGE);
            memory.write((size - wanted.len()) as u64, &wanted)?;
            let bytes = pattern(&mut rng, len);
            source.write(0, &bytes)?;
            nic.link.run(Op::Write, (&source_mr, 0), (&mr, 0), len).with_context(|| what.clone())?;
            wanted[2 * GPU_PAGE - len..].copy_from_slice(&bytes);
            let mut got = vec![0; wanted.len()];
            memory.read((size - wanted.len()) as u64, &mut got)?;
            same_bytes(&what, &got, &wanted)?;
            mr.dereg()?;
        }
        memory.free()?;
    }
    Ok(())
}

/// Moves every byte of one card into the other, by one request of each kind, with a different
/// layout at each end.
pub fn whole(env: &Env) -> Result<()> {
    const PIECE: usize = 4 * MIB;
    let mut rng = env.rng()?;
    gpu::lab()?.set("bar1_reserve", 0)?;
    let nic = Nic::open(RDMA_DEVICE)?;
    let rm = nvlab::Client::open()?;
    let (from, into) = (card(&rm, 0, Layout::Broken2M, &mut rng)?, card(&rm, 1, Layout::Shuffled, &mut rng)?);
    let size = usize::try_from(from.size().min(into.size()))?;
    let (from_mr, into_mr) = (nic.reg(from.va(), size)?, nic.reg(into.va(), size)?);
    for op in [Op::Write, Op::Send, Op::Read] {
        // A read's source is the remote side.
        let (source, target) = if matches!(op, Op::Read) { (&into, &from) } else { (&from, &into) };
        let seed = rng.u64(..);
        let mut contents = fastrand::Rng::with_seed(seed);
        for at in (0..size).step_by(PIECE) {
            source.write(at as u64, &pattern(&mut contents, PIECE))?;
        }
        nic.link.run_within(WHOLE_CARD, op, (&from_mr, 0), (&into_mr, 0), size)?;
        let mut contents = fastrand::Rng::with_seed(seed);
        for at in (0..size).step_by(PIECE) {
            let mut got = vec![0; PIECE];
            target.read(at as u64, &mut got)?;
            same_bytes(&format!("{op:?}: the card from {at:#x}"), &got, &pattern(&mut contents, PIECE))?;
        }
    }
    from_mr.dereg()?;
    into_mr.dereg()?;
    Ok(())
}
