// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests cases that other caches are known to get wrong, and what ours promises at its edges.

#[path = "common/world.rs"]
mod world;

fn step() {}

use gpumr::backend::{Access, Kind};
use gpumr::hooks::Hooks;
use gpumr::{Cache, Limits, Options, Policy, Range, Sweeper, Way, FREE_BYTES_AUTO};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::{Bounds, World, PAGE};

fn cache(world: &World) -> Cache<World, World> {
    Cache::new(world.clone(), world.clone(), Policy::by_module(true), Limits::default())
}

/// Registers and returns the key of the region, which must reach what the program sees.
fn region(world: &World, cache: &Cache<World, World>, range: Range) -> u32 {
    let lease = cache.register(0, range.start(), range.length(), 1).unwrap();
    world.reaches(lease.lkey(), range).unwrap();
    lease.lkey()
}

/// NCCL's net_ib cache looks at the address alone.
#[test]
fn nccl_an_address_given_out_again_is_another_buffer() {
    let world = World::default();
    let cache = cache(&world);
    let first = world.allocate(4).unwrap();
    let old = region(&world, &cache, first);
    assert_eq!(region(&world, &cache, first), old, "the same memory is registered once");
    world.free(first);
    assert_eq!(world.allocate(4).unwrap(), first, "the address comes back");
    assert_ne!(region(&world, &cache, first), old);
    assert_eq!(cache.stats().stale, 1);
}

/// libfabric's CUDA monitor asks for the start address alone.
#[test]
fn libfabric_the_end_of_a_range_is_replaced() {
    let world = World::default();
    let cache = cache(&world);
    let (a, b) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    let both = Range::new(a.start(), 4 * PAGE).unwrap();
    let old = region(&world, &cache, both);
    world.remap(b);
    assert_ne!(region(&world, &cache, both), old);
}

/// Both ends are the same, and a segment between them is replaced.
#[test]
fn the_middle_of_a_range_is_replaced() {
    let world = World::default();
    let cache = cache(&world);
    let blocks: Vec<Range> = (0..3).map(|_| world.allocate(2).unwrap()).collect();
    let all = Range::new(blocks[0].start(), 6 * PAGE).unwrap();
    let old = region(&world, &cache, all);
    world.remap(blocks[1]);
    assert_ne!(region(&world, &cache, all), old);
}

/// UCX caches GPU memory only with hooks, and misses a free that does not go through them. Here,
/// CUDA is asked. If frees were promised, the next sweep finds the one that was not reported.
#[test]
fn ucx_a_free_that_no_hook_saw() {
    for promised in [false, true] {
        let world = World::default();
        let cache = cache(&world);
        let first = world.allocate(4).unwrap();
        let _hooks = promised.then(|| Hooks::promise(&cache));
        let old = region(&world, &cache, first);
        world.remap(first);
        if promised {
            cache.sweep();
        }
        assert_ne!(region(&world, &cache, first), old);
    }
}

/// Libraries that never sweep keep freed memory allocated until the process ends.
#[test]
fn freed_memory_is_let_go_within_the_interval() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    region(&world, &cache, block);
    let _sweeper = Sweeper::start(&cache, Duration::from_millis(5)).unwrap();
    world.free(block);
    let start = Instant::now();
    while world.regions() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "freed memory stays registered");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn with_hooks_freed_memory_is_let_go_at_once() {
    let world = World::default();
    let cache = cache(&world);
    let (a, b) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    let _hooks = Hooks::promise(&cache);
    let (_, kept) = (region(&world, &cache, a), region(&world, &cache, b));
    cache.before_free(a.start(), a.length()).unwrap();
    assert_eq!(world.regions(), 1);
    assert_eq!(region(&world, &cache, b), kept);
    cache.before_free_all();
    assert_eq!(world.regions(), 0, "a destroyed context takes all memory along");
}

/// A thread finds what it used lately without a lock. A free that was reported is seen there, too.
#[test]
fn with_hooks_an_address_given_out_again_is_another_buffer() {
    let world = World::default();
    let cache = cache(&world);
    let _hooks = Hooks::promise(&cache);
    let block = world.allocate(4).unwrap();
    let old = region(&world, &cache, block);
    assert_eq!(region(&world, &cache, block), old);
    cache.before_free(block.start(), block.length()).unwrap();
    world.remap(block);
    assert_ne!(region(&world, &cache, block), old);
    assert_eq!((cache.stats().hits, cache.stats().misses), (1, 2));
}

/// A thread that registers between the report and the free must sweep, if hits do not ask.
#[test]
fn what_is_registered_between_report_and_free_is_found_by_a_sweep() {
    for promised in [false, true] {
        let world = World::default();
        let cache = cache(&world);
        let block = world.allocate(2).unwrap();
        let _hooks = promised.then(|| Hooks::promise(&cache));
        cache.before_free(block.start(), block.length()).unwrap();
        let old = region(&world, &cache, block);
        world.remap(block);
        if promised {
            cache.sweep();
        }
        assert_ne!(region(&world, &cache, block), old);
    }
}

/// A program may report frees from some time on. What it freed before without a report is not
/// trusted.
#[test]
fn what_was_freed_before_the_hooks_is_not_trusted() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let old = region(&world, &cache, block);
    world.remap(block);
    let _hooks = Hooks::promise(&cache);
    assert_ne!(region(&world, &cache, block), old);
}

/// One answer with number and bounds is valid for both ends. Bounds that are not the allocation's
/// prove nothing.
#[test]
fn one_question_is_enough_where_its_answer_has_the_bounds() {
    for (bounds, questions) in [(Bounds::Unknown, 2), (Bounds::Allocation, 1), (Bounds::Reservation, 2)] {
        let world = World::default();
        world.tell(bounds);
        let cache = cache(&world);
        let (a, b) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
        let old = region(&world, &cache, a);
        let before = world.questions();
        assert_eq!(region(&world, &cache, a), old);
        assert_eq!(world.questions() - before, questions, "{bounds:?}");
        world.remap(a);
        let new = region(&world, &cache, a);
        assert_ne!(new, old, "{bounds:?}");
        let both = Range::new(a.start(), 4 * PAGE).unwrap();
        let wide = region(&world, &cache, both);
        world.remap(b);
        assert_ne!(region(&world, &cache, both), wide, "{bounds:?}");
    }
}

#[test]
fn a_cache_that_is_closed_leaves_its_leases() {
    let world = World::default();
    let cache = cache(&world);
    let (a, b) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    let held = cache.register(0, a.start(), a.length(), 1).unwrap();
    let revoked = cache.register(0, b.start(), b.length(), 1).unwrap();
    drop(cache);
    world.reaches(held.lkey(), a).unwrap();
    revoked.revoked();
    assert_eq!(world.regions(), 1);
    drop(held);
    assert_eq!(world.regions(), 0);
}

#[test]
fn memory_replaced_during_registration_is_registered_again() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(2).unwrap();
    world.meanwhile(move |world| world.remap(block));
    region(&world, &cache, block);
    assert_eq!(world.regions(), 1);
}

/// A program that replaces its memory all the time gets an error, and does not wait for ever.
#[test]
fn memory_replaced_in_each_of_three_registrations_is_an_error() {
    fn replace(world: &World, block: Range, tries: Arc<AtomicUsize>) {
        tries.fetch_add(1, Ordering::Relaxed);
        world.remap(block);
        world.meanwhile(move |world| replace(world, block, tries));
    }
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(2).unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    world.meanwhile(move |world| replace(world, block, counted));
    let error = cache.register(0, block.start(), block.length(), 1).expect_err("it is never the same");
    assert!(matches!(error, gpumr::Error::Changed { .. }) && error.errno() == libc::EAGAIN, "{error}");
    assert_eq!((tries.load(Ordering::Relaxed), world.regions()), (3, 0));
}

/// A free that is reported while it is registered must not leave an entry that hits trust.
#[test]
fn memory_freed_during_registration_is_not_kept() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(2).unwrap();
    let _hooks = Hooks::promise(&cache);
    let reporter = cache.clone();
    world.meanwhile(move |_| reporter.before_free(block.start(), block.length()).unwrap());
    drop(cache.register(0, block.start(), block.length(), 1).unwrap());
    assert_eq!((cache.stats().entries, world.regions()), (0, 0));
}

/// Frees of other memory do not keep a registration from being kept.
#[test]
fn other_memory_freed_during_registration_changes_nothing() {
    let world = World::default();
    let cache = cache(&world);
    let (block, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    let _hooks = Hooks::promise(&cache);
    let reporter = cache.clone();
    world.meanwhile(move |_| reporter.before_free(other.start(), other.length()).unwrap());
    let first = region(&world, &cache, block);
    assert_eq!(region(&world, &cache, block), first);
    assert_eq!(cache.stats().hits, 1);
}

#[test]
fn a_part_of_a_registration_is_a_hit() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(8).unwrap();
    let whole = region(&world, &cache, block);
    let part = Range::new(block.start() + 100, 3 * PAGE).unwrap();
    assert_eq!(region(&world, &cache, part), whole);
    let other = cache.register(1, part.start(), part.length(), 1).unwrap();
    assert_ne!(other.lkey(), whole, "another domain");
    let read_only = cache.register(0, part.start(), part.length(), 0).unwrap();
    assert_ne!(read_only.lkey(), whole, "another access");
}

#[test]
fn a_larger_registration_replaces_those_inside() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(8).unwrap();
    for page in [0, 2, 5] {
        region(&world, &cache, Range::new(block.start() + page * PAGE, PAGE).unwrap());
    }
    let whole = region(&world, &cache, block);
    assert_eq!((world.regions(), cache.stats().entries), (1, 1));
    assert_eq!(region(&world, &cache, Range::new(block.start() + 5 * PAGE, PAGE).unwrap()), whole);
}

/// This is ENOMEM, or EFAULT: if BAR1 has no room for one page, nvidia-peermem cannot tell the
/// memory from another's.
#[test]
fn short_memory_evicts_and_is_tried_once_more() {
    for errno in [libc::ENOMEM, libc::EFAULT] {
        let world = World::default();
        let cache = cache(&world);
        world.limit(4);
        world.answer_when_full(errno);
        let blocks: Vec<Range> = (0..3).map(|_| world.allocate(2).unwrap()).collect();
        let held = cache.register(0, blocks[0].start(), blocks[0].length(), 1).unwrap();
        region(&world, &cache, blocks[1]);
        region(&world, &cache, blocks[2]);
        assert_eq!((cache.stats().evicted, cache.stats().retried), (1, 1));
        assert!(world.is_alive(held.lkey()), "what is in use stays");
        world.limit(2);
        let error = cache.register(0, blocks[1].start(), blocks[1].length(), 1).err().unwrap();
        assert_eq!(error.errno(), errno);
        assert_eq!((world.regions(), cache.stats().evicted), (1, 2), "{errno}");
    }
}

/// Without nvidia-peermem, every plain call fails with EFAULT, and no eviction changes that.
#[test]
fn where_peer_memory_never_works_nothing_is_evicted_for_it() {
    let world = World::default();
    world.refuse_peer_memory();
    let cache = cache(&world);
    let (block, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    let kept = region(&world, &cache, block);
    world.refuse_export();
    let error = cache.register(0, other.start(), other.length(), 1).err().unwrap();
    assert_eq!((error.errno(), cache.stats().evicted), (libc::EFAULT, 0));
    assert_eq!(region(&world, &cache, block), kept);
}

/// A pool's memory cannot be pinned, which is EFAULT, too. A program that tries it again and again
/// keeps what it has.
#[test]
fn memory_that_cannot_be_pinned_evicts_nothing() {
    let world = World::default();
    world.refuse_export();
    let cache = cache(&world);
    let (block, pool) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    world.refuse_to_pin(pool);
    let kept = region(&world, &cache, block);
    for _ in 0..2 {
        let error = cache.register(0, pool.start(), pool.length(), 1).err().unwrap();
        assert_eq!((error.errno(), cache.stats().evicted), (libc::EFAULT, 0));
    }
    assert_eq!(region(&world, &cache, block), kept);
}

#[test]
fn the_longest_unused_goes_first() {
    let world = World::default();
    let limits = Limits::default().with_entries(2);
    let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), limits);
    let blocks: Vec<Range> = (0..3).map(|_| world.allocate(2).unwrap()).collect();
    let first = region(&world, &cache, blocks[0]);
    let second = region(&world, &cache, blocks[1]);
    region(&world, &cache, blocks[0]);
    region(&world, &cache, blocks[2]);
    assert!(world.is_alive(first) && !world.is_alive(second));
}

#[test]
fn one_dma_buf_serves_all_nics() {
    let world = World::default();
    world.refuse_peer_memory();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let leases: Vec<_> = (0..4).map(|nic| cache.register(nic, block.start() + 8, 5000, 1).unwrap()).collect();
    assert!(leases.iter().all(|lease| lease.way() == Way::DmaBuf));
    assert_eq!((world.regions(), world.exports()), (4, (1, 1)));
    drop(leases);
    drop(cache);
    assert_eq!(world.exports(), (1, 0), "closed with the last");
}

/// A GPU can show a part of its memory to a NIC, and a cache may use a part of that.
#[test]
fn a_share_of_bar1_is_not_exceeded() {
    let world = World::default();
    // This is two GPU pages of 64 KiB: a quarter of half a MiB.
    let limits = Limits::share_of_bar1(512 << 10, 25);
    let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), limits);
    let block = world.allocate(48).unwrap();
    // Each is in GPU pages of its own.
    let regions =
        [0, 16, 32].map(|page| region(&world, &cache, Range::new(block.start() + page * PAGE, PAGE).unwrap()));
    assert_eq!(regions.map(|key| world.is_alive(key)), [false, true, true]);
    assert_eq!(cache.stats().bar1_bytes, 128 << 10);
}

/// A program may have 1024 files open, and more buffers.
#[test]
fn dma_bufs_are_closed_before_the_files_of_a_program_are_used_up() {
    let world = World::default();
    world.refuse_peer_memory();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let register = |pd: u8, n: u64| drop(cache.register(pd, block.start() + 8 * n, PAGE, 1).unwrap());
    (0..300).for_each(|n| register(0, n));
    assert_eq!((world.regions(), world.exports()), (300, (300, 256)));
    register(1, 299);
    assert_eq!(world.exports().0, 300, "the last one is there for another NIC");
    register(1, 0);
    assert_eq!(world.exports(), (301, 256), "the first one is made again");
    drop(cache);
    assert_eq!((world.regions(), world.exports().1), (0, 0));
}

/// A program may hold a lease for long, or deregister the region past the cache. The dma-buf, which
/// only other NICs need, must not keep memory that is freed until then.
#[test]
fn a_lease_keeps_no_dma_buf_open_once_its_region_left_the_cache() {
    for how in ["sweep", "hit", "report", "report all", "forget", "revoked", "abandoned", "replaced", "closed"] {
        let world = World::default();
        world.refuse_peer_memory();
        let mut cache = Some(cache(&world));
        let block = world.allocate(4).unwrap();
        let register = |length| cache.as_ref().unwrap().register(0, block.start(), length, 1).unwrap();
        let lease = register(2 * PAGE);
        let (other, key) = (register(PAGE), lease.lkey());
        let open = || cache.as_ref().unwrap();
        assert_eq!(world.exports(), (1, 1));
        match how {
            "sweep" => {
                world.free(block);
                open().sweep();
            }
            "hit" => {
                world.free(block);
                open().register(0, block.start(), PAGE, 1).expect_err("freed");
            }
            "report" => open().before_free(block.start(), 1).unwrap(),
            "report all" => open().before_free_all(),
            "forget" => open().forget(0),
            "revoked" => other.revoked(),
            "abandoned" => other.abandon(),
            "replaced" => {
                let larger = register(4 * PAGE);
                larger.revoked();
            }
            _ => cache = None,
        }
        assert_eq!(world.exports().1, 0, "{how}: it keeps the memory");
        assert!(world.is_alive(key), "{how}: in use");
        drop((lease, cache));
    }
}

/// A program that has promised nothing may report a free, too.
#[test]
fn without_a_promise_a_reported_free_lets_go_at_once() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(2).unwrap();
    region(&world, &cache, block);
    cache.before_free(block.start(), block.length()).unwrap();
    assert_eq!((world.regions(), cache.stats().freed), (0, 1));
}

#[test]
fn a_removed_nic_takes_its_registrations_along() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let held = cache.register(7, block.start(), block.length(), 1).unwrap();
    world.refuse_deregistration();
    cache.forget(7);
    assert_eq!((cache.stats().entries, cache.stats().lost), (0, 0), "it waits for the lease");
    drop(held);
    assert_eq!(cache.stats().lost, 1, "counted; nothing aborts");
}

/// Nobody reports the end of a context. CUDA then knows none of its memory, whatever address comes
/// back. Memory of the other GPU is as it was.
#[test]
fn a_destroyed_context_leaves_nothing_that_is_hit() {
    let world = World::default();
    let cache = cache(&world);
    let [a, there, b] = [(); 3].map(|()| world.allocate(4).unwrap());
    let held = cache.register(0, a.start(), a.length(), 1).unwrap();
    let (old, kept) = (region(&world, &cache, b), region(&world, &cache, there));
    world.destroy(0);
    assert_eq!(cache.register(0, a.start(), a.length(), 1).err().unwrap().errno(), libc::EFAULT);
    cache.sweep();
    assert_eq!((cache.stats().entries, world.regions()), (1, 2), "what is leased stays until then");
    assert_eq!(region(&world, &cache, there), kept);
    drop(held);
    assert_eq!(world.regions(), 1);
    let (first, second) = (world.allocate(4).unwrap(), world.allocate(4).unwrap());
    assert_eq!((first, second), (a, b), "the addresses come back");
    assert_ne!(region(&world, &cache, b), old);
}

/// The memory was freed, the module revoked the region, and the address is in use again: a hit sees
/// another buffer. A program that learns of a revocation earlier reports it, and nobody gets the
/// region again.
#[test]
fn a_region_that_the_module_revoked_is_not_given_out() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(4).unwrap();
    let old = region(&world, &cache, block);
    world.revoke(old);
    world.remap(block);
    let new = region(&world, &cache, block);
    assert_ne!(new, old);
    let (first, second) = (
        cache.register(0, block.start(), block.length(), 1).unwrap(),
        cache.register(0, block.start(), 100, 1).unwrap(),
    );
    world.revoke(new);
    first.revoked();
    assert!(world.is_alive(new), "another lease has it");
    assert_ne!(region(&world, &cache, block), new);
    second.revoked();
    assert!(!world.is_alive(new));
    assert_eq!(cache.stats().entries, 1, "the new one is still there");
}

/// Memory of a stream-ordered pool is freed and given to somebody else in one step.
#[test]
fn pool_memory_given_to_somebody_else_is_another_buffer() {
    for bounds in [Bounds::Unknown, Bounds::Allocation, Bounds::Reservation] {
        let world = World::default();
        world.tell(bounds);
        world.refuse_peer_memory();
        let cache = cache(&world);
        let block = world.allocate(4).unwrap();
        let half = Range::new(block.start(), 2 * PAGE).unwrap();
        let (old, part) = (region(&world, &cache, block), region(&world, &cache, half));
        assert_eq!(old, part);
        world.remap(block);
        assert_ne!(region(&world, &cache, half), part, "{bounds:?}");
        assert_ne!(region(&world, &cache, block), old, "{bounds:?}");
        assert_eq!(world.exports().0, 3, "the old dma-buf serves nobody");
    }
}

/// After a checkpoint and a restore no number tells old memory from new.
#[test]
fn a_restored_process_registers_anew() {
    for hooked in [false, true] {
        for bounds in [Bounds::Unknown, Bounds::Allocation, Bounds::Reservation] {
            let world = World::default();
            world.tell(bounds);
            world.refuse_peer_memory();
            let cache = cache(&world);
            let _hooks = hooked.then(|| Hooks::promise(&cache));
            let block = world.allocate(4).unwrap();
            let old = region(&world, &cache, block);
            assert_eq!(region(&world, &cache, block), old);
            world.checkpoint();
            assert_ne!(region(&world, &cache, block), old, "{bounds:?}");
            assert_eq!(world.exports().0, 2, "the old dma-buf keeps the old memory");
            world.checkpoint();
            cache.sweep();
            assert_eq!((world.regions(), cache.stats().entries), (0, 0), "a sweep lets go of the old memory");
        }
    }
}

/// A checkpoint happens while memory is being registered.
#[test]
fn memory_restored_during_registration_is_registered_again() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(2).unwrap();
    world.meanwhile(World::checkpoint);
    region(&world, &cache, block);
    assert_eq!(world.regions(), 1);
}

/// A program whose allocation failed ends what nobody uses, freed or not.
#[test]
fn what_nobody_uses_is_let_go_on_request() {
    let world = World::default();
    let cache = cache(&world);
    let blocks: Vec<Range> = (0..3).map(|_| world.allocate(2).unwrap()).collect();
    let held = cache.register(0, blocks[0].start(), blocks[0].length(), 1).unwrap();
    region(&world, &cache, blocks[1]);
    region(&world, &cache, blocks[2]);
    world.free(blocks[2]);
    assert_eq!(cache.shrink(), blocks[1].length(), "and what is freed has gone before");
    assert_eq!((world.regions(), cache.stats().entries), (1, 1));
    assert!(world.is_alive(held.lkey()));
}

/// The lkeys of regions in use whose memory was reported as gone.
type Told = std::sync::Arc<std::sync::Mutex<Vec<u32>>>;

fn telling(world: &World, policy: Policy) -> (Cache<World, World>, Told) {
    let told = Told::default();
    let mut options = Options::default();
    let to = told.clone();
    options.on_gone = Some(Box::new(move |gone| to.lock().unwrap().push(gone.lkey)));
    (Cache::with(world.clone(), world.clone(), policy, Limits::default(), options), told)
}

/// The holder of a region learns of a checkpoint when somebody looks, and of nothing once its cache is closed.
#[test]
fn the_holder_of_a_region_is_told_of_a_checkpoint_until_the_cache_is_closed() {
    for how in ["sweep", "hit"] {
        let world = World::default();
        let (cache, told) = telling(&world, Policy::by_module(true));
        let block = world.allocate(2).unwrap();
        let held = cache.register(0, block.start(), block.length(), 1).unwrap();
        world.checkpoint();
        match how {
            "sweep" => cache.sweep(),
            _ => drop(cache.register(0, block.start(), block.length(), 1).unwrap()),
        }
        assert_eq!(*told.lock().unwrap(), [held.lkey()], "{how}");
        let again = cache.register(0, block.start(), block.length(), 1).unwrap();
        let sweeper = Sweeper::start(&cache, Duration::from_millis(1)).unwrap();
        drop((sweeper, cache));
        world.remap(block);
        std::thread::sleep(Duration::from_millis(20));
        drop((held, again));
        assert_eq!(told.lock().unwrap().len(), 1, "{how}: nobody is told any more");
    }
}

/// A region may have more rights than a request needs, but its NIC may not reorder what nobody said may be reordered.
#[test]
fn a_region_that_reorders_serves_only_who_asked_for_that() {
    let world = World::default();
    let mut options = Options::default();
    options.superset = true;
    let policy = Policy::by_module(true);
    let cache = Cache::with(world.clone(), world.clone(), policy, Limits::default(), options);
    let block = world.allocate(2).unwrap();
    let lease = |access: Access| cache.register(0, block.start(), block.length(), access.bits()).unwrap();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let relaxed = lease(all | Access::RELAXED_ORDERING);
    let plain = lease(Access::LOCAL_WRITE);
    assert!(!plain.is_same(&relaxed));
    assert!(lease(Access::LOCAL_WRITE | Access::RELAXED_ORDERING).is_same(&relaxed));
    assert!(!lease(all).is_same(&plain));
}

/// The holder of a region learns that its memory has gone, even if a larger one has its place.
#[test]
fn a_region_that_a_larger_one_replaced_is_told_of() {
    for how in ["hit", "sweep", "report", "report all"] {
        let world = World::default();
        let (cache, told) = telling(&world, Policy::by_module(true));
        let (a, b) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
        let both = Range::new(a.start(), a.length() + b.length()).unwrap();
        let small = cache.register(0, a.start(), a.length(), 1).unwrap();
        let unused = region(&world, &cache, b);
        let large = cache.register(0, both.start(), both.length(), 1).unwrap();
        assert!(!world.is_alive(unused) && world.is_alive(small.lkey()));
        cache.sweep();
        region(&world, &cache, both);
        assert_eq!(*told.lock().unwrap(), [0; 0], "{how}: nothing has gone");
        match how {
            "report" => cache.before_free(a.start(), 1).unwrap(),
            "report all" => cache.before_free_all(),
            _ => world.remap(a),
        }
        match how {
            "hit" => drop(cache.register(0, both.start(), both.length(), 1).unwrap()),
            "sweep" => cache.sweep(),
            _ => {}
        }
        told.lock().unwrap().sort();
        assert_eq!(*told.lock().unwrap(), [small.lkey(), large.lkey()], "{how}");
        cache.sweep();
        cache.before_free_all();
        assert_eq!(told.lock().unwrap().len(), 2, "{how}: each once");
    }
}

/// Of many that were replaced, only those in use are remembered.
#[test]
fn what_was_replaced_and_released_is_not_told_of() {
    let world = World::default();
    let (cache, told) = telling(&world, Policy::by_module(true));
    let block = world.allocate(8).unwrap();
    let mut kept = None;
    for pages in 1..8 {
        let lease = cache.register(0, block.start(), pages * PAGE, 1).unwrap();
        let old = kept.replace(lease);
        if pages == 3 {
            std::mem::forget(old);
        }
    }
    world.remap(block);
    cache.sweep();
    assert_eq!(told.lock().unwrap().len(), 2, "the one that is held for ever, and the last");
}

/// If nobody would see a checkpoint, nothing is kept, and everything is registered.
#[test]
fn where_checkpoints_are_not_seen_each_registration_is_new() {
    for way in [Way::DmaBuf, Way::PeerMemory] {
        let world = World::default();
        let (cache, told) = telling(&world, Policy::only(way));
        let block = world.allocate(2).unwrap();
        let register = |pd| cache.register(pd, block.start(), block.length(), 1).unwrap();
        let before = register(0);
        world.see_checkpoints(false);
        let blind = [register(0), register(1)];
        assert!(!before.valid() && !blind[0].valid(), "{way:?}: nobody can say");
        assert_ne!(blind[0].lkey(), before.lkey());
        cache.sweep();
        assert_eq!(*told.lock().unwrap(), [0; 0], "nothing is known to have gone");
        world.checkpoint();
        let after = register(2);
        world.reaches(after.lkey(), block).unwrap();
        let keys = blind.each_ref().map(|lease| lease.lkey());
        drop(blind);
        assert!(keys.iter().all(|key| !world.is_alive(*key)) && cache.stats().entries == 0);
        world.free(block);
        cache.sweep();
        told.lock().unwrap().sort_unstable();
        assert_eq!(*told.lock().unwrap(), [before.lkey(), after.lkey()], "a free is seen");
        let block = world.allocate(2).unwrap();
        world.see_checkpoints(true);
        assert_eq!(region(&world, &cache, block), region(&world, &cache, block));
    }
}

/// A time longer than the interval in which free memory is asked for.
const LATER: Duration = Duration::from_millis(120);

fn watching(world: &World, free_bytes: u64) -> Cache<World, World> {
    let mut options = Options::default();
    options.free_bytes = free_bytes;
    Cache::with(world.clone(), world.clone(), Policy::by_module(true), Limits::default(), options)
}

/// PyTorch's allocator frees and allocates again when memory is short (PyTorch's
/// CUDACachingAllocator.cpp, release_cached_blocks()). It would not get what is registered by
/// dma-buf.
#[test]
fn pytorch_what_is_freed_when_memory_is_short_is_free() {
    let world = World::default();
    let cache = watching(&world, 1000);
    world.has_memory(0, 5000, 1 << 40);
    world.has_memory(1, 1000, 1 << 40);
    let [kept, used, late, there] = [0, 0, 0, 1].map(|gpu| world.allocate_on(gpu, 2).unwrap());
    let of_kept = region(&world, &cache, kept);
    let lease = cache.register(0, used.start(), used.length(), 1).unwrap();
    let of_there = region(&world, &cache, there);
    std::thread::sleep(LATER);
    assert_eq!(region(&world, &cache, kept), of_kept, "there is enough");
    world.has_memory(0, 999, 1 << 40);
    std::thread::sleep(LATER);
    let of_late = region(&world, &cache, late);
    assert!(!world.is_alive(of_kept) && !world.is_alive(of_late), "nobody uses them");
    assert!(world.is_alive(lease.lkey()) && world.is_alive(of_there), "in use; and another GPU's");
    let again = region(&world, &cache, late);
    assert!(!world.is_alive(again), "it ends with its last lease");
    let of_used = lease.lkey();
    drop(lease);
    assert!(!world.is_alive(of_used), "as this does");
    assert_eq!((world.regions(), cache.stats().entries), (1, 1));
    world.has_memory(0, 1000, 1 << 40);
    std::thread::sleep(LATER);
    region(&world, &cache, late);
    assert!(world.is_alive(region(&world, &cache, late)), "there is enough again");
}

/// Without registrations, the sweeper notices it, long before its next sweep. Freed memory says
/// nothing about its GPU.
#[test]
fn a_sweeper_looks_at_free_memory_between_its_sweeps() {
    let world = World::default();
    let cache = watching(&world, FREE_BYTES_AUTO);
    world.has_memory(1, 1 << 30, 80 << 30);
    let (freed, block) = (world.allocate_on(1, 2).unwrap(), world.allocate_on(1, 2).unwrap());
    region(&world, &cache, freed);
    let key = region(&world, &cache, block);
    let _sweeper = Sweeper::start(&cache, Duration::from_secs(3600)).unwrap();
    std::thread::sleep(LATER);
    assert!(world.is_alive(key), "1 GiB is enough");
    world.free(freed);
    world.has_memory(1, (1 << 30) - 1, 80 << 30);
    let start = Instant::now();
    while world.regions() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody looks");
        std::thread::sleep(Duration::from_millis(1));
    }
    world.has_memory(1, 17, 16 * 17);
    std::thread::sleep(2 * LATER);
    let key = region(&world, &cache, block);
    std::thread::sleep(2 * LATER);
    assert!(world.is_alive(key), "a sixteenth is enough");
}

#[test]
fn what_was_in_use_is_evicted_in_its_turn() {
    let world = World::default();
    let limits = Limits::default().with_entries(1);
    let cache = Cache::new(world.clone(), world.clone(), Policy::by_module(true), limits);
    let blocks: Vec<Range> = (0..3).map(|_| world.allocate(2).unwrap()).collect();
    let leases: Vec<_> = blocks.iter().map(|b| cache.register(0, b.start(), b.length(), 1).unwrap()).collect();
    assert_eq!((world.regions(), cache.stats().evicted), (3, 0));
    let keys: Vec<u32> = leases.iter().map(|lease| lease.lkey()).collect();
    drop(leases);
    assert_eq!((world.regions(), cache.stats().evicted), (1, 2));
    assert!(world.is_alive(keys[2]));
}

/// A program may hold more than a cache should keep. As much is kept beside that.
#[test]
fn what_is_in_use_is_no_part_of_what_may_stay_unused() {
    let world = World::default();
    let mut options = Options::default();
    options.idle_bytes = 4 * PAGE;
    let cache = Cache::with(world.clone(), world.clone(), Policy::by_module(true), Limits::default(), options);
    let blocks: Vec<Range> = (0..4).map(|_| world.allocate(2).unwrap()).collect();
    let large = world.allocate(9).unwrap();
    let keys = [0, 1].map(|n| region(&world, &cache, blocks[n]));
    let held = cache.register(0, large.start(), large.length(), 1).unwrap();
    assert_eq!([0, 1].map(|n| region(&world, &cache, blocks[n])), keys, "older, and kept");
    let again = cache.register(0, blocks[0].start(), PAGE, 1).unwrap();
    let more = [2, 3].map(|n| region(&world, &cache, blocks[n]));
    assert!(world.is_alive(keys[0]) && !world.is_alive(keys[1]), "one is in use, the other is the oldest of three");
    assert!(more.iter().all(|key| world.is_alive(*key)));
    drop(again);
    assert!(!world.is_alive(keys[0]), "it counts from its last lease on, and was used longest ago");
    assert!(more.iter().all(|key| world.is_alive(*key)));
    let of_large = held.lkey();
    drop(held);
    assert!(!world.is_alive(of_large), "more than may stay");
    world.free(blocks[3]);
    cache.sweep();
    cache.before_free(blocks[2].start(), 1).unwrap();
    assert_eq!((world.regions(), cache.stats().bytes), (0, 0));
    let keys = [1, 2].map(|n| region(&world, &cache, blocks[n]));
    assert_eq!([1, 2].map(|n| region(&world, &cache, blocks[n])), keys, "what went left its place");
}

/// A region was deregistered past the cache, or the program is about to change it. A thread that has
/// just got the same region can tell, and the next registration is another.
#[test]
fn who_shares_a_region_that_was_given_away_can_tell() {
    let world = World::default();
    let cache = cache(&world);
    let block = world.allocate(2).unwrap();
    let lease = || cache.register(0, block.start(), block.length(), 1).unwrap();
    let (first, other) = (lease(), lease());
    assert!(first.is_same(&other) && !other.is_abandoned());
    let key = other.lkey();
    first.abandon();
    assert!(other.is_abandoned());
    let next = lease();
    assert!(!next.is_same(&other) && !next.is_abandoned());
    drop(other);
    assert!(world.is_alive(key), "the cache never deregisters it");
}

#[test]
fn bad_input_is_named() {
    let world = World::default();
    let cache = cache(&world);
    let words = |address, length| {
        let error = cache.register(0, address, length, 1).expect_err("refused");
        (error.errno(), error.to_string())
    };
    let block = world.allocate(2).unwrap();
    let hole = world.allocate(1).unwrap();
    let beyond = world.allocate(2).unwrap();
    let managed = world.allocate_as(2, Kind::Managed).unwrap();
    let host = world.allocate_as(2, Kind::Host).unwrap();
    world.free(hole);
    let check = |(errno, text): (i32, String), expected, part: &str| {
        assert_eq!(errno, expected, "{text}");
        assert!(text.contains(part), "{text}");
    };
    check(words(block.start(), 0), libc::EINVAL, "has no bytes");
    check(words(block.start(), u64::MAX), libc::EINVAL, "pass the end of the address space");
    check(words(hole.start(), 10), libc::EFAULT, "is no memory that CUDA knows: freed");
    check(words(block.start(), beyond.end() - block.start()), libc::EFAULT, "leave allocated memory at 0x7f0000002000");
    check(words(managed.start(), 10), libc::EFAULT, "is managed memory");
    check(words(host.start(), 10), libc::EFAULT, "is host memory: use ibv_reg_mr()");
    let error = cache.register(0, block.start(), 10, 1 << 5).expect_err("refused");
    check((error.errno(), error.to_string()), libc::EINVAL, "leave out IBV_ACCESS_ZERO_BASED");
    world.refuse_peer_memory();
    let cache = Cache::new(world.clone(), world.clone(), Policy::only(Way::PeerMemory), Limits::default());
    let error = cache.register(0, block.start(), 10, 1).expect_err("refused");
    assert!(error.to_string().contains("is nvidia-peermem loaded?"), "{error}");
    let error = Sweeper::start(&cache, Duration::ZERO).expect_err("refused");
    assert!(error.to_string().contains("would sweep without end"), "{error}");
    assert_eq!(gpumr::Error::Thread(error).errno(), libc::EINVAL);
    let error = Policy::parse("fast").unwrap_err();
    check((error.errno(), error.to_string()), libc::EINVAL, "\"fast\" is no way to register");
    assert_eq!(world.regions(), 0, "nothing leaks");
}
