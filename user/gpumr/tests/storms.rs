// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Runs storms: threads register, free, map anew and sweep as fast as they can, while children are
//! forked and the process is restored from checkpoints. No lease reaches other memory than its
//! thread sees.

#[path = "common/storm.rs"]
mod storm;
#[path = "common/world.rs"]
mod world;

fn step() {}

use gpumr::{Cache, Limits, Options, Policy, Range, Sweeper, Way};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::RwLock;
use std::time::{Duration, Instant};
use storm::{child, Dice};
use world::{World, PAGE};

const THREADS: u64 = 4;
/// The least duration of a storm, and its least number of registrations.
const STORM: (Duration, u64) = (Duration::from_millis(700), 2000);

#[derive(Default)]
struct Storm {
    /// A thread that changes all memory takes this for writing, and so waits for the others.
    calm: RwLock<()>,
    over: AtomicBool,
    registered: AtomicU64,
}

/// Runs one thread, with memory that it alone has.
fn weather(world: &World, cache: &Cache<World, World>, storm: &Storm, seed: u64) {
    let mut dice = Dice(seed);
    let mut block: Option<Range> = None;
    while !storm.over.load(Ordering::Relaxed) {
        let _calm = storm.calm.read().unwrap();
        let Some(own) = block else {
            block = world.allocate_on((seed % 2) as usize, 1 + dice.below(3));
            continue;
        };
        match dice.below(12) {
            0 => {
                world.free(own);
                block = None;
            }
            // Virtual memory, and pools: the same address has other memory at once.
            1 => world.remap(own),
            2 => cache.sweep(),
            3 => cache.before_free(own.start(), own.length()).unwrap(),
            4 => drop(cache.shrink()),
            5 => cache.forget((seed % 2) as u8),
            _ => {
                let from = dice.below(PAGE);
                let part = Range::new(own.start() + from, own.length() - from).unwrap();
                let pd = dice.below(2) as u8;
                let lease = cache.register(pd, part.start(), part.length(), 1).expect("it is allocated");
                world.reaches(lease.lkey(), part).unwrap_or_else(|what| panic!("STALE: {what}"));
                assert!(lease.valid(), "nobody freed it");
                storm.registered.fetch_add(1, Ordering::Relaxed);
                if dice.below(4) == 0 {
                    lease.revoked();
                }
            }
        }
    }
    block.into_iter().for_each(|own| world.free(own));
}

#[test]
fn no_lease_is_stale_in_a_storm() {
    for (way, entries) in [(Way::PeerMemory, u64::MAX), (Way::DmaBuf, u64::MAX), (Way::DmaBuf, 3)] {
        let world = World::default();
        let mut options = Options::default();
        // With this function, the cache takes more paths.
        options.on_gone = Some(Box::new(|_| {}));
        options.free_bytes = 1;
        let limits = Limits::default().with_entries(entries);
        let cache = Cache::with(world.clone(), world.clone(), Policy::only(way), limits, options);
        let sweeper = Sweeper::start(&cache, Duration::from_millis(1)).unwrap();
        let storm = Storm::default();
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                let (world, cache, storm) = (&world, &cache, &storm);
                scope.spawn(move || {
                    // A thread that fails ends the storm.
                    let ran = catch_unwind(AssertUnwindSafe(|| weather(world, cache, storm, seed)));
                    storm.over.store(true, Ordering::Relaxed);
                    ran.unwrap_or_else(|why| resume_unwind(why));
                });
            }
            let start = Instant::now();
            let enough = || start.elapsed() >= STORM.0 && storm.registered.load(Ordering::Relaxed) >= STORM.1;
            while !enough() && !storm.over.load(Ordering::Relaxed) {
                assert!(child(&cache, 0), "the child waited, or was served");
                std::thread::sleep(Duration::from_millis(3));
                let _all = storm.calm.write();
                world.checkpoint();
            }
            storm.over.store(true, Ordering::Relaxed);
        });
        drop(sweeper);
        cache.sweep();
        assert_eq!((world.regions(), cache.stats().entries), (0, 0), "LEAK: all memory is freed");
        drop(cache);
        assert_eq!(world.exports().1, 0, "LEAK: dma-bufs are open");
    }
}
