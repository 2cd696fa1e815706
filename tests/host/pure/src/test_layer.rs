// SPDX-License-Identifier: GPL-2.0

//! Looks that the pin layer stays a room: nothing in it speaks of the RDMA core, for which another
//! driver would look in vain.

use std::path::Path;
use std::{env, fs};

const LAYER: [&str; 10] =
    ["dma", "gpu", "invalidate.rs", "layer.rs", "num.rs", "observe", "pin", "range.rs", "several.rs", "sg.rs"];

const FOREIGN: [&str; 8] = ["crate::peer", "ib_core", "umem", "peer mutex", "RDMA core", "the core", "core's", "DOCA"];

/// Calls `look` with each file in `path`.
fn each(path: &Path, look: &mut impl FnMut(&Path)) {
    if path.is_file() {
        return look(path);
    }
    for entry in fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
        each(&entry.expect("it can be read").path(), look);
    }
}

#[test]
fn the_layer_knows_nothing_of_the_rdma_core() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../src");
    let mut files = 0;
    for part in LAYER {
        each(&src.join(part), &mut |file| {
            files += 1;
            for (number, line) in fs::read_to_string(file).expect("it is text").lines().enumerate() {
                for word in FOREIGN {
                    assert!(!line.contains(word), "{}:{}: {word:?} in {line:?}", file.display(), number + 1);
                }
            }
        });
    }
    assert!(files >= 20, "only {files} files were looked at");
}
