// SPDX-License-Identifier: GPL-2.0
//! Tests the registration cache (`user/gpumr`) on a NIC. Threads register, free, allocate again at
//! the same address and move bytes. Each byte lands in the buffer that the program means, or the
//! operation fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use gpumr::hooks::Hooks;
use gpumr::ibverbs::{self, IbVerbs};
use gpumr::{Error, Limits, Policy, Sweeper, Way};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{fork, ForkResult};
use serde_json::json;

use crate::common::{expect_errno, pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB};
use crate::cuda::{Cuda, DeviceMemory, Segments};
use crate::gpu;
use crate::helper::Helper;
use crate::machine::{Level, Mode, SecondNic};
use crate::test::{emit, skip, Env, NvidiaC, Suite, Test};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, Status, FULL_ACCESS};

type Cache = gpumr::Cache<gpumr::cuda::Cuda, IbVerbs>;
type Lease = gpumr::Lease<gpumr::cuda::Cuda, IbVerbs>;

const THREADS: usize = 4;
/// The number of steps of each thread, unless `guest.cached=` says otherwise.
const STEPS: usize = 60;
/// The largest number of rounds of all threads. They end earlier when everything has been done that
/// a storm is for.
const MOST_ROUNDS: usize = 20;
/// The largest number of buffers of a thread, apart from one of several segments.
const BUFFERS: usize = 3;
/// The largest number of bytes of one transfer.
const MOST: usize = 16 * KIB;
const SEGMENT: usize = 2 * MIB;
const SWEEP: Duration = Duration::from_millis(50);

pub fn suite() -> Suite {
    type Run = fn(&Env) -> Result<()>;
    let unseen: Run = |env| storm(env, Policy::automatic, Frees::Unseen);
    let with_hooks: Run = |env| storm(env, Policy::automatic, Frees::Reported);
    let mainline = [
        ("storm", unseen),
        ("storm_with_hooks", with_hooks),
        ("replaced_memory", replaced_memory),
        ("thread_without_context", thread_without_context),
        ("memory_of_another_gpu", memory_of_another_gpu),
        ("removed_nic", removed_nic),
        ("wrong_input", wrong_input),
    ];
    let persistent = [
        ("storm", unseen),
        ("storm_by_dma_buf", |env| storm(env, || Policy::only(Way::DmaBuf), Frees::Unseen)),
        ("replaced_memory", replaced_memory),
        ("thread_without_context", thread_without_context),
        ("memory_of_another_gpu", memory_of_another_gpu),
        ("removed_nic", removed_nic),
        ("wrong_input", wrong_input),
        ("bar1_full", bar1_full),
    ];
    let legacy = [
        ("replaced_memory", replaced_memory as Run),
        ("wrong_input", wrong_input),
        ("bar1_full", bar1_full),
        ("memory_of_another_gpu", memory_of_another_gpu),
        ("storm", unseen),
        ("storm_with_hooks", with_hooks),
    ];
    let means = NvidiaC::Skip("the cache comes with ours");
    let mut tests = Vec::new();
    for (place, level, list) in [
        ("mainline", Level::Mainline, &mainline[..]),
        ("persistent", Level::Peermem(Mode::Persistent), &persistent),
        ("legacy", Level::Peermem(Mode::Legacy), &legacy),
    ] {
        for (name, run) in list {
            let test = Test::new(&format!("{place}/{name}"), level, *run).nvidia_c(means);
            // A long storm needs a time limit of its own.
            tests.push(test.limit(48 * 3600));
        }
    }
    Suite { name: "cache", tests }
}

/// Returns the protection domain for the cache. Before it is freed, the cache must forget it.
fn domain(pd: &Pd) -> ibverbs::Pd {
    // SAFETY: Each test's cache goes before its domain.
    unsafe { ibverbs::Pd::new(pd.raw()) }
}

/// The way in which the cache learns of frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frees {
    /// The cache asks CUDA, and sweeps.
    Unseen,
    /// Hooks report frees.
    Reported,
}

fn storm(env: &Env, policy: fn() -> Policy, frees: Frees) -> Result<()> {
    let steps = env.number("cached", STEPS)?;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let gpus = gpus(&bench)?;
    let limits = Limits::default().with_entries(6);
    let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, policy(), limits);
    println!("{}", cache.reason());
    let hooks = (frees == Frees::Reported).then(|| Hooks::promise(&cache));
    let sweeper = if hooks.is_none() { Some(Sweeper::start(&cache, SWEEP)?) } else { None };
    let begin = Instant::now();
    let mut all = Counts::new();
    // Random steps may leave something out.
    for round in 1.. {
        let seeds = [(); THREADS].map(|()| rng.u64(..));
        let counts: Vec<Counts> = thread::scope(|scope| {
            let run = |seed| {
                let (bench, gpus, cache) = (&bench, &gpus, &cache);
                scope.spawn(move || Worker::run(bench, gpus, cache, frees, seed, steps))
            };
            let threads = seeds.map(run);
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_>>()
        })?;
        for (name, count) in counts.into_iter().flatten() {
            *all.entry(name).or_default() += count;
        }
        let Some(missing) = missing(&all, gpus.len(), &cache.stats(), frees) else { break };
        ensure!(round < MOST_ROUNDS, "no {missing} in {round} rounds: nothing was tested");
    }
    let lost = gpu::accounting()?.get("leaked_tables");
    if lost > 0 {
        ensure!(env.mode == Some(Mode::Legacy), "the provider lost {lost} tables of persistent pins");
        // The memory was freed between two steps of the provider's get, which then forgets the
        // table.
        println!("the provider lost {lost} tables by its own bug");
        gpu::lab()?.forget_leaked()?;
    }
    // Everything is freed while the cache still exists. The sweep must release everything, unless
    // hooks have.
    let wait = Duration::from_secs(if frees == Frees::Reported { 1 } else { 10 });
    let end = Instant::now() + wait;
    gpu::wait_clean(wait).context("freed memory stays registered")?;
    // A revoked pin is gone at once, but its registration waits for the sweep all the same.
    while cache.stats().entries > 0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    let stats = cache.stats();
    drop((sweeper, hooks));
    cache.forget(domain(&bench.pd));
    println!("{all:?} in {:.1?}; {stats:?}", begin.elapsed());
    emit("cached", &json!({ "mode": env.mode.map(Mode::name), "counts": all, "seconds": begin.elapsed().as_secs() }));
    ensure!((stats.entries, stats.lost) == (0, 0), "{stats:?}");
    Ok(())
}

/// Returns the contexts of all GPUs. That of the bench is the first.
fn gpus(bench: &Bench) -> Result<Vec<Arc<Cuda>>> {
    let mut gpus = vec![Arc::clone(&bench.cuda)];
    for gpu in 1..nvlab::Client::open()?.info(0)?.gpus {
        gpus.push(Cuda::open_on(gpu.try_into()?)?);
    }
    Ok(gpus)
}

/// Makes memory in the context of this GPU, and leaves the context of another GPU current, where there is another. CUDA
/// gives no bounds of memory of another GPU than the current context's.
fn allocate_on<T>(gpus: &[Arc<Cuda>], gpu: usize, make: impl FnOnce(&Arc<Cuda>) -> Result<T>) -> Result<T> {
    gpus[gpu].attach()?;
    let memory = make(&gpus[gpu]);
    gpus[(gpu + 1) % gpus.len()].attach()?;
    memory
}

/// Returns what a storm has not done yet. Without it, the storm would test nothing.
fn missing(all: &Counts, gpus: usize, stats: &gpumr::Stats, frees: Frees) -> Option<&'static str> {
    let mut names = vec!["moved", "same address", "remapped", "freed under a lease", "forked"];
    if gpus > 1 {
        names.push("same address on another GPU");
    }
    let gone = match frees {
        Frees::Unseen => {
            // Nobody can report a free in time that runs beside a registration.
            names.push("freed while it is registered");
            ("stale", stats.stale)
        }
        Frees::Reported => ("freed", stats.freed),
    };
    let counts = names.into_iter().map(|name| (name, all.get(name).copied().unwrap_or(0)));
    let mut counts = counts.chain([("hits", stats.hits), ("evicted", stats.evicted), gone]);
    counts.find(|(_, count)| *count == 0).map(|(name, _)| name)
}

/// Tests a case that other caches get wrong (user/gpumr/tests/known_wrong.rs). A buffer is
/// registered and its memory is replaced at the same address. What the NIC then writes must be in
/// the new memory.
fn replaced_memory(env: &Env) -> Result<()> {
    const N: usize = 3 * KIB;
    let bench = Bench::new()?;
    let gpus = gpus(&bench)?;
    let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, Policy::automatic(), Limits::default());
    let mut worker = Worker::new(&bench, &gpus, &cache, Frees::Unseen, env.rng()?.u64(..))?;
    let len = 64 * KIB;
    worker.allocate(Some(len))?;
    let mut tries = 0;
    let came_back = if gpus.len() > 1 { "same address on another GPU" } else { "same address" };
    // Other memory of this process may take its place in the meantime.
    while !worker.counts.contains_key(came_back) {
        tries += 1;
        ensure!(tries < MOST_ROUNDS as u64, "the address did not come back, {tries} times");
        for _ in 0..2 {
            worker.exchange(0, (0, len), (0, N))?;
        }
        worker.replace(0)?;
    }
    let before = cache.stats();
    worker.exchange(0, (0, len), (0, N)).context("as in NCCL: the address is given out again")?;
    let after = cache.stats();
    // Every second exchange was a hit, and this one must not be.
    let counts = (before.hits, after.hits, after.stale - before.stale);
    ensure!(counts == (tries, tries, 1), "{before:?}, {after:?}");
    let len = 3 * SEGMENT;
    for gpu in 0..gpus.len() {
        worker.buffers.clear();
        cache.sweep();
        let before = cache.stats().stale;
        worker.hold(gpu, len, |cuda| Ok(Memory::Several(cuda.segments(SEGMENT, len)?)))?;
        for (what, at) in
            [("as in libfabric: the end is replaced", 2), ("the middle is replaced", 1), ("the beginning is", 0)]
        {
            worker.exchange(0, (0, len), (at * SEGMENT, N))?;
            let Buffer { memory: Memory::Several(segments), wanted, .. } = &mut worker.buffers[0] else {
                bail!("segments")
            };
            replace_segment(segments, wanted, at * SEGMENT)?;
            worker.exchange(0, (0, len), (at * SEGMENT, N)).context(what)?;
        }
        ensure!(cache.stats().stale == before + 3, "{:?}", cache.stats());
    }
    // Nobody reports this free, and nobody registers again, as in UCX where no hook sees a free.
    // The sweep must find it.
    worker.buffers.clear();
    cache.sweep();
    ensure!(cache.stats().entries == 0, "freed memory stays registered: {:?}", cache.stats());
    drop(worker);
    gpu::wait_clean(Duration::from_secs(10))
}

/// One of two NICs goes, with a lease on it and with a registration that nobody uses. The other
/// NIC's registrations are unaffected.
fn removed_nic(env: &Env) -> Result<()> {
    const N: usize = 3 * KIB;
    let second = SecondNic::add()?;
    let bench = Bench::new()?;
    let gpus = gpus(&bench)?;
    let pd = Pd::new(&Device::open(second.name())?)?;
    let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, Policy::automatic(), Limits::default());
    let mut worker = Worker::new(&bench, &gpus, &cache, Frees::Unseen, env.rng()?.u64(..))?;
    for gpu in [gpus.len() - 1, 0] {
        worker.hold(gpu, 64 * KIB, |cuda| Ok(Memory::One(cuda.alloc(64 * KIB)?)))?;
    }
    let [va, other] = [0, 1].map(|i| worker.buffers[i].memory.va());
    let held = cache.register(domain(&pd), va, 64 * KIB as u64, FULL_ACCESS)?;
    drop(cache.register(domain(&pd), other, 64 * KIB as u64, FULL_ACCESS)?);
    worker.exchange(0, (0, 64 * KIB), (0, N))?;
    drop(second);
    ensure!(!Path::new("/dev/infiniband/uverbs1").exists(), "the second NIC is still there");
    held.revoked();
    cache.forget(domain(&pd));
    // rdma-core reports success if the kernel has already deregistered it.
    ensure!((cache.stats().entries, cache.stats().lost) == (1, 0), "{:?}", cache.stats());
    worker.exchange(0, (0, 64 * KIB), (N, N)).context("by the NIC that is left")?;
    ensure!(cache.stats().hits == 1, "{:?}", cache.stats());
    drop(worker);
    cache.sweep();
    ensure!(cache.stats().entries == 0, "{:?}", cache.stats());
    gpu::wait_clean(Duration::from_secs(10))
}

/// A thread that only talks to NICs has no CUDA context. Without one, CUDA gives no address range
/// and makes no dma-buf.
fn thread_without_context(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, Policy::automatic(), Limits::default());
    let gpus = gpus(&bench)?;
    let make = |gpu| allocate_on(&gpus, gpu, |cuda| Ok((cuda.alloc(SEGMENT)?, cuda.segments(SEGMENT, 2 * SEGMENT)?)));
    let memory = (0..gpus.len()).map(make).collect::<Result<Vec<_>>>()?;
    let (cache, pd) = (&cache, domain(&bench.pd));
    for (at, len) in memory.iter().flat_map(|(one, several)| [(one.va(), SEGMENT), (several.va(), 2 * SEGMENT)]) {
        let register = move || cache.register(pd, at, len as u64, FULL_ACCESS).map(drop);
        thread::scope(|scope| scope.spawn(register).join().expect("no panic"))?;
    }
    ensure!(cache.stats().entries == 2 * gpus.len() as u64, "{:?}", cache.stats());
    cache.forget(pd);
    drop(memory);
    gpu::wait_clean(Duration::from_secs(10))
}

/// Memory of the second GPU is registered by each way, and again after it was freed and allocated, while a context of
/// another GPU is current.
fn memory_of_another_gpu(env: &Env) -> Result<()> {
    const N: usize = 3 * KIB;
    let bench = Bench::new()?;
    let gpus = gpus(&bench)?;
    if gpus.len() == 1 {
        skip("this machine has one GPU");
        return Ok(());
    }
    let seed = env.rng()?.u64(..);
    for policy in [Policy::automatic(), Policy::only(Way::DmaBuf)] {
        let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, policy, Limits::default());
        let mut worker = Worker::new(&bench, &gpus, &cache, Frees::Unseen, seed)?;
        for virtual_memory in [false, true] {
            for _ in 0..2 {
                worker.hold(1, 2 * SEGMENT, |cuda| {
                    Ok(if virtual_memory {
                        Memory::Several(cuda.segments(SEGMENT, 2 * SEGMENT)?)
                    } else {
                        Memory::One(cuda.alloc(2 * SEGMENT)?)
                    })
                })?;
                let what = format!("{}, virtual memory: {virtual_memory}", cache.reason());
                for at in [0, SEGMENT - N / 2] {
                    worker.exchange(0, (0, 2 * SEGMENT), (at, N)).with_context(|| what.clone())?;
                }
                worker.buffers.clear();
            }
        }
        let stats = cache.stats();
        ensure!((stats.misses, stats.hits) == (4, 4), "{stats:?}");
        cache.sweep();
        ensure!(cache.stats().entries == 0, "freed memory stays registered: {:?}", cache.stats());
    }
    gpu::wait_clean(Duration::from_secs(10))
}

/// Each wrong input gets its errno and its cause in words, and nothing stays pinned, mapped or
/// exported.
fn wrong_input(_: &Env) -> Result<()> {
    const SAYS_UNKNOWN: &str = "is no memory that CUDA knows: freed, of another process, or plain host memory";
    let bench = Bench::new()?;
    let gpus = gpus(&bench)?;
    let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, Policy::automatic(), Limits::default());
    let refused = |what: &str, at: u64, len: u64, errno: i32, says: &str| -> Result<()> {
        let error = match cache.register(domain(&bench.pd), at, len, FULL_ACCESS) {
            Ok(lease) => bail!("{what}: registered, by {:?}", lease.way()),
            Err(error) => error,
        };
        expect_errno(what, error.errno(), errno)?;
        ensure!(error.to_string().contains(says), "{what}: {error}");
        let after = gpu::accounting()?;
        let left = ["live_pins", "live_persistent", "live_mappings", "live_dma_bufs", "bar1_used"];
        ensure!(left.iter().all(|name| after.get(name) == 0), "{what}: {after:?}");
        Ok(())
    };
    // This comes before this process has memory of its own at that address.
    let other = Helper::start(&["hold", "65536", "0"])?;
    let theirs = u64::from_str_radix(other.said.trim_start_matches("0x"), 16).context("the helper's address")?;
    refused("another process's", theirs, 4096, libc::EFAULT, SAYS_UNKNOWN)?;
    other.finish()?;
    let host = vec![0u8; 4096];
    refused("host memory", host.as_ptr() as u64, 4096, libc::EFAULT, SAYS_UNKNOWN)?;
    for gpu in 0..gpus.len() {
        let memory = allocate_on(&gpus, gpu, |cuda| cuda.alloc(SEGMENT))?;
        let va = memory.va();
        refused("of no length", va, 0, libc::EINVAL, "has no bytes: pass a length above 0")?;
        refused("an end that wraps", va, u64::MAX, libc::EINVAL, "pass the end of the address space")?;
        let beyond = format!("leave allocated memory at {:#x}", va + SEGMENT as u64);
        refused("beyond the end", va, SEGMENT as u64 + 1, libc::EFAULT, &beyond)?;
        memory.free()?;
        refused("freed", va, 4096, libc::EFAULT, SAYS_UNKNOWN)?;
        let segments = allocate_on(&gpus, gpu, |cuda| {
            let mut segments = cuda.reserve(3 * SEGMENT)?;
            segments.map(0, SEGMENT, true)?;
            segments.map(2 * SEGMENT, SEGMENT, true)?;
            Ok(segments)
        })?;
        let hole = format!("leave allocated memory at {:#x}", segments.va() + SEGMENT as u64);
        refused("over a hole", segments.va(), 3 * SEGMENT as u64, libc::EFAULT, &hole)?;
        drop(segments);
        let locked = allocate_on(&gpus, gpu, |cuda| cuda.page_locked(4096))?;
        refused("page-locked host memory", locked, 4096, libc::EFAULT, "is host memory: use ibv_reg_mr()")?;
        let managed = allocate_on(&gpus, gpu, |cuda| cuda.managed(4096))?;
        refused("managed memory", managed, 4096, libc::EFAULT, "is managed memory, which moves: use cudaMalloc()")?;
    }
    let stats = cache.stats();
    ensure!((stats.entries, stats.bytes, stats.bar1_bytes) == (0, 0, 0), "{stats:?}");
    gpu::wait_clean(Duration::from_secs(10))
}

/// Unused registrations make room in BAR1, both where there is room for one page, which the module
/// reports as ENOMEM, and where there is none, which it reports as EFAULT.
fn bar1_full(_: &Env) -> Result<()> {
    const LEN: usize = 2 * GPU_PAGE;
    let bench = Bench::new()?;
    let gpus = gpus(&bench)?;
    for (gpu, (room, errno)) in
        (0..gpus.len()).flat_map(|gpu| [(4, libc::EFAULT), (5, libc::ENOMEM)].map(|case| (gpu, case)))
    {
        let make = |_| allocate_on(&gpus, gpu, |cuda| cuda.alloc(SEGMENT));
        let memory = (0..3).map(make).collect::<Result<Vec<_>>>()?;
        let policy = Policy::only(Way::PeerMemory);
        let cache = Cache::new(gpumr::cuda::Cuda::open()?, IbVerbs::open()?, policy, Limits::default());
        let register = |at: u64| cache.register(domain(&bench.pd), at, LEN as u64, FULL_ACCESS);
        // The driver's own part comes in addition.
        gpu::lab()?.set("bar1_size", 36 * MIB as u64 + room * GPU_PAGE as u64)?;
        let held = register(memory[0].va())?;
        drop(register(memory[1].va())?);
        let plain = Mr::reg(&bench.pd, memory[2].va(), LEN, FULL_ACCESS);
        expect_errno("the plain call", plain.err().and_then(|e| e.raw_os_error()).unwrap_or(0), errno)?;
        let what = format!("{room} pages of BAR1 of GPU {gpu}");
        drop(register(memory[2].va()).with_context(|| what.clone())?);
        let stats = cache.stats();
        ensure!((stats.evicted, stats.retried, stats.entries) == (1, 1, 2), "{what}: {stats:?}");
        drop((held, cache, memory));
        gpu::lab()?.reset_config()?;
        gpu::wait_clean(Duration::from_secs(10))?;
    }
    Ok(())
}

type Counts = BTreeMap<&'static str, u64>;

enum Memory {
    One(DeviceMemory),
    Several(Segments),
}

impl Memory {
    fn va(&self) -> u64 {
        match self {
            Self::One(memory) => memory.va(),
            Self::Several(segments) => segments.va(),
        }
    }

    fn read(&self, len: usize) -> Result<Vec<u8>> {
        match self {
            Self::One(memory) => memory.read(0, len),
            Self::Several(segments) => segments.read(0, len),
        }
    }
}

struct Buffer {
    memory: Memory,
    /// The number of the GPU in [`Worker::gpus`].
    gpu: usize,
    /// The bytes that it must hold.
    wanted: Vec<u8>,
}

impl Buffer {
    fn new(memory: Memory, gpu: usize, len: usize) -> Result<Self> {
        Ok(Self { wanted: memory.read(len)?, memory, gpu })
    }

    fn check(&self) -> Result<()> {
        let what = format!("the buffer at {:#x}", self.memory.va());
        same_bytes(&what, &self.memory.read(self.wanted.len())?, &self.wanted)
    }
}

/// Replaces the memory at this offset of the segments, and fills it.
fn replace_segment(segments: &mut Segments, wanted: &mut [u8], at: usize) -> Result<()> {
    segments.unmap(at)?;
    segments.map(at, SEGMENT, true)?;
    wanted[at..at + SEGMENT].copy_from_slice(&segments.read(at, SEGMENT)?);
    Ok(())
}

/// One thread with buffers of its own.
struct Worker<'a> {
    rng: fastrand::Rng,
    /// The contexts in which it allocates.
    gpus: &'a [Arc<Cuda>],
    cache: &'a Cache,
    frees: Frees,
    pd: &'a Arc<Pd>,
    /// The link, which is made when it is needed, and again after an error.
    link: Option<Loopback>,
    host: Vec<u8>,
    host_mr: Mr,
    buffers: Vec<Buffer>,
    counts: Counts,
}

impl<'a> Worker<'a> {
    fn new(bench: &'a Bench, gpus: &'a [Arc<Cuda>], cache: &'a Cache, frees: Frees, seed: u64) -> Result<Self> {
        bench.cuda.attach()?;
        let host = vec![0u8; MOST];
        let host_mr = bench.reg(host.as_ptr() as u64, MOST).context("register host memory")?;
        let rng = fastrand::Rng::with_seed(seed);
        let (link, buffers, counts) = Default::default();
        Ok(Self { rng, gpus, cache, frees, pd: &bench.pd, link, host, host_mr, buffers, counts })
    }

    fn run(
        bench: &'a Bench,
        gpus: &'a [Arc<Cuda>],
        cache: &'a Cache,
        frees: Frees,
        seed: u64,
        steps: usize,
    ) -> Result<Counts> {
        let mut this = Self::new(bench, gpus, cache, frees, seed)?;
        for step in 0..steps {
            this.step().with_context(|| format!("step {step} of the thread with seed {seed}"))?;
        }
        for buffer in std::mem::take(&mut this.buffers) {
            buffer.check()?;
            this.free(buffer)?;
        }
        Ok(this.counts)
    }

    fn free(&self, old: Buffer) -> Result<()> {
        self.report(old.memory.va(), old.wanted.len())?;
        drop(old);
        Ok(())
    }

    /// Reports that this memory is about to be freed.
    fn report(&self, at: u64, len: usize) -> Result<()> {
        if self.frees == Frees::Reported {
            self.cache.before_free(at, len as u64)?;
        }
        Ok(())
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn step(&mut self) -> Result<()> {
        if self.buffers.is_empty() {
            return self.allocate(None);
        }
        let which = self.rng.usize(..self.buffers.len());
        match self.rng.u32(..100) {
            0..15 if self.buffers.len() < BUFFERS => self.allocate(None),
            0..30 => self.replace(which),
            30..45 if self.buffers.len() <= BUFFERS => self.remap(),
            45..55 => self.free_under_a_lease(which),
            55..65 if self.frees == Frees::Unseen => self.free_while_it_is_registered(which),
            65..70 => self.fork(which),
            _ => self.transfer(which),
        }
    }

    /// Allocates a buffer of this length, or of a random one, on some GPU.
    fn allocate(&mut self, len: Option<usize>) -> Result<()> {
        let len = len.unwrap_or_else(|| self.rng.usize(1..=512 * KIB));
        let gpu = self.rng.usize(..self.gpus.len());
        self.hold(gpu, len, |cuda| Ok(Memory::One(cuda.alloc(len)?)))
    }

    /// Makes a buffer on this GPU. The context of another GPU is current afterwards.
    fn hold(&mut self, gpu: usize, len: usize, make: impl FnOnce(&Arc<Cuda>) -> Result<Memory>) -> Result<()> {
        let memory = allocate_on(self.gpus, gpu, make)?;
        self.buffers.push(Buffer::new(memory, gpu, len)?);
        Ok(())
    }

    fn register(&self, at: u64, len: usize) -> Result<Lease, Error> {
        self.cache.register(domain(self.pd), at, len as u64, FULL_ACCESS)
    }

    /// Moves bytes of all of the buffer, or of a part that a larger registration may cover.
    fn transfer(&mut self, which: usize) -> Result<()> {
        let len = self.buffers[which].wanted.len();
        let at = if self.rng.bool() { 0 } else { self.rng.usize(..len) };
        let room = if at == 0 { len } else { self.rng.usize(1..=len - at) };
        let n = self.rng.usize(1..=room.min(MOST));
        let to = at + self.rng.usize(..=room - n);
        self.exchange(which, (at, room), (to, n))
    }

    /// Moves new bytes by the NIC to `n` bytes at `to` of a buffer, and back, through a
    /// registration of `room` bytes at `at`.
    fn exchange(&mut self, which: usize, (at, room): (usize, usize), (to, n): (usize, usize)) -> Result<()> {
        let va = self.buffers[which].memory.va();
        let lease = self.register(va + at as u64, room)?;
        let status = self.write(&lease, va + to as u64, n)?;
        ensure!(status == Status::IBV_WC_SUCCESS, "a write to live memory ends with {status:?}");
        let buffer = &mut self.buffers[which];
        buffer.wanted[to..to + n].copy_from_slice(&self.host[..n]);
        buffer.check()?;
        self.host[..n].fill(0);
        self.rdma(Op::Read, &lease, va + to as u64, n)?;
        same_bytes("read back by the NIC", &self.host[..n], &self.buffers[which].wanted[to..to + n])?;
        self.count("moved");
        Ok(())
    }

    /// Writes new bytes to this address, with the lease's key.
    fn write(&mut self, lease: &Lease, to: u64, n: usize) -> Result<Status> {
        let bytes = pattern(&mut self.rng, n);
        self.host[..n].copy_from_slice(&bytes);
        self.rdma(Op::Write, lease, to, n)
    }

    fn rdma(&mut self, op: Op, lease: &Lease, at: u64, n: usize) -> Result<Status> {
        if self.link.is_none() {
            self.link = Some(Loopback::new(self.pd)?);
        }
        let link = self.link.as_ref().context("just made")?;
        let status = link.attempt(op, (&self.host_mr, 0), (lease.rkey(), at), n)?;
        if status != Status::IBV_WC_SUCCESS {
            // The queues are in the error state now.
            self.link = None;
        }
        Ok(status)
    }

    /// Frees a buffer and allocates as much again, usually at the same address.
    fn replace(&mut self, which: usize) -> Result<()> {
        let old = self.buffers.swap_remove(which);
        old.check()?;
        let (va, len, gpu) = (old.memory.va(), old.wanted.len(), old.gpu);
        self.free(old)?;
        self.allocate(Some(len.min(512 * KIB)))?;
        self.came_back(va, gpu);
        Ok(())
    }

    /// Counts if the newest buffer is where another was, which was on this GPU.
    fn came_back(&mut self, va: u64, gpu: usize) {
        let Some(new) = self.buffers.last().filter(|new| new.memory.va() == va) else { return };
        let other = new.gpu != gpu;
        self.count("same address");
        if other {
            self.count("same address on another GPU");
        }
    }

    /// Replaces the memory in one segment of a buffer that has several.
    fn remap(&mut self) -> Result<()> {
        let several = |buffer: &Buffer| matches!(buffer.memory, Memory::Several(_));
        let Some(which) = self.buffers.iter().position(several) else {
            let gpu = self.rng.usize(..self.gpus.len());
            return self.hold(gpu, 2 * SEGMENT, |cuda| Ok(Memory::Several(cuda.segments(SEGMENT, 2 * SEGMENT)?)));
        };
        let buffer = &self.buffers[which];
        buffer.check()?;
        let at = SEGMENT * self.rng.usize(..2);
        self.report(buffer.memory.va() + at as u64, SEGMENT)?;
        let buffer = &mut self.buffers[which];
        if let Memory::Several(segments) = &mut buffer.memory {
            replace_segment(segments, &mut buffer.wanted, at)?;
        }
        self.count("remapped");
        self.transfer(which)
    }

    /// Frees a buffer under a lease. What the NIC writes afterwards must not land in anybody's
    /// buffer, provided that no other buffer shares its memory.
    fn free_under_a_lease(&mut self, which: usize) -> Result<()> {
        let mut old = self.buffers.swap_remove(which);
        if let Memory::One(_) = old.memory {
            old.check()?;
            self.free(old)?;
            self.allocate(Some(SEGMENT))?;
            old = self.buffers.pop().context("just allocated")?;
        }
        let (va, len, gpu) = (old.memory.va(), old.wanted.len(), old.gpu);
        let lease = self.register(va, len)?;
        self.free(old)?;
        self.allocate(Some(len.min(512 * KIB)))?;
        self.came_back(va, gpu);
        if self.write(&lease, va, len.min(MOST))? == Status::IBV_WC_SUCCESS {
            drop(lease);
        } else {
            lease.revoked();
        }
        self.count("freed under a lease");
        self.buffers.iter().try_for_each(Buffer::check)
    }

    fn free_while_it_is_registered(&mut self, which: usize) -> Result<()> {
        let old = self.buffers.swap_remove(which);
        let (va, len) = (old.memory.va(), old.wanted.len());
        let registered = thread::scope(|scope| {
            scope.spawn(move || drop(old));
            self.register(va, len).map(drop)
        });
        self.count("freed while it is registered");
        match registered {
            Ok(()) | Err(Error::Unknown { .. } | Error::Changed { .. } | Error::Refused { .. }) => Ok(()),
            Err(other) => bail!("memory that is being freed: {other}"),
        }
    }

    /// Checks that a child is refused, and that what its parent registered still serves the parent.
    fn fork(&mut self, which: usize) -> Result<()> {
        let (va, len) = (self.buffers[which].memory.va(), self.buffers[which].wanted.len());
        let lease = self.register(va, len)?;
        // SAFETY: The child takes no lock, which another thread may have held: `register()` and the
        // end of a lease look first whether this is a child. It ends without unwinding.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => {
                let refused = matches!(self.register(va, len), Err(Error::Forked));
                drop(lease);
                // SAFETY: It ends the child at once; nothing of the parent's is flushed or dropped.
                unsafe { libc::_exit(i32::from(!refused)) }
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None).context("wait for the child")?;
                ensure!(matches!(ended, WaitStatus::Exited(_, 0)), "the child was not refused: {ended:?}");
            }
        }
        drop(lease);
        self.count("forked");
        self.transfer(which)
    }
}
