// SPDX-License-Identifier: GPL-2.0

use crate::range::{GpuRange, PIN_GRANULE};
use proptest::prelude::*;

const TOP: u128 = 1 << 64;

fn up(at: u128, granule: u64) -> u128 {
    at.div_ceil(u128::from(granule)) * u128::from(granule)
}

fn down(at: u64, granule: u64) -> u64 {
    at / granule * granule
}

/// Returns addresses and sizes near everything that could be an edge.
fn near() -> impl Strategy<Value = u64> {
    let shifts = prop::sample::select(vec![0u32, 11, 12, 13, 15, 16, 17, 20, 21, 30, 31, 32, 46, 47, 52, 63]);
    prop_oneof![
        any::<u64>(),
        (shifts, -3i64..4).prop_map(|(s, d)| (1u64 << s).wrapping_add_signed(d)),
        (0u64..200_000).prop_map(|d| u64::MAX - d),
        0u64..200_000,
    ]
}

fn page_size() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![4096u64, 16384, 65536])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_range_is_what_plain_arithmetic_says(addr in near(), size in near(), page in page_size()) {
        let end = u128::from(addr) + u128::from(size);
        let pages_end = up(end, page);
        let pinned_end = up(pages_end, PIN_GRANULE);
        let fits = size != 0 && end < TOP && pages_end < TOP && pinned_end < TOP;
        let Some(range) = GpuRange::new(addr, size, page) else {
            prop_assert!(!fits, "refused");
            return Ok(());
        };
        prop_assert!(fits, "accepted");
        prop_assert_eq!((range.user().start(), range.user().len()), (addr, size));
        let starts = down(addr, page);
        prop_assert_eq!(range.pages().start(), starts);
        prop_assert_eq!(u128::from(range.pages().len()), pages_end - u128::from(starts));
        let starts = down(starts, PIN_GRANULE);
        prop_assert_eq!(range.pinned().start(), starts);
        prop_assert_eq!(u128::from(range.pinned().len()), pinned_end - u128::from(starts));
        let first = GpuRange::granule_of(range.pinned());
        prop_assert_eq!(first.pinned().start(), range.pinned().start());
        prop_assert_eq!((first.pinned().len(), first.pages(), first.user()), (PIN_GRANULE, first.pinned(), first.pinned()));
    }
}

#[test]
fn the_last_granule_of_the_address_space_is_never_a_gpus() {
    assert!(GpuRange::new(u64::MAX - 4095, 4096, 4096).is_none());
    assert!(GpuRange::new(u64::MAX - 0xffff, 1, 4096).is_none());
    assert!(GpuRange::new(u64::MAX - 0x1_ffff, 1, 4096).is_some());
    assert!(GpuRange::new(0x1000, 0, 4096).is_none());
}
