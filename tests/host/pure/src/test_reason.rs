// SPDX-License-Identifier: GPL-2.0

//! Tests the words in which the pin layer says why it refuses.

use crate::reason::Reason;

/// A user of samples/edu-dma would look for an RDMA core that has nothing to do with it, or for a
/// parameter that its module lacks.
#[test]
fn the_layers_words_suit_a_driver_without_rdma() {
    let foreign =
        ["RDMA core", "RDMA device", "NIC", "DOCA", "ibv_", "dma-buf", "peermemctl", "load with", "_support="];
    for reason in Reason::ALL {
        let words = reason.words();
        for word in foreign {
            assert!(!words.contains(word), "{}: {word:?} in {words:?}", reason.key());
        }
    }
}
