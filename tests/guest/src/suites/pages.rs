// SPDX-License-Identifier: GPL-2.0
//! Tests HCA pages: how large they are, how many there are, and that bytes pass through them. Our
//! module is compared with NVIDIA's in one boot, for each layout of the memory and each way in
//! which a range may begin.

use anyhow::{ensure, Context, Result};
use nvlab::Layout;
use serde_json::json;

use super::iommu::{kind, Iommu};
use crate::common::{pattern, same_bytes, GPU_PAGE, KIB, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::{pci_function, Generation, Level, RDMA_DEVICE};
use crate::modules::{self, Pins, PEERMEM};
use crate::test::{emit, Env, NvidiaC, Suite, Test};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, FULL_ACCESS};

pub fn suite() -> Suite {
    let mut tests = Vec::new();
    for generation in Generation::ALL {
        let name = format!("{}/never_below_nvidias", generation.name());
        let mut test = Test::new(&name, Level::Devices, never_below_nvidias);
        test = test.nvidia_c(NvidiaC::Skip("loads both modules itself"));
        test.generation = Some(generation);
        tests.push(test);
    }
    Suite { name: "pages", tests }
}

/// The size of the memory in bytes. A range ends a little before its end.
const SIZE: usize = 6 * MIB;
const LAYOUTS: [Layout; 4] = [Layout::Contiguous, Layout::Broken2M, Layout::Broken64K, Layout::Shuffled];
const OFFSETS: [usize; 4] = [0, 4 * KIB, GPU_PAGE, 2 * MIB];

/// A range (layout and offset) with the page size and the number of pages of its registration.
type Pages = (Layout, usize, u64, u64);

fn never_below_nvidias(env: &Env) -> Result<()> {
    let kind = kind(&pci_function(RDMA_DEVICE)?)?;
    modules::modprobe("nvidia-peermem", &[])?;
    let ours = every_range(&mut env.rng()?)?;
    modules::rmmod(PEERMEM)?;
    // NVIDIA's module is driver 550's. That driver maps behind an IOMMU, where later ones hand out
    // the BAR's own addresses.
    gpu::lab()?.set("dma_mode", 550)?;
    modules::insmod_nvidia_c(Pins::AsByDefault)?;
    let theirs = every_range(&mut env.rng()?)?;
    modules::rmmod(PEERMEM)?;
    let mut wrong = Vec::new();
    for (&(layout, offset, page, mtts), &(_, _, their_page, their_mtts)) in ours.iter().zip(&theirs) {
        let what = format!("{layout:?} at {offset:#x}, {kind:?}");
        emit(
            "pages",
            &json!({
                "iommu": format!("{kind:?}"), "generation": env.generation.name(), "layout": format!("{layout:?}"),
                "offset": offset, "page": page, "mtts": mtts, "c_page": their_page, "c_mtts": their_mtts,
            }),
        );
        if page < their_page || mtts > their_mtts {
            wrong.push(format!("{what}: {mtts} pages of {page}, NVIDIA's has {their_mtts} of {their_page}"));
        }
        let least = least(kind, layout, offset);
        if page < least {
            wrong.push(format!("{what}: pages of {page}, the memory allows {least}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Returns the least page size that the memory allows. An IOMMU aligns the beginning of a mapping,
/// and a mapping begins with the first GPU page. So a range that does not begin at 2 MiB in the
/// memory does not begin at 2 MiB in the mapping either.
fn least(kind: Iommu, layout: Layout, offset: usize) -> u64 {
    let large = match layout {
        Layout::Contiguous | Layout::Broken2M => {
            kind != Iommu::Translating || offset / GPU_PAGE * GPU_PAGE % (2 * MIB) == 0
        }
        _ => false,
    };
    (if large { 2 * MIB } else { GPU_PAGE }) as u64
}

/// Registers each range with the loaded module, and moves all of it in and out.
fn every_range(rng: &mut fastrand::Rng) -> Result<Vec<Pages>> {
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let link = Loopback::new(&pd)?;
    let rm = nvlab::Client::open()?;
    gpu::lab()?.set("crc_max", 0)?;
    let mut all = Vec::new();
    for layout in LAYOUTS {
        gpu::seed_layout(rng)?;
        let memory = rm.request(0, SIZE as u64).layout(layout).alloc()?;
        for offset in OFFSETS {
            let (what, len) = (format!("{layout:?} at {offset:#x}"), SIZE - offset - 4 * KIB - 1);
            let va = memory.va() + offset as u64;
            let mr = Mr::reg(&pd, va, len, FULL_ACCESS).with_context(|| format!("register {what}"))?;
            let held = lab::nic_mr(mr.lkey())?;
            let page = held.page_size;
            let mtts = (va + len as u64).div_ceil(page) - va / page;
            ensure!(held.mtts == mtts, "{what}: {} MTTs of {page} bytes, wanted {mtts}", held.mtts);
            all.push((layout, offset, page, mtts));

            let bytes = pattern(rng, len);
            let host = Mr::reg(&pd, bytes.as_ptr() as u64, len, FULL_ACCESS).context("register host memory")?;
            link.run(Op::Write, (&host, 0), (&mr, 0), len).with_context(|| what.clone())?;
            host.dereg()?;
            let mut got = vec![0; len];
            memory.read(offset as u64, &mut got)?;
            same_bytes(&what, &got, &bytes)?;
            mr.dereg()?;
        }
        memory.free()?;
    }
    Ok(all)
}
