// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Models PyTorch's three allocators on two GPUs: its own, which keeps segments and cuts tensors
//! out of them; expandable segments, which map pieces into a reservation; and CUDA's pools.
//! Whatever a program does with tensors, a lease that says that it is valid reaches its tensor.

#[path = "common/world.rs"]
mod world;

fn step() {}

use gpumr::{Cache, Lease, Limits, Options, Policy, Range, Way};
use proptest::prelude::*;
use world::{reservation, World, PAGE};

/// The pages of a segment that small tensors share, and of a piece of an expandable one.
const SEGMENT: u64 = 5;
const PIECE: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allocator {
    Native,
    Expandable,
    Async,
}

/// One GPU's memory, as the allocator sees it.
struct Memory {
    gpu: usize,
    kind: Allocator,
    /// The segments that CUDA gave.
    segments: Vec<Range>,
    /// The parts that tensors have.
    used: Vec<Range>,
}

impl Memory {
    fn is_free(&self, range: Range) -> bool {
        !self.used.iter().any(|used| used.overlaps(&range))
    }

    fn new_tensor(&mut self, world: &World, pages: u64) -> Option<Range> {
        let places = |within: Range| {
            let starts = (within.start()..within.end()).step_by(PAGE as usize);
            starts.map(move |at| Range::new(at, pages * PAGE).unwrap()).filter(move |range| within.contains(range))
        };
        let tensor = match self.kind {
            Allocator::Native => {
                let cached = self.segments.iter().copied().flat_map(places).find(|range| self.is_free(*range));
                cached.or_else(|| {
                    let segment = world.allocate_on(self.gpu, pages.max(SEGMENT))?;
                    self.segments.push(segment);
                    Range::new(segment.start(), pages * PAGE).ok()
                })?
            }
            Allocator::Expandable => {
                let tensor = places(reservation(self.gpu)).find(|range| self.is_free(*range))?;
                let whole = tensor.widened(PIECE * PAGE).unwrap();
                for at in (whole.start()..whole.end()).step_by((PIECE * PAGE) as usize) {
                    let piece = Range::new(at, PIECE * PAGE).unwrap();
                    if !self.segments.contains(&piece) {
                        world.map(self.gpu, piece);
                        self.segments.push(piece);
                    }
                }
                tensor
            }
            Allocator::Async => world.allocate_on(self.gpu, pages)?,
        };
        self.used.push(tensor);
        Some(tensor)
    }

    fn delete(&mut self, world: &World, tensor: Range) {
        self.used.retain(|used| *used != tensor);
        if self.kind == Allocator::Async {
            world.free(tensor);
        }
    }

    fn empty_cache(&mut self, world: &World) {
        let (kept, gone) = self.segments.iter().partition(|segment| !self.is_free(**segment));
        let gone: Vec<Range> = gone;
        self.segments = kept;
        gone.into_iter().for_each(|segment| world.free(segment));
    }
}

#[derive(Clone, Debug)]
enum Op {
    New(usize, u64),
    Delete(usize),
    /// Registers a tensor, or a view into it, with one of two NICs.
    Register(usize, u64, u8),
    Release(usize),
    EmptyCache(usize),
    Sweep,
    Shrink,
    Checkpoint,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0usize..2, 1u64..9).prop_map(|(gpu, pages)| Op::New(gpu, pages)),
        4 => (0usize..8).prop_map(Op::Delete),
        8 => (0usize..8, 0..PAGE, 0u8..2).prop_map(|(i, offset, pd)| Op::Register(i, offset, pd)),
        4 => (0usize..8).prop_map(Op::Release),
        2 => (0usize..2).prop_map(Op::EmptyCache),
        1 => Just(Op::Sweep),
        1 => Just(Op::Shrink),
        1 => Just(Op::Checkpoint),
    ]
}

fn run(kind: Allocator, ops: Vec<Op>, policy: Policy, limits: Limits) {
    let world = World::default();
    let mut options = Options::default();
    options.superset = true;
    let cache = Cache::with(world.clone(), world.clone(), policy, limits, options);
    let mut memory = [0, 1].map(|gpu| Memory { gpu, kind, segments: vec![], used: vec![] });
    let mut tensors: Vec<(usize, Range)> = vec![];
    let mut leases: Vec<(Range, Lease<World, World>)> = vec![];
    for op in ops {
        match op {
            Op::New(gpu, pages) => {
                let fresh = memory[gpu].new_tensor(&world, pages).or_else(|| {
                    // PyTorch does this when memory is short.
                    cache.shrink();
                    memory[gpu].empty_cache(&world);
                    memory[gpu].new_tensor(&world, pages)
                });
                tensors.extend(fresh.map(|tensor| (gpu, tensor)));
            }
            Op::Delete(i) if i < tensors.len() => {
                let (gpu, tensor) = tensors.swap_remove(i);
                memory[gpu].delete(&world, tensor);
                // A program that holds a lease of a tensor that is gone does not use it any more.
                leases.retain(|(of, _)| !of.overlaps(&tensor));
            }
            Op::Register(i, offset, pd) if i < tensors.len() => {
                let (_, tensor) = tensors[i];
                let view = Range::new(tensor.start() + offset, tensor.length() - offset).unwrap();
                let lease = cache.register(pd, view.start(), view.length(), 1).expect("a tensor is registered");
                world.reaches(lease.lkey(), view).unwrap_or_else(|what| panic!("STALE: {what}"));
                leases.push((view, lease));
            }
            Op::Release(i) if i < leases.len() => drop(leases.swap_remove(i)),
            Op::EmptyCache(gpu) => memory[gpu].empty_cache(&world),
            Op::Sweep => {
                cache.sweep();
                let keys: Vec<u32> = leases.iter().map(|(_, lease)| lease.lkey()).collect();
                assert_eq!(world.keeps_freed(&keys), 0, "LEAK: a sweep leaves freed memory");
            }
            Op::Shrink => {
                cache.shrink();
            }
            Op::Checkpoint => world.checkpoint(),
            _ => {}
        }
        for (view, lease) in &leases {
            if lease.valid() {
                world.reaches(lease.lkey(), *view).unwrap_or_else(|what| panic!("VALID: {what}"));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_valid_lease_reaches_its_tensor(
        kind in prop_oneof![Just(Allocator::Native), Just(Allocator::Expandable), Just(Allocator::Async)],
        ops in prop::collection::vec(op(), 1..80),
        policy in prop_oneof![
            Just(Policy::only(Way::PeerMemory)), Just(Policy::only(Way::DmaBuf)), Just(Policy::by_module(true)),
        ],
        entries in prop_oneof![Just(u64::MAX), 1u64..6],
    ) {
        run(kind, ops, policy, Limits::default().with_entries(entries));
    }
}
