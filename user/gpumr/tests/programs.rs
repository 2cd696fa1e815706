// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Runs random programs against the cache: whatever they allocate, free, map again, register and
//! release, a lease reaches the memory that the program sees.

#[path = "common/world.rs"]
mod world;

fn step() {}

use gpumr::hooks::Hooks;
use gpumr::{Cache, Lease, Limits, Policy, Range, Way};
use proptest::prelude::*;
use world::{Bounds, World, PAGE};

#[derive(Clone, Debug)]
enum Op {
    Allocate(u64),
    /// Frees this block. The address is free again.
    Free(usize),
    Remap(usize),
    /// Registers from the middle of one block on, over so many bytes, for a domain.
    Register(usize, u64, u64, u8),
    /// Registers from the start of one block to the end of the next.
    RegisterTwo(usize),
    Again(usize),
    Release(usize),
    Revoked(usize),
    Sweep,
    Forget(u8),
    Hooks(bool),
    Room(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u64..8).prop_map(Op::Allocate),
        3 => (0usize..8).prop_map(Op::Free),
        1 => (0usize..8).prop_map(Op::Remap),
        6 => (0usize..8, 0u64..PAGE, 1..8 * PAGE, 0u8..2).prop_map(|(b, o, l, p)| Op::Register(b, o, l, p)),
        3 => (0usize..8).prop_map(Op::RegisterTwo),
        5 => (0usize..16).prop_map(Op::Again),
        4 => (0usize..8).prop_map(Op::Release),
        1 => (0usize..8).prop_map(Op::Revoked),
        1 => Just(Op::Sweep),
        1 => (0u8..2).prop_map(Op::Forget),
        1 => any::<bool>().prop_map(Op::Hooks),
        1 => prop_oneof![Just(0), 4u64..40].prop_map(Op::Room),
    ]
}

struct Program {
    world: World,
    cache: Cache<World, World>,
    hooks: Option<Hooks<World, World>>,
    blocks: Vec<Range>,
    leases: Vec<Lease<World, World>>,
    /// The ranges that were registered, to be registered again.
    asked: Vec<(Range, u8)>,
    limits: Limits,
}

impl Program {
    fn keys(&self) -> Vec<u32> {
        self.leases.iter().map(Lease::lkey).collect()
    }

    fn register(&mut self, range: Range, pd: u8) {
        self.asked.push((range, pd));
        if let Ok(lease) = self.cache.register(pd, range.start(), range.length(), 1) {
            if let Err(what) = self.world.reaches(lease.lkey(), range) {
                panic!("STALE: {what}");
            }
            self.leases.push(lease);
        }
    }

    fn gone(&mut self, index: usize, really: impl FnOnce(&World, Range)) {
        let range = self.blocks[index];
        if self.hooks.is_some() {
            self.cache.before_free(range.start(), range.length()).unwrap();
        }
        really(&self.world, range);
        if self.hooks.is_some() {
            assert_eq!(self.world.keeps_freed(&self.keys()), 0, "LEAK: freed memory is kept in spite of hooks");
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Allocate(pages) => self.blocks.extend(self.world.allocate(pages)),
            Op::Free(i) if i < self.blocks.len() => {
                self.gone(i, |world, range| world.free(range));
                self.blocks.swap_remove(i);
            }
            Op::Remap(i) if i < self.blocks.len() => self.gone(i, |world, range| world.remap(range)),
            Op::Register(i, offset, length, pd) if i < self.blocks.len() => {
                let range = Range::new(self.blocks[i].start() + offset, length).unwrap();
                self.register(range, pd);
            }
            Op::RegisterTwo(i) if i < self.blocks.len() => {
                let first = self.blocks[i];
                if let Some(second) = self.blocks.iter().find(|b| b.start() == first.end()) {
                    let both = Range::new(first.start(), second.end() - first.start()).unwrap();
                    self.register(both, 0);
                }
            }
            Op::Again(i) if i < self.asked.len() => {
                let (range, pd) = self.asked[self.asked.len() - 1 - i];
                self.register(range, pd);
            }
            Op::Release(i) if i < self.leases.len() => drop(self.leases.swap_remove(i)),
            Op::Revoked(i) if i < self.leases.len() => {
                let lease = self.leases.swap_remove(i);
                let (key, range) = (lease.lkey(), lease.range());
                lease.revoked();
                if let Ok(again) = self.cache.register(0, range.start(), range.length(), 1) {
                    assert_ne!(again.lkey(), key, "REVOKED: given out again");
                }
            }
            Op::Sweep => {
                self.cache.sweep();
                assert_eq!(self.world.keeps_freed(&self.keys()), 0, "LEAK: a sweep leaves freed memory");
            }
            Op::Forget(pd) => self.cache.forget(pd),
            Op::Hooks(on) => {
                self.hooks = None;
                self.hooks = on.then(|| Hooks::promise(&self.cache));
            }
            Op::Room(pages) => self.world.limit(pages),
            _ => {}
        }
        for key in self.keys() {
            assert!(self.world.is_alive(key), "IN USE: region {key} is deregistered under a lease");
        }
        let stats = self.cache.stats();
        if self.leases.is_empty() {
            assert_eq!(self.world.regions() as u64, stats.entries, "LEAK: regions that nobody knows");
            assert!(stats.entries <= self.limits.entries, "LIMIT: {stats:?}");
            assert!(stats.bytes <= self.limits.bytes, "LIMIT: {stats:?}");
            assert!(stats.bar1_bytes <= self.limits.bar1_bytes, "LIMIT: {stats:?}");
        }
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::only(Way::PeerMemory)),
        Just(Policy::only(Way::DmaBuf)),
        Just(Policy::by_module(true)),
        Just(Policy::by_module(false)),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![
        Just(Limits::default()),
        (0u64..5).prop_map(|entries| Limits::default().with_entries(entries)),
        (1u64..20).prop_map(|pages| Limits::default().with_bytes(pages * PAGE)),
        (1u64..4).prop_map(|pages| Limits::default().with_bar1_bytes(pages << 16)),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    prop_oneof![Just(Bounds::Unknown), Just(Bounds::Allocation), Just(Bounds::Reservation)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lease_reaches_what_the_program_sees(
        ops in prop::collection::vec(op(), 1..60), policy in policy(), limits in limits(), bounds in bounds(),
    ) {
        let world = World::default();
        world.tell(bounds);
        let cache = Cache::new(world.clone(), world.clone(), policy, limits);
        let mut program =
            Program { world: world.clone(), cache, hooks: None, blocks: vec![], leases: vec![], asked: vec![], limits };
        for op in ops {
            program.run(op);
        }
        drop(program);
        prop_assert_eq!(world.regions(), 0, "LEAK: regions outlive the cache");
        prop_assert_eq!(world.exports().1, 0, "LEAK: dma-bufs outlive the cache");
    }
}
