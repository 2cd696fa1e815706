// SPDX-License-Identifier: GPL-2.0
//! Plans what a process of the storm does, as a pure function of seed, process number and life (a
//! process gets a new life by exec). The plan picks slots without regard to the outcome of earlier
//! operations. An operation that needs a registration takes the next one that exists.

/// The number of allocations and registrations that a process holds at most.
pub const MEMS: usize = 3;
pub const MRS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Allocates `kib` and frees what the slot holds.
    Alloc {
        mem: usize,
        kib: usize,
    },
    Free {
        mem: usize,
    },
    /// Registers random ranges of the allocation, one after the other, and keeps the last.
    Register {
        mr: usize,
        mem: usize,
        times: usize,
    },
    Deregister {
        mr: usize,
    },
    /// Moves bytes between two registrations and compares them.
    Write {
        from: usize,
        to: usize,
        kib: usize,
    },
    Read {
        from: usize,
        to: usize,
        kib: usize,
    },
    /// Frees in one thread while another registers.
    FreeAndRegister {
        mem: usize,
        mr: usize,
    },
    FreeAndDeregister {
        mr: usize,
    },
    FreeAndWrite {
        from: usize,
        to: usize,
    },
    DeregisterAndRegister {
        mr: usize,
        into: usize,
    },
    /// A child deregisters what its parent registered.
    ForkDeregister {
        mr: usize,
    },
    /// A child keeps all files open for a while, perhaps longer than its parent has them.
    ForkHold {
        us: u64,
    },
    /// A process with a storm of its own is killed at some moment.
    Kill {
        seed: u64,
        us: u64,
    },
    /// The process executes a new program. If `thread`, another thread than the first does it.
    Exec {
        thread: bool,
    },
    /// The NIC goes, with everybody's registrations, and comes back.
    RemoveHca,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc { .. } => "alloc",
            Self::Free { .. } => "free",
            Self::Register { .. } => "register",
            Self::Deregister { .. } => "deregister",
            Self::Write { .. } => "write",
            Self::Read { .. } => "read",
            Self::FreeAndRegister { .. } => "free+register",
            Self::FreeAndDeregister { .. } => "free+deregister",
            Self::FreeAndWrite { .. } => "free+write",
            Self::DeregisterAndRegister { .. } => "deregister+register",
            Self::ForkDeregister { .. } => "fork+deregister",
            Self::ForkHold { .. } => "fork+hold",
            Self::Kill { .. } => "kill",
            Self::Exec { .. } => "exec",
            Self::RemoveHca => "remove-hca",
        }
    }

    /// Every name, for a check that all of them happened.
    pub const NAMES: [&str; 15] = [
        "alloc",
        "free",
        "register",
        "deregister",
        "write",
        "read",
        "free+register",
        "free+deregister",
        "free+write",
        "deregister+register",
        "fork+deregister",
        "fork+hold",
        "kill",
        "exec",
        "remove-hca",
    ];
}

/// The process that the plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    pub seed: u64,
    pub process: u64,
    pub life: u64,
    /// Whether to plan only memory and registrations, as a victim does until it is killed.
    pub victim: bool,
    /// Whether the process is to register tens of thousands of times. It then registers more often
    /// in one operation, and also large memory, because a fork, a kill or a free costs as much as
    /// dozens of registrations.
    pub long: bool,
}

pub struct Plan {
    who: Who,
    /// The generator of one number per operation. The operation must not take more, because how
    /// many its contents take depends on the outcome of earlier ones.
    rng: fastrand::Rng,
    /// The generator of this operation's arguments and then of its contents.
    own: fastrand::Rng,
    /// The number of operations so far.
    n: u32,
}

/// The operation at which each process does its share of what is rare and takes long: late enough
/// that something is registered, early enough that the shortest storm comes to it. No other rare
/// operation comes before, because an exec would end the life that has this share.
const RARE_AT: u32 = 12;

impl Plan {
    pub fn new(who: Who) -> Self {
        // Multiply by odd constants, so that neighbouring numbers give unrelated streams.
        let mixed =
            who.seed ^ who.process.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ who.life.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let mut rng = fastrand::Rng::with_seed(mixed);
        let own = fastrand::Rng::with_seed(rng.u64(..));
        Self { who, rng, own, n: 0 }
    }

    /// Returns the generator for contents.
    pub fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.own
    }

    pub fn next(&mut self) -> Op {
        self.own = fastrand::Rng::with_seed(self.rng.u64(..));
        let rng = &mut self.own;
        let (mem, mr, other) = (rng.usize(..MEMS), rng.usize(..MRS), rng.usize(..MRS));
        let kib = rng.usize(1..=16);
        self.n += 1;
        let rare = !self.who.victim && (self.who.life > 0 || self.n >= RARE_AT);
        if rare && self.who.life == 0 && self.n == RARE_AT {
            match self.who.process {
                0 => return Op::RemoveHca,
                1 => return Op::Exec { thread: rng.bool() },
                2 => return Op::Kill { seed: rng.u64(..), us: rng.u64(..KILL_US) },
                3 => return Op::ForkHold { us: rng.u64(..HOLD_US) },
                4 => return Op::ForkDeregister { mr },
                _ => {}
            }
        }
        let large = self.who.long && rng.u8(..16) == 0;
        let times = if self.who.long { rng.usize(1..=LONG_TIMES) } else { 1 };
        // A new process costs as much as dozens of registrations, and the NIC's removal makes all
        // processes wait.
        match rng.u32(..1000) {
            0..80 => {
                // Every third allocation fills a block of its own.
                let kib = if rng.u8(..3) == 0 { 2048 } else { rng.usize(1..=12) * 64 };
                Op::Alloc { mem, kib: if large { 1024 * rng.usize(1..=12) } else { kib } }
            }
            80..140 => Op::Free { mem },
            140..490 => Op::Register { mr, mem, times },
            490..590 => Op::Deregister { mr },
            590..690 => Op::Write { from: mr, to: other, kib },
            690..720 => Op::Read { from: mr, to: other, kib },
            720..790 => Op::FreeAndRegister { mem, mr },
            790..850 => Op::FreeAndDeregister { mr },
            850..890 => Op::FreeAndWrite { from: mr, to: other },
            890..960 => Op::DeregisterAndRegister { mr, into: other },
            960..980 if rare => Op::ForkDeregister { mr },
            980..986 if rare => Op::ForkHold { us: rng.u64(..HOLD_US) },
            986..989 if rare => Op::Kill { seed: rng.u64(..), us: rng.u64(..KILL_US) },
            989..992 if rare => Op::Exec { thread: rng.bool() },
            992..995 if rare && self.who.process == 0 => Op::RemoveHca,
            _ => Op::Deregister { mr },
        }
    }
}

/// The number of registrations of one operation, at most.
const LONG_TIMES: usize = 12;

/// The longest time for which a child keeps its parent's files, and for which a victim lives.
const HOLD_US: u64 = 50_000;
const KILL_US: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(who: Who, n: usize) -> Vec<Op> {
        let mut plan = Plan::new(who);
        (0..n).map(|_| plan.next()).collect()
    }

    const WHO: Who = Who { seed: 7, process: 0, life: 0, victim: false, long: false };

    #[test]
    fn a_seed_is_a_sequence() {
        assert_eq!(ops(WHO, 1000), ops(WHO, 1000));
        // The plan must be the same whatever is drawn for contents in between.
        let mut plan = Plan::new(WHO);
        let drawing = (0..1000).map(|i| {
            plan.rng().fill(&mut vec![0; i % 7]);
            plan.next()
        });
        assert_eq!(drawing.collect::<Vec<_>>(), ops(WHO, 1000));
        for other in [Who { seed: 8, ..WHO }, Who { process: 1, ..WHO }, Who { life: 1, ..WHO }] {
            assert_ne!(ops(WHO, 20), ops(other, 20));
        }
    }

    #[test]
    fn each_process_comes_to_its_share() {
        let shares = ["remove-hca", "exec", "kill", "fork+hold", "fork+deregister"];
        for seed in 0..1000 {
            for (process, share) in (0..).zip(shares) {
                let ops = ops(Who { seed, process, long: seed % 2 == 0, ..WHO }, RARE_AT as usize);
                let at = ops.iter().position(|op| shares.contains(&op.name()));
                assert_eq!(at.map(|at| (at, ops[at].name())), Some((ops.len() - 1, share)), "seed {seed}");
            }
        }
    }

    #[test]
    fn everything_happens() {
        let seen: std::collections::BTreeSet<&str> = ops(WHO, 3000).iter().map(|op| op.name()).collect();
        assert_eq!(seen, Op::NAMES.into_iter().collect());
        let victim = ops(Who { victim: true, ..WHO }, 3000);
        assert!(!victim.iter().any(|op| matches!(op, Op::Exec { .. } | Op::Kill { .. } | Op::RemoveHca)));
        let second = ops(Who { process: 1, ..WHO }, 3000);
        assert!(!second.contains(&Op::RemoveHca), "one process is enough to remove the NIC");
    }
}
