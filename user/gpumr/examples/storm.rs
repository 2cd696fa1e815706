// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Runs storms on this machine's GPUs, with the real libcuda: threads allocate, register, free and map
//! anew as fast as they can, while children are forked and the process is restored from checkpoints.
//! There is no NIC: the verbs are a ledger, which knows of each region the generation of the memory that
//! it was registered over. A lease of another generation than its thread sees is stale, and ends the
//! storm.
//!
//! `storm SECONDS THREADS SEED WORDS` (user/bench.sh builds it): WORDS are some of `plain`, `virtual`, `pool`, `fork` and
//! `checkpoint` (all of them by default), and `rough`: threads then go on while there is a checkpoint,
//! and CUDA makes them wait in whatever they call.

#[macro_use]
mod common;
#[path = "../tests/common/storm.rs"]
mod shared;

use common::{checked, Property};
use gpumr::backend::Kind as MemoryKind;
use gpumr::cuda::Cuda;
use gpumr::hooks::Hooks;
use gpumr::{Access, Cache, Gpu, Lease, Limits, Options, Policy, Range, Sweeper, Verbs, Way};
use libloading::Library;
use shared::{child, Dice};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

type Res<T> = Result<T, Box<dyn Error>>;

const SEGMENT: u64 = 2 << 20;
const SEGMENTS: u64 = 3;
/// The number of leases that a thread holds at most.
const HELD: usize = 6;
/// The time after which a storm in which nothing happens has failed.
const STUCK: Duration = Duration::from_secs(60);
const BETWEEN_CHECKPOINTS: Duration = Duration::from_secs(2);
const KINDS: [&str; 3] = ["plain", "virtual", "pool"];
const PLAIN: usize = 0;
const VIRTUAL: usize = 1;
const POOL: usize = 2;

thread_local! {
    /// Counts the regions that this thread has made.
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// Memory, from its first address to its end, and its generation.
type Piece = (u64, u64, u64);

struct Region {
    range: Range,
    memory: Vec<Piece>,
    epoch: u64,
}

/// Knows what is allocated, and of what memory the regions and the dma-bufs were made.
#[derive(Default)]
struct Ledger {
    /// It grows with each restore, and is odd during a checkpoint.
    epoch: u64,
    generation: u64,
    memory: BTreeMap<u64, Piece>,
    regions: HashMap<u32, Region>,
    /// The range of each dma-buf, its memory and its epoch.
    exports: HashMap<RawFd, (Range, Vec<Piece>, u64)>,
    /// The addresses at which something was registered.
    registered: BTreeSet<u64>,
    /// CUDA's number of the memory that was last at an address, with its epoch.
    numbers: HashMap<u64, (u64, u64)>,
    keys: u32,
}

impl Ledger {
    fn of(&self, range: &Range) -> Vec<Piece> {
        let before = self.memory.range(..range.end()).rev().map(|(_, piece)| *piece);
        before.take_while(|piece| piece.1 > range.start()).collect()
    }

    fn add(&mut self, range: Range, memory: Vec<Piece>, epoch: u64) -> u32 {
        MADE.set(MADE.get() + 1);
        self.registered.extend(memory.iter().map(|piece| piece.0));
        self.keys += 1;
        self.regions.insert(self.keys, Region { range, memory, epoch });
        self.keys
    }

    /// Checks that a region reaches exactly what the program sees there.
    fn reaches(&self, key: u32, part: Range) -> Result<(), String> {
        let region = self.regions.get(&key).ok_or(format!("STALE: region {key} is deregistered in use"))?;
        let (now, range) = (self.of(&region.range), region.range);
        if !range.contains(&part) {
            return Err(format!("STALE: region {key} of {range} does not cover {part}"));
        }
        if (region.epoch, &region.memory) != (self.epoch, &now) {
            let (was, epoch) = (&region.memory, region.epoch);
            return Err(format!("STALE: {range} was {was:x?} of epoch {epoch}, is {now:x?} of epoch {}", self.epoch));
        }
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Ledger>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verbs for Shared {
    type Pd = u8;
    type Mr = u32;

    fn register(&self, _: u8, range: Range, _: Access) -> io::Result<u32> {
        let mut ledger = self.lock();
        let (memory, epoch) = (ledger.of(&range), ledger.epoch);
        Ok(ledger.add(range, memory, epoch))
    }

    fn register_dma_buf(&self, _: u8, range: Range, offset: u64, fd: BorrowedFd<'_>, _: Access) -> io::Result<u32> {
        let mut ledger = self.lock();
        let (exported, memory, epoch) = ledger.exports.get(&fd.as_raw_fd()).ok_or(io::ErrorKind::NotFound)?;
        // A NIC would reach other memory.
        if exported.start() + offset != range.start() || !exported.contains(&range) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let within = |piece: &&Piece| piece.0 < range.end() && piece.1 > range.start();
        let (memory, epoch) = (memory.iter().filter(within).copied().collect(), *epoch);
        Ok(ledger.add(range, memory, epoch))
    }

    fn deregister(&self, key: u32) -> io::Result<()> {
        self.lock().regions.remove(&key).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn keys(&self, key: &u32) -> (u32, u32) {
        (*key, *key)
    }
}

/// libcuda, whose exports the ledger notes: a dma-buf has the memory of the time when it was made.
struct Noted(Cuda, Shared);

impl Gpu for Noted {
    fn buffer_id(&self, address: u64) -> Option<u64> {
        self.0.buffer_id(address)
    }
    fn buffer(&self, address: u64) -> Option<(u64, Range)> {
        self.0.buffer(address)
    }
    fn kind(&self, address: u64) -> MemoryKind {
        self.0.kind(address)
    }
    fn allocation(&self, address: u64) -> Option<Range> {
        self.0.allocation(address)
    }
    fn exports(&self) -> io::Result<()> {
        self.0.exports()
    }
    fn export(&self, pages: Range, range: Range) -> Result<(OwnedFd, Range), String> {
        let epoch = self.1.lock().epoch;
        let (fd, pages) = self.0.export(pages, range)?;
        let mut ledger = self.1.lock();
        let memory = ledger.of(&pages);
        ledger.exports.insert(fd.as_raw_fd(), (pages, memory, epoch));
        Ok((fd, pages))
    }
    fn epoch(&self) -> Option<u64> {
        self.0.epoch()
    }
    fn fresh_epoch(&self) -> Option<u64> {
        self.0.fresh_epoch()
    }
    fn capable(&self, address: u64) -> Option<bool> {
        self.0.capable(address)
    }
    fn pooled(&self, address: u64) -> bool {
        self.0.pooled(address)
    }
    fn device(&self, address: u64) -> i32 {
        self.0.device(address)
    }
    fn memory(&self, address: u64) -> Option<(u64, u64)> {
        self.0.memory(address)
    }
    fn words(&self, status: i32) -> String {
        self.0.words(status)
    }
}

#[derive(Default)]
struct Counts {
    allocated: AtomicU64,
    came_back: AtomicU64,
    asked: AtomicU64,
    hits: AtomicU64,
    freed_in_use: AtomicU64,
    refused: AtomicU64,
    overtaken: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn counted(counter: &AtomicU64) -> Res<()> {
    count(counter);
    Ok(())
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Holds what all threads of a storm share.
struct Storm<'a> {
    lib: &'a Library,
    /// The primary context of each GPU.
    contexts: &'a [usize],
    words: &'a str,
    cuda: &'a Cuda,
    ledger: Shared,
    cache: Cache<Noted, Shared>,
    /// Says that all frees are reported to the cache.
    hooked: bool,
    counts: [Counts; 3],
    /// A checkpoint takes this for writing, and so waits for the threads, unless it is to be rough.
    calm: RwLock<()>,
    over: AtomicBool,
    moved: &'a AtomicU64,
}

/// Memory of one thread.
struct Block {
    range: Range,
    /// The handles of virtual memory.
    handles: Vec<u64>,
}

/// One thread, with memory that it alone has, and its leases.
struct Thread<'a> {
    storm: &'a Storm<'a>,
    gpu: usize,
    dice: Dice,
    blocks: [Option<Block>; 3],
    held: Vec<(Range, Lease<Noted, Shared>)>,
}

impl Thread<'_> {
    fn enter(&self, context: usize) -> Res<()> {
        cuda!(self.storm.lib, cuCtxSetCurrent(context as *mut c_void => *mut c_void))
    }

    /// Maps new memory into a segment.
    fn map(&self, at: u64) -> Res<u64> {
        let (lib, gpu, mut handle) = (self.storm.lib, self.gpu as c_int, 0u64);
        let (property, access) = (Property::of(gpu), [1, gpu, 3]);
        let size = SEGMENT as usize;
        cuda!(lib, cuMemCreate(&mut handle => *mut u64, size => usize, &property => *const Property, 0 => u64))?;
        cuda!(lib, cuMemMap(at => u64, size => usize, 0 => usize, handle => u64, 0 => u64))?;
        cuda!(lib, cuMemSetAccess(at => u64, size => usize, access.as_ptr() => *const c_int, 1 => usize))?;
        self.note(VIRTUAL, Range::new(at, SEGMENT)?)?;
        Ok(handle)
    }

    fn unmap(&self, at: u64, handle: u64) -> Res<()> {
        self.storm.ledger.lock().memory.remove(&at);
        cuda!(self.storm.lib, cuMemUnmap(at => u64, SEGMENT as usize => usize))?;
        cuda!(self.storm.lib, cuMemRelease(handle => u64))
    }

    /// Notes new memory as a new generation.
    fn note(&self, kind: usize, range: Range) -> Res<()> {
        let (counts, at) = (&self.storm.counts[kind], range.start());
        let id = self.storm.cuda.buffer_id(at).ok_or("CUDA does not know what it has just allocated")?;
        let mut ledger = self.storm.ledger.lock();
        ledger.generation += 1;
        let (generation, epoch) = (ledger.generation, ledger.epoch);
        count(&counts.allocated);
        if ledger.registered.contains(&at) {
            count(&counts.came_back);
        }
        match ledger.numbers.get(&at) {
            Some(&(last, then)) if (last, then) == (id, epoch) => {
                return Err(format!("CUDA has used the number {id} twice at {at:#x}").into());
            }
            _ => {}
        }
        ledger.numbers.insert(at, (id, epoch));
        ledger.memory.insert(at, (at, range.end(), generation));
        Ok(())
    }

    fn allocate(&mut self, kind: usize) -> Res<()> {
        let (lib, null, mut at) = (self.storm.lib, std::ptr::null_mut::<c_void>(), 0u64);
        self.enter(self.storm.contexts[self.gpu])?;
        let size = [512, 1000, 64 << 10, 2 << 20, 6 << 20][self.dice.below(5) as usize];
        let mut block = Block { range: Range::new(1, SEGMENTS * SEGMENT)?, handles: Vec::new() };
        match kind {
            PLAIN => cuda!(lib, cuMemAlloc_v2(&mut at => *mut u64, size as usize => usize))?,
            POOL => {
                cuda!(lib, cuMemAllocAsync(&mut at => *mut u64, size as usize => usize, null => *mut c_void))?;
                cuda!(lib, cuStreamSynchronize(null => *mut c_void))?;
            }
            _ => {
                let size = block.range.length() as usize;
                cuda!(lib, cuMemAddressReserve(&mut at => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64))?;
                block.handles = (0..SEGMENTS).map(|n| self.map(at + n * SEGMENT)).collect::<Res<_>>()?;
            }
        }
        block.range = Range::new(at, if kind == VIRTUAL { block.range.length() } else { size })?;
        if kind != VIRTUAL {
            self.note(kind, block.range)?;
        }
        self.blocks[kind] = Some(block);
        Ok(())
    }

    /// Frees memory by `free`, and checks that each lease over it knows.
    fn freed(&mut self, kind: usize, range: Range, free: impl FnOnce(&Self) -> Res<()>) -> Res<()> {
        self.enter(self.storm.contexts[self.gpu])?;
        if self.storm.hooked {
            self.storm.cache.before_free(range.start(), range.length())?;
        }
        free(self)?;
        for (_, lease) in self.held.iter().filter(|(part, _)| part.overlaps(&range)) {
            count(&self.storm.counts[kind].freed_in_use);
            if lease.valid() {
                return Err(format!("STALE: a lease over {range}, which was freed, is valid").into());
            }
        }
        Ok(())
    }

    fn free(&mut self, kind: usize) -> Res<()> {
        let (lib, null) = (self.storm.lib, std::ptr::null_mut::<c_void>());
        let Some(Block { range, handles }) = self.blocks[kind].take() else { return Ok(()) };
        let at = range.start();
        // Else the pool may give the memory out again before its stream has come to the free.
        let waits = self.dice.below(2) == 0;
        self.freed(kind, range, |this| {
            if kind == VIRTUAL {
                let mut all = (0..SEGMENTS).zip(&handles);
                all.try_for_each(|(n, handle)| this.unmap(at + n * SEGMENT, *handle))?;
                return cuda!(lib, cuMemAddressFree(at => u64, range.length() as usize => usize));
            }
            this.storm.ledger.lock().memory.remove(&at);
            if kind == PLAIN {
                return cuda!(lib, cuMemFree_v2(at => u64));
            }
            cuda!(lib, cuMemFreeAsync(at => u64, null => *mut c_void))?;
            if waits {
                cuda!(lib, cuStreamSynchronize(null => *mut c_void))?;
            }
            Ok(())
        })
    }

    /// Replaces memory: that of a segment at its address, other memory by what the allocator gives out.
    fn replace(&mut self, kind: usize) -> Res<()> {
        if kind != VIRTUAL {
            self.free(kind)?;
            return self.allocate(kind);
        }
        let n = self.dice.below(SEGMENTS);
        let Some(Block { range, mut handles }) = self.blocks[kind].take() else { return Ok(()) };
        let at = range.start() + n * SEGMENT;
        let old = handles[n as usize];
        self.freed(kind, Range::new(at, SEGMENT)?, |this| this.unmap(at, old))?;
        handles[n as usize] = self.map(at)?;
        self.blocks[kind] = Some(Block { range, handles });
        Ok(())
    }

    fn register(&mut self, kind: usize, own: Range) -> Res<()> {
        let (storm, counts) = (self.storm, &self.storm.counts[kind]);
        // A thread may have any context, or none.
        let gpus = storm.contexts.len();
        let context = [0, storm.contexts[(self.gpu + 1) % gpus], storm.contexts[self.gpu]][self.dice.below(3) as usize];
        self.enter(context)?;
        let mut part = own;
        if self.dice.below(3) == 0 {
            let from = self.dice.below(own.length());
            part = Range::new(own.start() + from, 1 + self.dice.below(own.length() - from))?;
        }
        let (before, made) = (storm.ledger.lock().epoch, MADE.get());
        let pd = self.dice.below(2) as u8;
        count(&counts.asked);
        let lease = storm.cache.register(pd, part.start(), part.length(), 1);
        let restored = || before % 2 == 1 || storm.ledger.lock().epoch != before;
        let lease = match lease {
            Ok(lease) => lease,
            Err(_) if restored() => return counted(&counts.overtaken),
            // CUDA exports the first allocation of a pool only, and not each driver several segments.
            Err(gpumr::Error::Refused { .. }) if kind == POOL || kind == VIRTUAL && part.length() > SEGMENT => {
                return counted(&counts.refused)
            }
            Err(error) => return Err(format!("{} of {own}: {error}", KINDS[kind]).into()),
        };
        if MADE.get() == made {
            count(&counts.hits);
        }
        let ledger = storm.ledger.lock();
        if before % 2 == 1 || ledger.epoch != before {
            return counted(&counts.overtaken);
        }
        ledger.reaches(lease.lkey(), part)?;
        drop(ledger);
        if !lease.valid() && !restored() {
            return Err(format!("a new lease of {part} is not valid").into());
        }
        match self.dice.below(8) {
            0 => lease.revoked(),
            1..4 => self.held.push((part, lease)),
            _ => {}
        }
        if self.held.len() > HELD {
            let (part, lease) = self.held.remove(0);
            self.release(part, lease)?;
        }
        Ok(())
    }

    /// Ends a lease, whose region lives until then, whatever became of the memory.
    fn release(&self, part: Range, lease: Lease<Noted, Shared>) -> Res<()> {
        if self.storm.ledger.lock().regions.contains_key(&lease.lkey()) {
            return Ok(());
        }
        Err(format!("STALE: the region of a lease of {part} is deregistered").into())
    }

    fn step(&mut self, kind: usize) -> Res<()> {
        let cache = &self.storm.cache;
        let Some(own) = self.blocks[kind].as_ref().map(|block| block.range) else { return self.allocate(kind) };
        match self.dice.below(24) {
            0 => self.free(kind)?,
            1 | 2 => self.replace(kind)?,
            3 => cache.sweep(),
            4 => cache.before_free(own.start(), own.length())?,
            5 => drop(cache.shrink()),
            6 => cache.forget(self.dice.below(2) as u8),
            _ => self.register(kind, own)?,
        }
        Ok(())
    }

    fn run(&mut self) -> Res<()> {
        let storm = self.storm;
        let kinds: Vec<usize> = (0..KINDS.len()).filter(|kind| storm.words.contains(KINDS[*kind])).collect();
        while !storm.over.load(Ordering::Relaxed) {
            let _calm = (!storm.words.contains("rough")).then(|| storm.calm.read());
            count(storm.moved);
            let kind = kinds[self.dice.below(kinds.len() as u64) as usize];
            self.step(kind)?;
        }
        for (part, lease) in std::mem::take(&mut self.held) {
            self.release(part, lease)?;
        }
        kinds.iter().try_for_each(|kind| self.free(*kind))
    }
}

/// Checkpoints the process and restores it, if wanted while a child has its files open.
fn checkpoint(storm: &Storm<'_>, inherited: bool) -> Res<()> {
    let _all = (!storm.words.contains("rough")).then(|| storm.calm.write());
    // SAFETY: The child only waits for its end.
    let witness = if inherited { unsafe { libc::fork() } } else { -1 };
    if witness == 0 {
        // SAFETY: As above; it ends by itself if its parent does not end it.
        unsafe {
            libc::alarm(30);
            libc::pause();
            libc::_exit(0);
        }
    }
    let (lib, null) = (storm.lib, std::ptr::null_mut::<c_void>());
    // SAFETY: It may be called at any time.
    let own = unsafe { libc::getpid() };
    storm.ledger.lock().epoch += 1;
    cuda!(lib, cuCheckpointProcessLock(own => c_int, null => *mut c_void))?;
    let done = cuda!(lib, cuCheckpointProcessCheckpoint(own => c_int, null => *mut c_void));
    if done.is_ok() {
        cuda!(lib, cuCheckpointProcessRestore(own => c_int, null => *mut c_void))?;
        storm.ledger.lock().epoch += 1;
    } else {
        // All memory is as it was.
        let mut ledger = storm.ledger.lock();
        ledger.epoch -= 1;
        let epoch = ledger.epoch;
        ledger.regions.values_mut().for_each(|region| region.epoch = region.epoch.min(epoch));
        ledger.exports.values_mut().for_each(|(.., of)| *of = epoch.min(*of));
    }
    cuda!(lib, cuCheckpointProcessUnlock(own => c_int, null => *mut c_void))?;
    if witness > 0 {
        let mut status = 0;
        // SAFETY: The child that was just made; a local.
        unsafe {
            libc::kill(witness, libc::SIGKILL);
            libc::waitpid(witness, &mut status, 0);
        }
    }
    count(storm.moved);
    done
}

/// Forks and checkpoints until the time is over or a thread has failed. Returns the numbers of children
/// and of checkpoints, and why CUDA refused one.
fn weather(storm: &Storm<'_>, time: Duration) -> Res<(u64, u64, Option<String>)> {
    let (start, mut children, mut rounds, mut refused) = (Instant::now(), 0, 0, None);
    let (mut last, mut inherits) = (start, storm.words.contains("fork"));
    while start.elapsed() < time && !storm.over.load(Ordering::Relaxed) {
        if storm.words.contains("fork") {
            if !child(&storm.cache, 0) {
                return Err("a child waited, or was served".into());
            }
            children += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
        let due = last.elapsed() >= BETWEEN_CHECKPOINTS.min(time / 4);
        if due && storm.words.contains("checkpoint") && refused.is_none() {
            let inherited = inherits && rounds % 2 == 1;
            match checkpoint(storm, inherited) {
                Ok(()) => rounds += 1,
                Err(why) if !why.to_string().contains("ProcessCheckpoint") => return Err(why),
                Err(why) if inherited => {
                    println!("left out: checkpoints while a child has the files open: {why}");
                    inherits = false;
                }
                Err(why) => refused = Some(why.to_string()),
            }
            last = Instant::now();
        }
    }
    Ok((children, rounds, refused))
}

/// Runs one storm, and prints a line for each kind of memory.
fn run(name: &str, storm: &Storm<'_>, gone: &AtomicU64, time: Duration, threads: u64, seed: u64) -> Res<()> {
    let ran: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let start = |n: u64| {
            let gpu = n as usize % storm.contexts.len();
            scope.spawn(move || {
                let dice = Dice(seed * 1000 + n);
                let ran = Thread { storm, gpu, dice, blocks: [None, None, None], held: Vec::new() }.run();
                if ran.is_err() {
                    storm.over.store(true, Ordering::Relaxed);
                }
                ran.map_err(|why| format!("thread {n}: {why}"))
            })
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        let around = weather(storm, time).map_err(|why| why.to_string());
        storm.over.store(true, Ordering::Relaxed);
        let ended = started.into_iter().map(|thread| thread.join().unwrap_or(Err("a thread panicked".into())));
        let mut ran: Vec<_> = ended.collect();
        ran.push(around.map(|(children, rounds, refused)| {
            let refused = refused.map(|why| format!(", then refused ({why})")).unwrap_or_default();
            println!("{name}: {children} children, {rounds} checkpoints{refused}, {} told to holders", get(gone));
        }));
        ran
    });
    for (kind, counts) in KINDS.iter().zip(&storm.counts).filter(|(kind, _)| storm.words.contains(*kind)) {
        let (asked, hits, back) = (get(&counts.asked), get(&counts.hits), get(&counts.came_back));
        let (refused, freed) = (get(&counts.refused), get(&counts.freed_in_use));
        println!(
            "{name}, {kind}: {} allocated, {back} of them where something was registered before, {asked} \
             asked for, {hits} hits, {refused} refused, {} overtaken by a checkpoint, {freed} \
             leases whose memory was freed",
            get(&counts.allocated),
            get(&counts.overtaken),
        );
    }
    ran.into_iter().collect::<Result<(), String>>()?;
    storm.cache.sweep();
    let (left, regions) = (storm.cache.stats().entries, storm.ledger.lock().regions.len());
    if (left, regions) != (0, 0) {
        return Err(format!("LEAK: {left} entries and {regions} regions of freed memory").into());
    }
    // A storm without these proves nothing. Of a pool, CUDA may export too little for that.
    let nothing = |kind: &str, counts: &Counts| {
        let all = [&counts.came_back, &counts.hits, &counts.freed_in_use];
        let is_excused = kind == KINDS[POOL] && get(&counts.refused) > 0;
        !is_excused && all.iter().any(|counter| get(counter) == 0)
    };
    let mut kinds = KINDS.iter().zip(&storm.counts).filter(|(kind, _)| storm.words.contains(*kind));
    match kinds.find(|(kind, counts)| nothing(kind, counts)) {
        Some((kind, _)) => Err(format!("{name}, {kind}: too little happened: take more seconds").into()),
        None => Ok(()),
    }
}

/// Runs the four storms, each for a quarter of the time.
pub fn storms(lib: &Library, words: &str, seconds: f64, threads: u64, seed: u64) -> Res<()> {
    let (mut gpus, moved) = (0, Arc::new(AtomicU64::new(0)));
    cuda!(lib, cuInit(0 => u32))?;
    cuda!(lib, cuDeviceGetCount(&mut gpus => *mut c_int))?;
    let mut contexts = Vec::new();
    for gpu in 0..gpus {
        let mut context = std::ptr::null_mut::<c_void>();
        cuda!(lib, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, gpu => c_int))?;
        contexts.push(context as usize);
    }
    println!("storm: {gpus} GPUs, {threads} threads, seed {seed}, {seconds} s, {words}");
    // It ends with these storms.
    let watched = Arc::downgrade(&moved);
    std::thread::spawn(move || {
        let mut before = None;
        while let Some(now) = watched.upgrade().map(|moved| get(&moved)) {
            if before != Some(now) {
                before = Some(now);
                std::thread::sleep(STUCK);
                continue;
            }
            println!("FAIL: nothing has moved for {STUCK:?}");
            // SAFETY: It runs no handler, which might wait, too.
            unsafe { libc::_exit(1) };
        }
    });
    let cuda = Cuda::open()?;
    for (name, way, entries, hooked) in [
        ("peer memory", Way::PeerMemory, u64::MAX, false),
        ("dma-buf", Way::DmaBuf, u64::MAX, false),
        ("dma-buf, 3 entries", Way::DmaBuf, 3, false),
        ("frees reported", Way::DmaBuf, u64::MAX, true),
    ] {
        let (ledger, gone) = (Shared::default(), Arc::new(AtomicU64::new(0)));
        let mut options = Options::default();
        let told = gone.clone();
        options.on_gone = Some(Box::new(move |_| count(&told)));
        options.free_bytes = 1;
        let limits = Limits::default().with_entries(entries);
        let noted = Noted(Cuda::open()?, ledger.clone());
        let cache = Cache::with(noted, ledger.clone(), Policy::only(way), limits, options);
        let hooks = hooked.then(|| Hooks::promise(&cache));
        let sweeper = Sweeper::start(&cache, Duration::from_millis(1))?;
        let (counts, calm, over) = (Default::default(), RwLock::new(()), AtomicBool::new(false));
        let storm = Storm {
            lib,
            words,
            hooked,
            ledger,
            cache,
            counts,
            calm,
            over,
            contexts: &contexts,
            cuda: &cuda,
            moved: &moved,
        };
        run(name, &storm, &gone, Duration::from_secs_f64(seconds / 4.0), threads, seed)?;
        drop((sweeper, hooks));
        drop(storm);
        let is_dma_buf = |file: std::fs::DirEntry| {
            let path = std::fs::read_link(file.path()).ok()?;
            // "dmabuf:", or the stand-in's file.
            path.file_name()?.to_str()?.replace('-', "").starts_with("dmabuf").then_some(())
        };
        let open = std::fs::read_dir("/proc/self/fd")?.flatten().filter_map(is_dma_buf).count();
        if open > 0 {
            return Err(format!("LEAK: {open} dma-bufs are open").into());
        }
    }
    Ok(())
}

fn main() -> Res<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, or: &str| words.get(n).map_or(or, String::as_str).parse::<f64>();
    let (seconds, threads, seed) = (number(0, "20")?, number(1, "4")? as u64, number(2, "1")? as u64);
    let all = "plain,virtual,pool,fork,checkpoint";
    // SAFETY: libcuda's constructors are safe to run.
    let lib = unsafe { Library::new("libcuda.so.1")? };
    let mut words = words.get(3).map_or(all, String::as_str).to_owned();
    for (word, function) in
        [("checkpoint", "cuCheckpointProcessLock"), ("virtual", "cuMemMap"), ("pool", "cuMemAllocAsync")]
    {
        // SAFETY: It is only looked for.
        if words.contains(word) && unsafe { lib.get::<*const c_void>(function.as_bytes()) }.is_err() {
            println!("left out: {word}: libcuda has no {function}");
            words = words.replace(word, "");
        }
    }
    match storms(&lib, &words, seconds, threads, seed) {
        Ok(()) => println!("PASS"),
        Err(why) => {
            println!("FAIL: {why}");
            std::process::exit(1);
        }
    }
    Ok(())
}
