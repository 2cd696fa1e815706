// SPDX-License-Identifier: GPL-2.0
//! Small buffers share a block of 2 MiB and even one 64 KiB page of the GPU (docs/facts.md#cuda). A
//! key reaches the bytes of its own buffer and no neighbour's, and the end of a neighbour does not
//! affect it. docs/safety.md says what a free does not do for a small buffer.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::common::{pattern, same_bytes, Bench, GPU_PAGE, MIB};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::machine::{Mode, SecondNic};
use crate::test::{in_modes, Env, Suite};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, Status, FULL_ACCESS};

const ALL: &[Mode] = &[Mode::Persistent, Mode::Fallback, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let tests = [
        ("every_order", every_order as fn(&Env) -> Result<()>),
        ("every_order_on_two_nics", every_order_on_two_nics),
        ("free_beside_a_neighbour", free_beside_a_neighbour),
        ("free_of_a_whole_block", free_of_a_whole_block),
    ];
    let tests = tests.into_iter().flat_map(|(name, run)| in_modes(nvidia_c, ALL, name, run));
    Suite { name: "neighbours", tests: tests.collect() }
}

/// A NIC that moves bytes of host memory.
struct Nic {
    pd: Arc<Pd>,
    /// The link, which is made when it is needed, and again after an error.
    link: Option<Loopback>,
    host: Vec<u8>,
    host_mr: Mr,
}

impl Nic {
    fn new(pd: Arc<Pd>) -> Result<Self> {
        let host = vec![0u8; GPU_PAGE];
        let host_mr = Mr::reg(&pd, host.as_ptr() as u64, host.len(), FULL_ACCESS).context("register host memory")?;
        Ok(Self { pd, link: None, host, host_mr })
    }

    fn reg(&self, memory: &DeviceMemory) -> Result<Mr> {
        Mr::reg(&self.pd, memory.va(), memory.size(), FULL_ACCESS).context("ibv_reg_mr of GPU memory")
    }

    fn attempt(&mut self, op: Op, rkey: u32, at: u64, len: usize) -> Result<Status> {
        let link = match self.link.take() {
            Some(link) => link,
            None => Loopback::new(&self.pd)?,
        };
        let status = link.attempt(op, (&self.host_mr, 0), (rkey, at), len)?;
        // After an error, the queues are useless.
        self.link = (status == Status::IBV_WC_SUCCESS).then_some(link);
        Ok(status)
    }

    fn write(&mut self, rkey: u32, at: u64, bytes: &[u8]) -> Result<Status> {
        self.host[..bytes.len()].copy_from_slice(bytes);
        self.attempt(Op::Write, rkey, at, bytes.len())
    }

    fn refused(&mut self, what: &str, rkey: u32, at: u64, len: usize) -> Result<()> {
        for op in [Op::Write, Op::Read] {
            let status = self.attempt(op, rkey, at, len)?;
            ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{what}: {op:?} of {len} bytes ends with {status:?}");
        }
        Ok(())
    }
}

/// A buffer and its registration, until each of them is released.
struct Half {
    va: u64,
    size: usize,
    memory: Option<DeviceMemory>,
    mr: Option<Mr>,
    /// The bytes that the memory must hold.
    wanted: Vec<u8>,
    nic: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Free(usize),
    Deregister(usize),
}

/// Returns each order of these steps.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![vec![]];
    }
    let with_first = |first: &Step| {
        let rest: Vec<Step> = steps.iter().copied().filter(|step| step != first).collect();
        orders(&rest).into_iter().map(|order| [vec![*first], order].concat()).collect::<Vec<_>>()
    };
    steps.iter().flat_map(with_first).collect()
}

fn every_order(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    in_every_order(env, &bench, &mut [Nic::new(Arc::clone(&bench.pd))?])
}

fn every_order_on_two_nics(env: &Env) -> Result<()> {
    let second = SecondNic::add()?;
    let bench = Bench::new()?;
    let pd = Pd::new(&Device::open(second.name())?)?;
    in_every_order(env, &bench, &mut [Nic::new(Arc::clone(&bench.pd))?, Nic::new(pd)?])
}

/// Frees and deregisters two neighbours in each order, each order on the next of the NICs.
fn in_every_order(env: &Env, bench: &Bench, nics: &mut [Nic]) -> Result<()> {
    const SIZES: [usize; 2] = [700, 1000];
    let legacy = env.mode()? == Mode::Legacy;
    let mut rng = env.rng()?;
    for order in orders(&[Step::Free(0), Step::Free(1), Step::Deregister(0), Step::Deregister(1)]) {
        let mut halves = Vec::new();
        for (i, size) in SIZES.into_iter().enumerate() {
            let (memory, nic) = (bench.cuda.alloc(size)?, i % nics.len());
            let mr = nics[nic].reg(&memory)?;
            let (va, wanted) = (memory.va(), memory.read(0, size)?);
            halves.push(Half { va, size, memory: Some(memory), mr: Some(mr), wanted, nic });
        }
        let page = |half: &Half| half.va / GPU_PAGE as u64;
        ensure!(page(&halves[0]) == page(&halves[1]), "the two buffers share no page: nothing was tested");
        look(&mut rng, nics, &mut halves, true).context("both registered")?;
        for (done, step) in order.iter().enumerate() {
            match *step {
                Step::Free(i) => halves[i].memory.take().context("freed once")?.free()?,
                Step::Deregister(i) => halves[i].mr.take().context("deregistered once")?.dereg()?,
            }
            // A revocable registration ends with the block, which is freed with its last buffer.
            let alive = !legacy || halves.iter().any(|half| half.memory.is_some());
            look(&mut rng, nics, &mut halves, alive).with_context(|| format!("after {:?}", &order[..=done]))?;
        }
        gpu::wait_clean(Duration::from_secs(10)).with_context(|| format!("after {order:?}"))?;
    }
    Ok(())
}

/// Checks that each remaining key reaches its own bytes, as long as it must be alive, and no
/// neighbour's.
fn look(rng: &mut fastrand::Rng, nics: &mut [Nic], halves: &mut [Half], alive: bool) -> Result<()> {
    for i in 0..halves.len() {
        let (va, other) = (halves[i].va, halves[1 - i].va);
        let Some(rkey) = halves[i].mr.as_ref().map(Mr::rkey) else { continue };
        let nic = &mut nics[halves[i].nic];
        let bytes = pattern(rng, halves[i].size);
        let status = nic.write(rkey, va, &bytes)?;
        let wanted = if alive { Status::IBV_WC_SUCCESS } else { Status::IBV_WC_REM_ACCESS_ERR };
        ensure!(status == wanted, "a write by the key of buffer {i} ends with {status:?}, wanted {wanted:?}");
        if status == Status::IBV_WC_SUCCESS {
            halves[i].wanted = bytes;
        }
        nic.refused("the neighbour's first byte", rkey, other, 1)?;
        nic.refused("the byte behind the buffer", rkey, va + halves[i].size as u64, 1)?;
    }
    for (i, half) in halves.iter().enumerate() {
        let Some(memory) = &half.memory else { continue };
        same_bytes(&format!("buffer {i}"), &memory.read(0, half.size)?, &half.wanted)?;
    }
    Ok(())
}

/// The free of a small buffer whose block has another user ends no registration, in any mode. The
/// old key writes into the next buffer that gets the address. Deregistering first prevents that.
fn free_beside_a_neighbour(env: &Env) -> Result<()> {
    const SIZE: usize = 4096;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let mut nic = Nic::new(Arc::clone(&bench.pd))?;
    let (small, neighbour) = (bench.cuda.alloc(SIZE)?, bench.cuda.alloc(SIZE)?);
    let (va, mr) = (small.va(), nic.reg(&small)?);
    let before = gpu::accounting()?;
    small.free()?;
    let after = gpu::accounting()?;
    for name in ["callbacks", "memory_used"] {
        ensure!(after.get(name) == before.get(name), "{name}: {} after {}", after.get(name), before.get(name));
    }
    let next = bench.cuda.alloc(SIZE)?;
    ensure!(next.va() == va, "the next buffer is at {:#x}, the freed one was at {va:#x}", next.va());
    let bytes = pattern(&mut rng, SIZE);
    let status = nic.write(mr.rkey(), va, &bytes)?;
    ensure!(status == Status::IBV_WC_SUCCESS, "a write by the old key ends with {status:?}");
    same_bytes("the next buffer", &next.read(0, SIZE)?, &bytes)?;
    let old = mr.rkey();
    mr.dereg()?;
    nic.refused("by the key of a region that is deregistered", old, va, SIZE)?;
    next.free()?;
    neighbour.free()?;
    gpu::wait_clean(Duration::from_secs(10))
}

/// A buffer that fills its block has no neighbour. Its free does what docs/safety.md says about
/// each mode.
fn free_of_a_whole_block(env: &Env) -> Result<()> {
    const SIZE: usize = 2 * MIB;
    let legacy = env.mode()? == Mode::Legacy;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let mut nic = Nic::new(Arc::clone(&bench.pd))?;
    let (small, whole) = (bench.cuda.alloc(512)?, bench.cuda.alloc(SIZE)?);
    let (small_mr, mr, va) = (nic.reg(&small)?, nic.reg(&whole)?, whole.va());
    whole.free()?;
    let bytes = pattern(&mut rng, 512);
    let status = nic.write(mr.rkey(), va, &bytes)?;
    let wanted = if legacy { Status::IBV_WC_REM_ACCESS_ERR } else { Status::IBV_WC_SUCCESS };
    ensure!(status == wanted, "a write to the freed buffer ends with {status:?}, wanted {wanted:?}");
    let next = bench.cuda.alloc(SIZE)?;
    let held = next.read(0, SIZE)?;
    nic.write(mr.rkey(), va, &bytes)?;
    same_bytes("the next buffer", &next.read(0, SIZE)?, &held)?;
    let status = nic.write(small_mr.rkey(), small.va(), &bytes)?;
    ensure!(status == Status::IBV_WC_SUCCESS, "a write to the small buffer ends with {status:?}");
    mr.dereg()?;
    small_mr.dereg()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{orders, Step};

    #[test]
    fn each_order_once() {
        let mut all = orders(&[Step::Free(0), Step::Free(1), Step::Deregister(0), Step::Deregister(1)]);
        assert_eq!(all.len(), 24);
        all.sort_by_key(|order| format!("{order:?}"));
        all.dedup();
        assert_eq!(all.len(), 24);
    }
}
