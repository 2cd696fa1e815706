// SPDX-License-Identifier: GPL-2.0

//! A converted number keeps its value.

use crate::num::{index, u64_from, usize_from};

#[test]
fn a_number_keeps_its_value() {
    for n in [0, 1, 2, 1 << 32, u64::MAX] {
        assert_eq!(usize_from(n).to_string(), n.to_string());
        assert_eq!(u64_from(usize_from(n)), n);
    }
    assert_eq!([0, 1, 2, u32::MAX].map(index).map(u64_from), [0, 1, 2, 0xffff_ffff]);
}
