// SPDX-License-Identifier: GPL-2.0
//! The clients, the devices and the rounds that are measured.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use nvlab::{Client, Layout, Memory};
use serde_json::{json, Value};

use crate::gpu;
use crate::lab::{self, Event};
use crate::machine::{Level, RDMA_DEVICE};
use crate::modules::{self, Pins, PEERMEM};
use crate::test::{Env, NvidiaC, Test};
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

pub(super) fn test(name: &str, level: Level, run: fn(&Env) -> Result<()>) -> Test {
    Test::new(name, level, run).nvidia_c(NvidiaC::Skip("loads both modules itself")).limit(3000)
}

/// A client, as an application meets it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// Our module with its default parameters.
    OursPersistent,
    /// Our module with `persistent_api_support=0`.
    OursRevocable,
    /// NVIDIA's module with its default parameters: revocable pins, and from driver 560 on
    /// persistent ones.
    NvMem,
    /// NVIDIA's module with revocable pins.
    NvMemRevocable,
    /// NVIDIA's second client, with persistent pins. The NIC cannot invalidate, so the core does
    /// not ask the first client.
    NvMemNc,
}

impl Variant {
    pub(super) const ALL: [Self; 4] = [Self::OursPersistent, Self::NvMem, Self::OursRevocable, Self::NvMemNc];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OursPersistent => "ours",
            Self::OursRevocable => "ours_revocable",
            Self::NvMem | Self::NvMemRevocable => "c_nv_mem",
            Self::NvMemNc => "c_nv_mem_nc",
        }
    }

    /// Loads the module that has this client, in place of any other, and registers once for what is
    /// done once per module.
    pub(super) fn load(self, machine: &Rig) -> Result<()> {
        unload()?;
        match self {
            Self::OursPersistent => drop(modules::modprobe("nvidia-peermem", &[])?),
            Self::OursRevocable => drop(modules::modprobe("nvidia-peermem", &["persistent_api_support=0"])?),
            Self::NvMem => modules::insmod_nvidia_c(Pins::AsByDefault)?,
            Self::NvMemRevocable | Self::NvMemNc => modules::insmod_nvidia_c(Pins::Revocable)?,
        }
        let without = if self == Self::NvMemNc { i32::MAX as u64 } else { 0 };
        lab::set_nic("no_invalidation", without)?;
        let memory = machine.memory(64 << 10, Layout::Contiguous)?;
        lab::clear_trace()?;
        machine.reg(memory.va(), 64 << 10).context("first registration")?.dereg()?;
        let owner = lab::last_owner()?;
        let wanted = if self == Self::NvMemNc { "nv_mem_nc" } else { "nv_mem" };
        ensure!(owner == wanted, "{}: the client {owner} answered, wanted {wanted}", self.name());
        Ok(())
    }
}

pub(super) fn unload() -> Result<()> {
    if modules::loaded(PEERMEM)? {
        modules::rmmod(PEERMEM)?;
    }
    lab::set_nic("no_invalidation", 0)
}

/// A NIC and a GPU, used without the CUDA library.
pub(super) struct Rig {
    pub(super) pd: Arc<Pd>,
    pub(super) rm: Client,
    pub(super) gpu: nvlab::Lab,
}

impl Rig {
    pub(super) fn new() -> Result<Self> {
        let gpu = gpu::lab()?;
        // Nobody looks at the bytes. Without CRCs, the whole card can be pinned.
        gpu.set("crc_max", 0)?;
        gpu.set("bar1_reserve", 0)?;
        // A production driver does not overwrite what it frees.
        gpu.set("poison", 0)?;
        Ok(Self { pd: Pd::new(&Device::open(RDMA_DEVICE)?)?, rm: Client::open()?, gpu })
    }

    pub(super) fn memory(&self, size: u64, layout: Layout) -> Result<Memory> {
        self.rm.request(0, size).layout(layout).alloc().with_context(|| format!("{size} bytes of GPU memory"))
    }

    pub(super) fn reg(&self, va: u64, len: u64) -> Result<Mr> {
        let len = usize::try_from(len)?;
        Mr::reg(&self.pd, va, len, FULL_ACCESS).with_context(|| format!("ibv_reg_mr of {len} bytes at {va:#x}"))
    }

    /// Measures one registration and deregistration.
    pub(super) fn round(&self, va: u64, len: u64) -> Result<Round> {
        lab::clear_trace()?;
        self.gpu.reset_accounting()?;
        let start = Instant::now();
        let mr = self.reg(va, len)?;
        let registered = start.elapsed();
        let start = Instant::now();
        mr.dereg()?;
        let deregistered = start.elapsed();
        let mut round = Round::of(&lab::trace()?)?;
        round.verbs = [registered, deregistered].map(|time| ns(time.as_nanos()));
        let accounting = self.gpu.accounting()?;
        round.provider = PROVIDER_NS.iter().map(|name| positive(accounting.get(name))).sum();
        round.calls = PROVIDER_CALLS.map(|names| names.iter().map(|name| positive(accounting.get(name))).sum());
        Ok(round)
    }
}

pub(super) fn ns(nanoseconds: u128) -> u64 {
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

pub(super) fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(super) const CALLBACKS: [&str; 7] =
    ["acquire", "get_pages", "dma_map", "get_page_size", "dma_unmap", "put_pages", "release"];
pub(super) const PROVIDER_NS: [&str; 4] = ["get_ns", "put_ns", "map_ns", "unmap_ns"];
pub(super) const PROVIDER_CALLS: [&[&str]; 4] =
    [&["gets", "persistent_gets"], &["puts", "persistent_puts"], &["dma_maps"], &["dma_unmaps"]];

/// The cost of one registration and deregistration. All times are in nanoseconds.
#[derive(Default)]
pub(super) struct Round {
    /// The times in the order of [`CALLBACKS`]. The core holds its mutex during the first.
    pub(super) callbacks: [u64; 7],
    /// The part of these times that is spent in the provider.
    pub(super) provider: u64,
    /// The numbers of gets, puts, mappings and unmappings.
    pub(super) calls: [u64; 4],
    pub(super) entries: u64,
    /// The times of `ibv_reg_mr` and `ibv_dereg_mr` as a whole.
    pub(super) verbs: [u64; 2],
}

impl Round {
    /// Reads the callbacks of one registration from the trace. Each must have come once and done
    /// its work.
    pub(super) fn of(trace: &[Event]) -> Result<Self> {
        let mut round = Self::default();
        let mut good = [0; CALLBACKS.len()];
        for event in trace {
            let Some(at) = CALLBACKS.iter().position(|c| *c == event.callback) else { continue };
            round.callbacks[at] += event.ns;
            good[at] += usize::from(match CALLBACKS[at] {
                "acquire" => event.ret == 1,
                "get_page_size" => event.ret > 0,
                _ => event.ret == 0,
            });
            if event.callback == "dma_map" {
                round.entries = event.nents;
            }
        }
        ensure!(good == [1; CALLBACKS.len()], "callbacks {CALLBACKS:?} came and worked {good:?} times: {trace:?}");
        Ok(round)
    }

    /// Returns the times of the callbacks, of the provider, and of the two verbs.
    pub(super) fn sample(&self) -> Value {
        let mut all = self.callbacks.to_vec();
        all.push(self.provider);
        all.extend(self.verbs);
        json!(all)
    }
}

/// The time of a provider call in addition to the stand-in's own work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    Zero,
    V100,
}

impl Cost {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::V100 => "v100",
        }
    }

    pub(super) fn set(self, gpu: &nvlab::Lab) -> Result<()> {
        gpu.reset_cost()?;
        if self == Self::V100 {
            gpu.cost_v100()?;
        }
        Ok(())
    }
}

pub(super) fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Contiguous => "contiguous",
        Layout::Broken2M => "2m",
        Layout::Broken64K => "64k",
        _ => "other",
    }
}
