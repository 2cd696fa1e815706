// SPDX-License-Identifier: GPL-2.0
//! Tests what may prevent a registration: limits, devices, platforms. Each refusal has its errno
//! and, if it is ours, a recorded reason. The suite `smoke` tests bad ranges and the provider's own
//! errors.

use anyhow::{ensure, Context, Result};
use nvlab::Memory;

use super::scenarios::beside::Beside;
use crate::common::{complaints, expect_errno, page, pattern, same_bytes, Bench, GPU_PAGE, MIB};
use crate::gpu;
use crate::helper::Helper;
use crate::lab;
use crate::machine::{Level, Mode, OtherRxe};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::{in_modes, Env, NvidiaC, Suite, Test};
use crate::verbs::{Loopback, Mr, Op};

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in BOTH {
        for (name, means, run) in [
            ("memlock_counts_gpu_memory", NvidiaC::Same, memlock_counts_gpu_memory as fn(&Env) -> Result<()>),
            ("bar1_full", NvidiaC::Recorded, bar1_full),
            (
                "coherent_memory_is_served_persistently_or_refused",
                NvidiaC::Recorded,
                coherent_memory_is_served_persistently_or_refused,
            ),
            ("coherent_in_a_bar", NvidiaC::Recorded, coherent_in_a_bar),
            ("no_dma_device_no_registration", NvidiaC::Recorded, no_dma_device_no_registration),
            ("not_pci_nics_reach_bars_alone", NvidiaC::Recorded, not_pci_nics_reach_bars_alone),
            (
                "gpu_unbound_waits_but_not_for_us",
                NvidiaC::Skip("it shows what the driver does"),
                gpu_unbound_waits_but_not_for_us,
            ),
        ] {
            tests.extend(in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t| t.nvidia_c(means)));
        }
    }
    tests.extend(
        in_modes(nvidia_c, &[Mode::Legacy], "forgotten_pin_ends_with_its_memory", forgotten_pin_ends_with_its_memory)
            .into_iter()
            .map(|t| t.nvidia_c(NvidiaC::Recorded)),
    );
    tests
        .push(Test::new("topology_is_asked_once_per_pair", Level::Devices, topology_is_asked_once_per_pair).nvidia_c(
            NvidiaC::Skip("asks at each registration; that it is asked once per pair is what ours promises"),
        ));
    Suite { name: "errors", tests }
}

fn judged(wrong: Vec<String>) -> Result<()> {
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The core counts pages of GPU memory against RLIMIT_MEMLOCK like any others, and does not ask the
/// client once the limit is exceeded.
fn memlock_counts_gpu_memory(env: &Env) -> Result<()> {
    const PAGES: usize = 6;
    let recorded = || if env.nvidia_c { Ok(None) } else { peermem::last_failure() };
    let before = recorded()?;
    lab::clear_trace()?;
    let user = Helper::start(&["memlock", &(PAGES * page()).to_string()])?;
    let wanted = format!("{PAGES} {} 0", libc::ENOMEM);
    ensure!(
        user.said == wanted,
        "pages registered, errno of the next, errno after one was let go: {:?}, wanted {wanted:?}",
        user.said
    );
    let asked = lab::trace()?.iter().filter(|e| e.callback == "acquire").count();
    ensure!(asked == PAGES + 1, "the client was asked {asked} times, wanted {}: not beyond the limit", PAGES + 1);
    ensure!(recorded()? == before, "recorded as {:?}, but it never came to us", recorded()?);
    user.finish()
}

/// Unbinding a GPU removes it from the driver's list and then waits for its users. A persistent pin
/// is put, but its reference to the GPU cannot be found any more, so the unbind waits for ever.
/// Nothing of ours waits with it. Without persistent pins, the unbind ends when the last memory is
/// freed.
fn gpu_unbound_waits_but_not_for_us(env: &Env) -> Result<()> {
    let persistent = env.mode()? == Mode::Persistent;
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(MIB)?;
    let pci = gpu::pci_address(&nvlab::Client::open()?, 0)?;
    let unbind = Beside::start({
        let pci = pci.clone();
        move || std::fs::write("/sys/bus/pci/drivers/nvidia/unbind", pci).context("unbind")
    });
    unbind.waits("the unbind beside a registration")?;
    let again = bench.reg(memory.va(), MIB);
    ensure!(again.is_err() == persistent, "registered while the GPU is unbound: {:?}", again.err());
    drop(again);
    mr.dereg()?;
    ensure!(gpu::pins()? == 0, "{} pins after the deregistration", gpu::pins()?);
    unbind.waits("the unbind beside memory")?;
    memory.free()?;
    drop(bench);
    if persistent {
        unbind.waits("the unbind after the last memory")?;
        gpu::lab()?.end_unbind()?;
    }
    unbind.finish("the unbind")?;
    std::fs::write("/sys/bus/pci/drivers/nvidia/bind", pci).context("bind")?;
    let bench = Bench::new()?;
    let (_memory, mr) = bench.registered(MIB)?;
    Ok(mr.dereg()?)
}

/// The provider pins the range, has no memory for the GPU's number then, and forgets the pin. The
/// registration fails, and the pin stays until its memory is freed, without a callback and without
/// anything of the module.
fn forgotten_pin_ends_with_its_memory(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    gpu::lab()?.fault_n("get_nomem", 3, 1)?;
    let errno = bench.refused("no memory for the GPU's number", memory.va(), MIB)?;
    expect_errno("no memory for the GPU's number", errno, libc::ENOMEM)?;
    let users = modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded")?;
    ensure!(gpu::pins()? <= 1 && users == 0, "{} pins and {users} users of the module", gpu::pins()?);
    bench.reg(memory.va(), MIB)?.dereg()?;
    memory.free()?;
    let after = gpu::accounting()?;
    let left = ["live_pins", "bar1_used", "callbacks"].map(|name| after.get(name));
    ensure!(left == [0, 0, 0], "pins, bytes in BAR1, callbacks after the free: {left:?}");
    Ok(())
}

/// BAR1 holds less than the memory. What does not fit is refused until something else is released.
fn bar1_full(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    // BAR1 has 256 MiB, of which the provider keeps 36.
    let (large, small) = (bench.cuda.alloc(200 * MIB)?, bench.cuda.alloc(40 * MIB)?);
    let first = bench.reg(large.va(), 200 * MIB)?;
    let got = bench.refused("BAR1 full", small.va(), 40 * MIB)?;
    judged(complaints("BAR1 full", (small.va(), 40 * MIB), got, libc::ENOMEM, env.reason("out_of_bar")))?;
    ensure!(gpu::pins()? == 1, "{} pins, wanted the first registration's", gpu::pins()?);
    first.dereg()?;
    bench.reg(small.va(), 40 * MIB).context("after the other was deregistered")?.dereg()?;
    Ok(())
}

/// Memory is outside every BAR, as on Grace-Hopper. It makes no difference what the provider's
/// table calls it.
fn coherent_memory_is_served_persistently_or_refused(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let gpu = gpu::lab()?;
    let rm = nvlab::Client::open()?;
    for version in [0x2_0000, 0x1_0002] {
        match gpu.set("table_version", version) {
            // NVIDIA's own front makes tables of version 1 alone.
            Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => continue,
            set => set?,
        }
        let memory = rm.request(0, 2 * MIB as u64).coherent(true).alloc()?;
        let what = format!("coherent memory, table version {version:#x}");
        if env.mode()? == Mode::Legacy {
            let got = bench.refused(&what, memory.va(), MIB)?;
            judged(complaints(&what, (memory.va(), MIB), got, libc::EOPNOTSUPP, env.reason("outside_bar")))?;
            ensure!(gpu::pins()? == 0, "{what}: {} pins stay", gpu::pins()?);
            continue;
        }
        let (at, len) = (GPU_PAGE + 4097, MIB);
        gpu.reset_accounting()?;
        let mr = bench.reg(memory.va() + at as u64, len).with_context(|| what.clone())?;
        let accounting = gpu.accounting()?;
        let counts = ["dma_maps", "live_mappings", "live_persistent"].map(|n| accounting.get(n));
        ensure!(counts == [1, 1, 1], "{what}: maps, mappings, pins: {counts:?}, wanted one of each, by the provider");
        moves(&bench, &mut rng, &mr, &memory, (at, len)).with_context(|| what.clone())?;
        mr.dereg()?;
        ensure!(
            gpu.accounting()?.get("live_mappings") == 0,
            "{what}: the provider's mapping outlived the registration"
        );
        // The provider cannot map page 3 of the memory.
        gpu.fault("map_partial", 4)?;
        let got = bench.refused(&what, memory.va(), MIB);
        gpu.reset_faults()?;
        judged(complaints(&what, (memory.va(), MIB), got?, libc::EIO, Some("dma_mapping")))?;
        // The memory is freed while it is registered. It stays until the deregistration.
        let mr = bench.reg(memory.va(), MIB)?;
        memory.free()?;
        ensure!(gpu::pins()? == 1, "{what}: {} pins after the free", gpu::pins()?);
        mr.dereg()?;
        ensure!(gpu::pins()? == 0, "{what}: {} pins left", gpu::pins()?);
    }
    Ok(())
}

/// Coherent memory may be in a BAR, as in a virtual machine. It is RAM to the kernel all the same.
/// The provider maps it if the table says what it is, and nobody else does.
fn coherent_in_a_bar(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let gpu = gpu::lab()?;
    gpu.set("coherent", 2)?;
    let memory = nvlab::Client::open()?.alloc(0, 2 * MIB as u64)?;
    if env.mode()? == Mode::Legacy {
        let got = bench.refused("coherent memory in a BAR", memory.va(), MIB)?;
        judged(complaints("in a BAR", (memory.va(), MIB), got, libc::EOPNOTSUPP, env.reason("outside_bar")))?;
        ensure!(gpu::pins()? == 0, "{} pins stay", gpu::pins()?);
        return Ok(());
    }
    let (at, len) = (GPU_PAGE + 4097, MIB);
    let mr = bench.reg(memory.va() + at as u64, len)?;
    let accounting = gpu.accounting()?;
    let counts = ["live_mappings", "live_persistent"].map(|n| accounting.get(n));
    ensure!(counts == [1, 1], "mappings and pins: {counts:?}, wanted one of each, by the provider");
    moves(&bench, &mut rng, &mr, &memory, (at, len))?;
    mr.dereg()?;
    ensure!(gpu.accounting()?.get("live_mappings") == 0, "the provider's mapping outlived the registration");
    Ok(())
}

/// Writes random bytes by the NIC into the registration that lies at `at`, and checks that they
/// change and no others.
fn moves(bench: &Bench, rng: &mut fastrand::Rng, mr: &Mr, memory: &Memory, (at, len): (usize, usize)) -> Result<()> {
    let link = Loopback::new(&bench.pd)?;
    let bytes = pattern(rng, len);
    let host = bench.reg(bytes.as_ptr() as u64, len).context("register host memory")?;
    let mut wanted = pattern(rng, usize::try_from(memory.size())?);
    memory.write(0, &wanted)?;
    link.run(Op::Write, (&host, 0), (mr, 0), len)?;
    wanted[at..at + len].copy_from_slice(&bytes);
    let mut got = vec![0; wanted.len()];
    memory.read(0, &mut got)?;
    host.dereg()?;
    same_bytes("the memory", &got, &wanted)
}

/// A software device has no DMA device.
fn no_dma_device_no_registration(env: &Env) -> Result<()> {
    let _rxe = OtherRxe::load(&["peer_dma_device=none"])?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let got = bench.refused("no DMA device", memory.va(), MIB)?;
    judged(complaints("no DMA device", (memory.va(), MIB), got, libc::ENODEV, env.reason("no_device")))?;
    ensure!(gpu::pins()? == 0, "{} pins stay", gpu::pins()?);
    let host = vec![0u8; MIB];
    bench.reg(host.as_ptr() as u64, MIB).context("ordinary memory of the same device")?.dereg()?;
    Ok(())
}

/// The NIC is not a PCI device. A BAR is mapped for it as for any other, and only what the provider
/// would have to map is refused.
fn not_pci_nics_reach_bars_alone(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let _rxe = OtherRxe::load(&["peer_dma_device=platform"])?;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    let memory = rm.alloc(0, MIB as u64)?;
    let mr = bench.reg(memory.va(), MIB)?;
    moves(&bench, &mut rng, &mr, &memory, (0, MIB))?;
    mr.dereg()?;
    let outside = rm.request(0, MIB as u64).coherent(true).alloc()?;
    let got = bench.refused("coherent memory", outside.va(), MIB)?;
    let why = if env.mode()? == Mode::Legacy { "outside_bar" } else { "not_pci" };
    judged(complaints("coherent memory", (outside.va(), MIB), got, libc::EOPNOTSUPP, env.reason(why)))?;
    ensure!(gpu::pins()? == 0, "{} pins stay", gpu::pins()?);
    Ok(())
}

/// The provider does not let this GPU and NIC talk to each other. The module asks once per pair,
/// with a persistent pin, and remembers the answer until it is unloaded.
fn topology_is_asked_once_per_pair(env: &Env) -> Result<()> {
    let gpu = gpu::lab()?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let asked = || -> Result<i64> { Ok(gpu::accounting()?.get("dma_maps")) };

    modules::modprobe("nvidia-peermem", Mode::Persistent.parameters(env.nvidia_c))?;
    gpu.fault_n("map_topology", 1, 1)?;
    for what in ["the first registration", "the second"] {
        let got = bench.refused(what, memory.va(), MIB)?;
        judged(complaints(what, (memory.va(), MIB), got, libc::EOPNOTSUPP, Some("topology")))?;
        ensure!(asked()? == 1, "{what}: the provider was asked {} times", asked()?);
    }
    ensure!(gpu::pins()? == 0, "{} pins stay", gpu::pins()?);
    modules::rmmod(PEERMEM)?;

    // The pair is supported now, as a module that is loaded anew finds out.
    gpu.reset_faults()?;
    gpu.reset_accounting()?;
    modules::modprobe("nvidia-peermem", Mode::Persistent.parameters(env.nvidia_c))?;
    for _ in 0..2 {
        bench.reg(memory.va(), MIB).context("supported")?.dereg()?;
    }
    ensure!(asked()? == 1, "supported: the provider was asked {} times", asked()?);
    // Every GPU is locked in the meantime.
    let pages = gpu::accounting()?.get("mapped_pages");
    ensure!(pages == 1, "supported: it was asked with {pages} pages");
    modules::rmmod(PEERMEM)?;

    // The module must not ask the provider with a revocable pin, which may be gone by then.
    gpu.reset_accounting()?;
    gpu.fault("map_topology", 1)?;
    modules::modprobe("nvidia-peermem", Mode::Legacy.parameters(env.nvidia_c))?;
    let mr = bench.reg(memory.va(), MIB);
    gpu.reset_faults()?;
    mr.context("revocable")?.dereg()?;
    ensure!(asked()? == 0, "revocable: the provider was asked {} times", asked()?);
    modules::rmmod(PEERMEM)
}
