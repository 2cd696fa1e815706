// SPDX-License-Identifier: GPL-2.0

use crate::pin::pieces::{Finder, Step, MOST_ASKED};
use crate::range::{Span, PIN_GRANULE};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const VA: u64 = 0x7f00_0000_0000;

/// The result for a range.
#[derive(Debug, PartialEq)]
struct Found {
    pieces: Vec<Span>,
    hole: Option<u64>,
    /// The number of pins that failed. The whole range counts as the first.
    failed: usize,
    /// The number of pins that a longer one replaced.
    replaced: usize,
}

/// Asks as `acquire` does. The allocations lie one behind the other, from `VA` on.
fn find(allocations: &[u64], start: u64, len: u64) -> Found {
    let ends: Vec<u64> = allocations.iter().scan(VA, |at, len| Some(std::mem::replace(at, *at + len) + len)).collect();
    let inside = |span: Span| {
        let next = ends.partition_point(|end| *end <= span.start());
        ends.get(next).is_some_and(|end| span.end() <= *end)
    };
    let mut finder = Finder::of_several(Span::new(start, len).expect("a range"));
    let mut found = Found { pieces: Vec::new(), hole: None, failed: 1, replaced: 0 };
    loop {
        match finder.next() {
            Step::Done => return found,
            Step::Hole(at) => {
                found.hole = Some(at);
                return found;
            }
            Step::Ask(span) if inside(span) => {
                if finder.worked(span) {
                    found.pieces.pop();
                    found.replaced += 1;
                }
                found.pieces.push(span);
            }
            Step::Ask(span) => {
                assert!(span.start() % PIN_GRANULE == 0 && span.len() % PIN_GRANULE == 0);
                finder.failed(span);
                found.failed += 1;
            }
        }
    }
}

/// Checks that the pieces cover the range up to its end, or up to the hole.
fn check(found: &Found, start: u64, len: u64) {
    let mut at = start;
    for piece in &found.pieces {
        assert_eq!(piece.start(), at);
        at = piece.end();
    }
    assert_eq!(at, found.hole.unwrap_or(start + len));
}

#[test]
fn segments_of_20_mib_cost_eight_attempts() {
    let found = find(&[20 * MIB; 52], VA, GIB);
    check(&found, VA, GIB);
    assert_eq!((found.pieces.len(), found.failed, found.replaced), (52, 8, 1));
}

#[test]
fn a_few_segments_are_as_many_pieces() {
    for count in 2..12 {
        let found = find(&vec![20 * MIB; count], VA, count as u64 * 20 * MIB);
        assert_eq!(found.pieces.len(), count, "{found:?}");
    }
}

#[test]
fn the_range_may_begin_anywhere_in_a_segment() {
    for into in (0..20 * MIB).step_by(64 << 10) {
        let found = find(&[20 * MIB; 53], VA + into, GIB);
        check(&found, VA + into, GIB);
        assert!(found.pieces.len() <= 80 && found.failed <= 24, "{into:#x}: {} {}", found.pieces.len(), found.failed);
    }
}

#[test]
fn equal_pieces_cost_little_more_than_themselves() {
    for (length, count) in [(64 * KIB, 1000), (2 * MIB, 32768), (4 * MIB, 100), (GIB, 80)] {
        let whole = length * count;
        let found = find(&vec![length; count as usize], VA, whole);
        check(&found, VA, whole);
        let logs = whole.ilog2() as usize;
        assert!(found.pieces.len() <= count as usize + 2, "{length:#x}: {}", found.pieces.len());
        assert!(found.failed <= 3 * logs, "{length:#x}: {}", found.failed);
    }
}

#[test]
fn a_short_allocation_does_not_shorten_what_follows() {
    let found = find(&[2 * MIB, 60 * GIB], VA, 60 * GIB + 2 * MIB);
    check(&found, VA, 60 * GIB + 2 * MIB);
    assert!(found.pieces.len() <= 100, "{} pieces", found.pieces.len());
}

#[test]
fn a_hole_is_told_by_its_first_address() {
    for hole in [64 * KIB, 2 * MIB, 3 * MIB, 22 * MIB, 20 * MIB + 64 * KIB] {
        let mut allocations = vec![20 * MIB; (hole / (20 * MIB)) as usize];
        allocations.push(hole % (20 * MIB));
        let found = find(&allocations, VA, GIB);
        check(&found, VA, GIB);
        assert_eq!(found.hole, Some(VA + hole));
    }
}

fn allocations() -> impl Strategy<Value = Vec<u64>> {
    let lengths = prop_oneof![
        (1u64..40).prop_map(|n| n * 64 * KIB),
        (1u64..40).prop_map(|n| n * 2 * MIB),
        prop::sample::select(vec![64 * KIB, 2 * MIB, 20 * MIB, GIB, 30 * GIB]),
    ];
    prop::collection::vec((lengths, 1usize..6), 1..20)
        .prop_map(|runs| runs.into_iter().flat_map(|(length, count)| vec![length; count]).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_allocations_are_covered_or_the_hole_is_found(
        allocations in allocations(), from in 0u64..64, over in 0u64..4, top in any::<bool>()
    ) {
        let all: u64 = allocations.iter().sum();
        let start = (from * 64 * KIB).min(allocations[0] - 64 * KIB);
        let len = all - start + over * 64 * KIB;
        // Otherwise the whole range would have worked.
        prop_assume!(allocations.len() > 1 || over != 0);
        let found = find(&allocations, VA + start, len);
        check(&found, VA + start, len);
        prop_assert_eq!(found.hole, (over != 0).then_some(VA + all));
        // Only a few gets fail for each allocation, however they change.
        prop_assert!(found.failed <= 40 * (allocations.len() + 1), "{} failed", found.failed);
        // Nothing wraps at the top of the address space.
        if top {
            let mut finder = Finder::new(Span::new(0u64.wrapping_sub(len + 64 * KIB), len).expect("does not wrap"));
            while let Step::Ask(span) = finder.next() {
                finder.failed(span);
            }
            prop_assert!(matches!(finder.next(), Step::Hole(_)));
        }
    }
}

/// One allocation is pinned in one piece, unless it is longer than what may be asked for at once.
#[test]
fn one_allocation_is_asked_for_as_a_whole_up_to_a_bound() {
    for (len, pieces) in [(GIB, 1), (MOST_ASKED, 1), (MOST_ASKED + PIN_GRANULE, 2), (16 * MOST_ASKED, 16)] {
        let mut finder = Finder::new(Span::new(VA, len).expect("a range"));
        let mut at = VA;
        for _ in 0..pieces {
            let Step::Ask(span) = finder.next() else { panic!("nothing to ask for at {at:#x}") };
            assert_eq!(span.start(), at);
            assert!(span.len() <= MOST_ASKED, "{:#x} bytes at once", span.len());
            assert!(!finder.worked(span), "nothing is pinned twice");
            at = span.end();
        }
        assert_eq!((finder.next(), at), (Step::Done, VA + len));
    }
}

/// For a long range over several allocations, the whole is tried first, then what [`find`] tries.
#[test]
fn a_whole_that_fails_is_tried_in_pieces() {
    let mut finder = Finder::new(Span::new(VA, 2 * GIB).expect("a range"));
    let Step::Ask(whole) = finder.next() else { panic!("the whole is asked for") };
    assert_eq!(whole.len(), 2 * GIB);
    finder.failed(whole);
    let Step::Ask(half) = finder.next() else { panic!("a part is asked for") };
    assert_eq!((half.start(), half.len()), (VA, GIB));
}
