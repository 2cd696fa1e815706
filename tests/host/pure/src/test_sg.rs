// SPDX-License-Identifier: GPL-2.0

use crate::raw;
use crate::sg::{cap, cut, entries, trim, BadPage, Coalescer, Extent, Room, Run, Runs, Table};
use proptest::prelude::*;

/// Stands for the kernel, of which `sg` needs the lists alone.
struct Kernel;

shim::lists!(Kernel);

impl shim::Lists for Kernel {}

/// Returns pages of one size in stretches, as a provider's table lists them.
fn pages() -> impl Strategy<Value = (u64, Vec<u64>)> {
    let size = prop::sample::select(vec![4096u64, 65536, 131_072]);
    let stretch = (0u64..1 << 20, 1u64..20);
    (size, prop::collection::vec(stretch, 1..12), any::<bool>()).prop_map(|(size, stretches, high)| {
        let base = if high { u64::MAX - (size << 21) + 1 } else { 0 };
        let list = stretches.iter().flat_map(|&(first, n)| (first..first + n).map(move |p| base + p * size));
        (size, list.collect())
    })
}

/// Computes byte for byte what of each page is wanted, with neighbours merged.
fn expected(size: u64, pages: &[u64], skip: u64, wanted: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, &page) in pages.iter().enumerate() {
        let (from, to) = (i as u64 * size, (i as u64 + 1) * size);
        let (first, last) = (from.max(skip), to.min(skip + wanted));
        if first >= last {
            continue;
        }
        let piece = Run { addr: page + (first - from), len: last - first };
        match runs.last_mut() {
            Some(run) if u128::from(run.addr) + u128::from(run.len) == u128::from(piece.addr) => run.len += piece.len,
            _ => runs.push(piece),
        }
    }
    runs
}

fn coalesce(size: u64, pages: &[u64]) -> Vec<Run> {
    let mut coalescer = Coalescer::new(size);
    let mut runs = Vec::new();
    for &page in pages {
        runs.extend(coalescer.push(page).expect("aligned, and inside the address space"));
    }
    runs.extend(coalescer.finish());
    runs
}

/// Merges contiguous pages in one step, as the module does.
fn coalesce_in_steps(size: u64, pages: &[u64]) -> Vec<Run> {
    let mut coalescer = Coalescer::new(size);
    let mut runs = Vec::new();
    let mut pages = pages;
    while let Some((&page, rest)) = pages.split_first() {
        runs.extend(coalescer.push(page).expect("aligned, and inside the address space"));
        pages = rest;
        if let Some((at, most)) = coalescer.expected() {
            let contiguous = (0..most).zip(pages).take_while(|&(i, &page)| page == at + i * size).count();
            coalescer.extend(contiguous as u64);
            pages = &pages[contiguous..];
        }
    }
    runs.extend(coalescer.finish());
    runs
}

/// Returns the fewest entries that rule 13 allows: one, or one per multiple of the cap that the run
/// touches.
fn fewest(run: Run, cap: u64) -> u64 {
    if run.len <= cap {
        return 1;
    }
    (run.addr + (run.len - 1)) / cap - run.addr / cap + 1
}

fn run() -> impl Strategy<Value = Run> {
    let len = prop_oneof![1u64..64, (1u64 << 14..1 << 24), Just(1 << 18), Just((1 << 18) + 16), Just(3 << 18)];
    (0u64..1 << 30, len).prop_map(|(addr, len)| Run { addr: addr << 12, len: len << 12 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn runs_cover_exactly_what_is_wanted((size, pages) in pages(), skip in any::<u64>(), wanted in any::<u64>()) {
        let total = size * pages.len() as u64;
        let skip = skip % size / 4096 * 4096;
        let wanted = (wanted % (total - skip)) / 4096 * 4096 + 4096;
        let whole = coalesce(size, &pages);
        prop_assert_eq!(coalesce_in_steps(size, &pages), whole.clone(), "in steps");
        // All bytes are there in their order, and no two neighbours could be one.
        prop_assert_eq!(&whole, &expected(size, &pages, 0, total));
        let runs: Vec<Run> = trim(whole.into_iter(), skip, wanted).collect();
        prop_assert_eq!(runs.iter().map(|r| r.len).sum::<u64>(), wanted);
        prop_assert_eq!(runs, expected(size, &pages, skip, wanted));
    }

    /// Wherever an IOMMU puts the runs, what is trimmed moves along.
    #[test]
    fn trimming_keeps_to_the_runs(
        runs in prop::collection::vec((0u64..1 << 30, 1u64..40), 1..8),
        skip in any::<u64>(),
        wanted in any::<u64>(),
    ) {
        let runs: Vec<Run> = runs.into_iter().map(|(addr, len)| Run { addr: addr << 12, len: len << 12 }).collect();
        let total = runs.iter().map(|r| r.len).sum::<u64>();
        let skip = skip % total;
        let wanted = wanted % (total - skip) + 1;
        let pages = |runs: &[Run]| -> Vec<u64> {
            runs.iter().flat_map(|r| (0..r.len / 4096).map(|i| r.addr + i * 4096)).collect()
        };
        let (skip, wanted) = (skip / 4096 * 4096, wanted.div_ceil(4096) * 4096);
        let trimmed: Vec<Run> = trim(runs.iter().copied(), skip, wanted).collect();
        prop_assert!(trimmed.iter().all(|r| r.len != 0));
        let (all, kept) = (pages(&runs), pages(&trimmed));
        prop_assert_eq!(&kept[..], &all[(skip / 4096) as usize..((skip + wanted) / 4096) as usize]);
    }

    #[test]
    fn an_extent_is_from_the_lowest_to_the_highest(runs in prop::collection::vec((0u64..1 << 40, 1u64..40), 1..8)) {
        let runs: Vec<Run> = runs.into_iter().map(|(addr, len)| Run { addr: addr << 12, len: len << 12 }).collect();
        let Extent { whole, alignment } = Extent::of(&runs).expect("runs");
        prop_assert_eq!(Some(whole.addr), runs.iter().map(|r| r.addr).min());
        prop_assert_eq!(Some(whole.addr + whole.len), runs.iter().map(|r| r.addr + r.len).max());
        let multiple = |of: u64| runs.iter().all(|r| r.addr % of == 0);
        prop_assert!(alignment == 0 && runs.iter().all(|r| r.addr == 0) || multiple(alignment) && !multiple(alignment * 2));
    }

    #[test]
    fn a_crooked_page_is_refused((size, pages) in pages(), by in any::<u64>()) {
        let by = by % (size - 1) + 1;
        let mut coalescer = Coalescer::new(size);
        prop_assert_eq!(coalescer.push(pages[0] + by), Err(BadPage::Misaligned));
    }

    #[test]
    fn cuts_are_as_few_as_rule_13_allows(run in run(), limit in any::<u64>(), shift in 12u32..31) {
        for cap in [u64::from(cap(limit, 4096)), 1 << shift] {
            let run = Run { len: run.len.min(cap * 300), ..run };
            let pieces: Vec<Run> = cut(run, cap).collect();
            prop_assert_eq!(pieces.iter().map(|p| p.len).sum::<u64>(), run.len);
            let mut at = run.addr;
            for piece in &pieces {
                prop_assert_eq!(piece.addr, at);
                prop_assert!(piece.len != 0 && piece.len <= cap);
                at += piece.len;
            }
            for piece in &pieces[1..] {
                prop_assert_eq!(piece.addr % cap, 0, "cut off a multiple of the cap");
            }
            prop_assert_eq!(pieces.len() as u64, fewest(run, cap));
        }
    }

    #[test]
    fn the_cap_is_the_limit_rounded_down(
        limit in any::<u64>(),
        page in prop::sample::select(vec![4096u64, 16384, 65536]),
    ) {
        let cap = u64::from(cap(limit, page));
        prop_assert!(cap.is_power_of_two() && cap >= page && cap <= 1 << 30);
        prop_assert!(cap <= limit || cap == page);
        prop_assert!(cap == 1 << 30 || cap * 2 > limit);
    }

    #[test]
    fn the_table_holds_the_pieces(runs in prop::collection::vec(run(), 1..8), shift in 24u32..31) {
        let cap = 1u32 << shift;
        let wanted: Vec<(u64, u32)> = runs
            .iter()
            .flat_map(|&r| cut(r, cap.into()))
            .map(|p| (p.addr, u32::try_from(p.len).expect("at most 1 GiB")))
            .collect();
        prop_assert_eq!(entries(runs.iter().copied(), cap), wanted.len());
        let room = Room::new();
        // SAFETY: The room is a local, and the only table in it is dropped first.
        let table = unsafe { Table::new(runs.iter().copied(), cap, &room) }.expect("memory");
        let (mut published, mut nmap) = (shim::Table::default(), 0);
        let to: *mut shim::Table = &mut published;
        // SAFETY: Both places outlive the call.
        unsafe { table.publish(to.cast::<raw::sg_table>(), &mut nmap) };
        prop_assert_eq!(usize::try_from(nmap), Ok(wanted.len()));
        prop_assert_eq!(published.entries, wanted);
    }
}

#[test]
fn an_extent_ends_with_the_address_space() {
    let page = Run { addr: u64::MAX - 4095, len: 4096 };
    assert_eq!(Extent::of(&[page]), Some(Extent { whole: page, alignment: 4096 }));
    assert_eq!(Extent::of(&[Run { len: 8192, ..page }]), None);
    // This has more bytes than a number can express.
    assert_eq!(Extent::of(&[Run { addr: 0, len: 4096 }, page]), None);
    assert_eq!(Extent::of(&[]), None);
}

#[test]
fn one_gib_of_neighbours_is_one_entry() {
    let size = 65536;
    let pages: Vec<u64> = (0..16384).map(|i| (8 << 30) + i * size).collect();
    let runs = coalesce(size, &pages);
    assert_eq!(entries(runs.iter().copied(), cap(2 << 30, 4096)), 1);
}

#[test]
fn a_page_may_end_at_the_end_of_the_address_space() {
    assert_eq!(Coalescer::new(65536).push(u64::MAX - 65535), Ok(None));
    assert_eq!(Coalescer::new(65536).push(u64::MAX - 4095), Err(BadPage::Misaligned));
}

#[test]
fn an_empty_table_is_refused() {
    let room = Room::new();
    // SAFETY: The room is a local, and no table is in it.
    let made = unsafe { Table::new(std::iter::empty::<Run>(), 1 << 30, &room) };
    assert_eq!(made.err(), Some(kernel::error::code::EINVAL));
}

#[test]
fn runs_keep_their_order_and_one_takes_no_memory() {
    let run = |at: u64| Run { addr: at << 20, len: 4096 };
    let mut runs = Runs::None;
    assert!(runs.make_room().is_ok() && runs.push(run(0)).is_ok());
    assert!(matches!(&runs, Runs::One(one) if *one == run(0)));
    // There is no room, and nothing is lost.
    assert!(runs.push(run(1)).is_err());
    (1..100).for_each(|at| assert!(runs.append(run(at)).is_ok()));
    let all: Vec<Run> = (0..100).map(run).collect();
    assert_eq!(runs.as_slice(), all);
    let mut runs = runs.without_slack().unwrap_or(Runs::None);
    assert!(matches!(&runs, Runs::Many(list) if list.len() == list.capacity()));
    assert_eq!(runs.as_slice(), all);
    runs.clear();
    assert!(runs.as_slice().is_empty() && runs.append(run(7)).is_ok());
    assert_eq!(runs.as_slice(), [run(7)]);
}
