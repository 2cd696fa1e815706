// SPDX-License-Identifier: GPL-2.0
//! Registers, moves bytes and deregisters with each parameter setting. Tests what the admin sees
//! meanwhile, which ranges and which provider tables are refused, and with which errno.

use anyhow::{bail, ensure, Context, Result};
use nvlab::Layout;

use super::callbacks::freed_while_registered;
use super::scenarios::no_key;
use crate::common::{complaints, expect_errno, page, pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB, STOP_TEST};
use crate::gpu;
use crate::helper::Helper;
use crate::kmsg::Mark;
use crate::lab;
use crate::machine::{Generation, Level, Mode};
use crate::modules::{self, PEERMEM};
use crate::peermem::{self, Stats};
use crate::test::{emit, in_modes, skip, Env, NvidiaC, Suite, Test};
use crate::verbs::{Loopback, Mr, PATIENCE};

const ALL: [Mode; 3] = [Mode::Persistent, Mode::Fallback, Mode::Legacy];
const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests =
        vec![Test::new("plain_client_moves_bytes_until_a_free", Level::Devices, plain_client_moves_bytes_until_a_free)];
    // The order is by mode, so that the module is loaded once per mode.
    for mode in ALL {
        let mut add = |modes: &[Mode], name: &str, nvidia_c_means: NvidiaC, run: fn(&Env) -> Result<()>| {
            if modes.contains(&mode) {
                tests.extend(
                    in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t: Test| t.nvidia_c(nvidia_c_means)),
                );
            }
        };
        add(&ALL, "clients_and_parameters", NvidiaC::Recorded, clients_and_parameters);
        add(&BOTH, "bytes_move", NvidiaC::Same, bytes_move);
        add(&BOTH, "use_count_keeps_rmmod_out", NvidiaC::Same, use_count_keeps_rmmod_out);
        add(&ALL, "rmmod_after_use", NvidiaC::Same, rmmod_after_use);
        add(
            &BOTH,
            "memory_peers_has_the_files_that_ucx_looks_for",
            NvidiaC::Recorded,
            memory_peers_has_the_files_that_ucx_looks_for,
        );
        add(&BOTH, "statistics_count_sg_entries", NvidiaC::Recorded, statistics_count_sg_entries);
        add(&BOTH, "layouts_of_bar1_have_the_right_bytes", NvidiaC::Recorded, layouts_of_bar1_have_the_right_bytes);
        add(&BOTH, "odd_ranges_change_their_own_bytes_only", NvidiaC::Same, odd_ranges_change_their_own_bytes_only);
        add(
            &BOTH,
            "every_offset_in_a_gpu_page_moves_the_right_bytes",
            NvidiaC::Same,
            every_offset_in_a_gpu_page_moves_the_right_bytes,
        );
        add(&BOTH, "whole_card_is_one_region", NvidiaC::Recorded, whole_card_is_one_region);
        add(&BOTH, "refused_ranges", NvidiaC::Recorded, refused_ranges);
        add(
            &BOTH,
            "leaves_allocation_and_only_persistent_pins_serve_it",
            NvidiaC::Recorded,
            leaves_allocation_and_only_persistent_pins_serve_it,
        );
        add(&BOTH, "host_memory_is_left_alone", NvidiaC::Recorded, host_memory_is_left_alone);
        add(&BOTH, "bad_tables_are_refused_and_put_back", NvidiaC::Recorded, bad_tables_are_refused_and_put_back);
        add(
            &BOTH,
            "provider_errors_reach_the_user_and_leave_nothing",
            NvidiaC::Recorded,
            provider_errors_reach_the_user_and_leave_nothing,
        );
        add(
            &[Mode::Fallback],
            "fallback_serves_where_persistent_pins_are_impossible",
            NvidiaC::Same,
            fallback_serves_where_persistent_pins_are_impossible,
        );
        tests.extend(in_modes(nvidia_c, &[mode], "mkey_fails", no_key).into_iter().map(|t| match mode {
            Mode::Persistent | Mode::Fallback => t,
            // Only what can be invalidated has a notifier to stop.
            Mode::Legacy => t.not_on(Generation::V2410, STOP_TEST).nvidia_c(NvidiaC::Skip(
                "it uses what it has freed, which may stop the machine: scenarios/no_key records it",
            )),
        }));
    }
    Suite { name: "smoke", tests }
}

/// NCCL, UCX and NVSHMEM look for exactly these names.
fn clients_and_parameters(env: &Env) -> Result<()> {
    let mode = env.mode()?;
    let version = modules::attribute(PEERMEM, "version")?;
    ensure!(!version.is_empty() && version.len() <= 14, "version {version:?}: 1 to 14 characters");
    let (persistent, clients): (_, &[&str]) = match mode {
        Mode::Persistent => ("1", &["nv_mem"]),
        Mode::Fallback => ("1", &["nv_mem", "nv_mem_nc", "nv_mem_rv"]),
        Mode::Legacy => ("0", &["nv_mem", "nv_mem_nc"]),
    };
    for (name, wanted) in [("peerdirect_support", "0"), ("persistent_api_support", persistent)] {
        let got = modules::attribute(PEERMEM, &format!("parameters/{name}"))?;
        ensure!(got == wanted, "parameters/{name} is {got:?}, wanted {wanted:?}");
    }
    let got = lab::clients()?;
    ensure!(got == clients, "the core knows {got:?}, wanted {clients:?}");
    if !env.nvidia_c {
        let stats = Stats::read()?;
        let mut told: Vec<&str> = stats.text("clients")?.split(' ').collect();
        told.sort_unstable();
        ensure!(told == clients, "stats tells of {told:?}, the core of {clients:?}");
    }
    Ok(())
}

/// With `peerdirect_support=1` and revocable pins, bytes move. For a client without the extended
/// form, the core unmaps at a revocation. It does so in the thread that frees, before the client's
/// call of invalidate returns.
fn plain_client_moves_bytes_until_a_free(env: &Env) -> Result<()> {
    let parameters = [&["peerdirect_support=1"], Mode::Legacy.parameters(env.nvidia_c)].concat();
    modules::modprobe("nvidia-peermem", &parameters)?;
    bytes_move(env)?;
    // NVIDIA's module uses what its callback gave back.
    if !env.nvidia_c {
        ensure!(
            Stats::read()?.text("core_client")? == "plain",
            "stats: core_client is {}",
            Stats::read()?.text("core_client")?
        );
        freed_while_registered(&Bench::new()?, &["invalidate", "fence", "dma_unmap", "put_pages"])?;
    }
    modules::rmmod(PEERMEM)
}

/// Checks the folder that UCX looks for, and the files of each client.
fn memory_peers_has_the_files_that_ucx_looks_for(_: &Env) -> Result<()> {
    if !lab::has_memory_peers() {
        skip("this kernel exports no mm_kobj to modules: no /sys/kernel/mm/memory_peers");
        return Ok(());
    }
    let version = modules::attribute(PEERMEM, "version")?;
    for client in lab::clients()? {
        for file in lab::CLIENT_FILES {
            let text = lab::client_file(&client, file)?;
            match file {
                "version" => ensure!(text == version, "{client}/version is {text:?}, the module's is {version:?}"),
                _ => ensure!(text.parse::<u64>().is_ok(), "{client}/{file} holds {text:?}"),
            }
        }
    }
    modules::rmmod(PEERMEM)?;
    ensure!(!lab::has_memory_peers(), "memory_peers stays, with {:?}, when the last client is gone", lab::clients()?);
    Ok(())
}

/// Writes, reads and sends between two GPU buffers. The bytes around them stay as they were.
fn bytes_move(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let size = 256 * KIB;
    let (a, a_mr) = bench.registered(size)?;
    let (b, b_mr) = bench.registered(size)?;
    for (verb, at, to, len) in [
        ("write", 0, 0, size),
        ("write", 4095, 65_537, 70_001),
        ("read", 64 * KIB, 128 * KIB, 64 * KIB),
        ("read", 1, 3, 5001),
        ("send", 8 * KIB, 12 * KIB, 100_000),
    ] {
        let source = pattern(&mut rng, size);
        let target = pattern(&mut rng, size);
        // A read takes bytes from the remote range into the local one. The other operations go the
        // other way.
        let (from, into) = if verb == "read" { (&b, &a) } else { (&a, &b) };
        from.write(0, &source)?;
        into.write(0, &target)?;
        match verb {
            "write" => link.write(1, (&a_mr, at), (&b_mr, to), len)?,
            "read" => link.read(1, (&a_mr, to), (&b_mr, at), len)?,
            _ => {
                link.recv(2, (&b_mr, to), len)?;
                link.send(1, (&a_mr, at), len)?;
            }
        }
        if verb == "send" {
            // Both ends complete on one queue, in either order.
            let (x, y) = (link.wait(PATIENCE)?, link.wait(PATIENCE)?);
            let received = [x, y].into_iter().find(|c| c.id == 2).context("no receive completion")?;
            ensure!(received.bytes as usize == len, "received {} bytes of {len}", received.bytes);
        } else {
            link.done(1)?;
        }
        let mut wanted = target;
        wanted[to..to + len].copy_from_slice(&source[at..at + len]);
        same_bytes(&format!("{verb} of {len} bytes"), &into.read(0, size)?, &wanted)?;
        same_bytes(&format!("{verb}: its source"), &from.read(0, size)?, &source)?;
    }
    // Two ranges that are wrong in the same way would not show above. Ordinary memory is never
    // wrong.
    let mut host = pattern(&mut rng, size);
    let host_mr = bench.reg(host.as_mut_ptr() as u64, size).context("register host memory")?;
    link.write(3, (&host_mr, 0), (&b_mr, 0), size)?;
    link.done(3)?;
    same_bytes("write from host memory", &b.read(0, size)?, &host)?;
    let wanted = pattern(&mut rng, size);
    a.write(0, &wanted)?;
    link.read(4, (&host_mr, 0), (&a_mr, 0), size)?;
    link.done(4)?;
    same_bytes("read into host memory", &host, &wanted)?;
    host_mr.dereg()?;
    Ok(())
}

/// lsmod counts live registrations, and rmmod is refused while there are any.
fn use_count_keeps_rmmod_out(_: &Env) -> Result<()> {
    let count = || -> Result<i32> { modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded") };
    ensure!(count()? == 0, "{} users before the first registration", count()?);
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let mut mrs: Vec<Mr> = Vec::new();
    for n in 1..=3 {
        mrs.push(bench.reg(memory.va(), MIB)?);
        ensure!(count()? == n, "{n} registrations, lsmod says {}", count()?);
    }
    let refused = modules::try_rmmod(PEERMEM)?;
    ensure!(!refused.ok, "rmmod went through with 3 live registrations");
    ensure!(refused.said.contains("in use"), "rmmod said {:?}", refused.said);
    while let Some(mr) = mrs.pop() {
        mr.dereg()?;
        let n = i32::try_from(mrs.len())?;
        ensure!(count()? == n, "{n} registrations left, lsmod says {}", count()?);
    }
    Ok(())
}

/// rmmod works after the last registration has ended, and after a revocation, too.
fn rmmod_after_use(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(MIB)?;
    if env.mode()? == Mode::Legacy {
        memory.free()?;
    }
    mr.dereg()?;
    ensure!(modules::use_count(PEERMEM)? == Some(0), "lsmod: {:?}", modules::use_count(PEERMEM)?);
    modules::rmmod(PEERMEM)
}

/// num_reg_pages is the number of sg entries: one for contiguous memory. num_dereg_pages stays 0
/// (docs/facts.md#statistics).
fn statistics_count_sg_entries(_: &Env) -> Result<()> {
    const SIZE: usize = 4 * MIB;
    let names = &lab::CLIENT_FILES[1..];
    let read = || -> Result<Vec<u64>> { names.iter().map(|n| lab::client_number("nv_mem", n)).collect() };
    let bench = Bench::new()?;
    let before = read()?;
    let (_memory, mr) = bench.registered(SIZE)?;
    mr.dereg()?;
    let after = read()?;
    let grown: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let wanted = [1, 1, 1, 0, SIZE as u64, SIZE as u64, 0];
    ensure!(grown == wanted, "{names:?} grew by {grown:?}, wanted {wanted:?}");
    Ok(())
}

/// There are as many sg entries as BAR1 has pieces of the memory, and the right bytes are behind
/// each.
fn layouts_of_bar1_have_the_right_bytes(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let rm = nvlab::Client::open()?;
    const SIZE: usize = 4 * MIB;
    let source = bench.registered(SIZE)?;
    const PAGES: usize = SIZE / GPU_PAGE;
    for (layout, one_piece, entries) in [
        (Layout::Contiguous, false, 1..=1),
        (Layout::Broken2M, false, SIZE / (2 * MIB)..=SIZE / (2 * MIB)),
        (Layout::Broken64K, false, PAGES..=PAGES),
        // Pages in a random order may be neighbours by chance, but not half of them.
        (Layout::Shuffled, false, PAGES / 2..=PAGES),
        // However the memory is split up, BAR1 may have it in one piece.
        (Layout::Shuffled, true, 1..=1),
    ] {
        let name = format!("{layout:?}{}", if one_piece { ", in one piece of BAR1" } else { "" });
        gpu::lab()?.set("bar1_contiguous", one_piece.into())?;
        gpu::seed_layout(&mut rng)?;
        let memory = rm.request(0, SIZE as u64).layout(layout).alloc()?;
        let before = lab::client_number("nv_mem", "num_reg_pages")?;
        let mr = bench.reg(memory.va(), SIZE).with_context(|| format!("register layout {name}"))?;
        let got = nic_entries(&mr)?;
        let counted = lab::client_number("nv_mem", "num_reg_pages")? - before;
        ensure!(counted == got, "layout {name}: num_reg_pages grew by {counted}, the NIC has {got} entries");
        let page = lab::nic_stat("last_page_size")?;
        emit("sg_entries", &serde_json::json!({"layout": name, "bytes": SIZE, "entries": got, "nic_page": page}));
        ensure!(entries.contains(&usize::try_from(got)?), "layout {name}: {got} sg entries, wanted {entries:?}");
        let bytes = pattern(&mut rng, SIZE);
        source.0.write(0, &bytes)?;
        link.write(1, (&source.1, 0), (&mr, 0), SIZE)?;
        link.done(1)?;
        let mut back = vec![0u8; SIZE];
        memory.read(0, &mut back)?;
        same_bytes(&name, &back, &bytes)?;
        mr.dereg()?;
        memory.free()?;
    }
    Ok(())
}

/// Returns the number of sg entries of this MR, as the NIC sees it.
fn nic_entries(mr: &Mr) -> Result<u64> {
    Ok(lab::nic_mr(mr.lkey())?.sg_entries)
}

/// Uses starts and lengths that fit no page. The bytes of the range move and no others.
fn odd_ranges_change_their_own_bytes_only(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let size = 4 * MIB;
    let (source, source_mr) = bench.registered(size)?;
    let target = bench.cuda.alloc(size)?;
    for (what, at, len) in [
        ("one byte", 0, 1),
        ("one byte, unaligned", 4095, 1),
        ("one page of the kernel", page(), page()),
        ("inside one GPU page", GPU_PAGE + 12_345, 6789),
        ("exactly one GPU page", GPU_PAGE, GPU_PAGE),
        ("across a GPU page's end", GPU_PAGE - 10, 20),
        ("across 2 MiB", 2 * MIB - 100_000, 200_001),
        ("the last byte", size - 1, 1),
        ("the last GPU page", size - GPU_PAGE, GPU_PAGE),
        ("all but one byte at each end", 1, size - 2),
    ] {
        let bytes = pattern(&mut rng, len);
        let before = pattern(&mut rng, size);
        source.write(0, &bytes)?;
        target.write(0, &before)?;
        let mr = bench.reg(target.va() + at as u64, len).with_context(|| format!("register {what}"))?;
        link.write(1, (&source_mr, 0), (&mr, 0), len)?;
        link.done(1).with_context(|| what.to_string())?;
        mr.dereg()?;
        let mut wanted = before;
        wanted[at..at + len].copy_from_slice(&bytes);
        same_bytes(what, &target.read(0, size)?, &wanted)?;
    }
    Ok(())
}

/// Begins a registration at each multiple of 4 KiB in a GPU page, inside one GPU page and across
/// several. The bytes of the range move and no others, whatever the kernel's page size is.
fn every_offset_in_a_gpu_page_moves_the_right_bytes(env: &Env) -> Result<()> {
    const STEP: usize = 4 * KIB;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let size = 6 * GPU_PAGE;
    let (source, source_mr) = bench.registered(size)?;
    for layout in [Layout::Contiguous, Layout::Shuffled] {
        gpu::seed_layout(&mut rng)?;
        let target = nvlab::Client::open()?.request(0, size as u64).layout(layout).alloc()?;
        for at in (GPU_PAGE..2 * GPU_PAGE).step_by(STEP) {
            for len in [STEP, 3 * GPU_PAGE + 1] {
                let what = format!("{layout:?}, {len} bytes at {at:#x}");
                let (bytes, mut wanted) = (pattern(&mut rng, len), pattern(&mut rng, size));
                source.write(0, &bytes)?;
                target.write(0, &wanted)?;
                let mr = bench.reg(target.va() + at as u64, len).with_context(|| format!("register {what}"))?;
                link.write(1, (&source_mr, 0), (&mr, 0), len)?;
                link.done(1).with_context(|| what.clone())?;
                mr.dereg()?;
                wanted[at..at + len].copy_from_slice(&bytes);
                let mut got = vec![0; size];
                target.read(0, &mut got)?;
                same_bytes(&what, &got, &wanted)?;
            }
        }
    }
    Ok(())
}

/// Registers all of video memory in one MR, up to the BAR's last byte.
fn whole_card_is_one_region(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let gpu = gpu::lab()?;
    let rm = nvlab::Client::open()?;
    gpu.set("bar1_reserve", 0)?;
    let all = rm.info(0)?.memory;
    // The two pages at the front are the source.
    let size = usize::try_from(all)? - 2 * MIB;
    let (source, source_mr) = bench.registered(2 * MIB)?;
    let memory = rm.alloc(0, size as u64)?;
    let mr = bench.reg(memory.va(), size).with_context(|| format!("register {size} bytes"))?;
    ensure!(nic_entries(&mr)? == 1, "{} sg entries for contiguous memory", nic_entries(&mr)?);
    let bytes = b"the card's last bytes";
    source.write(0, bytes)?;
    let at = size - bytes.len();
    link.write(1, (&source_mr, 0), (&mr, at), bytes.len())?;
    link.done(1)?;
    let mut back = vec![0u8; bytes.len()];
    memory.read(at as u64, &mut back)?;
    same_bytes("the card's end", &back, bytes)?;
    mr.dereg()?;
    memory.free()?;
    Ok(())
}

/// Tests ranges that are not ours, or that never come to us. They are refused, and that does not
/// count as a failure of ours.
fn refused_ranges(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let va = memory.va();
    let mut wrong = Vec::new();
    let mut expect = |what: &str, addr: u64, len: usize, errno: i32| -> Result<()> {
        // NVIDIA's module records none.
        let recorded = || if env.nvidia_c { Ok(None) } else { peermem::last_failure() };
        let before = recorded()?;
        let got = bench.refused(what, addr, len)?;
        wrong.extend(complaints(what, (addr, len), got, errno, None));
        ensure!(recorded()? == before, "{what}: recorded as {:?}", recorded()?);
        ensure!(gpu::pins()? == 0, "{what}: refused, but {} pins stay", gpu::pins()?);
        Ok(())
    };
    expect("length zero", va, 0, libc::EINVAL)?;
    expect("a range that wraps", va, usize::MAX - 4096, libc::EINVAL)?;
    expect("address zero", 0, 4096, libc::EFAULT)?;
    expect("an address that nobody has", 0x7000_dead_0000, 4096, libc::EFAULT)?;

    let freed = bench.cuda.alloc(2 * MIB)?;
    let gone = freed.va();
    freed.free()?;
    expect("freed memory", gone, 64 * KIB, libc::EFAULT)?;

    // Only its addresses matter, so it needs no pattern and no CRCs.
    gpu::lab()?.set("crc_max", 0)?;
    let other = Helper::start(&["hold", &(64 * MIB).to_string(), "0"])?;
    let base = u64::from_str_radix(other.said.trim_start_matches("0x"), 16).context("the helper's address")?;
    let maps = procfs::process::Process::myself()?.maps()?;
    let theirs = (0..32)
        .map(|i| base + i * 2 * MIB as u64)
        .find(|at| maps.iter().all(|m| at + GPU_PAGE as u64 <= m.address.0 || m.address.1 <= *at))
        .context("all of the helper's addresses are ours, too")?;
    expect("another process's memory", theirs, 64 * KIB, libc::EFAULT)?;
    other.finish()?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Tests ranges that begin in GPU memory and end elsewhere, or in other GPU memory. Only our
/// persistent pins serve a range that ends in other GPU memory.
fn leaves_allocation_and_only_persistent_pins_serve_it(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let mut wrong = Vec::new();
    let rm = nvlab::Client::open()?;
    let upper = rm.alloc(0, 2 << 20)?;
    // Addresses are handed out downwards, so the place below is free.
    let lower = rm.request(0, 2 << 20).at(upper.va() - (2 << 20)).alloc().context("a neighbour in address space")?;
    // Its backing is 2 MiB, so the next byte belongs to somebody else.
    let mut leaving = [
        ("a range that leaves its allocation", memory.va(), 2 * MIB + 4096),
        ("a range over two allocations", lower.va(), 4 * MIB),
    ];
    let persistent = env.mode()? == Mode::Persistent;
    let (reason, words) = match persistent {
        true => ("hole", "none that can be pinned"),
        false => ("leaves_allocation", "leaves its allocation"),
    };
    // The kernel log has one line per cause and burst: the first, which differs in each mode.
    if !persistent {
        leaving.reverse();
    }
    let mut log = Mark::now()?;
    for (i, (what, at, len)) in leaving.into_iter().enumerate() {
        if persistent && !env.nvidia_c && at == lower.va() {
            bench.reg(at, len).context(what)?.dereg()?;
            continue;
        }
        let got = bench.refused(what, at, len)?;
        wrong.extend(complaints(what, (at, len), got, libc::EINVAL, env.reason(reason)));
        ensure!(gpu::pins()? == 0, "{what}: refused, but {} pins stay", gpu::pins()?);
        if i == 0 && !env.nvidia_c {
            let said = log.since()?;
            ensure!(said.iter().any(|l| l.contains(words)), "{what}: not in the kernel log: {said:?}");
        }
    }
    lower.free()?;
    upper.free()?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Ordinary memory costs the GPU driver nothing. A bad host address costs one question and no line
/// in the log.
fn host_memory_is_left_alone(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let gpu = gpu::lab()?;
    let host = vec![1u8; MIB];
    gpu.reset_accounting()?;
    let mr = bench.reg(host.as_ptr() as u64, host.len()).context("register host memory")?;
    mr.dereg()?;
    ensure!(gpu::provider_calls()?.0 == 0, "the provider was asked about ordinary memory");

    // NVIDIA's module records none.
    let recorded = || if env.nvidia_c { Ok(None) } else { peermem::last_failure() };
    let failures = recorded()?;
    let mut log = Mark::now()?;
    let errno = bench.refused("a bad host address", 0x7000_dead_0000, 4 * KIB)?;
    expect_errno("a bad host address", errno, libc::EFAULT)?;
    let (gets, puts) = gpu::provider_calls()?;
    ensure!((gets, puts) == (1, 0), "{gets} gets and {puts} puts for memory that is not ours");
    let said: Vec<String> = log.since()?.into_iter().filter(|l| l.contains("peermem")).collect();
    ensure!(said.is_empty(), "a host address is worth no line: {said:?}");
    ensure!(recorded()? == failures, "a host address was recorded as a failure of ours");
    Ok(())
}

/// A table that cannot be trusted is refused, and the pin is put back (rule 14).
fn bad_tables_are_refused_and_put_back(env: &Env) -> Result<()> {
    const SIZE: usize = MIB;
    let bench = Bench::new()?;
    let gpu = gpu::lab()?;
    let memory = bench.cuda.alloc(SIZE)?;
    let mut wrong = Vec::new();
    for (fault, value, reason) in [
        ("table_version", 0x0003_0000, "table_version"),
        ("table_version", 0x0000_0002, "table_version"),
        // This is the provider's code for 4 KiB pages, with which the count is wrong.
        ("table_page_size", 0x100, "table_entries"),
        ("table_page_size", 2, "table_entries"),
        ("table_page_size", 7, "table_page_size"),
        ("table_short", 1, "table_entries"),
        ("table_long", 1, "table_entries"),
        ("table_misalign", 4096, "table_address"),
        ("table_null_pages", 1, "table_no_pages"),
        ("table_null_entry", 3, "table_no_pages"),
        ("table_wrap", 16, "table_address"),
    ] {
        gpu.reset_accounting()?;
        gpu.fault_n(fault, value, 1)?;
        let what = format!("{fault}={value:#x}");
        let got = bench.refused(&what, memory.va(), SIZE);
        gpu.reset_faults()?;
        match got {
            Ok(got) => wrong.extend(complaints(&what, (memory.va(), SIZE), got, libc::EIO, env.reason(reason))),
            Err(e) => wrong.push(format!("{e:#}")),
        }
        let (gets, puts) = gpu::provider_calls()?;
        if gets != puts || gpu::pins()? != 0 {
            wrong.push(format!("{what}: {gets} gets, {puts} puts, {} pins left", gpu::pins()?));
        }
    }
    // This address is outside every BAR. If the table cannot say that it is coherent memory, the
    // persistent client asks the provider.
    for version in [0x2_0000, 0x1_0002] {
        gpu.fault_n("table_outside", 1, 1)?;
        gpu.fault_n("table_version", version, 1)?;
        let what = format!("table_outside, version {version:#x}");
        let got = bench.refused(&what, memory.va(), SIZE);
        gpu.reset_faults()?;
        let (errno, reason) = match (env.mode()?, version) {
            (Mode::Persistent, 0x1_0002) => (libc::EIO, "dma_mapping"),
            _ => (libc::EOPNOTSUPP, "outside_bar"),
        };
        match got {
            Ok(got) => wrong.extend(complaints(&what, (memory.va(), SIZE), got, errno, env.reason(reason))),
            Err(e) => wrong.push(format!("{e:#}")),
        }
    }
    // A good table works after all that.
    bench.reg(memory.va(), SIZE).context("register after the faults")?.dereg()?;
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Tests what becomes of the provider's own refusals, and that nothing stays behind.
fn provider_errors_reach_the_user_and_leave_nothing(env: &Env) -> Result<()> {
    let mode = env.mode()?;
    let bench = Bench::new()?;
    let gpu = gpu::lab()?;
    let memory = bench.cuda.alloc(MIB)?;
    let fault = if mode == Mode::Persistent { "persistent_errno" } else { "get_errno" };
    let mut wrong = Vec::new();
    // ENOMEM and EIO alone prove nothing. If only the first call fails, a pin of one page shows
    // that the memory is the GPU's. If that fails, too, the memory may be anybody's, and the user
    // gets the answer for ordinary memory.
    const ALWAYS: u64 = 100;
    for (errno, times, seen, reason) in [
        (libc::EBUSY, ALWAYS, libc::EBUSY, "busy"),
        (libc::ENODEV, ALWAYS, libc::ENODEV, "no_gpu"),
        (libc::EIO, 1, libc::EIO, "provider_fault"),
        (libc::EIO, ALWAYS, libc::EFAULT, if mode == Mode::Persistent { "persistent_fault" } else { "unproven" }),
        (libc::ENOMEM, 1, libc::ENOMEM, "out_of_bar"),
        (libc::ENOMEM, ALWAYS, libc::EFAULT, "unproven"),
    ] {
        gpu.fault_n(fault, u64::try_from(errno)?, times)?;
        let what = format!("{fault}={errno}, {times} times");
        let got = bench.refused(&what, memory.va(), MIB);
        gpu.reset_faults()?;
        match got {
            Ok(got) => wrong.extend(complaints(&what, (memory.va(), MIB), got, seen, env.reason(reason))),
            Err(e) => wrong.push(format!("{e:#}")),
        }
    }
    // BAR1 is full: the start can be pinned, but the whole cannot.
    gpu.set("bar1_size", (36 << 20) + 2 * GPU_PAGE as u64)?;
    let got = bench.refused("BAR1 full", memory.va(), MIB);
    gpu.reset_config()?;
    wrong.extend(complaints("BAR1 full", (memory.va(), MIB), got?, libc::ENOMEM, env.reason("out_of_bar")));
    if gpu::pins()? != 0 {
        wrong.push(format!("{} pins left", gpu::pins()?));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// 524 is ENOTSUPP: persistent pins are impossible here, and the revocable client steps in.
fn fallback_serves_where_persistent_pins_are_impossible(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let (target, target_mr) = bench.registered(MIB)?;
    lab::clear_trace()?;
    gpu::lab()?.fault("persistent_errno", 524)?;
    let mr = bench.reg(memory.va(), MIB);
    gpu::lab()?.reset_faults()?;
    let mr = mr.context("without persistent pins")?;
    let client = lab::last_owner()?;
    ensure!(client == "nv_mem_rv", "without persistent pins the MR belongs to {client}, wanted nv_mem_rv");
    let bytes = pattern(&mut rng, MIB);
    memory.write(0, &bytes)?;
    let link = Loopback::new(&bench.pd)?;
    link.write(1, (&mr, 0), (&target_mr, 0), MIB)?;
    link.done(1)?;
    same_bytes("out of a revocable pin", &target.read(0, MIB)?, &bytes)?;
    mr.dereg()?;
    ensure!(gpu::pins()? == 1, "{} pins, wanted the other registration's", gpu::pins()?);
    target_mr.dereg()?;
    Ok(())
}
