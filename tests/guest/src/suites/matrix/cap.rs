// SPDX-License-Identifier: GPL-2.0
//! Runs longer than the cap: cut at its multiples and nowhere else, and the right bytes on both sides of each cut.

use anyhow::{ensure, Context, Result};
use nvlab::Memory;

use super::rig::Nic;
use crate::gpu;
use crate::lab;
use crate::machine::{OtherRxe, RDMA_DEVICE};
use crate::suites::{pattern, same_bytes, KIB, MIB};
use crate::test::{emit, Env};
use crate::verbs::{Mr, Op};

/// `limit` is what the NIC announces; `cap` the longest entry that may come of it.
struct Setting {
    limit: u64,
    cap: usize,
}

const SETTINGS: [Setting; 5] = [
    Setting { limit: 2 * MIB as u64, cap: 2 * MIB },
    // A PCI device that says nothing.
    Setting { limit: 64 << 10, cap: 64 * KIB },
    // No power of two: the next one below.
    Setting { limit: 3 * MIB as u64 - 4096, cap: 2 * MIB },
    Setting { limit: 100_001, cap: 64 * KIB },
    // Less than a page is a page.
    Setting { limit: 511, cap: 4 * KIB },
];

const PAGE: usize = 4 * KIB;

pub fn cap(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    for setting in &SETTINGS {
        let rxe = OtherRxe::load(&[&format!("peer_max_seg={}", setting.limit)])?;
        one_cap(setting, 8 * MIB, &mut rng).with_context(|| format!("segment limit {}", setting.limit))?;
        drop(rxe);
    }
    Ok(())
}

/// The cap of every device that announces more: 1 GiB. Needs a card of 4 GiB.
pub fn gibibyte(env: &Env) -> Result<()> {
    const GIB: usize = 1 << 30;
    gpu::lab()?.set("bar1_reserve", 0)?;
    one_cap(&Setting { limit: 2 << 30, cap: GIB }, 4 * GIB, &mut env.rng())
}

/// `size` is a multiple of the cap, and so is where contiguous memory of that size begins.
fn one_cap(setting: &Setting, size: usize, rng: &mut fastrand::Rng) -> Result<()> {
    let cap = setting.cap;
    // Its pattern and its CRC are not looked at here, and cost time.
    gpu::lab()?.set("crc_max", 0)?;
    let nic = Nic::open(RDMA_DEVICE)?;
    let rm = nvlab::Client::open()?;
    let memory = rm.alloc(0, size as u64)?;
    let mut rows = Vec::new();
    for (start, len) in [
        // At its multiples.
        (0, cap),
        (0, 2 * cap),
        (cap, 3 * cap),
        // Across them.
        (0, cap + 1),
        (0, 2 * cap - 1),
        (0, 2 * cap + 1),
        (cap - 1, 2),
        (cap - PAGE, PAGE + cap + PAGE),
        (PAGE, 2 * cap),
        (cap / 2 + 1, cap),
    ] {
        let what = format!("{len} bytes at {start:#x}, cap {cap}");
        let mr = nic.reg(memory.va() + start as u64, len)?;
        let held = lab::nic_mr(mr.lkey())?;
        let (first, last) = (start / PAGE * PAGE, (start + len).div_ceil(PAGE) * PAGE);
        let pieces = if last - first <= cap { 1 } else { last.div_ceil(cap) - first / cap };
        rows.push(held.sg_entries);
        ensure!(held.sg_entries == pieces as u64, "{what}: {} sg entries, wanted {pieces}", held.sg_entries);
        ensure!(held.longest_entry <= cap as u64, "{what}: an entry of {} bytes", held.longest_entry);
        ensure!(
            pieces == 1 || held.cut_align >= cap as u64,
            "{what}: two entries meet at an address that is only a multiple of {}",
            held.cut_align
        );
        across_cuts(&nic, &memory, (start, len), &mr, cap, rng).with_context(|| what.clone())?;
        mr.dereg()?;
    }
    emit("cap", &serde_json::json!({"limit": setting.limit, "cap": cap, "sg_entries": rows}));
    Ok(())
}

/// Moves both ends of a registration, a little across each cut, and all of it if that is not too much; the neighbours
/// stay as they are.
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
    for part in cuts.chain(ends).chain(all) {
        let part = part.start.max(start)..part.end.min(end);
        if part.is_empty() {
            continue;
        }
        let guard = part.start.saturating_sub(PAGE)..(part.end + PAGE).min(size);
        let mut wanted = pattern(rng, guard.len());
        memory.write(guard.start as u64, &wanted)?;
        let bytes = pattern(rng, part.len());
        let host = nic.reg(bytes.as_ptr() as u64, bytes.len())?;
        nic.link.run(Op::Write, (&host, 0), (mr, part.start - start), bytes.len())?;
        host.dereg()?;
        wanted[part.start - guard.start..part.end - guard.start].copy_from_slice(&bytes);
        let mut got = vec![0; guard.len()];
        memory.read(guard.start as u64, &mut got)?;
        same_bytes(&format!("{part:x?} and its neighbours"), &got, &wanted)?;
    }
    Ok(())
}
