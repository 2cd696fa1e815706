// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests processes that fork: what is registered is the parent's, and its other threads do not
//! exist any more.

#[path = "common/world.rs"]
mod world;

fn step() {}

use gpumr::hooks::Hooks;
use gpumr::{Cache, Error, Limits, Policy, Range, Sweeper};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use world::World;

fn cache(world: &World) -> Cache<World, World> {
    Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default())
}

fn region(cache: &Cache<World, World>, range: Range) -> u32 {
    cache.register(0, range.start(), range.length(), 1).unwrap().lkey()
}

/// Returns `None` in the child.
fn fork() -> Option<libc::pid_t> {
    // SAFETY: The child calls end() alone; another test's thread may hold the allocator's lock,
    // which glibc takes over fork().
    match unsafe { libc::fork() } {
        0 => None,
        child => Some(child),
    }
}

/// Ends the child with 0 if `what` returns true. If it waits for ever, it is killed.
fn end(what: impl FnOnce() -> bool) -> ! {
    // SAFETY: Its default action ends this process.
    unsafe { libc::alarm(20) };
    let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).unwrap_or(false);
    // SAFETY: Ends this process.
    unsafe { libc::_exit(i32::from(!good)) };
}

fn ended(child: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: A child of ours, a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_child_touches_nothing() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let lease = cache.register(0, block.start(), block.length(), 1).unwrap();
    let Some(child) = fork() else {
        end(|| {
            let refused = matches!(cache.register(0, block.start(), block.length(), 1), Err(Error::Forked));
            drop(lease);
            cache.sweep();
            drop(cache);
            refused && world.regions() == 1
        })
    };
    assert_eq!(ended(child), 0, "the child used the parent's registrations");
    assert_eq!(region(&cache, block), lease.lkey());
}

/// A child that lives on, like workers of PyTorch, must not keep what its parent frees.
#[test]
fn a_child_keeps_no_dma_buf() {
    let world = World::default();
    world.refuse_peer_memory();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let lease = cache.register(0, block.start(), block.length(), 1).unwrap();
    let Some(child) = fork() else {
        // SAFETY: Waits for a signal.
        end(|| unsafe { libc::pause() } == 0)
    };
    assert_eq!(world.exports(), (1, 1));
    drop(lease);
    drop(cache);
    let start = Instant::now();
    // The child may not have run yet.
    while world.exports().1 > 0 && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let exports = world.exports();
    // SAFETY: A child of ours, which has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    ended(child);
    assert_eq!(exports, (1, 0), "the child holds it open");
}

/// A process may have several caches, each with many buffers.
#[test]
fn a_child_keeps_no_dma_buf_of_any_cache() {
    let world = World::default();
    world.refuse_peer_memory();
    let caches = [(); 3].map(|()| cache(&world));
    let block = world.allocate(4).unwrap();
    for cache in &caches {
        (0..200).for_each(|n| drop(cache.register(0, block.start() + 8 * n, 100, 1).unwrap()));
    }
    let Some(child) = fork() else {
        // SAFETY: Waits for a signal.
        end(|| unsafe { libc::pause() } == 0)
    };
    assert_eq!(world.exports(), (600, 600));
    drop(caches);
    let start = Instant::now();
    while world.exports().1 > 0 && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let exports = world.exports();
    // SAFETY: A child of ours, which has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    ended(child);
    assert_eq!(exports, (600, 0), "the child holds them open");
}

/// A number that a child closes twice may belong to another file by then.
#[test]
fn a_child_closes_a_dma_buf_once() {
    let world = World::default();
    world.refuse_peer_memory();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    drop(cache.register(0, block.start(), block.length(), 1).unwrap());
    let Some(child) = fork() else {
        end(|| {
            // These get the lowest numbers, and so that of the dma-buf.
            let files: Vec<_> = (0..64).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
            drop(cache);
            files.iter().all(|file| file.metadata().is_ok())
        })
    };
    assert_eq!(ended(child), 0, "the child closed a file of its own");
}

/// At a fork, another thread may hold the cache's lock, and the child has no sweeper.
#[test]
fn a_child_never_waits_for_its_parents_threads() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    region(&cache, block);
    let stop = AtomicBool::new(false);
    let stuck = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                cache.stats();
            }
        });
        let mut stuck = 0;
        for _ in 0..200 {
            let sweeper = Sweeper::start(&cache, Duration::from_secs(1000)).unwrap();
            let hooks = Hooks::promise(&cache);
            let Some(child) = fork() else {
                end(|| {
                    drop((sweeper, hooks, Hooks::promise(&cache)));
                    cache.before_free_all();
                    cache.forget(0);
                    cache.stats();
                    true
                })
            };
            if ended(child) != 0 {
                stuck = child;
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        stuck
    });
    assert_eq!(stuck, 0, "a child waited for ever, or panicked");
}
