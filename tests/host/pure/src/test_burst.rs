// SPDX-License-Identifier: GPL-2.0

use crate::burst::Burst;
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

#[test]
fn one_line_per_burst() {
    let mut burst = Burst::new();
    assert_eq!(burst.happened(100 * S), Some(0), "the first is said");
    for n in 1..=40 {
        assert_eq!(burst.happened(100 * S + n * S / 10), None);
    }
    assert_eq!(burst.happened(104 * S + 5 * S), Some(40), "a new burst says what the last one did not");
    assert_eq!(burst.happened(109 * S + 5 * S), Some(0));
}

#[test]
fn a_burst_without_end_is_said_once_a_minute() {
    let mut burst = Burst::new();
    let said = (0..600).filter(|n| burst.happened(7 * S + n * S).is_some()).count();
    assert_eq!(said, 10);
}

proptest! {
    /// However events happen, each is either a line or counted by a later one, and two lines are 5
    /// s apart.
    #[test]
    fn nothing_is_lost(gaps in prop::collection::vec(0..20 * S, 1..200)) {
        let mut burst = Burst::new();
        let (mut now, mut lines, mut told, mut last) = (S, 0, 0, None);
        for gap in &gaps {
            now += gap;
            if let Some(unsaid) = burst.happened(now) {
                lines += 1;
                told += unsaid;
                prop_assert!(last.is_none_or(|last| now - last >= 5 * S));
                last = Some(now);
            }
        }
        let rest = burst.happened(now + 60 * S);
        prop_assert_eq!(lines + told + rest.expect("a line after a minute"), gaps.len() as u64);
    }
}
