// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Threads that share a cache, in random and PCT orders: each registers and frees memory of its
//! own, at addresses that another had before, while others evict and sweep.

#[path = "../../gpumr/tests/common/world.rs"]
mod world;

fn step() {
    shuttle::thread::yield_now();
}

use gpumr::hooks::Hooks;
use gpumr::{Cache, Limits, Options, Policy, Range};
use shuttle::sync::{Arc, Barrier};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use world::World;

/// Runs one thread: its memory is its own from allocation to free, so each lease must reach it.
fn live(world: &World, cache: &Cache<World, World>, hooked: bool, rounds: usize) {
    for _ in 0..rounds {
        let Some(block) = world.allocate(2) else { continue };
        for _ in 0..2 {
            match cache.register(0, block.start(), block.length(), 1) {
                Ok(lease) => {
                    if let Err(what) = world.reaches(lease.lkey(), block) {
                        panic!("STALE: {what}");
                    }
                    step();
                    assert!(world.is_alive(lease.lkey()), "IN USE: deregistered under a lease");
                }
                Err(error) => assert_eq!(error.errno(), libc::ENOMEM, "{error}"),
            }
        }
        if hooked {
            cache.before_free(block.start(), block.length()).unwrap();
        }
        world.free(block);
    }
}

fn run(hooked: bool, limits: Limits, room: u64) {
    let world = World::default();
    world.limit(room);
    let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), limits);
    let hooks = hooked.then(|| Hooks::promise(&cache));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (world, cache) = (world.clone(), cache.clone());
            shuttle::thread::spawn(move || live(&world, &cache, hooked, 2))
        })
        .collect();
    cache.sweep();
    cache.forget(0);
    for thread in threads {
        thread.join().unwrap();
    }
    let left = cache.stats().entries;
    assert!(left <= limits.entries, "LIMIT: {left} entries are left");
    cache.sweep();
    assert_eq!(world.keeps_freed(&[]), 0, "LEAK: a sweep leaves freed memory");
    if hooked {
        assert_eq!(cache.stats().entries, 0, "LEAK: hooks leave freed memory");
    }
    drop((cache, hooks));
    assert_eq!(world.regions(), 0, "LEAK: regions outlive the cache");
}

fn register(world: &World, cache: &Cache<World, World>, block: Range) {
    let lease = cache.register(0, block.start(), block.length(), 1).unwrap();
    if let Err(what) = world.reaches(lease.lkey(), block) {
        panic!("STALE: {what}");
    }
}

fn search(name: &str, what: impl Fn() + Send + Sync + Clone + 'static) {
    const EXECUTIONS: usize = 4000;
    shuttle::check_random(what.clone(), EXECUTIONS);
    shuttle::check_pct(what, EXECUTIONS, 3);
    eprintln!("model: cache {name}: {} random executions, half of them PCT of depth 3", 2 * EXECUTIONS);
}

#[test]
fn each_lease_reaches_its_own_memory() {
    search("identity", || run(false, Limits::default(), 0));
}

#[test]
fn each_lease_reaches_its_own_memory_while_others_make_room() {
    search("eviction", || run(false, Limits::default().with_entries(1), 0));
}

#[test]
fn each_lease_reaches_its_own_memory_where_that_is_short() {
    search("short memory", || run(false, Limits::default(), 4));
}

#[test]
fn each_lease_reaches_its_own_memory_where_frees_are_reported() {
    search("hooks", || run(true, Limits::default(), 0));
}

/// A domain that the cache was told to forget is about to go. Nobody may deregister in it any more,
/// not even what another thread has just taken out.
#[test]
fn nothing_is_deregistered_in_a_forgotten_domain() {
    search("a forgotten domain", || {
        let world = World::default();
        let limits = Limits::default().with_entries(1);
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), limits);
        let (freed, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
        register(&world, &cache, freed);
        world.remap(freed);
        let sweeps = {
            let cache = cache.clone();
            shuttle::thread::spawn(move || cache.sweep())
        };
        let evicts = {
            let cache = cache.clone();
            shuttle::thread::spawn(move || drop(cache.register(1, other.start(), other.length(), 1).unwrap()))
        };
        cache.forget(0);
        assert!(!world.is_alive(0), "DOMAIN: deregistered in a domain that is gone");
        sweeps.join().unwrap();
        evicts.join().unwrap();
    });
}

/// CUDA restores the process from a checkpoint while a thread registers. A thread that asks
/// afterwards gets a region of the new memory, even if frees are reported.
#[test]
fn a_restored_process_gets_regions_of_its_new_memory() {
    search("a restore", || {
        for hooked in [false, true] {
            let world = World::default();
            let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
            let _hooks = hooked.then(|| Hooks::promise(&cache));
            let block = world.allocate(2).unwrap();
            if hooked {
                register(&world, &cache, block);
            }
            let restores = {
                let world = world.clone();
                shuttle::thread::spawn(move || world.checkpoint())
            };
            drop(cache.register(0, block.start(), block.length(), 1).unwrap());
            restores.join().unwrap();
            register(&world, &cache, block);
            register(&world, &cache, block);
            cache.sweep();
            assert_eq!(world.regions(), 1, "LEAK: a region of the old memory is left");
        }
    });
}

/// Two threads ask for the same memory, at once or one after the other: one region is left, and it is made once where
/// the first thread was done.
#[test]
fn two_threads_leave_one_region_of_a_buffer() {
    static MET: AtomicBool = AtomicBool::new(false);
    search("the same buffer", || {
        for in_turn in [false, true] {
            let world = World::default();
            let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
            let block = world.allocate(4).unwrap();
            let ask = || {
                let (world, cache) = (world.clone(), cache.clone());
                shuttle::thread::spawn(move || register(&world, &cache, block))
            };
            let first = ask();
            if in_turn {
                first.join().unwrap();
                ask().join().unwrap();
                assert_eq!(cache.stats().misses, 1, "the second thread found no region");
            } else {
                let second = ask();
                first.join().unwrap();
                second.join().unwrap();
                if cache.stats().misses == 2 {
                    MET.store(true, Ordering::Relaxed);
                }
            }
            assert_eq!((world.regions(), cache.stats().entries), (1, 1));
        }
    });
    assert!(MET.load(Ordering::Relaxed), "the threads never met");
}

/// One thread frees what another registered and will find again without a lock.
#[test]
fn a_free_by_another_thread_is_heard() {
    search("a free by another thread", || {
        let world = World::default();
        let limits = Limits::default().with_entries(1);
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), limits);
        let hooks = Hooks::promise(&cache);
        let (block, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
        let (registered, freed) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let user = {
            let (world, cache, registered, freed) = (world.clone(), cache.clone(), registered.clone(), freed.clone());
            shuttle::thread::spawn(move || {
                register(&world, &cache, block);
                registered.wait();
                freed.wait();
                register(&world, &cache, block);
                register(&world, &cache, block);
            })
        };
        let third = {
            let (world, cache) = (world.clone(), cache.clone());
            shuttle::thread::spawn(move || register(&world, &cache, other))
        };
        registered.wait();
        cache.before_free(block.start(), block.length()).unwrap();
        world.remap(block);
        freed.wait();
        user.join().unwrap();
        third.join().unwrap();
        assert!(cache.stats().entries <= 1, "LIMIT");
        drop((cache, hooks));
        assert_eq!(world.regions(), 0, "LEAK: regions outlive the cache");
    });
}

/// Nobody reported what was freed before hooks were promised. No hit meanwhile may trust it, and no
/// registration that was under way may be kept.
#[test]
fn a_promise_covers_no_earlier_free() {
    search("the promise", || {
        let world = World::default();
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
        let (first, second) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
        register(&world, &cache, first);
        world.remap(first);
        let threads = [
            shuttle::thread::spawn({
                let (world, cache) = (world.clone(), cache.clone());
                move || register(&world, &cache, first)
            }),
            shuttle::thread::spawn({
                let cache = cache.clone();
                // The memory was replaced meanwhile, so this may get either.
                move || drop(cache.register(0, second.start(), second.length(), 1))
            }),
        ];
        world.remap(second);
        let hooks = Hooks::promise(&cache);
        for thread in threads {
            thread.join().unwrap();
        }
        register(&world, &cache, second);
        drop(hooks);
    });
}

/// A free may be under way while another thread promises. Its earlier report counts.
#[test]
fn a_report_counts_while_another_thread_promises() {
    search("a free under way", || {
        let world = World::default();
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
        let block = world.allocate(2).unwrap();
        register(&world, &cache, block);
        let frees = shuttle::thread::spawn({
            let (world, cache) = (world.clone(), cache.clone());
            move || {
                cache.before_free(block.start(), block.length()).unwrap();
                step();
                world.remap(block);
            }
        });
        let hooks = Hooks::promise(&cache);
        frees.join().unwrap();
        register(&world, &cache, block);
        drop(hooks);
    });
}

/// A region that one thread found revoked is given to nobody, while another uses it and gives it
/// back.
#[test]
fn a_revoked_region_is_given_to_nobody() {
    search("a revocation", || {
        let world = World::default();
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
        let block = world.allocate(2).unwrap();
        let lease = || cache.register(0, block.start(), block.length(), 1).unwrap();
        let held = lease();
        let other = {
            let (world, cache) = (world.clone(), cache.clone());
            shuttle::thread::spawn(move || {
                let lease = cache.register(0, block.start(), block.length(), 1).unwrap();
                step();
                assert!(world.is_alive(lease.lkey()), "IN USE: deregistered under a lease");
            })
        };
        let key = held.lkey();
        world.revoke(key);
        held.revoked();
        assert_ne!(lease().lkey(), key, "REVOKED: given out again");
        other.join().unwrap();
        assert!(!world.is_alive(key), "LEAK: nobody ends it");
        assert_eq!((world.regions(), cache.stats().entries), (1, 1));
    });
}

/// A GPU has little memory left. Whatever threads do with one buffer and with others, each region
/// ends with its last lease.
#[test]
fn in_a_shortage_regions_end_with_their_last_lease() {
    search("a shortage", || {
        let world = World::default();
        for gpu in [0, 1] {
            world.has_memory(gpu, 1, 1 << 40);
        }
        let mut options = Options::default();
        options.free_bytes = 1000;
        let policy = Policy::by_module(true);
        let cache = Cache::with(world.clone(), world.clone(), policy, Limits::default(), options);
        let shared = world.allocate(2).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (world, cache) = (world.clone(), cache.clone());
                shuttle::thread::spawn(move || {
                    register(&world, &cache, shared);
                    live(&world, &cache, false, 1);
                    register(&world, &cache, shared);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((world.regions(), cache.stats().entries), (0, 0), "SHORTAGE: something stays registered");
    });
}

/// Two threads use one buffer and others of their own. What nobody uses stays within its limit,
/// and what somebody uses is no part of it.
#[test]
fn what_nobody_uses_stays_within_its_limit() {
    search("what nobody uses", || {
        let world = World::default();
        let mut options = Options::default();
        options.idle_bytes = 2 * 4096;
        let policy = Policy::by_module(true);
        let cache = Cache::with(world.clone(), world.clone(), policy, Limits::default(), options);
        let (shared, held) = (world.allocate(2).unwrap(), world.allocate(8).unwrap());
        let lease = cache.register(0, held.start(), held.length(), 1).unwrap();
        let threads = [false, true].map(|others| {
            let (world, cache) = (world.clone(), cache.clone());
            shuttle::thread::spawn(move || {
                for _ in 0..3 {
                    register(&world, &cache, shared);
                }
                if others {
                    let block = world.allocate(1).unwrap();
                    register(&world, &cache, block);
                    register(&world, &cache, shared);
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        let kept = cache.stats().bytes - held.length();
        assert!(0 < kept && kept <= 2 * 4096, "IDLE: {kept} bytes that nobody uses are left");
        let before = cache.stats().misses;
        register(&world, &cache, shared);
        register(&world, &cache, shared);
        assert!(cache.stats().misses <= before + 1, "IDLE: what fits is not kept");
        drop(lease);
        assert!(cache.stats().bytes <= 2 * 4096, "IDLE: what was in use is kept");
    });
}

/// A program asks for all that nobody uses while other threads use it. What they let go of later is
/// found by the next request.
#[test]
fn what_was_in_use_at_a_request_is_let_go_at_the_next() {
    search("requests", || {
        let world = World::default();
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
        let shared = world.allocate(2).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (world, cache) = (world.clone(), cache.clone());
                shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        register(&world, &cache, shared);
                    }
                })
            })
            .collect();
        cache.shrink();
        cache.shrink();
        for thread in threads {
            thread.join().unwrap();
        }
        cache.shrink();
        assert_eq!((world.regions(), cache.stats().entries), (0, 0), "KEPT: what was in use stays registered");
    });
}

/// A program frees a buffer while another thread is ending its region. It may free when the report
/// returns, so the region is gone then, whoever has deregistered it.
#[test]
fn a_report_waits_for_a_region_that_another_thread_ends() {
    search("a report beside an end", || {
        let world = World::default();
        let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
        let block = world.allocate(2).unwrap();
        register(&world, &cache, block);
        let forgets = {
            let cache = cache.clone();
            shuttle::thread::spawn(move || cache.forget(0))
        };
        cache.before_free(block.start(), block.length()).unwrap();
        assert_eq!(world.regions(), 0, "EARLY: the report returned before the region was gone");
        forgets.join().unwrap();
    });
}

/// A program asks for memory back, because it is short, while another thread is letting go of the
/// same. It is free when the call returns, whoever has deregistered it, and a registration that
/// lacked its room is made.
#[test]
fn what_another_thread_lets_go_of_is_awaited() {
    search("a shortage met", || {
        for what in ["sweep", "shrink", "register"] {
            let world = World::default();
            world.limit(2);
            let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default());
            let (freed, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
            register(&world, &cache, freed);
            world.remap(freed);
            let sweeps = {
                let cache = cache.clone();
                shuttle::thread::spawn(move || cache.sweep())
            };
            match what {
                "sweep" => cache.sweep(),
                "shrink" => drop(cache.shrink()),
                _ => drop(cache.register(0, other.start(), other.length(), 1).expect("SHORT: there is room")),
            }
            assert_eq!(world.keeps_freed(&[]), 0, "SHORT: {what} returned too early");
            sweeps.join().unwrap();
        }
    });
}

/// A program asks for all that nobody uses, or lacks memory, while another thread is letting go of
/// a region: what nobody used any more when it asked is gone, with and without a limit on what nobody
/// uses.
#[test]
fn what_has_just_been_let_go_of_is_evicted() {
    static MET: AtomicBool = AtomicBool::new(false);
    search("a lease that ends", || {
        for (idle_bytes, lacks) in [(0, false), (1 << 20, false), (1 << 20, true)] {
            let world = World::default();
            let mut options = Options::default();
            options.idle_bytes = idle_bytes;
            let policy = Policy::by_module(true);
            let cache = Cache::with(world.clone(), world.clone(), policy, Limits::default(), options);
            let (block, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
            world.limit(2);
            let lease = cache.register(0, block.start(), block.length(), 1).unwrap();
            // This finds it in use, so that its last lease will put it back.
            cache.shrink();
            let lets_go = shuttle::thread::spawn(move || drop(lease));
            step();
            if cache.unused() == 1 {
                MET.store(true, Ordering::Relaxed);
                if lacks {
                    let made = cache.register(0, other.start(), other.length(), 1);
                    made.expect("UNSEEN: there is room, but for what nobody uses");
                } else {
                    cache.shrink();
                    assert_eq!(world.regions(), 0, "UNSEEN: what nobody uses stays registered");
                }
            }
            lets_go.join().unwrap();
        }
    });
    assert!(MET.load(Ordering::Relaxed), "the lease never ended first");
}

/// The holder of a region in use is told once when its memory goes, whoever registers a larger one,
/// sweeps and reports meanwhile.
#[test]
fn the_holder_of_a_replaced_region_is_told_once() {
    search("a replaced region", || {
        let world = World::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut options = Options::default();
        let to = told.clone();
        options.on_gone = Some(Box::new(move |gone| to.lock().unwrap().push(gone.lkey)));
        let policy = Policy::by_module(true);
        let cache = Cache::with(world.clone(), world.clone(), policy, Limits::default(), options);
        let block = world.allocate(3).unwrap();
        let small = cache.register(0, block.start(), 4096, 1).unwrap();
        let threads = [false, true].map(|sweeps| {
            let (world, cache) = (world.clone(), cache.clone());
            shuttle::thread::spawn(move || {
                if sweeps {
                    cache.sweep();
                    cache.before_free(block.start(), block.length()).unwrap();
                } else {
                    register(&world, &cache, block);
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        world.remap(block);
        cache.sweep();
        let told = told.lock().unwrap();
        let of_small = told.iter().filter(|key| **key == small.lkey()).count();
        assert_eq!(of_small, 1, "TOLD: {told:?}");
    });
}
