// SPDX-License-Identifier: GPL-2.0
//! All suites, by name.

mod alarms;
mod bare;
mod bench;
mod cache;
mod callbacks;
mod closed;
mod cost;
mod demo;
mod dma_buf;
mod doctor;
mod edu;
mod end;
mod errors;
mod faults;
mod fuzz;
mod iommu;
mod loading;
mod matrix;
mod observe;
mod one_class;
mod pages;
mod pair;
mod pieces;
mod preload;
mod pyverbs;
mod reasons;
mod refusals;
pub mod scenarios;
mod smoke;
mod standins;
pub mod stop_test;
mod storm;
mod tables;
mod tool;
mod ucx;
mod unfenced;
mod unload;
mod verbs;
mod verify;

use std::io;
use std::sync::Arc;

use anyhow::{bail, ensure, Context, Result};

use crate::cmdline::Request;
use crate::cuda::{Cuda, DeviceMemory};
use crate::lab;
use crate::machine::RDMA_DEVICE;
use crate::test::Suite;
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

pub use crate::verbs::PATIENCE;

/// Everything there is, in no particular order.
pub fn all(nvidia_c: bool) -> Vec<Suite> {
    vec![
        demo::suite(nvidia_c),
        dma_buf::suite(),
        preload::suite(),
        cache::suite(),
        pair::suite(nvidia_c),
        smoke::suite(nvidia_c),
        callbacks::suite(nvidia_c),
        refusals::suite(),
        observe::suite(nvidia_c),
        reasons::suite(nvidia_c),
        cost::suite(),
        doctor::suite(),
        tool::suite(),
        verify::suite(),
        standins::suite(),
        matrix::suite(nvidia_c),
        matrix::full(nvidia_c),
        matrix::large(nvidia_c),
        verbs::suite(nvidia_c),
        errors::suite(nvidia_c),
        iommu::suite(nvidia_c),
        pages::suite(),
        pieces::suite(nvidia_c),
        tables::suite(nvidia_c),
        unfenced::suite(nvidia_c),
        faults::suite(nvidia_c),
        unload::suite(nvidia_c),
        storm::suite(nvidia_c),
        fuzz::suite(nvidia_c),
        ucx::suite(),
        pyverbs::suite(),
        scenarios::suite(nvidia_c),
        scenarios::pairwise(nvidia_c),
        loading::suite(),
        bare::suite(),
        edu::suite(),
        edu::long(),
        closed::suite(),
        alarms::suite(),
        stop_test::suite(nvidia_c),
        one_class::suite(),
        bench::suite(),
        bench::suite_threads(),
        bench::suite_profile(),
        bench::suite_ways(),
        bench::suite_free_cost(),
        bench::kernel_crates::suite(),
        end::suite(),
    ]
}

/// Does it raise alarms on purpose, for the host to judge?
pub fn raises_alarms(suite: &str) -> bool {
    [alarms::NAME, stop_test::NAME, one_class::NAME].contains(&suite)
}

/// What was asked for, in the order asked for; each boot ends with `end`, except one that raises alarms on purpose and one
/// without the lab's own stack.
pub fn chosen(request: &Request) -> Result<Vec<Suite>> {
    let mut all = all(request.nvidia_c);
    // A word that has become wrong would leave its tests out without a word.
    for word in request.values.get("only").into_iter().flat_map(|only| only.split(',')) {
        if !all.iter().any(|s| s.tests.iter().any(|t| format!("{}/{}", s.name, t.name).contains(word))) {
            bail!("guest.only={word}: no test of any suite has that in its name");
        }
    }
    let names: Vec<&str> = all.iter().map(|s| s.name).collect();
    let names = names.join(", ");
    let mut take = |name: &str| -> Result<Suite> {
        let at = all
            .iter()
            .position(|s| s.name == name)
            .with_context(|| format!("guest.run={name}: no such suite; there are {names}, and shell alone"))?;
        Ok(all.swap_remove(at))
    };
    if request.suites.is_empty() {
        bail!("guest.run= is missing on the kernel command line; suites: {names}, and shell alone");
    }
    let mut chosen = request.suites.iter().map(|s| take(s)).collect::<Result<Vec<_>>>()?;
    if !chosen.iter().any(|s| raises_alarms(s.name) || ["bare", "end"].contains(&s.name)) {
        chosen.push(take("end")?);
    }
    Ok(chosen)
}

/// Why a revocable client's registration must not fail after its mapping on `Generation::V2410`.
pub const STOP_TEST: &str =
    "the core hangs: its inverted stop test makes the registering thread wait for the mapping lock that it holds";

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
/// What the provider pins by.
pub const GPU_PAGE: usize = 64 * KIB;

/// The kernel's page: 4 KiB, or on arm64 16 or 64 KiB.
pub fn page() -> usize {
    procfs::page_size() as usize
}

/// An address that no process of this machine uses for anything else.
pub const FAR: u64 = 0x1000_0000_0000;

/// One process with a NIC and a GPU: what most tests start from.
pub struct Bench {
    pub pd: Arc<Pd>,
    pub cuda: Arc<Cuda>,
}

impl Bench {
    pub fn new() -> Result<Self> {
        let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
        Ok(Self { pd, cuda: Cuda::open()? })
    }

    /// GPU memory, registered whole.
    pub fn registered(&self, size: usize) -> Result<(DeviceMemory, Mr)> {
        let memory = self.cuda.alloc(size)?;
        let mr = self.reg(memory.va(), size).context("ibv_reg_mr of GPU memory")?;
        Ok((memory, mr))
    }

    pub fn reg(&self, addr: u64, len: usize) -> io::Result<Mr> {
        Mr::reg(&self.pd, addr, len, FULL_ACCESS)
    }

    /// The errno of a registration that must fail.
    pub fn refused(&self, what: &str, addr: u64, len: usize) -> Result<i32> {
        match self.reg(addr, len) {
            Ok(_) => bail!("{what}: ibv_reg_mr({addr:#x}, {len}) succeeded"),
            Err(e) => e.raw_os_error().with_context(|| format!("{what}: {e}")),
        }
    }
}

/// Random bytes, never the same twice in a test.
pub fn pattern(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    rng.fill(&mut bytes);
    bytes
}

/// Says where two buffers differ instead of printing both.
pub fn same_bytes(what: &str, got: &[u8], wanted: &[u8]) -> Result<()> {
    ensure!(got.len() == wanted.len(), "{what}: {} bytes, wanted {}", got.len(), wanted.len());
    if let Some(at) = got.iter().zip(wanted).position(|(a, b)| a != b) {
        let wrong = got.iter().zip(wanted).filter(|(a, b)| a != b).count();
        bail!(
            "{what}: {wrong} of {} bytes differ, the first at {at:#x}: {:#04x}, wanted {:#04x}",
            got.len(),
            got[at],
            wanted[at]
        );
    }
    Ok(())
}

/// An errno by its name, for messages.
pub fn errno_name(errno: i32) -> String {
    format!("{:?}", nix::errno::Errno::from_raw(errno))
}

/// What does not hold of a refusal that has just happened: its errno, and the reason that the module recorded for it.
pub fn complaints(what: &str, (va, len): (u64, usize), got: i32, errno: i32, reason: Option<&str>) -> Vec<String> {
    let mut wrong: Vec<String> = expect_errno(what, got, errno).err().map(|e| format!("{e:#}")).into_iter().collect();
    let Some(reason) = reason else { return wrong };
    let wanted = (std::process::id(), va, len as u64, errno, reason);
    match lab::last_failure() {
        Ok(Some(f)) if (f.pid, f.va, f.length, f.errno, f.reason.as_str()) == wanted => {}
        other => wrong.push(format!("{what}: recorded as {other:?}, wanted {wanted:?}")),
    }
    wrong
}

/// The errno wanted, with both names if it is another.
pub fn expect_errno(what: &str, got: i32, wanted: i32) -> Result<()> {
    ensure!(got == wanted, "{what}: {}, wanted {}", errno_name(got), errno_name(wanted));
    Ok(())
}
