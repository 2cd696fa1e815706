// SPDX-License-Identifier: GPL-2.0

//! What the provider's errors say of memory (rule 3). Calls nothing.

use crate::observe::reason::Reason;
use crate::pin::{Otherwise, Owner};
use kernel::prelude::*;

/// Why an owner does not claim the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unclaimed {
    /// It is not memory of a GPU, or of one that the provider knows.
    NotMine,
    /// It is memory of a GPU, and only another owner's kind of pin can work.
    StepAside,
    /// Nobody knows yet whose it is: another owner's kind of pin tells.
    AskFallback,
    /// Nobody could find out whose memory it is.
    Unproven(Reason),
}

/// What an error of the provider says about the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Ours, and impossible.
    Refused(Reason),
    /// Not for this owner.
    Unclaimed(Unclaimed),
}

/// What a pin of one granule at the start of the range answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// It works, in a BAR of so many bytes.
    InBar(u64),
    /// It works, in no BAR.
    OutsideBar,
    /// It works, and the provider's table is of no use.
    Unusable(Reason),
    /// It fails.
    Failed(Error),
    /// It was not tried, beside the pin that failed.
    Unknown,
}

/// Judges an error that the provider returns only once it has found whose memory it is; `None` for others.
pub(super) fn proven(error: Error, owner: &'static Owner) -> Option<Verdict> {
    if error == ENOTSUPP {
        Some(match owner.otherwise {
            Otherwise::Revocable => Verdict::Unclaimed(Unclaimed::StepAside),
            Otherwise::RevocableIfAsked => Verdict::Refused(Reason::NotPersistent),
            Otherwise::Nobody => Verdict::Refused(Reason::NotSupported),
        })
    } else if error == EBUSY {
        Some(Verdict::Refused(Reason::Busy))
    } else if error == ENODEV {
        Some(Verdict::Refused(Reason::NoGpu))
    } else {
        None
    }
}

/// Returns whether a revocable pin tells what this `error` of a persistent one means. The provider answers
/// EIO also where it cannot duplicate an object that it knows, whatever part of it is asked for.
pub(super) fn asks_fallback(error: Error, owner: &'static Owner) -> bool {
    error == EIO && owner.otherwise == Otherwise::Revocable
}

/// Judges, by rule 3, what the provider's `error` means for `owner`. `start` is what its start answered.
pub(super) fn judge(error: Error, owner: &'static Owner, start: Start) -> Verdict {
    if let Some(verdict) = proven(error, owner) {
        return verdict;
    }
    if let Start::Failed(other) = start {
        if let Some(verdict) = proven(other, owner) {
            return verdict;
        }
    }
    if asks_fallback(error, owner) {
        return Verdict::Unclaimed(Unclaimed::AskFallback);
    }
    if error == ENOMEM || error == EIO {
        let reason = if error == ENOMEM { Reason::OutOfBar } else { Reason::ProviderFault };
        let unproven = match owner.otherwise {
            Otherwise::RevocableIfAsked if error == EIO => Reason::PersistentFault,
            _ => Reason::Unproven,
        };
        return match start {
            Start::Failed(other) if other == EINVAL => Verdict::Unclaimed(Unclaimed::NotMine),
            Start::Failed(other) if other == ENOMEM || other == EIO => {
                Verdict::Unclaimed(Unclaimed::Unproven(unproven))
            }
            Start::Unknown => Verdict::Unclaimed(Unclaimed::Unproven(unproven)),
            Start::Failed(_) | Start::InBar(_) | Start::OutsideBar | Start::Unusable(_) => Verdict::Refused(reason),
        };
    }
    match start {
        // Of memory of several allocations where BAR1 is full, this is all that is known.
        Start::Failed(other) if other != EINVAL => judge(other, owner, Start::Unknown),
        Start::Failed(_) | Start::Unknown => Verdict::Unclaimed(Unclaimed::NotMine),
        Start::InBar(_) | Start::OutsideBar | Start::Unusable(_) => Verdict::Refused(Reason::LeavesAllocation),
    }
}

/// Judges the provider's `error` for a piece of a range that begins in memory of ours. `alone` says that
/// the piece is the whole range.
pub(super) fn judge_piece(error: Error, owner: &'static Owner, alone: bool) -> Reason {
    match judge(error, owner, Start::OutsideBar) {
        Verdict::Refused(reason) => reason,
        // A revocable pin might do, but it is too late for one, and it would be one of several.
        Verdict::Unclaimed(_) if !alone => Reason::LeavesAllocation,
        Verdict::Unclaimed(_) if error == ENOTSUPP => Reason::NotSupported,
        Verdict::Unclaimed(_) => Reason::ProviderFault,
    }
}
