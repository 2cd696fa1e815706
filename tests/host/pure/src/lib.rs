// SPDX-License-Identifier: GPL-2.0

//! Unit tests of the files that need no neighbours. It includes the shipped files by path, and
//! stubs of what they name.

#![cfg_attr(test, allow(dead_code))]
#![cfg(test)]

#[path = "../../../../src/observe/burst.rs"]
mod burst;
#[path = "../../../../src/num.rs"]
mod num;
#[path = "../../../../src/pin/pieces.rs"]
mod pieces;
#[path = "../../../../src/range.rs"]
mod range;
#[path = "../../../../src/ffi/raw.rs"]
mod raw;
#[path = "../../../../src/observe/reason.rs"]
mod reason;
#[path = "../../../../src/pin/registry.rs"]
mod registry;
#[path = "../../../../src/sg.rs"]
mod sg;

mod test_burst;
mod test_layer;
mod test_num;
mod test_pieces;
mod test_range;
mod test_reason;
mod test_registry;
mod test_sg;

/// The registry with so few indices that they can be used up (build.rs).
mod small {
    include!(concat!(env!("OUT_DIR"), "/small.rs"));
}

mod pin {
    pub(crate) use crate::{pieces, registry};

    /// A registration, as far as `registry` looks into it.
    pub(crate) mod registration {
        use crate::ffi::shim::Process;

        pub(crate) struct Registration {
            ticket: u64,
            owner: Process,
        }

        impl Registration {
            pub(crate) fn new(ticket: u64, owner: u32) -> Self {
                Self { ticket, owner: Process(owner) }
            }

            pub(crate) fn ticket(&self) -> u64 {
                self.ticket
            }

            pub(crate) fn process(&self) -> &Process {
                &self.owner
            }
        }
    }
}

mod ffi {
    pub(crate) use super::raw;

    pub(crate) mod shim {
        pub(crate) const EOPNOTSUPP: i32 = -95;

        #[derive(Default)]
        pub(crate) struct Resched(());

        impl Resched {
            /// The number of rounds, which is small so that small tests end a round.
            pub(crate) const ROUNDS: usize = 4;

            pub(crate) fn step(&mut self) {}
        }

        pub(crate) fn cond_resched() {}

        pub(crate) fn read_shortly<G, R>(try_lock: impl Fn() -> Option<G>, read: impl FnOnce(G) -> R) -> R {
            read(try_lock().expect("nobody else has it"))
        }

        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) struct Process(pub(crate) u32);

        impl Process {
            pub(crate) fn tgid(&self) -> u32 {
                self.0
            }
        }
    }
}
