// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests what users of other caches reported: the same happens here, and must have the right
//! result.

#[path = "common/world.rs"]
mod world;

fn step() {}

use gpumr::backend::Kind;
use gpumr::{Cache, Error, Limits, Policy, Range, Sweeper, Way};
use std::time::{Duration, Instant};
use world::{World, PAGE};

fn cache(world: &World, way: Way) -> Cache<World, World> {
    Cache::new(world.clone(), world.clone(), Policy::only(way), Limits::default())
}

fn both(check: impl Fn(World, Cache<World, World>)) {
    for way in [Way::PeerMemory, Way::DmaBuf] {
        let world = World::default();
        let cache = cache(&world, way);
        check(world, cache);
    }
}

/// Registers and returns the key of the region, which must reach what the program sees.
fn region(world: &World, cache: &Cache<World, World>, range: Range) -> u32 {
    let lease = cache.register(0, range.start(), range.length(), 1).unwrap();
    world.reaches(lease.lkey(), range).unwrap();
    lease.lkey()
}

/// openucx/ucx#4269 (proposed: openucx/ucx#5910): an address comes back with other memory, and the
/// registration cache has the old region.
#[test]
fn ucx_4269_a_recycled_address() {
    both(|world, cache| {
        for _ in 0..5 {
            let block = world.allocate(3).unwrap();
            region(&world, &cache, block);
            world.free(block);
        }
        assert_eq!(cache.stats().hits, 0, "five times another buffer");
    });
}

/// openucx/ucx#7865: the runtime is linked statically, so no hook sees a free.
#[test]
fn ucx_7865_a_free_that_no_hook_sees() {
    both(|world, cache| {
        let block = world.allocate(3).unwrap();
        let old = region(&world, &cache, block);
        world.free(block);
        assert!(cache.register(0, block.start(), block.length(), 1).is_err(), "freed");
        assert_eq!(world.allocate(3), Some(block));
        assert_ne!(region(&world, &cache, block), old);
    });
}

/// openucx/ucx#7110 and openucx/ucx#7194 (openucx/ucx#7204): stream-ordered memory, whose frees had no
/// hook. It is given out again at once, also in other sizes.
#[test]
fn ucx_7194_stream_ordered_memory() {
    both(|world, cache| {
        let mut keys = vec![];
        for pages in [2, 3, 2, 1, 4] {
            let block = world.allocate(pages).unwrap();
            keys.push(region(&world, &cache, block));
            world.free(block);
        }
        keys.dedup();
        assert_eq!(keys.len(), 5);
    });
}

/// openucx/ucx#11922: an export of managed memory of a pool ends the program in libcuda. It is
/// refused without being tried.
#[test]
fn ucx_11922_managed_memory_is_never_exported() {
    both(|world, cache| {
        let block = world.allocate_as(2, Kind::Managed).unwrap();
        let refused = cache.register(0, block.start(), block.length(), 1);
        assert!(matches!(refused, Err(Error::Managed { .. })), "{refused:?}");
        assert_eq!((world.exports().0, world.regions()), (0, 0));
    });
}

/// ofiwg/libfabric#8081: a freed region stays registered until somebody registers over it.
#[test]
fn libfabric_8081_a_freed_region_goes_by_itself() {
    both(|world, cache| {
        let block = world.allocate(3).unwrap();
        region(&world, &cache, block);
        let _sweeper = Sweeper::start(&cache, Duration::from_millis(5)).unwrap();
        world.free(block);
        let start = Instant::now();
        while world.regions() > 0 || world.exports().1 > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "it stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// ofiwg/libfabric#9003: a free hook that runs inside CUDA waits for the cache's lock, whose owner waits
/// for CUDA's. Here a hook runs inside a registration, on that thread and on another.
#[test]
fn libfabric_9003_a_hook_inside_cuda_waits_for_nobody() {
    let world = World::default();
    let cache = cache(&world, Way::PeerMemory);
    let (block, other) = (world.allocate(2).unwrap(), world.allocate(2).unwrap());
    region(&world, &cache, other);
    let inside = cache.clone();
    world.meanwhile(move |_| {
        inside.before_free(other.start(), other.length()).unwrap();
        let elsewhere = inside.clone();
        std::thread::spawn(move || elsewhere.before_free(other.start(), other.length())).join().unwrap().unwrap();
        inside.sweep();
        inside.shrink();
    });
    region(&world, &cache, block);
    assert_eq!((cache.stats().freed, world.regions()), (1, 1));
}

/// open-mpi/ompi#11125: another cache above this one holds what is stale, and so this one never gets rid
/// of it.
#[test]
fn ompi_11125_a_holder_of_a_stale_region_is_in_nobodys_way() {
    both(|world, cache| {
        let block = world.allocate(2).unwrap();
        let held = cache.register(0, block.start(), block.length(), 1).unwrap();
        world.remap(block);
        let new = region(&world, &cache, block);
        assert_eq!(region(&world, &cache, block), new, "the new one is kept");
        assert!(new != held.lkey() && !held.valid() && world.is_alive(held.lkey()), "its holder may end in peace");
        drop(held);
        assert_eq!(world.regions(), 1);
    });
}

/// NVIDIA/nccl#2394: an entry that is removed from the middle breaks the order, and existing
/// regions are registered a second time.
#[test]
fn nccl_2394_a_removal_in_the_middle_hides_nothing() {
    both(|world, cache| {
        let blocks: Vec<Range> = (0..8).map(|_| world.allocate(2).unwrap()).collect();
        let keys: Vec<u32> = blocks.iter().map(|block| region(&world, &cache, *block)).collect();
        for gone in [1, 4, 0] {
            cache.before_free(blocks[gone].start(), 1).unwrap();
        }
        for at in [2, 3, 5, 6, 7] {
            assert_eq!(region(&world, &cache, blocks[at]), keys[at]);
        }
        assert_eq!((world.regions(), cache.stats().misses), (5, 8));
    });
}

/// VCCL pull request 36: ibv_dealloc_pd() fails with EBUSY, because cached regions of the domain
/// are left.
#[test]
fn vccl_36_a_forgotten_domain_has_no_regions() {
    both(|world, cache| {
        let block = world.allocate(4).unwrap();
        for pd in [0, 1] {
            for pages in 1..4 {
                drop(cache.register(pd, block.start(), pages * PAGE, pages as i32).unwrap());
            }
        }
        cache.forget(0);
        assert_eq!(world.regions(), 3, "those of the other");
        cache.forget(1);
        assert_eq!(world.regions(), 0);
    });
}

/// kvcache-ai/Mooncake#351 and kvcache-ai/Mooncake#2511, uccl-project/uccl#839, pytorch/pytorch#153688:
/// a tensor of expandable segments lies over several pieces of memory, and its registration fails.
#[test]
fn mooncake_2511_expandable_segments() {
    both(|world, cache| {
        let pieces: Vec<Range> = (0..6).map(|_| world.allocate(2).unwrap()).collect();
        let tensor = Range::new(pieces[1].start() + 100, 6 * PAGE).unwrap();
        let key = region(&world, &cache, tensor);
        assert_eq!(region(&world, &cache, tensor), key);
        // The segment grows, and shrinks where the tensor is not.
        world.allocate(2).unwrap();
        world.free(pieces[0]);
        assert_eq!(region(&world, &cache, tensor), key);
        world.remap(pieces[2]);
        assert_ne!(region(&world, &cache, tensor), key, "a piece of it is another");
    });
}

/// torch_memory_saver pull request 48: memory is given back while a model sleeps, and comes back at its
/// address.
#[test]
fn torch_memory_saver_48_paused_memory_comes_back() {
    both(|world, cache| {
        let pieces: Vec<Range> = (0..3).map(|_| world.allocate(2).unwrap()).collect();
        let all = Range::new(pieces[0].start(), 6 * PAGE).unwrap();
        let before = region(&world, &cache, all);
        pieces.iter().for_each(|piece| world.free(*piece));
        assert!(cache.register(0, all.start(), all.length(), 1).is_err(), "paused");
        pieces.iter().enumerate().for_each(|(n, piece)| world.map(n % 2, *piece));
        assert_ne!(region(&world, &cache, all), before, "resumed");
    });
}
